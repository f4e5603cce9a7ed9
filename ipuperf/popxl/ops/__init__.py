"""``popxl.ops``: functions that add ops to the current graph.

Those of the upstream package that are here (``__all__``) have the upstream names and argument names; asking for
another one raises an error that lists them. There are op classes in :mod:`ipuperf.ops` that no function here gives:
PopTorch and TensorFlow programs use them.
"""

from __future__ import annotations

from typing import Any

from ipuperf.functions import arithmetic, networks, products, random, reductions, selection, shapes

from ..errors import unsupported
from ..package import functions_win
from . import collectives, var_updates
from .call import CallSiteInfo, call, call_with_info
from .exchange import host_load, host_store, remote_load, remote_load_, remote_store
from .io_tile_copy import io_tile_copy
from .ipu_copy import ipu_copy
from .layers import (
    PadType,
    average_pool,
    batch_norm_inference,
    conv,
    conv_transpose,
    dynamic_slice,
    dynamic_update,
    dynamic_update_,
    max_pool,
)
from .lifting import lift
from .repeat import repeat, repeat_with_info

_LIFTED = {
    arithmetic: """
        abs add add_ cast ceil clamp clip cos detach div equal exp exp_ floor fmod gelu gelu_ geluerf geluerf_ greater
        identity isfinite isinf isnan log log2 logical_and logical_not logical_or maximum mul negate pow relu relu_
        rename scaled_add scaled_add_ sign sin sqrt sub swish tanh where""",
    networks: "group_norm layer_norm nll_loss nll_loss_with_softmax_grad softmax",
    products: "matmul",
    random: "dropout random_normal random_uniform shaped_dropout split_random_seed",
    reductions: "argmax argmin cumsum l1 l2 max mean min prod sum sumsquare",
    selection: "increment_mod increment_mod_",
    shapes: "concat concat_ flatten flatten_ init reshape reshape_ slice slice_ squeeze transpose transpose_",
}
for _module, _names in _LIFTED.items():
    globals().update(lift(_module, _names))

__all__ = [
    "CallSiteInfo",
    "PadType",
    "abs",
    "add",
    "add_",
    "argmax",
    "argmin",
    "average_pool",
    "batch_norm_inference",
    "call",
    "call_with_info",
    "cast",
    "ceil",
    "clamp",
    "clip",
    "collectives",
    "concat",
    "concat_",
    "conv",
    "conv_transpose",
    "cos",
    "cumsum",
    "detach",
    "div",
    "dropout",
    "dynamic_slice",
    "dynamic_update",
    "dynamic_update_",
    "equal",
    "exp",
    "exp_",
    "flatten",
    "flatten_",
    "floor",
    "fmod",
    "gelu",
    "gelu_",
    "geluerf",
    "geluerf_",
    "greater",
    "group_norm",
    "host_load",
    "host_store",
    "identity",
    "increment_mod",
    "increment_mod_",
    "init",
    "io_tile_copy",
    "ipu_copy",
    "isfinite",
    "isinf",
    "isnan",
    "l1",
    "l2",
    "layer_norm",
    "log",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "matmul",
    "max",
    "max_pool",
    "maximum",
    "mean",
    "min",
    "mul",
    "negate",
    "nll_loss",
    "nll_loss_with_softmax_grad",
    "pow",
    "prod",
    "random_normal",
    "random_uniform",
    "relu",
    "relu_",
    "remote_load",
    "remote_load_",
    "remote_store",
    "rename",
    "repeat",
    "repeat_with_info",
    "reshape",
    "reshape_",
    "scaled_add",
    "scaled_add_",
    "shaped_dropout",
    "sign",
    "sin",
    "slice",
    "slice_",
    "softmax",
    "split_random_seed",
    "sqrt",
    "squeeze",
    "sub",
    "sum",
    "sumsquare",
    "swish",
    "tanh",
    "transpose",
    "transpose_",
    "var_updates",
    "where",
]

functions_win(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl.ops.{name}", __all__)
