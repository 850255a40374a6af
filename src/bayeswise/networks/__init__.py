"""All that knows `nn.Module` and nothing that knows Bayes."""

from bayeswise.networks.convolutions import ConvolutionView
from bayeswise.networks.discovery import discover, vectorises
from bayeswise.networks.elementwise import EmbeddingView, NormView, elementwise_view, is_elementwise, unsuited
from bayeswise.networks.marks import is_mark, mask_key, noise_keys
from bayeswise.networks.network import Network, Params, Select, compute_dtype, evaluating, in_mode, unwrap
from bayeswise.networks.normalisation import norms_with_statistics, renew_statistics
from bayeswise.networks.signals import (
    LayerSignal,
    LocalNoise,
    Signals,
    call_shapes,
    is_fed_by_data,
    layer_signals,
    row_counts,
)
from bayeswise.networks.views import VIEWS, LayerView, LinearView, view_of

__all__ = [
    "VIEWS",
    "ConvolutionView",
    "EmbeddingView",
    "LayerSignal",
    "LayerView",
    "LinearView",
    "LocalNoise",
    "Network",
    "NormView",
    "Params",
    "Select",
    "Signals",
    "call_shapes",
    "compute_dtype",
    "discover",
    "elementwise_view",
    "evaluating",
    "in_mode",
    "is_elementwise",
    "is_mark",
    "layer_signals",
    "mask_key",
    "noise_keys",
    "norms_with_statistics",
    "renew_statistics",
    "is_fed_by_data",
    "row_counts",
    "unsuited",
    "unwrap",
    "vectorises",
    "view_of",
]
