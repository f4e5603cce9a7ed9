"""How functions make ops: through the builder that is active."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipuperf.ir import CONTEXT, DType, Op, Operand, Tensor


def make(op_class: type[Op], *operands: Operand, name: str = "", **attributes: Any) -> Tensor:
    """The output of a new op with one output.

    Args:
        operands: tensors, or host data that takes the first tensor's type.
        name: name of the output; by default as the caller's front end names outputs.

    Raises:
        IrError: no graph is active, the operands belong to another one, or the op refuses them (ShapeError,
            DTypeError).
    """
    builder = CONTEXT.builder
    return builder.op(op_class, builder.operands(*operands), name, **attributes)


def make_all(op_class: type[Op], operands: Sequence[Operand], names: Sequence[str], **attributes: Any) -> list[Tensor]:
    """The outputs of a new op with several outputs, called ``names``."""
    builder = CONTEXT.builder
    return builder.create(op_class, builder.operands(*operands), names, **attributes).outputs


def constant(value: Any, dtype: DType | None = None, name: str = "constant") -> Tensor:
    """A constant of the active graph."""
    return CONTEXT.builder.constant(value, dtype, name)


def many(value: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Axes or sizes given as one number or several, as a tuple; None stays None."""
    if value is None:
        return None
    # NumPy's integers are no subclass of int.
    return (int(value),) if isinstance(value, (int, np.integer)) else tuple(value)
