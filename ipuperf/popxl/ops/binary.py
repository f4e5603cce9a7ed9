"""Binary elementwise ops. Operands broadcast as in NumPy and have equal dtypes; host data takes the other's dtype."""

from __future__ import annotations

from ipuperf import ops as _k

from ..handle import Tensor
from .operands import Operand, emit, ensure_tensor, pair


def add(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs + rhs``."""
    return emit(_k.Add, pair(lhs, rhs), "add_out")


def add_(lhs: Tensor, rhs: Operand) -> Tensor:
    """``lhs += rhs`` in place: the result shares the storage of ``lhs``, and ``lhs`` reads as changed."""
    return emit(_k.AddLhsInplace, pair(lhs, rhs), "add_out")


def sub(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs - rhs``."""
    return emit(_k.Sub, pair(lhs, rhs), "sub_out")


def mul(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs * rhs``."""
    return emit(_k.Mul, pair(lhs, rhs), "mul_out")


def div(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs / rhs``; integers truncate towards zero."""
    return emit(_k.Div, pair(lhs, rhs), "div_out")


def pow(t: Operand, e: Operand) -> Tensor:
    """``t ** e``."""
    return emit(_k.Pow, pair(t, e), "pow_out")


def fmod(lhs: Operand, rhs: Operand) -> Tensor:
    """Remainder with the sign of ``lhs``."""
    return emit(_k.Fmod, pair(lhs, rhs), "fmod_out")


def maximum(*ts: Operand) -> Tensor:
    """Elementwise maximum of any number of tensors."""
    given = next((t for t in ts if isinstance(t, Tensor)), None)
    return emit(_k.Maximum, [ensure_tensor(t, None if given is None else given.dtype) for t in ts], "max_out")


def equal(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs == rhs`` as bool."""
    return emit(_k.Equal, pair(lhs, rhs), "equal_out")


def greater(input: Operand, other: Operand) -> Tensor:
    """``input > other`` as bool."""
    return emit(_k.Greater, pair(input, other), "greater_out")


def logical_and(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs and rhs`` of bools."""
    return emit(_k.And, pair(lhs, rhs), "and_out")


def logical_or(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs or rhs`` of bools."""
    return emit(_k.Or, pair(lhs, rhs), "or_out")


def where(condition: Tensor, lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs`` where ``condition`` (bool) holds, else ``rhs``."""
    return emit(_k.Where, [condition, *pair(lhs, rhs)], "where_out")


def scaled_add(X: Tensor, Y: Tensor, a: float | Tensor = 1.0, b: float | Tensor = 1.0) -> Tensor:
    """``a * X + b * Y`` in the dtype of ``X``; ``a`` and ``b`` are floats or scalar tensors."""
    return _scaled(_k.ScaledAdd, X, Y, a, b)


def scaled_add_(X: Tensor, Y: Tensor, a: float | Tensor = 1.0, b: float | Tensor = 1.0) -> Tensor:
    """``X = a * X + b * Y`` in place."""
    return _scaled(_k.ScaledAddLhsInplace, X, Y, a, b)


def _scaled(op: type[_k.ScaledAdd], x: Tensor, y: Tensor, a: float | Tensor, b: float | Tensor) -> Tensor:
    inputs, attributes = [x, y], {}
    for name, factor in (("a", a), ("b", b)):
        if isinstance(factor, Tensor):
            attributes[f"{name}_input"] = len(inputs)
            inputs.append(factor)
        else:
            attributes[name] = float(factor)  # type: ignore[assignment]
    return emit(op, inputs, "scaled_add_out", **attributes)
