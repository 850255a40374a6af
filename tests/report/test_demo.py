"""The demo: its problems, its page, and how good its fits are."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayeswise.likelihoods import Bernoulli, Gaussian
from bayeswise.methods import BALI
from bayeswise.predictive import KeptDraws, Predictive
from bayeswise.report import demo, picture, problems
from bayeswise.report.chapters import CurveView, PlaneView, Recorder
from bayeswise.report.demo import Settings, learn, learn_curve, learn_plane, network, run_demo


def tiny() -> Settings:
    full = Settings()
    names = ("sinc", "sines", "moons", "diabetes", "cancer")
    short: dict[str, BALI] = {name: replace(getattr(full, name), steps=12) for name in names}
    sizes = {"draws": 11, "curve_points": 41, "plane_points": 9, "held_out": 50, "looks": 4, "look_draws": 5}
    return replace(full, **short, **sizes, hidden=(7, 5), table_hidden=(5,))


# ------------------------------------------------------------------------------------------- the problems


def test_sinc_is_the_papers() -> None:
    curve = problems.sinc(0)
    x = torch.tensor([[0.0], [0.5], [-0.1]], dtype=torch.float64)
    expected = [1.0, 2 * math.sin(10) / 10 - 1, math.sin(2) - 1]
    torch.testing.assert_close(curve.truth(x)[:, 0], torch.tensor(expected, dtype=torch.float64))
    assert len(curve.x) == 256 and len(curve.held_x) == 1000 and float(curve.x.abs().max()) <= 1
    noise = torch.cat([curve.y - curve.truth(curve.x), curve.held_y - curve.truth(curve.held_x)])
    assert float(noise.std()) == pytest.approx(0.1, abs=5 * 0.1 / math.sqrt(2 * 1256))


def test_sines_leave_a_gap() -> None:
    curve = problems.sines(0)
    x = torch.tensor([[0.125], [1.0]], dtype=torch.float64)
    expected = torch.tensor([0.3 * math.sqrt(0.5) + 0.3 + 0.125, 1.0], dtype=torch.float64)
    torch.testing.assert_close(curve.truth(x)[:, 0], expected)
    assert len(curve.x) == 32 and 0.25 <= float(curve.x.abs().min()) and float(curve.x.abs().max()) <= 1
    assert 4 < int((curve.x < 0).sum()) < 28
    noise = curve.held_y - curve.truth(curve.held_x)
    assert float(noise.std()) == pytest.approx(0.02, abs=5 * 0.02 / math.sqrt(2000))


def test_places_of_a_curve() -> None:
    curve = problems.sines(0)
    x = torch.tensor([[-2.0], [-0.5], [0.0], [0.3], [1.5]])
    assert curve.inside(x).tolist() == [False, True, False, True, False]
    assert curve.span(x).tolist() == [False, True, True, True, False]


def test_moons_box_is_twice_the_data() -> None:
    plane = problems.two_moons(0, held=20)
    assert len(plane.y) == 128 and plane.y.sum() == 64 and len(plane.held_y) == 20
    size = plane.x.amax(0) - plane.x.amin(0)
    for axis in range(2):
        low, high = plane.shown[axis]
        assert high - low == pytest.approx(2 * float(size[axis]), rel=1e-5)
    columns, rows, points = plane.grid(3)
    assert points[1].tolist() == [columns[1], rows[0]] and points[3].tolist() == [columns[0], rows[1]]


@pytest.mark.parametrize(
    ("make", "rows", "held"), [(problems.diabetes, 442, 110), (problems.breast_cancer, 569, 228)]
)
def test_tables_are_split_and_scaled(make, rows: int, held: int) -> None:
    example = make(0)
    assert (len(example.held_y), len(example.y)) == (held, rows - held)
    torch.testing.assert_close(example.x.mean(0), torch.zeros(example.x.shape[1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(example.x.std(0), torch.ones(example.x.shape[1]))
    assert not torch.equal(make(1).held_x, example.held_x)


def test_seeds_decide_the_data() -> None:
    assert torch.equal(problems.sinc(3, held=5).y, problems.sinc(3, held=7).y)
    assert not torch.equal(problems.sinc(3, held=256).held_x, problems.sinc(3).x)
    assert torch.equal(problems.sinc(3).y, problems.sinc(3).y)
    assert not torch.equal(problems.sinc(3).y, problems.sinc(4).y)


# ------------------------------------------------------------------------------------------- the numbers


def test_numbers_of_a_curve(rng: torch.Generator) -> None:
    curve = problems.sines(0)
    x = curve.grid(401)
    draws = curve.truth(x) + torch.tensor([-1.0, 1.0])[:, None, None] * (0.1 + x.abs())  # (2, B, 1)
    view = CurveView(curve, x, Predictive(Gaussian(0.04), KeptDraws(draws.double())))
    n = view.numbers()
    assert n["error"] == pytest.approx(0, abs=1e-6) and n["noise"] == pytest.approx(0.2)
    assert n["left"] == n["right"] == pytest.approx(2.1)
    assert n["at the data"] == pytest.approx(0.1 + 0.625, rel=1e-3) and n["gap"] == pytest.approx(
        0.34, abs=0.005
    )


def test_numbers_of_a_plane() -> None:
    plane = problems.two_moons(0, held=5)
    columns, rows, points = plane.grid(21)

    def predictive(x: Tensor) -> Predictive:  # two networks that agree at the data and quarrel far away
        far = torch.cdist(x, plane.x).amin(1, keepdim=True) > 1
        return Predictive(Bernoulli(), KeptDraws(torch.stack([torch.where(far, 50.0, 0.0), far * -50.0])))

    view = PlaneView(plane, columns, rows, points, predictive(points), predictive(plane.x))
    assert view.numbers() == pytest.approx({"at the data": 0.0, "far": math.log(2)})
    shown = view.draw()
    assert shown.uncertainty.shape == (21, 21) and shown.uncertainty[0, 0] == pytest.approx(math.log(2))


def test_recorder_looks_when_it_is_time() -> None:
    example, settings = problems.diabetes(0), tiny()
    outcome = learn(example, settings.diabetes, (5,), settings, 0, False)
    r = outcome.recorder
    assert isinstance(r, Recorder) and r.steps == [2, 3, 5, 6, 9, 10, 12] and 0 < r.seconds
    for seen, x, y in (
        (r.training, example.x[:256], example.y[:256]),
        (r.held, example.held_x, example.held_y),
    ):
        assert seen[-1] == pytest.approx(-float(outcome.posterior.predict(x, 5).log_prob(y).mean()), rel=1e-5)
    assert r.training[-1] < r.training[0]


# ------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    path = run_demo(out, seed=1, progress=False, settings=tiny())
    assert path == out / "report.html" and list(out.iterdir()) == [path]
    return path.read_text(encoding="utf-8")


def test_page_holds_every_part(page: str) -> None:
    headings = re.findall(r"<h2[^>]*>([^<]+)</h2>", page)
    assert headings == [
        "All numbers at a glance",
        "Sinc",
        "Sines with trend",
        "Two moons",
        "Diabetes progression",
        "Breast cancer",
    ]
    assert page.count("<svg") == 15 and page.count("<figcaption") == 15
    assert "http" not in page and "<script" not in page and len(page) < 700_000
    for words in (
        "epistemic, 90%",
        "mutual information (nats)",
        "expected calibration error",
        "perfect coverage",
    ):
        assert words in page


def test_page_shows_measured_numbers(page: str) -> None:
    settings = tiny()
    outcome = learn(
        problems.diabetes(1 + demo.UNSEEN), settings.diabetes, settings.table_hidden, settings, 1, False
    )
    scores = outcome.scores()
    assert f"RMSE on held-out rows: {scores['rmse']:.1f}" in page
    y, low, high = outcome.example.held_y, *outcome.held.interval(0.9)
    assert scores["coverage"] == pytest.approx(float(((low <= y) & (y <= high)).double().mean()))
    row = re.search(r"<td>Diabetes progression</td>(.*?)</tr>", page, re.S)
    assert row is not None
    cells = re.findall(r">([^<]+)</td>", row[1])
    assert cells[:2] == ["332", "110"] and float(cells[2]) == pytest.approx(scores["rmse"], rel=1e-3)
    assert cells[4:6] == ["–", "–"] and float(cells[6]) == pytest.approx(scores["nll"], rel=1e-3)


def test_demo_leaves_threads_and_generator_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_report", lambda *_: 1 / 0)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError):
            run_demo(tmp_path, progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    network(3, (5,), 0)
    assert torch.equal(before, torch.get_rng_state())


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "sklearn" else object())
    with pytest.raises(ModuleNotFoundError, match=r"needs scikit-learn: pip install 'bayeswise\[all\]'"):
        run_demo(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_progress_goes_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_report", lambda s, seed, progress: demo.Report("t", "", ()))
    run_demo(tmp_path)
    out, err = capfd.readouterr()
    assert out == "" and re.fullmatch(r"report written after \d+ s\n", err)
    run_demo(tmp_path, progress=False)
    assert capfd.readouterr() == ("", "")


def test_readme_picture(tmp_path: Path) -> None:
    from PIL import Image

    path = picture.draw(tmp_path / "docs" / "demo.png", 0, tiny(), progress=False)
    with Image.open(path) as image:
        assert image.size == (1240, 820)


# ------------------------------------------------------------------------------------------- the quality


@pytest.mark.slow
def test_sinc_is_learnt() -> None:
    s = Settings()
    outcome, view = learn_curve(problems.sinc(0), s.sinc, s, 0, False)
    n, scores = view.numbers(), outcome.scores()
    assert n["error"] < 0.06 and n["noise"] == pytest.approx(0.1, abs=0.02)
    assert n["at the data"] < 0.1 and min(n["left"], n["right"]) > 10 * n["at the data"]
    assert 0.86 < scores["coverage"] < 0.98


@pytest.mark.slow
def test_sines_open_in_the_gap() -> None:
    s = Settings()
    outcome, view = learn_curve(problems.sines(0), s.sines, s, 0, False)
    n = view.numbers()
    assert n["error"] < 0.08 and n["noise"] < 0.04
    assert min(n["gap"], n["left"], n["right"]) > 4 * n["at the data"]
    assert outcome.scores()["coverage"] > 0.82


@pytest.mark.slow
def test_moons_are_unsure_far_away() -> None:
    s = Settings()
    outcome, view = learn_plane(problems.two_moons(0), s, 0, False)
    n, scores = view.numbers(), outcome.scores()
    assert n["far"] > 0.3 and n["far"] > 5 * n["at the data"]
    assert scores["accuracy"] > 0.95 and scores["ece"] < 0.03 and scores["nll"] < 0.15


@pytest.mark.slow
def test_tables_are_learnt() -> None:
    s = Settings()
    scores = learn(problems.diabetes(0), s.diabetes, s.table_hidden, s, 0, False).scores()
    assert scores["rmse"] < 58 and 0.84 < scores["coverage"] < 0.96
    scores = learn(problems.breast_cancer(0), s.cancer, s.table_hidden, s, 0, False).scores()
    assert scores["accuracy"] > 0.96 and scores["nll"] < 0.12 and scores["ece"] < 0.05
