"""Traced arrays: values of a program under construction that behave like NumPy arrays.

Arithmetic, comparisons, indexing, NumPy ufuncs (``np.exp(x)``) and a set of NumPy functions (``np.matmul``,
``np.sum``, ``np.where`` ...) on an :class:`Array` create ops of the IR in the innermost frame. Element types are not
mixed: operands other than Python numbers must have one type, as in TensorFlow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import numpy as np

from ipuperf.functions import arithmetic, products, reductions, shapes
from ipuperf.functions.making import many
from ipuperf.ir import DType, Operators, Tensor

from .dtypes import as_dtype
from .tracing import current_frame


class Array(Operators):
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
        return lifted(shapes.transpose)(self)

    def get_shape(self) -> tuple[int, ...]:
        """Shape on one replica."""
        return self.shape

    # -- methods ---------------------------------------------------------------------------------------------------

    def reshape(self, *shape: Any) -> Array:
        """In another shape; one entry may be -1."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return lifted(shapes.reshape)(self, many(wanted))

    def transpose(self, *axes: Any) -> Array:
        """Axes in the given order, default reversed."""
        wanted = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return lifted(shapes.transpose)(self, wanted or None)

    def flatten(self) -> Array:
        """All elements in one axis."""
        return self.reshape(-1)

    ravel = flatten

    def astype(self, dtype: Any) -> Array:
        """Converted to another element type."""
        return self if as_dtype(dtype) == self.dtype else lifted(arithmetic.cast)(self, dtype)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Sum over axes."""
        return lifted(reductions.sum)(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Mean over axes."""
        return lifted(reductions.mean)(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Maximum over axes."""
        return lifted(reductions.max)(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Minimum over axes."""
        return lifted(reductions.min)(self, axis, keepdims)

    def argmax(self, axis: int = 0) -> Array:
        """Position of the maximum along an axis, int32."""
        return lifted(reductions.argmax)(self, axis)

    def dot(self, other: Any) -> Array:
        """Matrix product."""
        return self @ other

    # -- operators -------------------------------------------------------------------------------------------------

    def operate(self, function: str, *operands: Any) -> Any:
        """The function that an operator stands for: that of NumPy and TensorFlow for ``/``, ``//`` and ``%``."""
        own = {"div": arithmetic.true_div, "fmod": arithmetic.mod, "matmul": products.matmul}
        return lifted(own.get(function) or getattr(arithmetic, function))(*operands)

    def __eq__(self, other: object) -> Any:
        return self.operate("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return self.operate("not_equal", self, other)

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, key: Any) -> Array:
        """Indexing by integers, slices, ``None`` (a new axis) and ``...``; to index by an array use ``tf.gather``."""
        if all(k is None or k is Ellipsis or (isinstance(k, slice) and k == slice(None)) for k in _tuple(key)):
            shape = np.broadcast_to(0, self.shape)[key].shape
            return self if shape == self.shape else self.reshape(shape)
        return lifted(shapes.getitem)(self, key)

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
        function = UFUNCS.get(ufunc.__name__)
        kwargs = {k: v for k, v in kwargs.items() if v is not None}
        if function is None or method != "__call__" or kwargs:
            how = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
            extra = f" with {', '.join(kwargs)}" if kwargs else ""
            raise TypeError(f"{how}{extra} is not available for traced arrays; available: {', '.join(UFUNCS)}")
        return function(*inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A NumPy function on traced arrays."""
        function = NUMPY_FUNCTIONS.get(func.__name__)
        if function is None:
            raise TypeError(
                f"np.{func.__name__} is not available for traced arrays; available: {', '.join(NUMPY_FUNCTIONS)}"
            )
        return function(*args, **kwargs)


UFUNCS: dict[str, Callable[..., Array]] = {}
"""NumPy ufuncs that work on traced arrays."""

NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""NumPy functions that work on traced arrays (with their positional arguments, and axis and keepdims by name)."""


def _tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


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
        return lifted(shapes.stack)([convert(v, like, dtype) for v in value])
    return Array(frame.constant(value, dtype, name))


def _check_number(value: Any, like: Array) -> None:
    if isinstance(value, float) and like.dtype.is_integer and not float(value).is_integer():
        raise TypeError(
            f"{value!r} with array {like.name!r} of type {like.dtype.name}: a fraction does not fit an integer type; "
            "cast the array first"
        )


# -- the function library on arrays ------------------------------------------------------------------------------------


def together(values: Sequence[Any]) -> list[Array]:
    """Operands as arrays of one type: numbers, lists and data of NumPy's default types take that of the arrays beside
    them.

    Raises:
        TypeError: two different types.
    """
    like = convert(next((v for v in values if is_traced(v)), values[-1]))
    found = [convert(v, like, None if is_traced(v) or not _adapts(v) else like.dtype) for v in values]
    wrong = next((a for a in found if a.dtype != like.dtype), None)
    if wrong is not None:
        raise TypeError(
            f"operands {like.name!r} {like.dtype.name} and {wrong.name!r} {wrong.dtype.name} have different types; "
            "cast one of them"
        )
    return found


def _adapts(value: Any) -> bool:
    """Whether host data takes the type of the array beside it: float64 and int64, NumPy's defaults, do."""
    return isinstance(value, (list, tuple)) or getattr(value, "dtype", None) in (np.float64, np.int64)


def _listed(values: Sequence[Any]) -> list[Array]:
    """Arrays and host data behind each other; numbers take the type of the first array."""
    first = next((convert(v) for v in values if is_traced(v)), None)
    return [convert(v, first) for v in values]


_LOWERED: dict[str, Callable[[Any], Any]] = {
    "Tensor": lambda value: convert(value).tensor,
    "Sequence[Tensor]": lambda values: [a.tensor for a in _listed(values)],
    "DType": as_dtype,
}
"""What parameters of the function library are given, by their annotation; operands (``Operand``) go together."""


@cache
def lifted(function: Callable[..., Any], names: str = "", called: str = "", **defaults: Any) -> Callable[..., Any]:
    """``function`` of :mod:`ipuperf.functions` on arrays, variables and host data, in the innermost frame.

    Args:
        names: TensorFlow's names of its parameters, in order, where they are others.
        called: what results are called; the argument ``name`` goes before.
        defaults: arguments that TensorFlow has a default for.
    """
    shown, kinds = _signature(function, names.split(), defaults)

    @wraps(function)
    def call(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        try:
            given = shown.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{called or function.__name__}{shown}: {error}") from None
        given.apply_defaults()
        with current_frame().named(name or called or function.__name__):
            return raised(function(*_lowered(given.args, kinds)))

    call.__signature__ = shown  # type: ignore[attr-defined]
    return call


def _signature(
    function: Callable[..., Any], names: Sequence[str], defaults: dict[str, Any]
) -> tuple[inspect.Signature, list[str]]:
    """Parameters as TensorFlow has them, without types, and the types that the function library states."""
    own = list(inspect.signature(function).parameters.values())
    if own[0].kind is own[0].VAR_POSITIONAL:
        own = [own[0].replace(kind=own[0].POSITIONAL_OR_KEYWORD)] * len(names)
    called = [*names, *(p.name for p in own[len(names) :])]
    shown = [
        p.replace(name=name, default=defaults.get(p.name, p.default), annotation=p.empty)
        for p, name in zip(own, called, strict=True)
    ]
    return inspect.Signature(shown), [str(p.annotation) for p in own]


def _lowered(values: Sequence[Any], kinds: Sequence[str]) -> list[Any]:
    """Tensors of the IR in the place of arrays and host data."""
    operands = [value for value, kind in zip(values, kinds, strict=True) if kind == "Operand"]
    converted = iter(together(operands)) if operands else iter(())
    return [
        next(converted).tensor if kind == "Operand" else _LOWERED[kind](value) if kind in _LOWERED else value
        for value, kind in zip(values, kinds, strict=True)
    ]


def raised(value: Any) -> Any:
    """Tensors of the IR as arrays, also inside lists and tuples."""
    if isinstance(value, Tensor):
        return Array(value)
    return type(value)(raised(v) for v in value) if isinstance(value, (list, tuple)) else value
