"""bayeswise: a PyTorch model that says how sure it is.

This is the contents page; names are loaded when they are first used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "fit": "fitting",
    "load": "storage",
    "BALI": "methods",
    "MAP": "methods",
    "MCDropout": "methods",
    "BayesByBackprop": "methods",
    "Ensemble": "methods",
    "SWAG": "methods",
    "Laplace": "methods",
    "Gaussian": "likelihoods",
    "Categorical": "likelihoods",
    "Bernoulli": "likelihoods",
    "FanIn": "priors",
    "Isotropic": "priors",
    "Cosine": "methods.schedules",
    "Constant": "methods.schedules",
    "StepDecay": "methods.schedules",
    "Deterministic": "methods.forward",
    "WeightNoise": "methods.forward",
    "LocalReparametrisation": "methods.forward",
    "EarlyStopping": "training",
    "Checkpoints": "training",
    "BayesianRegressor": "estimators",
    "BayesianClassifier": "estimators",
    "NumericalWarning": "linalg",
    "FixedParametersWarning": "notices",
    "metrics": "metrics",
}
_ALSO = {"METHODS": "methods", "Predictive": "predictive", "Posterior": "posterior"}  # for types and tools
_ALSO |= dict.fromkeys(
    ("Kronecker", "Diagonal", "Full", "LowRank"), "methods.structures"
)  # values of single settings
_ALSO |= dict.fromkeys(("MonteCarlo", "Pairwise", "Probit", "Bridge"), "linearised")
_ALSO |= dict.fromkeys(("GaussNewton", "MonteCarloFisher", "EmpiricalFisher"), "networks.curvature")
_ALSO |= {"Evidence": "methods.evidence", "Validation": "methods.evidence", "Online": "methods.online"}
_ALSO |= {"Tuning": "methods.tuning"}

__all__ = [*_WHERE, *_ALSO, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    where = _WHERE | _ALSO
    if name not in where:
        raise AttributeError(f"module 'bayeswise' has no attribute {name!r}")
    module = import_module(f"bayeswise.{where[name]}")
    value = module if name == "metrics" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The contents, for completion."""
    return sorted(__all__)


if TYPE_CHECKING:
    from bayeswise import metrics as metrics
    from bayeswise.estimators import BayesianClassifier as BayesianClassifier
    from bayeswise.estimators import BayesianRegressor as BayesianRegressor
    from bayeswise.fitting import fit as fit
    from bayeswise.likelihoods import Bernoulli as Bernoulli
    from bayeswise.likelihoods import Categorical as Categorical
    from bayeswise.likelihoods import Gaussian as Gaussian
    from bayeswise.linalg import NumericalWarning as NumericalWarning
    from bayeswise.linearised import Bridge as Bridge
    from bayeswise.linearised import MonteCarlo as MonteCarlo
    from bayeswise.linearised import Pairwise as Pairwise
    from bayeswise.linearised import Probit as Probit
    from bayeswise.methods import BALI as BALI
    from bayeswise.methods import MAP as MAP
    from bayeswise.methods import METHODS as METHODS
    from bayeswise.methods import SWAG as SWAG
    from bayeswise.methods import BayesByBackprop as BayesByBackprop
    from bayeswise.methods import Ensemble as Ensemble
    from bayeswise.methods import Laplace as Laplace
    from bayeswise.methods import MCDropout as MCDropout
    from bayeswise.methods.evidence import Evidence as Evidence
    from bayeswise.methods.evidence import Validation as Validation
    from bayeswise.methods.forward import Deterministic as Deterministic
    from bayeswise.methods.forward import LocalReparametrisation as LocalReparametrisation
    from bayeswise.methods.forward import WeightNoise as WeightNoise
    from bayeswise.methods.online import Online as Online
    from bayeswise.methods.schedules import Constant as Constant
    from bayeswise.methods.schedules import Cosine as Cosine
    from bayeswise.methods.schedules import StepDecay as StepDecay
    from bayeswise.methods.structures import Diagonal as Diagonal
    from bayeswise.methods.structures import Full as Full
    from bayeswise.methods.structures import Kronecker as Kronecker
    from bayeswise.methods.structures import LowRank as LowRank
    from bayeswise.methods.tuning import Tuning as Tuning
    from bayeswise.networks.curvature import EmpiricalFisher as EmpiricalFisher
    from bayeswise.networks.curvature import GaussNewton as GaussNewton
    from bayeswise.networks.curvature import MonteCarloFisher as MonteCarloFisher
    from bayeswise.notices import FixedParametersWarning as FixedParametersWarning
    from bayeswise.posterior import Posterior as Posterior
    from bayeswise.predictive import Predictive as Predictive
    from bayeswise.priors import FanIn as FanIn
    from bayeswise.priors import Isotropic as Isotropic
    from bayeswise.storage import load as load
    from bayeswise.training import Checkpoints as Checkpoints
    from bayeswise.training import EarlyStopping as EarlyStopping
