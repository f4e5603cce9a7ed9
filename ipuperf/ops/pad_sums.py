"""Gradients of disjoint parts of a tensor, joined where they would be padded and added up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ipuperf.ir import GradientBuilder, Tensor

from .shape import Concat, Init, SliceGrad


def join_pads(builder: GradientBuilder, parts: Sequence[Tensor], name: str) -> Tensor | None:
    """The sum of gradients that are all zero but for a stretch of one axis, the same for all, where no two stretches
    meet: the stretches one after another, with zeros in between (popart: willow/src/patterns/padsum.cpp).

    Returns:
        None where ``parts`` are something else.
    """
    stretches = [_stretch(tensor) for tensor in parts]
    found = sorted((s for s in stretches if s is not None), key=lambda s: s[1:3])
    if len(found) < len(parts) or len({axis for axis, *_ in found}) > 1:
        return None
    if any(later[1] < earlier[2] for earlier, later in pairwise(found)):
        return None
    axis, shape = found[0][0], parts[0].shape
    operands: list[Tensor] = []
    reached = 0
    for _, start, stop, operand in found:
        if start > reached:
            operands.append(_zeros(builder, parts[0], axis, start - reached))
        operands.append(operand)
        reached = stop
    if reached < shape[axis]:
        operands.append(_zeros(builder, parts[0], axis, shape[axis] - reached))
    return builder.op(Concat, operands, name, axis=axis)


def _stretch(tensor: Tensor) -> tuple[int, int, int, Tensor] | None:
    """Axis, begin, end and values of what is not zero in ``tensor``; None if that is no stretch of one axis."""
    op = tensor.producer
    if type(op) is not SliceGrad:
        return None
    padded = []
    for axis, part in op.parts().items():
        start, stop, step = part.indices(op.shape[axis])
        if step != 1 or stop <= start:
            return None
        if stop - start < op.shape[axis]:
            padded.append((axis, start, stop))
    return (*padded[0], op.inputs[0]) if len(padded) == 1 else None


def _zeros(builder: GradientBuilder, like: Tensor, axis: int, length: int) -> Tensor:
    shape = (*like.shape[:axis], length, *like.shape[axis + 1 :])
    return builder.op(Init, [], "zeros", shape=shape, dtype=like.dtype)
