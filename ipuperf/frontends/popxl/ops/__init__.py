"""``popxl.ops``: functions that add ops to the current graph.

Those of the upstream package that are here (``__all__``) have the upstream names and argument names; asking for
another one raises an error that lists them. There are op classes in :mod:`ipuperf.ops` that no function here gives:
PopTorch and TensorFlow programs use them.
"""

# ruff: noqa: F401  # what is imported is the package's content
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipuperf.frontends.catalogue import ROWS
from ipuperf.frontends.catalogue.arguments import ARGUMENTS
from ipuperf.functions.products import PadType
from ipuperf.runtime.aliases import functions_win

from ..errors import unsupported
from ..handle import Tensor as _Tensor
from . import collectives, utils, var_updates
from .call import CallSiteInfo, call, call_with_info
from .code_load import remote_code_load
from .conditional import ConditionalSiteInfo, conditional, conditional_with_info
from .exchange import host_load, host_store, remote_load, remote_load_, remote_store
from .io_tile_copy import io_tile_copy
from .ipu_copy import ipu_copy
from .layers import onehot
from .lifting import extended, lifted
from .repeat import repeat, repeat_with_info

_FUNCTIONS = {name: row for row in ROWS for name in row.popxl}
# Type checkers read this list, and not what becomes of it below.
__all__ = [
    "CallSiteInfo", "PadType", "call", "call_with_info", "collectives", "conditional", "conditional_with_info",
    "host_load", "host_store", "io_tile_copy", "ipu_copy", "remote_code_load", "remote_load", "remote_load_",
    "remote_store", "repeat", "repeat_with_info", "var_updates",
]  # fmt: skip

#: Every public name of upstream's package (``popart: python/popxl/ops/__init__.py``).
UPSTREAM = sorted([*_FUNCTIONS, *__all__])


def _offered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the library under PopXL's name, with the arguments that it has there."""
    arguments = [argument for argument in ARGUMENTS if argument.function == name]
    return extended(function, arguments) if arguments else lifted(function)


globals().update({name: _offered(name, row.implementation) for name, row in _FUNCTIONS.items() if name != "onehot"})

__all__ = [name for name in UPSTREAM if name in globals()]

# For type checkers: functions of the catalogue with several results. All others give one tensor (`__getattr__`).
nll_loss_with_softmax_grad: Callable[..., tuple[_Tensor, _Tensor]]
split: Callable[..., list[_Tensor]]
split_random_seed: Callable[..., tuple[_Tensor, ...]]

functions_win(__name__)


def __getattr__(name: str) -> Callable[..., _Tensor]:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl.ops.{name}", __all__)
