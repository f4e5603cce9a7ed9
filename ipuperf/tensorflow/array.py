"""Traced arrays: values of a program under construction that behave like NumPy arrays.

Arithmetic, comparisons, indexing, NumPy ufuncs (``np.exp(x)``) and a set of NumPy functions (``np.matmul``,
``np.sum``, ``np.where`` ...) on an :class:`Array` create ops of the IR in the innermost frame. Element types are not
mixed: operands other than Python numbers must have one type, as in TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipuperf.ir import DType, Tensor

from .dtypes import to_host
from .tracing import current_frame


class Array:
    """A tensor of a program under construction.

    Attributes:
        tensor: the tensor of the IR.
    """

    __array_priority__ = 1000

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    # -- properties ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensor.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape on one replica."""
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements on one replica."""
        return self.tensor.spec.elements

    @property
    def T(self) -> Array:
        """Axes reversed."""
        return _functions().transpose(self)

    def get_shape(self) -> tuple[int, ...]:
        """Shape on one replica."""
        return self.shape

    # -- methods ---------------------------------------------------------------------------------------------------

    def reshape(self, *shape: Any) -> Array:
        """In another shape; one entry may be -1."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return _functions().reshape(self, wanted)

    def transpose(self, *axes: Any) -> Array:
        """Axes in the given order, default reversed."""
        wanted = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return _functions().transpose(self, wanted or None)

    def flatten(self) -> Array:
        """All elements in one axis."""
        return self.reshape(-1)

    ravel = flatten

    def astype(self, dtype: Any) -> Array:
        """Converted to another element type."""
        return _functions().cast(self, dtype)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Sum over axes."""
        return _functions().reduce_sum(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Mean over axes."""
        return _functions().reduce_mean(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Maximum over axes."""
        return _functions().reduce_max(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Minimum over axes."""
        return _functions().reduce_min(self, axis, keepdims)

    def argmax(self, axis: int = 0) -> Array:
        """Position of the maximum along an axis, int32."""
        return _functions().argmax(self, axis)

    def dot(self, other: Any) -> Array:
        """Matrix product."""
        return _functions().matmul(self, other)

    # -- operators -------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Array:
        return _functions().add(self, other)

    def __radd__(self, other: Any) -> Array:
        return _functions().add(other, self)

    def __sub__(self, other: Any) -> Array:
        return _functions().subtract(self, other)

    def __rsub__(self, other: Any) -> Array:
        return _functions().subtract(other, self)

    def __mul__(self, other: Any) -> Array:
        return _functions().multiply(self, other)

    def __rmul__(self, other: Any) -> Array:
        return _functions().multiply(other, self)

    def __truediv__(self, other: Any) -> Array:
        return _functions().divide(self, other)

    def __rtruediv__(self, other: Any) -> Array:
        return _functions().divide(other, self)

    def __floordiv__(self, other: Any) -> Array:
        return _functions().floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Array:
        return _functions().floor_divide(other, self)

    def __mod__(self, other: Any) -> Array:
        return _functions().mod(self, other)

    def __rmod__(self, other: Any) -> Array:
        return _functions().mod(other, self)

    def __pow__(self, other: Any) -> Array:
        return _functions().pow(self, other)

    def __rpow__(self, other: Any) -> Array:
        return _functions().pow(other, self)

    def __matmul__(self, other: Any) -> Array:
        return _functions().matmul(self, other)

    def __rmatmul__(self, other: Any) -> Array:
        return _functions().matmul(other, self)

    def __neg__(self) -> Array:
        return _functions().negative(self)

    def __abs__(self) -> Array:
        return _functions().abs(self)

    def __invert__(self) -> Array:
        return _functions().logical_not(self)

    def __and__(self, other: Any) -> Array:
        return _functions().logical_and(self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Array:
        return _functions().logical_or(self, other)

    __ror__ = __or__

    def __gt__(self, other: Any) -> Array:
        return _functions().greater(self, other)

    def __lt__(self, other: Any) -> Array:
        return _functions().less(self, other)

    def __ge__(self, other: Any) -> Array:
        return _functions().greater_equal(self, other)

    def __le__(self, other: Any) -> Array:
        return _functions().less_equal(self, other)

    def __eq__(self, other: object) -> Any:
        return _functions().equal(self, other)

    def __ne__(self, other: object) -> Any:
        return _functions().not_equal(self, other)

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, key: Any) -> Array:
        return _functions().getitem(self, key)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"array {self.name!r} is a scalar and has no length")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        raise TypeError(
            f"the truth of traced array {self.name!r} is not known while the program is built; use tf.where, or a "
            "Python condition on values known now"
        )

    def __float__(self) -> float:
        raise TypeError(f"traced array {self.name!r} has no value while the program is built; return or enqueue it")

    __int__ = __float__

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError(
            f"traced array {self.name!r} {self.shape} {self.dtype.name} has no value while the program is built, so "
            "NumPy cannot compute with it; use a function of ipuperf.tensorflow (tf.math, tf.nn), or enqueue it"
        )

    def __repr__(self) -> str:
        return f"<Array {self.name!r} shape={self.shape} dtype={self.dtype.name}>"

    # -- NumPy protocols -------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """A NumPy ufunc on traced arrays; plain calls without ``out`` and ``where`` only."""
        function = _functions().UFUNCS.get(ufunc.__name__)
        kwargs = {k: v for k, v in kwargs.items() if v is not None}
        if function is None or method != "__call__" or kwargs:
            how = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
            extra = f" with {', '.join(kwargs)}" if kwargs else ""
            raise TypeError(
                f"{how}{extra} is not available for traced arrays; available: {', '.join(_functions().UFUNCS)}"
            )
        return function(*inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A NumPy function on traced arrays."""
        function = _functions().NUMPY_FUNCTIONS.get(func.__name__)
        if function is None:
            raise TypeError(
                f"np.{func.__name__} is not available for traced arrays; available: "
                f"{', '.join(_functions().NUMPY_FUNCTIONS)}"
            )
        return function(*args, **kwargs)


def _functions() -> Any:
    """The functions on arrays (a late import: they need this class)."""
    from . import functions

    return functions


def is_traced(value: Any) -> bool:
    """Whether ``value`` is a traced array or a variable."""
    return isinstance(value, Array) or hasattr(value, "as_array")


def convert(value: Any, like: Array | None = None, dtype: Any = None, name: str = "constant") -> Array:
    """``value`` as an array of the current frame; host data becomes a constant.

    Args:
        like: Python numbers take this array's element type.
        dtype: element type of host data.

    Raises:
        RuntimeError: nothing is being traced; TypeError: data without an IPU type.
    """
    if isinstance(value, Array):
        return value
    as_array: Callable[[], Array] | None = getattr(value, "as_array", None)
    if as_array is not None:
        return as_array()
    frame = current_frame()
    if dtype is None and like is not None and isinstance(value, (bool, int, float)):
        _check_number(value, like)
        dtype = like.dtype
    if isinstance(value, (list, tuple)) and any(is_traced(v) for v in value):
        return _functions().stack([convert(v, like, dtype) for v in value])
    return Array(frame.graph.constant(to_host(value, dtype), name=name))


def _check_number(value: Any, like: Array) -> None:
    if isinstance(value, float) and like.dtype.is_integer and not float(value).is_integer():
        raise TypeError(
            f"{value!r} with array {like.name!r} of type {like.dtype.name}: a fraction does not fit an integer type; "
            "cast the array first"
        )
