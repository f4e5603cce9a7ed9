"""The TensorFlow front end: TensorFlow's names for IPU programs, without TensorFlow.

Functions given to ``ipu_compiler.compile``, ``IPUStrategy.run``, ``loops.repeat`` and ``pipelining_ops.pipeline`` are
traced with :class:`Array` s, which behave like NumPy arrays. ``tensorflow.python.ipu`` is the package
:mod:`.python.ipu`; the names here are the few of TensorFlow itself that such programs need. There are no Keras models
(use arrays and :func:`get_variable`), no control flow on values, no 64-bit types (they become 32-bit).
"""

from typing import Any

from . import data, errors, functions, math, nn, random, train
from .array import Array
from .compiled import Function, Graph, Placeholder, Session, function
from .data import Dataset
from .differentiation import GradientTape, gradients
from .dtypes import HostArray, as_dtype
from .effects import EFFECTS
from .functions import constant
from .library import ROOT
from .nn import gather
from .state import isolated, state
from .tracing import Operation
from .variables import (
    AUTO_REUSE,
    Variable,
    constant_initializer,
    get_variable,
    get_variable_scope,
    global_variables,
    global_variables_initializer,
    glorot_uniform_initializer,
    ones_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    trainable_variables,
    truncated_normal_initializer,
    variable_scope,
    variables_initializer,
    zeros_initializer,
)

from .dtypes import BOOL, FLOAT16, FLOAT32, INT8, INT16, INT32, UINT8, UINT16, UINT32, DType  # isort: skip

bool = BOOL
float16 = half = FLOAT16
float32 = float64 = FLOAT32
int8, int16, int32, int64 = INT8, INT16, INT32, INT32
uint8, uint16, uint32 = UINT8, UINT16, UINT32
Tensor = Array
newaxis = None
__version__ = "2.6.3"


def convert_to_tensor(value: Any, dtype: Any = None) -> Any:
    """:func:`constant` of host data; arrays and variables as arrays."""
    from .array import convert, is_traced

    return convert(value) if is_traced(value) else constant(value, dtype)


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Placeholder:
    """A value that a session feeds to a compiled function."""
    return Placeholder(dtype, shape, name)


def name_scope(name: str | None, default_name: str | None = None, values: Any = None) -> Any:
    """Prefix the names of ops in reports with ``name``, or ``default_name`` where it is None (ValueError: both are)."""
    from ipuperf.ir import CONTEXT

    EFFECTS.given("name_scope(values)", values)
    chosen = default_name if name is None else name
    if chosen is None:
        raise ValueError("name_scope: a name is needed, name and default_name are None")
    return CONTEXT.scope(chosen)


def device(name: str) -> Any:
    """``/device:IPU:n``: programs compiled in the block are for this device; other devices have no effect."""
    from contextlib import nullcontext

    from .python.ipu.scopes import ipu_scope

    return ipu_scope(name) if "IPU" in str(name).upper() else nullcontext()


def reset_default_graph() -> None:
    """Forget all variables and names."""
    state().reset_graph()


def set_random_seed(seed: int) -> None:
    """Seed of initialisers and of random ops in programs that run for the first time later."""
    state().seed = seed


def disable_v2_behavior() -> None:
    """Graph mode: ``IPUOutfeedQueue.dequeue`` gives a handle for a session."""
    state().eager = False


disable_eager_execution = disable_v2_behavior


def enable_eager_execution() -> None:
    """Eager mode, the default."""
    state().eager = True


enable_v2_behavior = enable_eager_execution


def executing_eagerly() -> Any:
    """Whether host operations happen when called."""
    return state().eager


def __getattr__(name: str) -> Any:
    """Packages that are imported on first use: ``tf.compat``, ``tf.python``."""
    import importlib

    if name in ("compat", "python"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"tensorflow.{name} is not provided by ipuperf, which stands in for TensorFlow's IPU interface and the few "
        "functions that programs for it need"
    )


_FUNCTIONS = """
    argmax argmin broadcast_to cast clip_by_value concat constant divide expand_dims identity matmul one_hot ones
    ones_like reshape split squeeze stack stop_gradient transpose unstack where zeros zeros_like
""".split()
globals().update(ROOT | {_name: getattr(functions, _name) for _name in _FUNCTIONS})

__all__ = [
    *_FUNCTIONS,
    *ROOT,
    "AUTO_REUSE",
    "BOOL",
    "FLOAT16",
    "FLOAT32",
    "INT8",
    "INT16",
    "INT32",
    "UINT8",
    "UINT16",
    "UINT32",
    "Array",
    "DType",
    "Dataset",
    "Function",
    "GradientTape",
    "Graph",
    "HostArray",
    "Operation",
    "Placeholder",
    "Session",
    "Tensor",
    "Variable",
    "as_dtype",
    "bool",
    "constant_initializer",
    "convert_to_tensor",
    "data",
    "device",
    "disable_eager_execution",
    "disable_v2_behavior",
    "enable_eager_execution",
    "enable_v2_behavior",
    "errors",
    "executing_eagerly",
    "float16",
    "float32",
    "float64",
    "function",
    "gather",
    "get_variable",
    "get_variable_scope",
    "global_variables",
    "global_variables_initializer",
    "glorot_uniform_initializer",
    "gradients",
    "half",
    "int8",
    "int16",
    "int32",
    "int64",
    "isolated",
    "math",
    "name_scope",
    "newaxis",
    "nn",
    "ones_initializer",
    "placeholder",
    "random",
    "random_normal_initializer",
    "random_uniform_initializer",
    "reset_default_graph",
    "set_random_seed",
    "state",
    "train",
    "trainable_variables",
    "truncated_normal_initializer",
    "uint8",
    "uint16",
    "uint32",
    "variable_scope",
    "variables_initializer",
    "zeros_initializer",
]
