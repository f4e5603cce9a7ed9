"""What all op wrappers share: operands to tensors of the current graph, and creation of the op there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipuperf import ir as _ir

from ..builder import current_builder
from ..data import constant
from ..dtypes import dtype as _dtype
from ..handle import Tensor, wrap, wrap_all

Operand = Any


def is_operand(value: Any) -> bool:
    """Whether ``value`` can stand where a tensor is expected."""
    return isinstance(value, Tensor) or _ir.is_host_data(value)


def ensure_tensor(value: Operand, dtype: _dtype | None = None, name: str | None = None) -> Tensor:
    """``value`` as a tensor: host data becomes a constant of the current graph, of ``dtype`` when given.

    Raises:
        TypeError: neither a tensor nor host data.
    """
    if isinstance(value, Tensor):
        return value
    if not is_operand(value):
        raise TypeError(f"{type(value).__name__} {value!r} is neither a popxl.Tensor nor host data")
    return constant(value, dtype, name)


def pair(lhs: Operand, rhs: Operand) -> list[Tensor]:
    """Both operands as tensors; host data takes the other's dtype."""
    if isinstance(lhs, Tensor):
        rhs = ensure_tensor(rhs, lhs.dtype)
    elif isinstance(rhs, Tensor):
        lhs = ensure_tensor(lhs, rhs.dtype)
    else:
        lhs = ensure_tensor(lhs)
        rhs = ensure_tensor(rhs, lhs.dtype)
    return [lhs, rhs]


def create(op_class: type[_ir.Op], inputs: Sequence[Tensor], names: Sequence[str], **attributes: Any) -> _ir.Op:
    """Append an op to the current graph."""
    return current_builder().create(op_class, [t._ir_tensor for t in inputs], names, **attributes)


def emit(op_class: type[_ir.Op], inputs: Sequence[Tensor], name: str, **attributes: Any) -> Tensor:
    """Append an op with one output and return the output."""
    return wrap(create(op_class, inputs, [name], **attributes).outputs[0])


def emit_all(
    op_class: type[_ir.Op], inputs: Sequence[Tensor], names: Sequence[str], **attributes: Any
) -> tuple[Tensor, ...]:
    """Append an op and return all outputs."""
    return wrap_all(create(op_class, inputs, names, **attributes).outputs)


def shape_of(value: Any) -> tuple[int, ...]:
    """A shape given as one number or a sequence."""
    return (int(value),) if isinstance(value, (int, np.integer)) else tuple(value)


__all__ = ["Operand", "create", "emit", "emit_all", "ensure_tensor", "is_operand", "pair", "shape_of"]
