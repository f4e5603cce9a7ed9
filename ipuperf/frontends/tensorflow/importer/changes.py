"""Which variables a graph may change: those whose handle goes to an op that does not only read."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .markers import is_marker, meaning_of
from .needed import functions_of
from .tracer import TracedFunction

_READS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", "Identity"}
)


def changed_handles(traced: TracedFunction) -> list[tf.Tensor]:
    """Of the handles that a function captures, those that it may change."""
    changed = _changed(traced.graph)
    return [outside for outside, inside in traced.graph.captures if id(inside) in changed]


def _changed(graph: tf.Graph) -> set[int]:
    """Identities of tensors of a graph that are handles of variables which its ops may change."""
    found: set[int] = set()
    for op in graph.get_operations():
        handles = [t for t in op.inputs if t.dtype == tf.resource]
        if not handles or op.type in _READS:
            continue
        found.update(id(op.inputs[i]) for i in _changed_inputs(op))
    return found


def _changed_inputs(op: tf.Operation) -> Sequence[int]:
    """Which inputs of an op are handles that it may change."""
    everything = [i for i, t in enumerate(op.inputs) if t.dtype == tf.resource]
    if is_marker(op):
        known = getattr(meaning_of(op), "changed", None)
        return everything if known is None else known()
    graphs = functions_of(op)
    if not graphs:
        return everything
    offset = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}.get(op.type, 0)
    changed = set()
    for graph in graphs:
        inside = _changed(graph)
        changed |= {i + offset for i, t in enumerate(graph.inputs) if id(t) in inside}
    return [i for i in everything if i in changed]


def changed_by(op: tf.Operation) -> list[tf.Tensor]:
    """The handles that an op may change."""
    if op.type in _READS:
        return []
    return [op.inputs[i] for i in _changed_inputs(op)]


def changed_captures(traced: TracedFunction, first: int) -> list[int]:
    """Inputs of a marker that may change, where the captures of ``traced`` begin at input ``first``."""
    changed = _changed(traced.graph)
    return [first + i for i, t in enumerate(traced.captures) if id(t) in changed]
