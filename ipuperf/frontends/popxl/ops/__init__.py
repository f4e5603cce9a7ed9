"""``popxl.ops``: functions that add ops to the current graph.

Those of the upstream package that are here (``__all__``) have the upstream names and argument names; asking for
another one raises an error that lists them. There are op classes in :mod:`ipuperf.ops` that no function here gives:
PopTorch and TensorFlow programs use them.
"""

# ruff: noqa: F401  # what is imported is the package's content
from __future__ import annotations

from typing import Any

from ipuperf.functions.naming import modules

from ..errors import unsupported
from ..package import functions_win
from . import collectives, utils, var_updates
from .call import CallSiteInfo, call, call_with_info
from .code_load import remote_code_load
from .conditional import ConditionalSiteInfo, conditional, conditional_with_info
from .exchange import host_load, host_store, remote_load, remote_load_, remote_store
from .io_tile_copy import io_tile_copy
from .ipu_copy import ipu_copy
from .layers import (
    PadType,
    average_pool,
    batch_norm_inference,
    conv,
    conv_pow2scaled,
    conv_transpose,
    conv_transpose_pow2scaled,
    dynamic_slice,
    dynamic_update,
    dynamic_update_,
    max_pool,
    onehot,
    topk,
)
from .lifting import lift
from .repeat import repeat, repeat_with_info

#: Every public name of upstream's package (``popart: python/popxl/ops/__init__.py``).
UPSTREAM = """
    CallSiteInfo PadType abs add add_ argmax argmin average_pool batch_norm_inference call call_with_info cast
    ceil clamp clip collectives concat concat_ conditional conditional_with_info conv conv_pow2scaled
    conv_transpose conv_transpose_pow2scaled cos cumsum detach detach_ div dropout dynamic_slice dynamic_update
    dynamic_update_ equal exp exp_ flatten flatten_ floor fmod gather gelu gelu_ geluerf geluerf_ greater
    group_norm groupedgather histogram host_load host_store identity increment_mod increment_mod_ init
    interpolate io_tile_copy ipu_copy isfinite isinf isnan l1 l2 lamb_square layer_norm log log2 logical_and
    logical_not logical_or logsum logsumexp matmul matmul_pow2scaled max max_pool maximum mean median min mul
    negate nll_loss nll_loss_with_softmax_grad onehot pow pow2scale_cast_from_fp8 pow2scale_cast_to_fp8
    print_tensor prod random_normal random_uniform relu relu_ remote_code_load remote_load remote_load_
    remote_store rename repeat repeat_with_info reshape reshape_ roi_align scaled_add scaled_add_ scatter
    scatter_reduce shaped_dropout sign sin slice slice_ softmax split split_random_seed sqrt squeeze sub
    subsample sum sumsquare swish swish_ tanh tied_gather topk transpose transpose_ var_updates where
""".split()

globals().update(lift(modules(), [name for name in UPSTREAM if name not in globals()]))

__all__ = [name for name in UPSTREAM if name in globals()]

functions_win(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl.ops.{name}", __all__)
