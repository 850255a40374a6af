"""Distributions over the parameters of a network: what a posterior draws from."""

from bayeswise.weights.curved import Curved, JointGaussian, LayerGaussians
from bayeswise.weights.gaussian import LowRank, MeanField
from bayeswise.weights.layerwise import Layerwise, LayerwiseDrawn
from bayeswise.weights.mixture import Mixture
from bayeswise.weights.points import Dropped, Particles, Point, draw_masks
from bayeswise.weights.protocol import WeightDistribution

Gaussians = type[MeanField] | type[LowRank] | type[Mixture] | type[LayerGaussians] | type[JointGaussian]
Kind = type[Point] | type[Particles] | type[Dropped] | type[Layerwise] | Gaussians
KINDS: dict[str, Kind] = {
    "point": Point,
    "particles": Particles,
    "mean_field": MeanField,
    "low_rank": LowRank,
    "mixture": Mixture,
    "dropped": Dropped,
    "layerwise": Layerwise,
    "layerwise_drawn": LayerwiseDrawn,
    "layer_gaussians": LayerGaussians,
    "joint_gaussian": JointGaussian,
}

__all__ = [
    "KINDS",
    "Curved",
    "Dropped",
    "JointGaussian",
    "LayerGaussians",
    "Layerwise",
    "LayerwiseDrawn",
    "LowRank",
    "MeanField",
    "Mixture",
    "Particles",
    "Point",
    "WeightDistribution",
    "draw_masks",
]
