"""Removes from a graph what none of its outputs needs, and ops whose result equals their operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from .graph import Graph
from .op import Op
from .schedule import roots
from .tensor import Tensor

T = TypeVar("T")


def prune(graph: Graph, sources: Sequence[T]) -> list[T]:
    """Remove ops, constants and inputs of ``graph`` that no output needs.

    ``sources`` has one entry for each input. Returns the entries whose inputs remain.
    """
    needed, needed_ops = set(graph.outputs), []
    # Readers come after the ops that they read, so one backward pass finds everything that is needed.
    for op in reversed(graph.ops):
        if any(tensor in needed for tensor in op.outputs):
            needed_ops.append(op)
            needed.update(op.inputs)
            continue
        # A tensor that stays must not list a removed op among its readers.
        for tensor in op.inputs:
            tensor.consumers.remove(op)
        for tensor in op.outputs:
            del graph.tensors[tensor.id]
    graph.ops = needed_ops[::-1]
    pairs = [(tensor, source) for tensor, source in zip(graph.inputs, sources, strict=True) if tensor in needed]
    # Inputs and data that nothing needs; results of removed ops are gone already.
    for tensor in [tensor for tensor in graph.tensors.values() if tensor.producer is None and tensor not in needed]:
        del graph.tensors[tensor.id]
    graph.inputs = [tensor for tensor, _ in pairs]
    graph.version += 1
    return [source for _, source in pairs]


def elide(graph: Graph, ops: Sequence[Op]) -> None:
    """Remove ops of ``graph`` that give their operand 0 as their only result; readers of the result then read the
    operand.

    An op stays where its operand or result is changed in place or comes from outside the graph (the caller may change
    it). It also stays where operand and result are both outputs of the graph. In these cases the result keeps a value
    that the operand may lose.
    """
    root = roots(graph)
    changed = {root.get(op.inputs[index], op.inputs[index]) for op in graph.ops for index in op.modified_inputs()}
    for op in ops:
        (source, *_), (result,) = op.inputs, op.outputs
        owner = root.get(source, source)
        must_stay = owner.producer is None or owner in changed or root[result] in changed
        if must_stay or (result in graph.outputs and source in graph.outputs):
            continue
        _remove(graph, op, source, result)


def _remove(graph: Graph, op: Op, source: Tensor, result: Tensor) -> None:
    for tensor in op.inputs:
        tensor.consumers.remove(op)
    for reader in dict.fromkeys(result.consumers):
        reader.inputs = [source if tensor is result else tensor for tensor in reader.inputs]
    # One entry per use, so readers of both tensors are listed once for each.
    source.consumers += result.consumers
    graph.outputs[:] = [source if tensor is result else tensor for tensor in graph.outputs]
    graph.ops.remove(op)
    del graph.tensors[result.id]
    # Ops that had to follow the removed op now follow those that came before it.
    inherited = graph.constraints.pop(op, set())
    for predecessors in graph.constraints.values():
        if op in predecessors:
            predecessors.remove(op)
            predecessors |= inherited
    graph.version += 1
