"""One op in the place of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from .errors import IrError
from .graph import Graph
from .op import Op
from .schedule import dependencies

OpT = TypeVar("OpT", bound=Op)


def join(op_class: type[OpT], ops: Sequence[Op], **attributes: Any) -> OpT:
    """Put an op in the place of several of one graph: it has their operands, and defines their results, in order.

    It stands where the last of them stood; what needs a result of theirs moves behind it. What it is for, its IPU, tile
    set and scope are those of the last one.

    Raises:
        IrError: one of them needs the result of another, or what the shape rule of ``op_class`` refuses.
    """
    graph, last = ops[0].graph, ops[-1]
    later = _later(graph, ops)
    made = op_class(graph, graph.ir.next_op_id, [t for op in ops for t in op.inputs], attributes, last.location)
    specs, results = made.infer(), [t for op in ops for t in op.outputs]
    if [t.spec for t in results] != specs:
        raise IrError(f"{made.where()}: it does not give what {', '.join(op.label for op in ops)} give")
    graph.ir.next_op_id += 1
    made.outputs = results
    made.ipu, made.tile_set, made.scope, made.phase = last.ipu, last.tile_set, last.scope, last.phase
    for op in ops:
        for tensor in op.inputs:
            tensor.consumers.remove(op)
    for tensor in made.inputs:
        tensor.consumers.append(made)
    for tensor in results:
        tensor.producer = made
    gone = set(ops)
    at = graph.ops.index(last)
    before = [op for op in graph.ops[:at] if op not in gone and op not in later]
    moved = [op for op in graph.ops[:at] if op in later]
    graph.ops[:] = [*before, made, *moved, *graph.ops[at + 1 :]]
    _reconstrain(graph, gone, made)
    graph.version += 1
    return made


def _later(graph: Graph, ops: Sequence[Op]) -> set[Op]:
    """The ops that come after one of ``ops``, at whatever distance.

    Raises:
        IrError: one of ``ops`` is among them.
    """
    needs, found, joined = dependencies(graph), set[Op](), set(ops)
    for op in graph.ops:  # creation order defines before use
        if any(before in found or before in joined for before in needs[op]):
            found.add(op)
    for op in ops:
        if op in found:
            raise IrError(
                f"{op.where()}: it needs the result of another op of {', '.join(o.label for o in ops)}, so that they "
                "cannot run at once"
            )
    return found


def _reconstrain(graph: Graph, gone: set[Op], made: Op) -> None:
    """Order constraints of the ops that are gone hold for the new one."""
    old = graph.constraints
    if not any(op in gone or not gone.isdisjoint(before) for op, before in old.items()):
        return
    found: dict[Op, set[Op]] = {}
    for op, before in old.items():
        wanted = {made if other in gone else other for other in before}
        found.setdefault(made if op in gone else op, set()).update(wanted)
    graph.constraints = found
