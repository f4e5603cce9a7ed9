"""Functions that only make one op of their operands, as rows: a name, the op and its meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ipuperf.ir import Op, Operand, Tensor

from .making import make, many

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def unary(name: str, op: type[Op], meaning: str, *, output: str = "") -> Callable[[Tensor], Tensor]:
    """A function of one tensor.

    Args:
        name: name of the function.
        meaning: its docstring.
        output: name of the op's output; by default as front ends name outputs.
    """

    def function(t: Tensor) -> Tensor:
        return make(op, t, name=output)

    return _called(function, name, meaning)


def binary(name: str, op: type[Op], meaning: str, *, output: str = "") -> Callable[[Operand, Operand], Tensor]:
    """A function of two tensors, or of one and host data; arguments as for :func:`unary`."""

    def function(lhs: Operand, rhs: Operand) -> Tensor:
        return make(op, lhs, rhs, name=output)

    return _called(function, name, meaning)


def comparison(name: str, op: type[Op], meaning: str) -> Callable[[Operand, Operand], Tensor]:
    """Like :func:`binary`, with PopXL's argument names of comparisons."""

    def function(input: Operand, other: Operand) -> Tensor:
        return make(op, input, other)

    return _called(function, name, meaning)


def reduction(name: str, op: type[Op], meaning: str, **attributes: Any) -> Callable[..., Tensor]:
    """A function along axes, which makes an op with ``attributes``."""

    def function(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        return make(op, t, axes=many(axis), keepdims=keepdims, **attributes)

    return _called(function, name, meaning)


def of_op(op: type[Op]) -> Callable[..., Tensor]:
    """The function that makes one op of its operands, for an op that needs no more."""

    def function(*ts: Operand) -> Tensor:
        return make(op, *ts)

    return _called(function, op.__name__.lower(), (op.__doc__ or "").partition("\n\n")[0])


def _called(function: FunctionT, name: str, meaning: str) -> FunctionT:
    """``function`` under its name, with its docstring."""
    # Messages and tables of names show the public name.
    function.__name__ = function.__qualname__ = name
    function.__doc__ = meaning
    return function
