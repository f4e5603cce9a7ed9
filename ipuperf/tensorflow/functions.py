"""Functions on traced arrays under TensorFlow's names that have rules of TensorFlow's own. Those that have none declare
their names themselves (:mod:`.library`); :mod:`.nn` has more.

Operands may be arrays, variables, NumPy arrays or Python numbers; host data becomes constants, Python numbers take the
type of the array beside them. What a program need not compute stays on the host: constants, shapes of host data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipuperf.functions import arithmetic, networks, reductions, shapes
from ipuperf.functions.making import many
from ipuperf.ir import FLOAT32, INT32

from .array import NUMPY_FUNCTIONS, UFUNCS, Array, convert, is_traced, lifted, together
from .dtypes import as_dtype, host_array
from .library import MATH
from .tracing import is_tracing

equal, multiply, negative, reduce_sum = (MATH[name] for name in ("equal", "multiply", "negative", "reduce_sum"))

# -- element-wise ------------------------------------------------------------------------------------------------------

divide = lifted(arithmetic.true_div, "x y", "div")
where = lifted(arithmetic.where, "condition x y")
stop_gradient = lifted(arithmetic.detach, "input")
identity = lifted(arithmetic.identity, "input")
clip_by_value = lifted(arithmetic.clip, "x clip_value_min clip_value_max")


def gelu(features: Any, approximate: bool = True) -> Array:
    """GELU; the tanh form (PopLibs' own) or with the error function."""
    return lifted(arithmetic.gelu if approximate else arithmetic.geluerf)(features)


def cast(x: Any, dtype: Any) -> Any:
    """Converted to an element type; host data stays on the host when nothing is being traced."""
    if not is_traced(x) and not is_tracing():
        return host_array(x, as_dtype(dtype))
    return convert(x).astype(dtype)


# -- matrix product ----------------------------------------------------------------------------------------------------


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    """Matrix product by NumPy's rules, of operands with their last two axes exchanged where asked for."""
    left, right = together([a, b])
    return (swap_last(left) if transpose_a else left) @ (swap_last(right) if transpose_b else right)


def swap_last(x: Array) -> Array:
    """The last two axes exchanged."""
    order = list(range(x.ndim))
    order[-2:] = order[-1], order[-2]
    return transpose(x, order)


# -- reductions --------------------------------------------------------------------------------------------------------


def argmax(input: Any, axis: int = 0, output_type: Any = INT32) -> Array:
    """Position of the largest element along ``axis``."""
    return cast(lifted(reductions.argmax)(input, axis), output_type)


def argmin(input: Any, axis: int = 0, output_type: Any = INT32) -> Array:
    """Position of the smallest element along ``axis``."""
    return cast(lifted(reductions.argmin)(input, axis), output_type)


# -- shapes ------------------------------------------------------------------------------------------------------------

transpose = lifted(shapes.transpose, "a perm")
squeeze = lifted(shapes.squeeze, "input axis")
concat = lifted(shapes.concat, "values")
stack = lifted(shapes.stack, "values")
unstack = lifted(shapes.unstack, "value")
split = lifted(shapes.split, "value num_or_size_splits")
broadcast_to = lifted(shapes.expand, "input", "broadcast")


def reshape(tensor: Any, shape: Any) -> Any:
    """In another shape; host data stays on the host when nothing is being traced."""
    wanted = many(shape)
    if not is_traced(tensor) and not is_tracing():
        return host_array(np.reshape(tensor, wanted))
    array = convert(tensor)
    return array if array.shape == wanted else array.reshape(wanted)


def expand_dims(input: Any, axis: int = -1) -> Any:
    """With a new axis of length 1."""
    if not is_traced(input) and not is_tracing():
        return host_array(np.expand_dims(input, axis))
    return lifted(shapes.expand_dims)(input, axis)


# -- losses and probabilities ------------------------------------------------------------------------------------------

softmax = lifted(networks.softmax, "logits", axis=-1)
log_softmax = lifted(networks.log_softmax, "logits", axis=-1)


def _check_named(what: str, _sentinel: Any, labels: Any, logits: Any) -> None:
    if _sentinel is not None or labels is None or logits is None:
        raise ValueError(f"{what}: give labels=... and logits=... by name")


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> Array:
    """Negative log-likelihood per label of softmaxed logits; labels are class numbers.

    Raises:
        ValueError: positional arguments, or labels or logits missing (as TensorFlow).
    """
    _check_named("sparse_softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    return lifted(networks.nll_loss, called="xent", reduction="none")(softmax(logits), labels, name=name)


def softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> Array:
    """Cross entropy per row between label distributions and softmaxed logits.

    Raises:
        ValueError: positional arguments, or labels or logits missing (as TensorFlow).
    """
    _check_named("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    return negative(reduce_sum(multiply(labels, log_softmax(logits)), -1), name=name or "xent")


def one_hot(indices: Any, depth: int, dtype: Any = FLOAT32) -> Array:
    """1 at each class number, 0 elsewhere, along a new last axis of length ``depth``."""
    array = convert(indices)
    classes = convert(np.arange(depth), dtype=array.dtype, name="classes")
    return cast(equal(expand_dims(array, -1), classes), dtype)


# -- constants ---------------------------------------------------------------------------------------------------------


def constant(value: Any, dtype: Any = None, shape: Sequence[int] | None = None, name: str = "Const") -> Any:
    """A constant: traced inside a program, host data outside; ``shape`` fills it with one value."""
    data = host_array(value, dtype)
    if shape is not None:
        data = host_array(np.broadcast_to(data, tuple(shape)) if data.size == 1 else data.reshape(tuple(shape)))
    return convert(np.asarray(data), name=name) if is_tracing() else data


def zeros(shape: Sequence[int], dtype: Any = FLOAT32) -> Any:
    """Zeros."""
    return constant(np.zeros(shape, as_dtype(dtype).numpy), dtype, name="zeros")


def ones(shape: Sequence[int], dtype: Any = FLOAT32) -> Any:
    """Ones."""
    return constant(np.ones(shape, as_dtype(dtype).numpy), dtype, name="ones")


def zeros_like(x: Any) -> Any:
    """Zeros in the shape and type of ``x``."""
    return zeros(x.shape, x.dtype)


def ones_like(x: Any) -> Any:
    """Ones in the shape and type of ``x``."""
    return ones(x.shape, x.dtype)


# -- NumPy's names -----------------------------------------------------------------------------------------------------

_SAME = """
    add subtract multiply floor_divide negative maximum minimum exp log sqrt square reciprocal sin cos tanh floor ceil
    sign equal not_equal greater greater_equal less less_equal logical_and logical_or logical_not"""
_OTHER = {"remainder": "mod", "power": "pow", "absolute": "abs", "isfinite": "is_finite", "isnan": "is_nan"}
UFUNCS.update({name: MATH[_OTHER.get(name, name)] for name in (*_SAME.split(), *_OTHER)})
UFUNCS.update(divide=divide, true_divide=divide, matmul=matmul)

NUMPY_FUNCTIONS.update(
    matmul=matmul,
    dot=matmul,
    sum=MATH["reduce_sum"],
    mean=MATH["reduce_mean"],
    max=MATH["reduce_max"],
    amax=MATH["reduce_max"],
    min=MATH["reduce_min"],
    amin=MATH["reduce_min"],
    prod=MATH["reduce_prod"],
    argmax=argmax,
    argmin=argmin,
    reshape=reshape,
    transpose=transpose,
    expand_dims=expand_dims,
    squeeze=squeeze,
    concatenate=concat,
    stack=stack,
    split=split,
    where=where,
    broadcast_to=broadcast_to,
    zeros_like=zeros_like,
    ones_like=ones_like,
    shape=lambda a: a.shape,
    ndim=lambda a: a.ndim,
    size=lambda a: a.size,
)
