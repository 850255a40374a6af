"""What no file of the package may contain."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "bayeswise"
FILES = sorted(PACKAGE.rglob("*.py"))
CALLS = {"print", "exit", "quit", "breakpoint", "eval", "exec", "nan_to_num", "nan_to_num_"}
ATTRIBUTES = {"sys.exit", "os._exit", "os.abort", "torch.load", "torch.save", "plt.show", "pyplot.show"}
ATTRIBUTES |= {"torch.set_default_dtype", "torch.set_num_threads", "torch.use_deterministic_algorithms"}
ATTRIBUTES |= {"np.random.seed", "numpy.random.seed", "random.seed"}
MODULES = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
ALLOWED = {
    ("cli/__init__.py", "SystemExit"),  # a program may end; a library may not
    ("report/demo.py", "torch.set_num_threads"),  # put back in `finally`
}
SEEDING = {"torch.manual_seed", "torch.set_rng_state"}
SEEDERS = {"randomness.py", "data.py"}  # where the state of the user is put back


def offences(source: str, file: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append("bare except")
        if isinstance(node, ast.ExceptHandler) and _only_passes(node) and _is_broad(node):
            found.append("a broad except that hides the error")
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"import {name}" for name in names if name.split(".")[0] in MODULES]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.split(".")[-1]
            if (name in CALLS or last.startswith("nan_to_num")) or name in ATTRIBUTES:
                found.append(name)
            if name in SEEDING and file not in SEEDERS:
                found.append(name)
        if isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc):
            found.append("SystemExit")
    return [what for what in found if (file, what) not in ALLOWED]


def _is_broad(node: ast.ExceptHandler) -> bool:
    return node.type is not None and ast.unparse(node.type) in ("Exception", "BaseException")


def _only_passes(node: ast.ExceptHandler) -> bool:
    return all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(PACKAGE)) for p in FILES])
def test_no_exit_print_bare_except_or_pickle(path: Path):
    assert offences(path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix()) == []


@pytest.mark.parametrize(
    "code",
    [
        "print(1)",
        "import sys\nsys.exit(0)",
        "exit()",
        "raise SystemExit(0)",
        "try:\n    f()\nexcept:\n    g()",
        "try:\n    f()\nexcept Exception:\n    pass",
        "torch.nan_to_num(x)",
        "x.nan_to_num_(0)",
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.manual_seed(0)",
    ],
)
def test_the_check_sees(code: str):
    assert len(offences(code, "some.py")) == 1
