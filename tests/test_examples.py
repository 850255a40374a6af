"""What the documents show is true: examples run, blocks run, tables equal the code, messages are raised."""

import dataclasses
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import bayeswise as bw
from bayeswise.methods import BALI, METHODS, Registry
from bayeswise.methods.protocol import Steps

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide.md"
PACKAGE = ROOT / "src" / "bayeswise"


# ------------------------------------------------------------------------------------------------- examples


def run_example(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main()


def test_the_regression_is_sure_at_the_data_and_not_in_the_gap(capsys):
    prediction = run_example("regression")
    at_data, gap = prediction.epistemic[[0, 4]].max(), prediction.epistemic[2]
    assert gap > 4 * at_data
    assert abs(prediction.mean[0] - 50) < 2  # sin(π) is 0
    assert 0.8 < prediction.aleatoric[0] < 1.25  # the noise is 1
    assert "90 % interval" in capsys.readouterr().out


def test_the_classifier_notices_rows_from_elsewhere(capsys):
    predictions = run_example("classifier")
    known, far = predictions["like the training data"], predictions["far away from them"]
    assert far.epistemic.mean() > 50 * known.epistemic.mean()
    assert "held-out accuracy 0.9" in capsys.readouterr().out


def test_the_pipeline_is_calibrated(capsys):
    found = run_example("sklearn_pipeline")
    assert 0.8 < found["coverage_90"] < 0.97
    assert found["r2_cross_validated"] > 0.3
    assert "three folds" in capsys.readouterr().out


def test_a_saved_and_a_resumed_run_have_the_same_bits(capsys):
    assert run_example("saving") == {"loaded": True, "resumed": True}
    assert "step-000000200.safetensors" in capsys.readouterr().out


def test_the_residual_network_learns_and_stays_as_it_was(capsys):
    found = run_example("residual_network")
    assert found["all linear layers"] < 0.06 < found["only the head"]
    assert found["unchanged"] == 1.0
    assert "blocks.0.norm.weight" in capsys.readouterr().out


def test_every_example_has_a_test():
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == set(re.findall(r'run_example\("(\w+)"\)', Path(__file__).read_text()))


# --------------------------------------------------------------------------------------------------- blocks


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def short_runs(monkeypatch, tmp_path):
    """At most 60 steps a run, in an empty folder."""
    monkeypatch.setattr(BALI, "plan", lambda self, problem: Steps(min(self.steps, 60)))
    monkeypatch.chdir(tmp_path)


METHOD_PAGES = [f"docs/methods/{name}.md" for name in ("map", "ensemble", "mc_dropout", "bbb", "swag")]


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", *METHOD_PAGES])
def test_the_blocks_of_a_page_run(page: str, short_runs):
    code = "\n".join(blocks(ROOT / page, "python"))
    names: dict = {"__name__": "page"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(code, page, "exec"), names)
    if page == "README.md":
        near, far = names["prediction"].epistemic[:, 0]
        assert far > 5 * near  # what the picture above it shows
        assert names["mean"].shape == names["std"].shape == (92,)
    if page == "docs/guide.md":
        assert torch.equal(
            names["again"].predict(names["x"]).mean, names["posterior"].predict(names["x"]).mean
        )
        assert names["everyone"].mean.shape == (4, 300, 1)
        assert names["history"][0][0] == 50
        assert float(names["far"].epistemic) > float(names["prediction"].epistemic.mean())


def test_the_noise_of_the_summary_is_what_the_guide_says():
    x, y = smooth(200, 0)
    method = bw.BALI(steps=60, temperature=2.0)
    posterior = bw.fit(small_network(1), (x, y), bw.Gaussian(), method, progress=False)
    said = re.findall(r"mean noise ([\d.e-]+)", posterior.summary())[-1]  # of the output layer
    expected = float(said) * float(y.std(correction=0)) * 2.0**0.5
    assert float(posterior.predict(x).aleatoric.mean()) == pytest.approx(expected, rel=2e-3)
    assert "200 rows counted as" in posterior.summary() and "temperature 2" in posterior.summary()


@pytest.fixture
def smallest(monkeypatch) -> dict:
    """The names of the smallest method, as the page on the design shows it."""
    (code,) = (code for code in blocks(ROOT / "docs" / "design.md", "python") if "class Restarts" in code)
    monkeypatch.setattr("bayeswise.methods.METHODS", Registry(dict.items(METHODS)))
    names: dict = {"__name__": "smallest"}
    monkeypatch.setitem(sys.modules, "smallest", types.ModuleType("smallest"))  # dataclasses look there
    exec(compile(code, "docs/design.md", "exec"), names)
    return names


def smooth(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=rng)
    return x, 30 + 10 * x[:, 0] * x[:, 1] + torch.randn(rows, generator=rng)


def small_network(outputs: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, outputs))


def test_the_smallest_method_learns_is_saved_and_resumed(smallest: dict, tmp_path: Path):
    (x, y), (new, truth) = smooth(200, 0), smooth(100, 1)
    network, method = small_network(1), smallest["Restarts"]()
    posterior = bw.fit(network, (x, y), bw.Gaussian(), method, progress=False)
    prediction = posterior.predict(new)
    assert float(bw.metrics.rmse(prediction.mean, truth)) < 0.25 * float(truth.std())
    assert 0.8 < float(bw.metrics.coverage(*prediction.interval(0.9), truth)) < 0.98
    assert "5 networks, 500 steps" in posterior.summary()
    posterior.save(tmp_path / "m")
    assert torch.equal(bw.load(tmp_path / "m", network).predict(new).mean, prediction.mean)
    run = {"progress": False, "checkpoint": bw.Checkpoints(tmp_path / "run", every=200)}
    for _ in range(2):
        again = bw.fit(network, (x, y), bw.Gaussian(), method, **run)
        assert torch.equal(again.predict(new).mean, prediction.mean)


def test_the_smallest_method_takes_classes_members_and_a_name(smallest: dict):
    from bayeswise import methods

    (x, y), method = smooth(200, 0), methods.fresh("restarts", 300)
    assert method == smallest["Restarts"](steps=300)
    labels = (y > 30).long()
    found = bw.fit(small_network(2), (x, labels), bw.Categorical(), method, progress=False).predict(x)
    assert float(bw.metrics.accuracy(found.mean, labels)) > 0.9
    pairs = (torch.stack([x, -x]), torch.stack([y, y])[..., None])
    both = bw.fit(small_network(1), pairs, bw.Gaussian(0.5), method, members=2, progress=False)
    for mean in both.predict(pairs[0]).mean:
        assert float(bw.metrics.rmse(mean, y)) < 0.25 * float(y.std())


def words(text: str) -> list[str]:
    """Lines without numbers, rules and spaces."""
    lines = (re.sub(r"[\d.,]+", "#", " ".join(line.split())) for line in text.splitlines())
    return [line for line in lines if line.strip("─ ")]


def test_the_command_of_the_readme_prints_what_the_readme_shows(monkeypatch, tmp_path):
    from sklearn.datasets import load_diabetes

    from bayeswise.cli import main

    monkeypatch.chdir(tmp_path)
    load_diabetes(as_frame=True, scaled=False).frame.to_csv("diabetes.csv", index=False)
    shown = next(block for block in blocks(ROOT / "README.md", "console") if "bayeswise fit" in block)
    head, command, rest = shown.split("\n", 2)
    printed, last = rest.rsplit("$ ", 1)
    result = CliRunner().invoke(main, command.split()[2:])
    assert result.exit_code == 0, result.output
    assert words(result.output) == words(printed)
    result = CliRunner().invoke(main, last.split()[1:])
    assert result.exit_code == 0, result.output
    assert len(Path("predictions.csv").read_text().splitlines()) == 443


def test_every_command_of_the_guide_exists():
    from bayeswise.cli import main

    lines = "".join(blocks(GUIDE, "console")).splitlines()
    for line in lines:
        name, *options = re.sub(r"#.*", "", line).split()[2:]
        known = {option for parameter in main.commands[name].params for option in parameter.opts}
        assert {option for option in options if option.startswith("--")} <= known, line


# --------------------------------------------------------------------------------------------------- tables


def rows(page: Path, first: str) -> list[list[str]]:
    """The cells of the table whose first heading starts like this."""
    lines = iter(page.read_text().splitlines())
    next(line for line in lines if line.startswith(f"| {first}"))
    next(lines)
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return table


@pytest.mark.parametrize("name", list(METHODS))
def test_the_settings_of_a_method_page_are_the_fields_of_the_method(name: str):
    method = METHODS[name]
    printed = {row[0]: row[1] for row in rows(ROOT / "docs" / "methods" / f"{name}.md", "field of")}
    assert printed == {field.name: repr(field.default) for field in dataclasses.fields(method)}


def test_the_settings_of_checkpoints_are_its_fields():
    printed = {row[0]: row[1] for row in rows(ROOT / "docs" / "saving.md", "setting of")}
    fields = dataclasses.fields(bw.Checkpoints)[1:]
    assert printed == {field.name: repr(field.default) for field in fields}


@pytest.mark.parametrize("name", list(METHODS))
def test_the_names_beside_the_equations_are_in_their_files(name: str):
    for *_, code, file in rows(ROOT / "docs" / "methods" / f"{name}.md", "equation"):
        assert re.search(rf"^\s*(def|class) {code}\b", (PACKAGE / file).read_text(), re.MULTILINE), (
            code,
            file,
        )


def test_the_details_of_a_step_are_those_that_the_page_names():
    seen: dict[str, float] = {}
    x = torch.linspace(-1, 1, 7)[:, None]
    bw.fit(
        mlp(1, 1), (x, x), bw.Gaussian(), bw.BALI(steps=2), progress=False,
        callbacks=[lambda progress: seen.update(progress.info.details())],
    )  # fmt: skip
    printed = {row[0] for row in rows(ROOT / "docs" / "methods" / "bali.md", "name")}
    general = {f'details()["{re.sub("/.*", "/<layer>", name)}"]' for name in seen}
    assert printed == general | {"log_lik"}


def test_the_folders_of_the_design_exist():
    tree = next(block for block in blocks(ROOT / "docs" / "design.md", "text") if block.startswith("src/"))
    inside = re.findall(r"^  (\S+) ", tree, re.MULTILINE)
    assert len(inside) > 15
    missing = [name for name in inside if not (PACKAGE / name).exists()]
    assert missing == []
    there = {
        path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert there == {name.rstrip("/") for name in inside}


def test_links_between_pages_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in (page for page in pages if "_build" not in page.parts):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


# ------------------------------------------------------------------------------------------ troubleshooting


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 3), nn.ReLU(), nn.Linear(3, outputs))


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).detach()


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 3), nn.LayerNorm(3), nn.Linear(3, 1))


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5), nn.Linear(5, 1))
    model[2].weight = model[0].weight
    return model


X, Y = torch.linspace(-1, 1, 35).reshape(7, 5), torch.linspace(0, 1, 7)
NAN = torch.full((7, 5), float("nan"))


def fit(model=None, data=(X, Y), likelihood=None, method=None, **options):
    method = method or bw.BALI(steps=2)
    return bw.fit(model or mlp(5, 1), data, likelihood or bw.Gaussian(), method, progress=False, **options)


def other_run(folder: Path) -> None:
    fit(checkpoint=folder)
    fit(checkpoint=folder, method=bw.BALI(steps=3))


def occupied(folder: Path) -> None:
    (folder / "letter.txt").write_text("hello")
    fit().save(folder)


def damaged(folder: Path) -> None:
    fit().save(folder / "m")
    file = folder / "m" / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    bw.load(folder / "m", mlp(5, 1))


def another_module(folder: Path) -> None:
    fit().save(folder / "m")
    bw.load(folder / "m", mlp(4, 1))


def empty_loader() -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8, drop_last=True)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def stream() -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Stream(), batch_size=7)


def singular(_: Path) -> None:
    from bayeswise.linalg import safe_cholesky

    safe_cholesky(-torch.eye(3))


def infinite(_: Path) -> None:
    from bayeswise.linalg import safe_cholesky

    safe_cholesky(torch.full((3, 3), float("nan")))


RAISES: dict[str, Callable[[Path], object]] = {
    "model must be a torch.nn.Module": lambda _: fit(torch.tanh),
    "give a pair (x, y) of tensors or arrays, a Dataset or a DataLoader": lambda _: fit(data=X),
    "their rows do not agree": lambda _: fit(data=(X, Y[:3])),
    "inputs are NaN or infinite": lambda _: fit(data=(NAN, Y)),
    "the model computes with floats": lambda _: fit(data=(X.long(), Y)),
    "targets are NaN or infinite": lambda _: fit(data=(X, NAN[:, 0])),
    "give one column for each output": lambda _: fit(data=(X, X)),
    "number the classes from 0": lambda _: fit(mlp(5, 3), (X, torch.arange(7)), bw.Categorical()),
    "use Bernoulli": lambda _: fit(data=(X, Y.round()), likelihood=bw.Categorical()),
    "Bernoulli labels are 0 or 1": lambda _: fit(data=(X, torch.arange(7)), likelihood=bw.Bernoulli()),
    "flatten it in the model's forward": lambda _: fit(nn.Linear(5, 1), (X[:, None], Y)),
    "remove detach() or no_grad() from the model's forward": lambda _: fit(Detached()),
    "BALI found no layer to infer": lambda _: fit(nn.Flatten(), (X[:, :1], Y)),
    "which is no supported layer": lambda _: fit(select=["head"]),
    "share a parameter": lambda _: fit(tied()),
    "belong to no inferred layer and stay as they are": lambda _: fit(Normed()),
    "are not positive definite, even with": singular,
    "entries are NaN or infinite": infinite,
    "is computed in float32": lambda _: fit(data=(X.half(), Y)),
    "belongs to a run with another": other_run,
    "holds other files; save to a new directory": occupied,
    "build the same model": another_module,
    "does not match its checksum": damaged,
    "labels have no quantiles or intervals": lambda _: bw.Bernoulli().predictive(X[None]).interval(),
    "leaves the noise to the method": lambda _: bw.Gaussian().log_prob(X, X),
    "the model cannot run on x of shape": lambda _: fit(data=(X[:, :4], Y)),
    "may yield other batches when it is gone through again": lambda folder: fit(
        data=stream(), checkpoint=folder
    ),
    "the Dataset has no rows": lambda _: fit(data=torch.utils.data.TensorDataset(X[:0], Y[:0])),
    "the DataLoader yields no batch": lambda _: fit(data=empty_loader()),
}
ELSEWHERE = {"factorisations needed jitter", "the data yield no batch"}  # only looked up in the source here


@pytest.mark.parametrize("message", list(RAISES))
def test_a_message_of_the_guide_is_raised(message: str, tmp_path):
    with pytest.raises(Exception, match=re.escape(message)):  # warnings are errors here
        RAISES[message](tmp_path)


def test_every_message_of_the_guide_is_tried():
    cells = [row[0] for row in rows(GUIDE, "message")]
    printed = {message.strip("`") for cell in cells for message in cell.split("`, `")}
    assert printed == set(RAISES) | ELSEWHERE
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert all(message in source for message in ELSEWHERE)


def test_pages_name_no_machine():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
    for page in pages:
        text = page.read_text()
        assert not re.search(r"(/(root|home|work|tmp)/|localhost)", text), page
        assert str(os.getcwd()) not in text
