"""Automatic differentiation with the ops of this room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ipuperf.ir import Derivative, GradientBuilder, Graph, Recomputation, Tensor, differentiate

from .elementwise.arithmetic import Add
from .shape import Concat, Init, SliceGrad


def join_pads(builder: GradientBuilder, parts: Sequence[Tensor], name: str) -> Tensor | None:
    """The sum of gradients that are each zero outside of a stretch of one axis.

    The axis must be the same for all, and no two stretches may meet. The sum is then the stretches one after another,
    with zeros in between (popart: willow/src/patterns/padsum.cpp).

    Returns:
        None where ``parts`` are anything else.
    """
    stretches = [_stretch(tensor) for tensor in parts]
    stretches_in_order = sorted((s for s in stretches if s is not None), key=lambda s: s[1:3])
    if len(stretches_in_order) < len(parts) or len({axis for axis, *_ in stretches_in_order}) > 1:
        return None
    if any(later[1] < earlier[2] for earlier, later in pairwise(stretches_in_order)):
        return None
    axis, shape = stretches_in_order[0][0], parts[0].shape
    operands: list[Tensor] = []
    end = 0
    for _, start, stop, operand in stretches_in_order:
        if start > end:
            operands.append(_zeros(builder, parts[0], axis, start - end))
        operands.append(operand)
        end = stop
    if end < shape[axis]:
        operands.append(_zeros(builder, parts[0], axis, shape[axis] - end))
    return builder.op(Concat, operands, name, axis=axis)


def _stretch(tensor: Tensor) -> tuple[int, int, int, Tensor] | None:
    """Axis, begin, end and values of the part of ``tensor`` that is not zero; None if it is not a stretch of one
    axis."""
    op = tensor.producer
    if type(op) is not SliceGrad:
        return None
    padded = []
    for axis, part in op.parts().items():
        start, stop, step = part.indices(op.shape[axis])
        # Only an unbroken stretch can be joined.
        if step != 1 or stop <= start:
            return None
        if stop - start < op.shape[axis]:
            padded.append((axis, start, stop))
    return (*padded[0], op.inputs[0]) if len(padded) == 1 else None


def _zeros(builder: GradientBuilder, like: Tensor, axis: int, length: int) -> Tensor:
    shape = (*like.shape[:axis], length, *like.shape[axis + 1 :])
    return builder.op(Init, [], "zeros", shape=shape, dtype=like.dtype)


def autodiff(
    graph: Graph,
    provided: Sequence[Tensor] | None = None,
    required: Sequence[Tensor] | None = None,
    known: dict[Graph, Derivative] | None = None,
    recomputation: Recomputation | None = None,
    within: Sequence[Tensor] = (),
    others: list[Derivative] | None = None,
    joins_pads: bool = False,
) -> Derivative:
    """Build the gradient graph of ``graph``; gradients that meet are added with :class:`~ipuperf.ops.Add`.

    Args:
        graph: graph without ops that change tensors in place.
        provided: outputs whose gradients will be given (default all).
        required: inputs whose gradients are needed (default all floating-point inputs).
        known: derivatives of called graphs that exist already.
        recomputation: forward ops that the gradient graph runs again.
        within: further tensors of ``graph`` whose gradients are needed.
        others: a list that receives the derivatives of called graphs that are made on the way.
        joins_pads: gradients of disjoint parts of a tensor are joined (:func:`~ipuperf.ops.gradients.join_pads`).

    Raises:
        IrError: see :func:`ipuperf.ir.differentiate`.
    """
    return differentiate(
        graph,
        provided,
        required,
        add_class=Add,
        join=join_pads if joins_pads else None,
        known=known,
        recomputation=recomputation,
        within=within,
        others=others,
    )
