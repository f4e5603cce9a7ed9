"""What no output of a graph needs is removed from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from .graph import Graph

T = TypeVar("T")


def prune(graph: Graph, sources: Sequence[T]) -> list[T]:
    """Remove ops, constants and inputs of ``graph`` that no output needs; those of ``sources`` (one for each input)
    that are left."""
    needed, kept = set(graph.outputs), []
    for op in reversed(graph.ops):
        if any(t in needed for t in op.outputs):
            kept.append(op)
            needed.update(op.inputs)
            continue
        for tensor in op.inputs:
            tensor.consumers.remove(op)
        for tensor in op.outputs:
            del graph.tensors[tensor.id]
    graph.ops = kept[::-1]
    pairs = [(t, s) for t, s in zip(graph.inputs, sources, strict=True) if t in needed]
    for tensor in [t for t in graph.tensors.values() if t.producer is None and t not in needed]:
        del graph.tensors[tensor.id]
    graph.inputs = [t for t, _ in pairs]
    graph.version += 1
    return [s for _, s in pairs]
