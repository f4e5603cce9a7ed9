"""An op whose result is its operand goes."""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Graph
from .op import Op
from .schedule import roots
from .tensor import Tensor


def elide(graph: Graph, ops: Sequence[Op]) -> None:
    """Remove ops of ``graph`` that give their operand 0 as their only result: what read the result reads the operand.

    Those stay whose operand or result is changed where it is, comes from outside of the graph (the caller may change
    it), or is a result of the graph beside theirs: they keep a value that would be another one without them.
    """
    root = roots(graph)
    changed = {root.get(op.inputs[i], op.inputs[i]) for op in graph.ops for i in op.modified_inputs()}
    for op in ops:
        (source, *_), (result,) = op.inputs, op.outputs
        owner = root.get(source, source)
        kept = owner.producer is None or owner in changed or root[result] in changed
        if kept or (result in graph.outputs and source in graph.outputs):
            continue
        _remove(graph, op, source, result)


def _remove(graph: Graph, op: Op, source: Tensor, result: Tensor) -> None:
    for tensor in op.inputs:
        tensor.consumers.remove(op)
    for reader in dict.fromkeys(result.consumers):
        reader.inputs = [source if t is result else t for t in reader.inputs]
    source.consumers += result.consumers
    graph.outputs[:] = [source if t is result else t for t in graph.outputs]
    graph.ops.remove(op)
    del graph.tensors[result.id]
    earlier = graph.constraints.pop(op, set())
    for before in graph.constraints.values():
        if op in before:
            before.remove(op)
            before |= earlier
    graph.version += 1
