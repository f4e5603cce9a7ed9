"""Automatic differentiation with the ops of this room."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import Derivative, Graph, Recomputation, Tensor, differentiate

from .elementwise.arithmetic import Add
from .pad_sums import join_pads


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
        joins_pads: gradients of disjoint parts of a tensor are joined (:func:`~ipuperf.ops.pad_sums.join_pads`).

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
