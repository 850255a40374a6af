"""Dependencies point one way, and what is imported stays light."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
PACKAGE = SRC / "bayeswise"

# From the bottom up: a part imports only from the rows above its own, and from its neighbours
# where those are not to stay apart. A new module or folder of the package needs a place here.
LAYERS = (
    "arrays plain linalg",
    "distributions networks",
    "problem likelihoods priors predictive quantiles linearised weights posterior metrics saving storage "
    "randomness data cautions identity training tables methods.protocol",
    "methods",
    "trials notices fitting estimators",
    "__init__",
    "report",
    "bench",
    "cli",
    "__main__",
)
RANK = {part: rank for rank, row in enumerate(LAYERS) for part in row.split()}
APART = frozenset({"distributions", "networks", "bench", "cli"})
# Files of methods/ that hold no method but what methods have in common; so do names with an underscore.
SHARED_BY_METHODS = frozenset(
    {"protocol", "schedules", "forward", "updates", "gradient", "structures", "evidence", "members"}
    | {
        "tuning",
        "rehearsals",
        "bali_state",
        "accounts",
        "mean_update",
        "subsets",
        "continuing",
        "memory",
        "policy",
    }
    | {"online", "choosing", "rehearsals"}
)
HEAVY = ("sklearn", "pandas", "scipy", "matplotlib")


def modules() -> list[str]:
    """Dotted names inside the package, e.g. methods.bali; a folder is its own name."""
    names = (path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py"))
    return sorted(".".join(n[:-1] if n[-1] == "__init__" and len(n) > 1 else n) for n in names)


def source(module: str) -> tuple[Path, bool]:
    """The file of a module, and whether it is a folder's __init__."""
    base = PACKAGE.joinpath(*module.split("."))
    folder = base / "__init__.py"
    return (folder, True) if folder.exists() else (base.with_suffix(".py"), module == "__init__")


def runtime_nodes(tree: ast.AST, skip: tuple[type[ast.AST], ...] = ()) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`, which are no dependency when the code runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, skip) or isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from runtime_nodes(node, skip)


def absolute(node: ast.ImportFrom, module: str, is_folder: bool) -> str:
    """The full dotted name that a from-import starts at."""
    if not node.level:
        return node.module or ""
    package = ["bayeswise", *([] if module == "__init__" else module.split("."))]
    up = node.level - (1 if is_folder else 0)
    return ".".join([*package[: len(package) - up], *([node.module] if node.module else [])])


def imported_names(nodes: Iterator[ast.AST], module: str, is_folder: bool) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = absolute(node, module, is_folder)
            yield from (f"{start}.{alias.name}" for alias in node.names)


def resolve(name: str, known: set[str]) -> str | None:
    """The module of the package a dotted name lands in; None outside it."""
    parts = name.split(".")
    if parts[0] != "bayeswise" or parts[1:] == ["__version__"]:
        return None
    inside = (".".join(parts[1:end]) for end in range(len(parts), 1, -1))
    return next((candidate for candidate in inside if candidate in known), "__init__")


def imports(module: str, skip: tuple[type[ast.AST], ...] = ()) -> set[str]:
    """Modules of the package that this one imports, outside the skipped kinds of nodes."""
    path, is_folder = source(module)
    nodes = runtime_nodes(ast.parse(path.read_text(encoding="utf-8")), skip)
    known = set(modules())
    found = {resolve(name, known) for name in imported_names(nodes, module, is_folder)}
    return {name for name in found if name is not None and name != module}


def part(module: str) -> str:
    """The entry of LAYERS that a module belongs to."""
    return module if module in RANK else module.split(".")[0]


def may_import(here: str, there: str) -> bool:
    if here == there or not {here, there} <= set(RANK):  # test_every_part_has_a_place names the latter
        return True
    return RANK[there] < RANK[here] or (RANK[there] == RANK[here] and here not in APART)


def run(code: str) -> str:
    """What a fresh interpreter prints for this code, with the package on its path."""
    start = f"import sys; sys.path.insert(0, {str(SRC)!r})\n"
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_reader_of_imports_sees_every_form():
    tree = ast.parse(
        "import torch, bayeswise.linalg.cholesky\nfrom . import kfac\nfrom .. import saving\n"
        "from ..networks import views\nfrom bayeswise import fit\nfrom bayeswise import __version__\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bayeswise import cli\n"
        "def f():\n    from bayeswise.report.html import write\n"
    )
    known = {"linalg", "linalg.cholesky", "saving", "networks", "networks.views", "report", "report.html"}
    known |= {"cli", "methods", "methods.bali", "methods.kfac", "__init__"}
    found = {resolve(name, known) for name in imported_names(runtime_nodes(tree), "methods.bali", False)} - {
        None
    }
    assert found == {"linalg.cholesky", "methods.kfac", "saving", "networks.views", "__init__", "report.html"}


def test_every_part_has_a_place():
    missing = {part(module) for module in modules()} - set(RANK)
    assert not missing, f"give {sorted(missing)} a place in LAYERS and in the map of docs/design.md"


def test_dependencies_point_one_way():
    wrong = [
        f"{here} imports {there}"
        for here in modules()
        for there in imports(here)
        if not (here == "__init__" or may_import(part(here), part(there)))
    ]
    assert not wrong, wrong


def test_rules_of_the_design_hold_in_the_table():
    assert may_import("methods", "distributions") and may_import("methods", "networks")
    assert not may_import("networks", "distributions") and not may_import("distributions", "networks")
    assert not may_import("training", "methods") and not may_import("methods", "fitting")
    outside = set(RANK) - {"cli", "bench", "__main__"}
    assert not any(may_import(here, "cli") or may_import(here, "bench") for here in outside)
    assert not may_import("bench", "cli") and may_import("cli", "bench")


def test_no_method_imports_another():
    wrong = [
        f"{here} imports {there}"
        for here in modules()
        for there in imports(here)
        if here.startswith("methods.") and there.startswith("methods.") and is_other_method(here, there)
    ]
    assert not wrong, wrong


def is_other_method(here: str, there: str) -> bool:
    mine, other = here.split(".")[1], there.split(".")[1]
    return other != mine and not other.startswith("_") and other not in SHARED_BY_METHODS


def test_no_import_cycles():
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)  # what they import is loaded when they are called
    graph = {
        module: imports(module, functions) for module in modules() if module not in ("__init__", "__main__")
    }
    while leaves := {module for module, needs in graph.items() if not needs & set(graph)}:
        graph = {module: needs for module, needs in graph.items() if module not in leaves}
    assert not graph, f"in or behind a cycle: {sorted(graph)}"


@pytest.mark.parametrize(
    "use", ["", "; bayeswise.fit; bayeswise.BALI; bayeswise.Gaussian; bayeswise.Predictive"]
)
def test_import_loads_no_heavy_package(use: str):
    code = f"import bayeswise{use}\nprint([name for name in {HEAVY} if name in sys.modules])"
    assert run(code).strip() == "[]"


def test_import_costs_little_over_torch():
    """Without the collector, which walks through all that torch made, in whoever's import its time comes."""
    code = """
import gc, time, torch
gc.disable()
start = time.process_time()
import bayeswise; bayeswise.fit; bayeswise.BALI
print(time.process_time() - start)
"""
    tries = (float(run(code)) for _ in range(6))  # of the processor: a busy neighbour counts little
    assert any(seconds <= 0.3 for seconds in tries)


HELP = """
import time
start = time.perf_counter()
from bayeswise.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code, end.code
print(time.perf_counter() - start, "torch" in sys.modules)
"""


def test_help_does_not_import_torch():
    pytest.importorskip("click")
    shown = run(HELP)
    assert re.search(r"\bfit\b", shown) and re.search(r"\bpredict\b", shown)
    assert shown.split()[-1] == "False"


def test_help_starts_quickly():
    pytest.importorskip("click")
    tries = (float(run(HELP).split()[-2]) for _ in range(4))
    assert any(seconds <= 0.4 for seconds in tries)
