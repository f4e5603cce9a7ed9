"""Ops that a transform puts into another graph: the copy of one, and the removal of those that were copied."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ipuperf import ir as _ir


def clone(builder: _ir.Builder, op: _ir.Op, operands: Sequence[_ir.Tensor], phase: _ir.Phase | None) -> _ir.Op:
    """The same op in the builder's graph, where the op was stated to be, for ``phase``."""
    clone = builder.copy(op, operands)
    clone.ipu, clone.phase = op.ipu, phase
    for old, new in zip(op.outputs, clone.outputs, strict=True):
        new.ipu = old.ipu
    return clone


def remove(graph: _ir.Graph, ops: Collection[_ir.Op], target: _ir.Graph) -> set[_ir.Op]:
    """Take ``ops`` out of ``graph``; what they made counts as ``target``'s: using it is an error that names that graph.

    Returns:
        The ops that stay and had to come before one of them.
    """
    moved = set(ops)
    earlier = {op for successor in moved for op in graph.constraints.pop(successor, ()) if op not in moved}
    for op in moved:
        for tensor in op.inputs:
            tensor.consumers.remove(op)
        for tensor in op.outputs:
            del graph.tensors[tensor.id]
            tensor.graph = target
    graph.ops = [op for op in graph.ops if op not in moved]
    graph.version += 1
    return earlier
