"""Functions on traced arrays, each a few ops of the IR. Modules ``math`` and ``nn`` name them as TensorFlow does.

Operands may be arrays, variables, NumPy arrays or Python numbers; host data becomes constants, Python numbers take the
type of the array beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipuperf import ops as _k
from ipuperf.ir import BOOL, FLOAT32, INT32, DType

from .array import Array, convert, is_traced
from .dtypes import as_dtype, host_array
from .tracing import current_frame, is_tracing

Axes = int | Sequence[int] | None


def emit(op_class: type[_k.Op], operands: Sequence[Array], name: str, **attributes: Any) -> Array:
    """Create an op with one result in the current frame."""
    op = current_frame().create(op_class, [a.tensor for a in operands], [name], **attributes)
    return Array(op.outputs[0])


def pair(lhs: Any, rhs: Any) -> tuple[Array, Array]:
    """Two operands as arrays; a Python number takes the other's type.

    Raises:
        TypeError: two different types.
    """
    if is_traced(lhs):
        left = convert(lhs)
        right = convert(rhs, left, None if is_traced(rhs) or not _adapts(rhs) else left.dtype)
    else:
        right = convert(rhs)
        left = convert(lhs, right, None if is_traced(lhs) or not _adapts(lhs) else right.dtype)
    if left.dtype != right.dtype:
        raise TypeError(
            f"operands {left.name!r} {left.dtype.name} and {right.name!r} {right.dtype.name} have different types; "
            "cast one of them"
        )
    return left, right


def _adapts(value: Any) -> bool:
    """Whether host data takes the type of the array beside it: float64 and int64, NumPy's defaults, do."""
    return isinstance(value, (list, tuple)) or getattr(value, "dtype", None) in (np.float64, np.int64)


# -- element-wise ------------------------------------------------------------------------------------------------------


def _binary(op_class: type[_k.Op], name: str) -> Callable[[Any, Any], Array]:
    def function(x: Any, y: Any) -> Array:
        return emit(op_class, pair(x, y), name)

    function.__name__ = name
    function.__doc__ = f"Element-wise {op_class.type} with broadcasting."
    return function


def _unary(op_class: type[_k.Op], name: str) -> Callable[[Any], Array]:
    def function(x: Any) -> Array:
        return emit(op_class, [convert(x)], name)

    function.__name__ = name
    function.__doc__ = f"Element-wise {op_class.type}."
    return function


add = _binary(_k.Add, "add")
subtract = _binary(_k.Sub, "sub")
multiply = _binary(_k.Mul, "mul")
pow = _binary(_k.Pow, "pow")
equal = _binary(_k.Equal, "equal")
greater = _binary(_k.Greater, "greater")
maximum = _binary(_k.Maximum, "maximum")
minimum = _binary(_k.Minimum, "minimum")
not_equal = _binary(_k.NotEqual, "not_equal")
less = _binary(_k.Less, "less")
less_equal = _binary(_k.LessEqual, "less_equal")
greater_equal = _binary(_k.GreaterEqual, "greater_equal")
reciprocal = _unary(_k.Reciprocal, "reciprocal")
sigmoid = _unary(_k.Sigmoid, "sigmoid")
exp = _unary(_k.Exp, "exp")
log = _unary(_k.Log, "log")
sqrt = _unary(_k.Sqrt, "sqrt")
sin = _unary(_k.Sin, "sin")
cos = _unary(_k.Cos, "cos")
tanh = _unary(_k.Tanh, "tanh")
floor = _unary(_k.Floor, "floor")
ceil = _unary(_k.Ceil, "ceil")
sign = _unary(_k.Sign, "sign")
abs = _unary(_k.Abs, "abs")
negative = _unary(_k.Neg, "neg")
relu = _unary(_k.Relu, "relu")
logical_not = _unary(_k.Not, "logical_not")
is_finite = _unary(_k.IsFinite, "is_finite")
is_nan = _unary(_k.IsNaN, "is_nan")
stop_gradient = _unary(_k.Detach, "stop_gradient")
identity = _unary(_k.Identity, "identity")


def logical_and(x: Any, y: Any) -> Array:
    """Logical and of bool operands."""
    return emit(_k.And, pair(x, y), "logical_and")


def logical_or(x: Any, y: Any) -> Array:
    """Logical or of bool operands."""
    return emit(_k.Or, pair(x, y), "logical_or")


def divide(x: Any, y: Any) -> Array:
    """Quotient; integers are converted to float32 first (TensorFlow: float64, which an IPU has not)."""
    left, right = pair(x, y)
    if left.dtype.is_integer:
        left, right = cast(left, FLOAT32), cast(right, FLOAT32)
    return emit(_k.Div, [left, right], "div")


def mod(x: Any, y: Any) -> Array:
    """Remainder with the sign of the divisor, as Python's ``%``."""
    left, right = pair(x, y)
    return emit(_k.Fmod, [add(emit(_k.Fmod, [left, right], "fmod"), right), right], "mod")


def floor_divide(x: Any, y: Any) -> Array:
    """Quotient rounded towards minus infinity, as Python's ``//``."""
    left, right = pair(x, y)
    if left.dtype.is_integer:
        return emit(_k.Div, [subtract(left, mod(left, right)), right], "floordiv")
    return floor(divide(left, right))


def where(condition: Any, x: Any, y: Any) -> Array:
    """``x`` where ``condition`` holds, else ``y``."""
    left, right = pair(x, y)
    return emit(_k.Where, [convert(condition), left, right], "where")


def clip_by_value(x: Any, clip_value_min: float, clip_value_max: float) -> Array:
    """Limited to an interval (numbers known now)."""
    return emit(_k.Clip, [convert(x)], "clip", min=float(clip_value_min), max=float(clip_value_max))


def square(x: Any) -> Array:
    """``x * x``."""
    array = convert(x)
    return multiply(array, array)


def rsqrt(x: Any) -> Array:
    """``1 / sqrt(x)``."""
    return reciprocal(sqrt(x))


def gelu(features: Any, approximate: bool = True) -> Array:
    """GELU; the tanh form (PopLibs' own) or with the error function."""
    return emit(_k.Gelu if approximate else _k.GeluErf, [convert(features)], "gelu")


def cast(x: Any, dtype: Any) -> Any:
    """Converted to an element type; host data stays on the host when nothing is being traced."""
    wanted = as_dtype(dtype)
    if not is_traced(x) and not is_tracing():
        return host_array(x, wanted)
    array = convert(x)
    return array if array.dtype == wanted else emit(_k.Cast, [array], "cast", dtype=wanted)


# -- matrix product ----------------------------------------------------------------------------------------------------


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    """Matrix product by NumPy's rules, of operands with their last two axes exchanged where asked for."""
    left, right = pair(a, b)
    left = swap_last(left) if transpose_a else left
    right = swap_last(right) if transpose_b else right
    return emit(_k.MatMul, [left, right], "matmul", **current_frame().program.matmul_attributes())


def swap_last(x: Array) -> Array:
    """The last two axes exchanged."""
    order = list(range(x.ndim))
    order[-2:] = order[-1], order[-2]
    return transpose(x, order)


# -- reductions --------------------------------------------------------------------------------------------------------


def _reduction(op_class: type[_k.Op], name: str) -> Callable[..., Array]:
    def function(input_tensor: Any, axis: Axes = None, keepdims: bool = False) -> Array:
        axes = None if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
        return emit(op_class, [convert(input_tensor)], name, axes=axes, keepdims=keepdims)

    function.__name__ = name
    function.__doc__ = f"{op_class.type} over ``axis`` (one, several, or None for all)."
    return function


reduce_sum = _reduction(_k.ReduceSum, "reduce_sum")
reduce_mean = _reduction(_k.ReduceMean, "reduce_mean")
reduce_max = _reduction(_k.ReduceMax, "reduce_max")
reduce_min = _reduction(_k.ReduceMin, "reduce_min")
reduce_prod = _reduction(_k.ReduceProd, "reduce_prod")


def argmax(input: Any, axis: int = 0, output_type: Any = INT32) -> Array:
    """Position of the largest element along ``axis``."""
    found = emit(_k.ArgMax, [convert(input)], "argmax", axis=axis, keepdim=False)
    return cast(found, output_type)


def argmin(input: Any, axis: int = 0, output_type: Any = INT32) -> Array:
    """Position of the smallest element along ``axis``."""
    found = emit(_k.ArgMin, [convert(input)], "argmin", axis=axis, keepdim=False)
    return cast(found, output_type)


# -- shapes ------------------------------------------------------------------------------------------------------------


def reshape(tensor: Any, shape: Any) -> Any:
    """In another shape; host data stays on the host when nothing is being traced."""
    wanted = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)
    if not is_traced(tensor) and not is_tracing():
        return host_array(np.reshape(tensor, wanted))
    array = convert(tensor)
    return array if array.shape == wanted else emit(_k.Reshape, [array], "reshape", shape=wanted)


def transpose(a: Any, perm: Sequence[int] | None = None) -> Array:
    """Axes in the order ``perm`` (default reversed)."""
    return emit(_k.Transpose, [convert(a)], "transpose", permutation=None if perm is None else tuple(perm))


def expand_dims(input: Any, axis: int = -1) -> Any:
    """With a new axis of length 1."""
    shape = list(np.shape(input) if not is_traced(input) else convert(input).shape)
    position = axis + len(shape) + 1 if axis < 0 else axis
    return reshape(input, [*shape[:position], 1, *shape[position:]])


def squeeze(input: Any, axis: Axes = None) -> Array:
    """Without axes of length 1 (all of them, or those named)."""
    array = convert(input)
    axes = range(array.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    drop = {a % array.ndim for a in axes if axis is not None or array.shape[a] == 1}
    for a in drop:
        if array.shape[a] != 1:
            raise ValueError(f"squeeze of {array.name!r} {array.shape}: axis {a} has length {array.shape[a]}, not 1")
    return reshape(array, [n for i, n in enumerate(array.shape) if i not in drop])


def concat(values: Sequence[Any], axis: int = 0) -> Array:
    """Joined along an axis."""
    first = next((convert(v) for v in values if is_traced(v)), None)
    return emit(_k.Concat, [convert(v, first) for v in values], "concat", axis=axis)


def stack(values: Sequence[Any], axis: int = 0) -> Array:
    """Joined along a new axis."""
    first = next((convert(v) for v in values if is_traced(v)), None)
    return concat([expand_dims(convert(v, first), axis) for v in values], axis)


def unstack(value: Any, axis: int = 0) -> list[Array]:
    """The slices along an axis, without that axis."""
    array = convert(value)
    return [squeeze(part, axis) for part in split(array, array.shape[axis], axis)]


def split(value: Any, num_or_size_splits: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Cut along an axis into equal parts or parts of given sizes.

    Raises:
        ValueError: the parts do not fill the axis.
    """
    array = convert(value)
    length = array.shape[axis]
    if isinstance(num_or_size_splits, int):
        if num_or_size_splits < 1 or length % num_or_size_splits:
            raise ValueError(f"split of {array.name!r}: axis {axis} of length {length} into {num_or_size_splits} parts")
        sizes = [length // num_or_size_splits] * num_or_size_splits
    else:
        sizes = list(num_or_size_splits)
    if sum(sizes) != length:
        raise ValueError(f"split of {array.name!r}: parts {sizes} do not fill axis {axis} of length {length}")
    parts, start = [], 0
    for size in sizes:
        parts.append(emit(_k.Slice, [array], "split", axis=axis, start=start, stop=start + size, step=1))
        start += size
    return parts


def broadcast_to(input: Any, shape: Sequence[int]) -> Array:
    """Broadcast to a shape."""
    return emit(_k.Expand, [convert(input)], "broadcast", shape=tuple(shape))


def getitem(array: Array, key: Any) -> Array:
    """Indexing by integers, slices, ``None`` and ``...``.

    Raises:
        TypeError: another index; IndexError: too many indices, or an integer out of range.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if used > array.ndim:
        raise IndexError(f"array {array.name!r} of shape {array.shape} has {array.ndim} axes, {used} are indexed")
    if sum(k is Ellipsis for k in keys) == 0:
        keys.append(Ellipsis)
    at = next(i for i, k in enumerate(keys) if k is Ellipsis)
    keys[at : at + 1] = [slice(None)] * (array.ndim - used)
    axes, starts, stops, steps, shape = [], [], [], [], []
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        length = array.shape[axis]
        if isinstance(k, (int, np.integer)) and not isinstance(k, bool):
            if not -length <= k < length:
                raise IndexError(f"array {array.name!r}: index {k} is out of range for axis {axis} of length {length}")
            part = slice(int(k) % length, int(k) % length + 1, 1)
        elif isinstance(k, slice):
            part = k
            shape.append(len(range(*k.indices(length))))
        else:
            raise TypeError(
                f"array {array.name!r}: index {k!r}; integers, slices, None and ... are allowed; to index by an array "
                "use tf.gather"
            )
        if part != slice(None):
            axes.append(axis)
            starts.append(part.start)
            stops.append(part.stop)
            steps.append(1 if part.step is None else part.step)
        axis += 1
    if axes:
        array = emit(_k.Slice, [array], "slice", axis=axes, start=starts, stop=stops, step=steps)
    return reshape(array, shape)


# -- losses and probabilities ------------------------------------------------------------------------------------------


def softmax(logits: Any, axis: int = -1) -> Array:
    """Probabilities along an axis."""
    return emit(_k.Softmax, [convert(logits)], "softmax", axis=axis)


def log_softmax(logits: Any, axis: int = -1) -> Array:
    """Logarithm of the softmax."""
    return emit(_k.LogSoftmax, [convert(logits)], "log_softmax", axis=axis)


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> Array:
    """Negative log-likelihood per label of softmaxed logits; labels are class numbers.

    Raises:
        ValueError: positional arguments, or labels or logits missing (as TensorFlow).
    """
    if _sentinel is not None or labels is None or logits is None:
        raise ValueError("sparse_softmax_cross_entropy_with_logits: give labels=... and logits=... by name")
    return emit(_k.Nll, [softmax(logits), convert(labels)], name or "xent", reduction="none")


def softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> Array:
    """Cross entropy per row between label distributions and softmaxed logits.

    Raises:
        ValueError: positional arguments, or labels or logits missing (as TensorFlow).
    """
    if _sentinel is not None or labels is None or logits is None:
        raise ValueError("softmax_cross_entropy_with_logits: give labels=... and logits=... by name")
    total = reduce_sum(multiply(labels, log_softmax(logits)), -1)
    return emit(_k.Neg, [total], name or "xent")


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

UFUNCS: dict[str, Callable[..., Array]] = {
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "divide": divide,
    "true_divide": divide,
    "floor_divide": floor_divide,
    "remainder": mod,
    "power": pow,
    "matmul": matmul,
    "maximum": maximum,
    "minimum": minimum,
    "exp": exp,
    "log": log,
    "sqrt": sqrt,
    "square": square,
    "reciprocal": reciprocal,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
    "floor": floor,
    "ceil": ceil,
    "sign": sign,
    "absolute": abs,
    "negative": negative,
    "equal": equal,
    "not_equal": not_equal,
    "greater": greater,
    "greater_equal": greater_equal,
    "less": less,
    "less_equal": less_equal,
    "logical_and": logical_and,
    "logical_or": logical_or,
    "logical_not": logical_not,
    "isfinite": is_finite,
    "isnan": is_nan,
}
"""NumPy ufuncs that work on traced arrays."""

NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matmul": matmul,
    "dot": matmul,
    "sum": reduce_sum,
    "mean": reduce_mean,
    "max": reduce_max,
    "amax": reduce_max,
    "min": reduce_min,
    "amin": reduce_min,
    "prod": reduce_prod,
    "argmax": argmax,
    "argmin": argmin,
    "reshape": reshape,
    "transpose": transpose,
    "expand_dims": expand_dims,
    "squeeze": squeeze,
    "concatenate": concat,
    "stack": stack,
    "split": split,
    "where": where,
    "broadcast_to": broadcast_to,
    "zeros_like": zeros_like,
    "ones_like": ones_like,
    "shape": lambda a: a.shape,
    "ndim": lambda a: a.ndim,
    "size": lambda a: a.size,
}
"""NumPy functions that work on traced arrays (with their positional arguments, and axis and keepdims by name)."""

__all__ = ["BOOL", "DType", "emit", "pair"]
