"""The demo: BALI on the three problems of the paper's Figure 1 and on two tables, as one HTML page."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import torch
from torch import nn
from tqdm.auto import tqdm

from bayeswise.fitting import fit
from bayeswise.methods import BALI
from bayeswise.methods.forward import WeightNoise
from bayeswise.methods.schedules import StepDecay
from bayeswise.priors import FanIn, Isotropic
from bayeswise.randomness import global_rng
from bayeswise.report.chapters import (
    CurveView,
    Outcome,
    PlaneView,
    Recorder,
    classification_section,
    curve_section,
    plane_section,
    regression_section,
    summary_section,
)
from bayeswise.report.html import Report, Section, write_report
from bayeswise.report.problems import Curve, Example, Plane, breast_cancer, diabetes, sinc, sines, two_moons

UNSEEN = 1000  # the tables' splits that are shown begin here: no setting was chosen on them
NEEDED = {"sklearn": "scikit-learn", "matplotlib": "matplotlib", "jinja2": "Jinja2"}


def paper(step_size: float, sigma_r: float, initial_scale: float, steps: int, inputs: int) -> BALI:
    """The paper's settings for its synthetic problems (App. H.1): weight noise, R0 = σ_r² I, U0 = 0.01² N I.

    The appendix prints σ_r = 80 and 20, the tables σ_r². Read as printed, σ_r² = 6400 and 400, we get the
    figure: sinc recovers its noise and all bands open away from the data. Read as σ_r² = 80 and 20, the noise
    comes out too large (0.13 for 0.10 on sinc, 0.13 for 0.02 on the sines), the bands hardly open, and the
    moons are sure of everything far away. Step size, update rate and number of steps are ours.
    """
    r0 = sigma_r**2
    return BALI(
        step_size=step_size,
        update_rate=StepDecay(0.2),
        steps=steps,
        prior=FanIn(r0),
        first_prior=Isotropic(r0),
        initial_scale=initial_scale,
        first_initial_scale=initial_scale * math.sqrt(inputs + 1),  # the first features are not divided
        forward=WeightNoise(),
    )


@dataclass(frozen=True)
class Settings:
    """What the demo trains and how closely it looks. The tables' priors were chosen on other splits."""

    sinc: BALI = field(default=paper(0.1, 80, 3, 300, inputs=1))
    sines: BALI = field(default=paper(0.2, 80, 3, 300, inputs=1))
    moons: BALI = field(default=paper(0.3, 20, 1, 250, inputs=2))
    diabetes: BALI = field(default=BALI(steps=500, prior=FanIn(1), forward=WeightNoise()))
    cancer: BALI = field(default=BALI(steps=500, prior=FanIn(3), effective=0.5, forward=WeightNoise()))
    hidden: tuple[int, ...] = (256, 256, 256)
    table_hidden: tuple[int, ...] = (50,)
    draws: int = 256  # networks of a prediction
    curve_points: int = 301
    plane_points: int = 48  # along each side
    held_out: int = 1000  # rows of a synthetic problem
    looks: int = 20  # points of a convergence curve
    look_draws: int = 16


def run_demo(out: Path, seed: int = 0, progress: bool = True, settings: Settings | None = None) -> Path:
    """Train, write `report.html` into the folder `out`, and return its path.

    With `progress` every part is announced on stderr with its seconds, and training shows a bar.
    """
    require()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    start = monotonic()
    with one_thread():
        page = _report(settings or Settings(), seed, progress)
        path = write_report(page, out / "report.html")
    announce(progress, f"report written after {monotonic() - start:.0f} s")
    return path


def announce(progress: bool, text: str) -> None:
    """A line on stderr that does not disturb a progress bar."""
    if progress:
        tqdm.write(text, file=sys.stderr)


def require() -> None:
    """Refuse to start where an optional package is missing."""
    missing = [module for module in NEEDED if find_spec(module) is None]
    if missing:
        names = " and ".join(NEEDED[module] for module in missing)
        raise ModuleNotFoundError(
            f"the demo needs {names}: pip install 'bayeswise[all]'", name=NEEDED[missing[0]]
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """These networks are too small to gain from more threads, and threads wait badly beside a neighbour."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def network(inputs: int, hidden: tuple[int, ...], seed: int) -> nn.Module:
    """A plain tanh network with one output."""
    widths, layers = (inputs, *hidden), []
    with global_rng(seed):
        for before, after in zip(widths, hidden, strict=False):
            layers += [nn.Linear(before, after), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


def learn(
    example: Example, method: BALI, hidden: tuple[int, ...], settings: Settings, seed: int, progress: bool
) -> Outcome:
    """Train on an example, recording the way, and predict its held-out rows."""
    recorder = Recorder(example, max(1, method.length // settings.looks), settings.look_draws)
    model = network(example.x.shape[1], hidden, seed)
    start = monotonic()
    posterior = fit(
        model,
        (example.x, example.y),
        example.likelihood,
        method,
        seed=seed,
        progress=progress,
        callbacks=(recorder,),
    )
    seconds = monotonic() - start - recorder.seconds
    announce(progress, f"      trained; predicting with {settings.draws} networks")
    return Outcome(example, posterior, posterior.predict(example.held_x, settings.draws), recorder, seconds)


def learn_curve(
    curve: Curve, method: BALI, settings: Settings, seed: int, progress: bool
) -> tuple[Outcome, CurveView]:
    """Train on a curve and look at the range around its data."""
    outcome = learn(curve, method, settings.hidden, settings, seed, progress)
    return outcome, CurveView.of(outcome, curve, settings.curve_points, settings.draws)


def learn_plane(plane: Plane, settings: Settings, seed: int, progress: bool) -> tuple[Outcome, PlaneView]:
    """Train on two classes in the plane and look at the box around them."""
    outcome = learn(plane, settings.moons, settings.hidden, settings, seed, progress)
    return outcome, PlaneView.of(outcome, plane, settings.plane_points, settings.draws)


def _report(s: Settings, seed: int, progress: bool) -> Report:
    parts: tuple[tuple[str, Callable[[], tuple[Outcome, Section]]], ...] = (
        ("sinc, 256 points", lambda: _curve(sinc(seed, s.held_out), s.sinc, SINC, s, seed, progress)),
        (
            "sines with trend, 32 points",
            lambda: _curve(sines(seed, s.held_out), s.sines, SINES, s, seed, progress),
        ),
        ("two moons, 128 points", lambda: _plane(s, seed, progress)),
        ("diabetes progression, a table", lambda: _diabetes(s, seed, progress)),
        ("breast cancer, a table", lambda: _cancer(s, seed, progress)),
    )
    outcomes, sections = [], []
    for number, (name, part) in enumerate(parts, 1):
        announce(progress, f"[{number}/{len(parts)}] {name}")
        start = monotonic()
        outcome, section = part()
        scores = ", ".join(f"{measure} {value:.3g}" for measure, value in outcome.scores().items())
        announce(progress, f"      {monotonic() - start:.1f} s; held-out rows: {scores}")
        outcomes.append(outcome)
        sections.append(section)
    return Report(
        "What a Bayesian network knows, and what it does not", INTRO, (summary_section(outcomes), *sections)
    )


def _curve(
    curve: Curve, method: BALI, text: str, s: Settings, seed: int, progress: bool
) -> tuple[Outcome, Section]:
    outcome, view = learn_curve(curve, method, s, seed, progress)
    return outcome, curve_section(outcome, view, text)


def _plane(s: Settings, seed: int, progress: bool) -> tuple[Outcome, Section]:
    outcome, view = learn_plane(two_moons(seed, s.held_out), s, seed, progress)
    return outcome, plane_section(outcome, view, MOONS)


def _diabetes(s: Settings, seed: int, progress: bool) -> tuple[Outcome, Section]:
    outcome = learn(diabetes(seed + UNSEEN), s.diabetes, s.table_hidden, s, seed, progress)
    return outcome, regression_section(outcome, "progression of the disease", DIABETES)


def _cancer(s: Settings, seed: int, progress: bool) -> tuple[Outcome, Section]:
    outcome = learn(breast_cancer(seed + UNSEEN), s.cancer, s.table_hidden, s, seed, progress)
    return outcome, classification_section(outcome, CANCER)


INTRO = """\
Five small problems, each learnt by a neural network whose weights have a probability distribution instead \
of single values. The distribution was found by BALI, Bayesian layerwise inference: every layer is treated \
as a Bayesian linear regression.

An ordinary network gives an answer for every input, also where it has seen no data. The networks on this \
page also say how sure they are. Two kinds of uncertainty are kept apart: what more data would remove \
(epistemic: the network does not know the function there) and what would remain (aleatoric: the \
observations are noisy).
"""
SINC = """\
256 noisy observations of a sinc function, all between -1 and 1. Look first between -1 and 1: the mean \
should follow every wave of the dashed truth, the blue band should be narrow, and the grey band should \
hold about nine in ten points. Then look outside: no data there, so the blue band should open.
"""
SINES = """\
Only 32 observations, with almost no noise, and none between -0.25 and 0.25. The bands should be thin \
where there are points, open in the gap, close again behind it, and open outside -1 and 1.
"""
MOONS = """\
128 points of two classes that interlock. The boundary should follow the two moons. A network with single \
weights is sure almost everywhere; here the drawn networks should agree at the points and disagree far \
away.
"""
DIABETES = """\
Patients with ten measurements such as age, body-mass index and blood pressure; the number to predict is \
how far the disease has progressed a year later. These data say little about a single patient, so honest \
intervals are wide. What counts is that they hold as many observations as they promise.
"""
CANCER = """\
Tumours described by thirty measurements of their cells; the answer is malignant or benign. Look at the \
second picture: when the rows about which the network is least sure are set aside (to be seen by a person, \
say), the share of wrong answers should fall.
"""
