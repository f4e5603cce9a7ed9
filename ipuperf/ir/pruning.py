"""Removes from a graph what none of its outputs needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from .graph import Graph

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
