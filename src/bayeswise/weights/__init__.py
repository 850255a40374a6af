"""Distributions over the parameters of a network: what a posterior draws from."""

from bayeswise.weights.gaussian import MeanField
from bayeswise.weights.layerwise import Layerwise, LayerwiseDrawn
from bayeswise.weights.points import Dropped, Particles, Point, draw_masks
from bayeswise.weights.protocol import WeightDistribution

Kind = type[Point] | type[Particles] | type[MeanField] | type[Dropped] | type[Layerwise]
KINDS: dict[str, Kind] = {
    "point": Point,
    "particles": Particles,
    "mean_field": MeanField,
    "dropped": Dropped,
    "layerwise": Layerwise,
    "layerwise_drawn": LayerwiseDrawn,
}

__all__ = [
    "KINDS",
    "Dropped",
    "Layerwise",
    "LayerwiseDrawn",
    "MeanField",
    "Particles",
    "Point",
    "WeightDistribution",
    "draw_masks",
]
