"""Replaces several ops by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from .errors import IrError
from .graph import Graph
from .op import Op
from .schedule import dependencies

OpT = TypeVar("OpT", bound=Op)


def join(op_class: type[OpT], ops: Sequence[Op], **attributes: Any) -> OpT:
    """Replace several ops of one graph by one op, which has their operands and defines their results, in order.

    The new op stands where the last of them stood; ops that need a result of the others move behind it. It takes phase,
    IPU, tile set and scope from the last one.

    Raises:
        IrError: one of the ops needs the result of another, the results do not fit, or the shape rule of ``op_class``
            refuses the operands.
    """
    graph, last_op = ops[0].graph, ops[-1]
    successors = _later(graph, ops)
    # Not through Graph.create, which would define new results; these ops keep theirs.
    joined = op_class(
        graph, graph.ir.next_op_id, [tensor for op in ops for tensor in op.inputs], attributes, last_op.location
    )
    specs, outputs = joined.infer(), [tensor for op in ops for tensor in op.outputs]
    if [tensor.spec for tensor in outputs] != specs:
        raise IrError(f"{joined.where()}: it does not give what {', '.join(op.label for op in ops)} give")
    # Only now, so that a refused joining uses up no number.
    graph.ir.next_op_id += 1
    joined.outputs = outputs
    for place in ("ipu", "tile_set", "scope", "module", "phase"):
        setattr(joined, place, getattr(last_op, place))
    for op in ops:
        for tensor in op.inputs:
            tensor.consumers.remove(op)
    for tensor in joined.inputs:
        tensor.consumers.append(joined)
    for tensor in outputs:
        tensor.producer = joined
    replaced = set(ops)
    position = graph.ops.index(last_op)
    earlier_ops = [op for op in graph.ops[:position] if op not in replaced and op not in successors]
    later_ops = [op for op in graph.ops[:position] if op in successors]
    graph.ops[:] = [*earlier_ops, joined, *later_ops, *graph.ops[position + 1 :]]
    _reconstrain(graph, replaced, joined)
    graph.version += 1
    return joined


def _later(graph: Graph, ops: Sequence[Op]) -> set[Op]:
    """The ops that come after one of ``ops``, directly or through others.

    Raises:
        IrError: one of ``ops`` is among them.
    """
    predecessors, successors, joined_ops = dependencies(graph), set[Op](), set(ops)
    for op in graph.ops:  # creation order defines before use
        if any(predecessor in successors or predecessor in joined_ops for predecessor in predecessors[op]):
            successors.add(op)
    for op in ops:
        if op in successors:
            raise IrError(
                f"{op.where()}: it needs the result of another op of {', '.join(o.label for o in ops)}, so that they "
                "cannot run at once"
            )
    return successors


def _reconstrain(graph: Graph, replaced: set[Op], joined_op: Op) -> None:
    """Transfer order constraints of the replaced ops to the new one."""
    constraints = graph.constraints
    # Most graphs have no such constraint; then nothing is rebuilt.
    if not any(op in replaced or not replaced.isdisjoint(predecessors) for op, predecessors in constraints.items()):
        return
    new_constraints: dict[Op, set[Op]] = {}
    for op, predecessors in constraints.items():
        renamed = {joined_op if predecessor in replaced else predecessor for predecessor in predecessors}
        new_constraints.setdefault(joined_op if op in replaced else op, set()).update(renamed)
    graph.constraints = new_constraints
