"""Layers as modules. Variables are of the type of the input. Source: popxl-addons: popxl_addons/layers."""

from ipuperf.runtime.aliases import functions_win

from .conv import Conv2D
from .embedding import Embedding
from .group_norm import GroupNorm
from .layer_norm import LayerNorm
from .layer_norm_distributed import LayerNormDistributed
from .linear import Linear
from .linear_fp8 import LinearFP8
from .linear_gq import LinearGQ

__all__ = ["Conv2D", "Embedding", "GroupNorm", "LayerNorm", "LayerNormDistributed", "Linear", "LinearFP8", "LinearGQ"]

functions_win(__name__)
