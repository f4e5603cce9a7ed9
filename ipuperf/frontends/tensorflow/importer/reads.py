"""Reads of variables that need a copy: their value is used after the variable has changed where it is."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from .needed import SideEffects

#: Ops whose result is their operand itself.
PASSED_ON = frozenset(
    {"Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot", "Reshape", "Transpose"}
)


def reads_to_copy(
    operations: Sequence[tf.Operation], outputs: Sequence[tf.Tensor], effects: SideEffects, *, called: bool
) -> set[int]:
    """Identities of those ops of ``operations`` (in order) that read a variable and whose value is used after a later
    op may have changed the variable: also after the graph, if it is ``called`` by another one."""
    changes: dict[int, int] = {}
    last_use: dict[int, int] = {id(t): len(operations) + called for t in outputs}
    found: set[int] = set()
    for place in range(len(operations) - 1, -1, -1):
        op = operations[place]
        if op.type in PASSED_ON:
            for given, taken in zip(op.outputs, op.inputs):
                last_use[id(taken)] = max(last_use.get(id(taken), place), last_use.get(id(given), place))
        else:
            for tensor in op.inputs:
                last_use.setdefault(id(tensor), place)
        if op.type == "ReadVariableOp":
            handle, value = id(op.inputs[0]), id(op.outputs[0])
            if changes.get(handle, len(operations)) < last_use.get(value, place):
                found.add(id(op))
        elif effects.of(op):
            changes.update((id(t), place) for t in op.inputs if t.dtype == tf.resource)
    return found
