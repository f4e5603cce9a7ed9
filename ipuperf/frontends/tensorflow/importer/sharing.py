"""Equal ops of a graph, of which the importer makes one: common subexpressions, as XLA shares them.

Ops are equal that are functions of their operands, have the same type, attributes and shapes, the same values as
operands, and the same shard and phase (so that a forward op that a gradient asks for again is computed again). What was
computed from a variable's storage is not shared after an op that changes this storage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ipuperf.ir import CONTEXT, Op, Tensor

from .arranged import Arranged
from .values import Value

#: Elements of the largest array that is compared by its content; larger ones are equal only to themselves.
COMPARED = 64


class _Made(NamedTuple):
    """An op that has been imported, or (None) what a function has given."""

    op: tf.Operation | None
    operands: Sequence[Value]
    results: list[Value]


class EqualOps:
    """What has been imported into one place so far, for equal ops to use."""

    def __init__(self) -> None:
        self._made: dict[Any, list[_Made]] = {}
        self._computed_from: dict[Tensor, set[Any]] = {}

    def find(self, op: tf.Operation, operands: Sequence[Value]) -> list[Value] | None:
        """The values that an equal op has given; None without."""
        same = self._made.get(_op_key(op, operands), ())
        return next(
            (list(candidate.results) for candidate in same if _attributes(candidate.op) == _attributes(op)), None
        )

    def add(self, op: tf.Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
        """``op`` has given these values."""
        key = _op_key(op, operands)
        if key is not None:
            self._keep(key, op, operands, results)

    def once(self, function: Callable[..., Value], *operands: Value) -> Value:
        """What a function without effects gives for tensors and numbers; its ops are made once."""
        key = _key(function, operands) if any(isinstance(value, Tensor) for value in operands) else None
        if key is None:
            return function(*operands)
        if key not in self._made:
            self._keep(key, None, operands, [function(*operands)])
        return self._made[key][0].results[0]

    def _keep(self, key: Any, op: tf.Operation | None, operands: Sequence[Value], results: Sequence[Value]) -> None:
        self._made.setdefault(key, []).append(_Made(op, list(operands), list(results)))
        for value in (*operands, *results):
            tensor = value.inner if isinstance(value, Arranged) else value
            if isinstance(tensor, Tensor):
                self._computed_from.setdefault(storage_of(tensor), set()).add(key)

    def ran(self, ops: Sequence[Op]) -> None:
        """These ops of the IR are new: forget what was computed from what they change."""
        for op in ops:
            for index in op.modified_inputs():
                for key in self._computed_from.pop(storage_of(op.inputs[index]), ()):
                    self._made.pop(key, None)


def _op_key(op: tf.Operation, operands: Sequence[Value]) -> Any:
    """What equal ops have in common, without their attributes; None for an op that is not shared."""
    if not operands or op.op_def.is_stateful:
        return None
    shapes = tuple((t.dtype, *t.shape.as_list()) if t.shape.rank is not None else t.dtype for t in op.outputs)
    return _key((op.type, shapes), operands)


def _key(what: Any, operands: Sequence[Value]) -> Any:
    """What is computed, from what, on which shard and in which phase; None where an operand has no identity."""
    identities = tuple(_identity(value) for value in operands)
    return None if None in identities else (what, identities, tuple(CONTEXT.ipus[-1:]), tuple(CONTEXT.phases[-1:]))


def _identity(value: Value) -> Any:
    """A key that only the same value has; None for what is no tensor of numbers."""
    if isinstance(value, Tensor):
        # An entry keeps its operands, so that no other tensor can take over an id.
        return id(value)
    if isinstance(value, Arranged):
        return (id(value.inner), value.order)
    if isinstance(value, float):
        return ("number", value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return None
    return id(value) if value.size > COMPARED else (value.dtype.str, value.shape, value.tobytes())


def _attributes(op: tf.Operation | None) -> dict[str, bytes]:
    """What the op computes with, besides its operands; not what is written on it for reports and for TensorFlow."""
    attributes = {} if op is None else op.node_def.attr
    return {
        name: attributes[name].SerializeToString(deterministic=True)
        for name in sorted(attributes)
        if not name.startswith("_")
    }


def storage_of(tensor: Tensor) -> Tensor:
    """The tensor that owns the storage of ``tensor``: itself, or what it is a view or an in-place result of."""
    while tensor.producer is not None:
        sources = tensor.producer.aliases()
        index = tensor.producer.outputs.index(tensor)
        if index not in sources:
            break
        tensor = tensor.producer.inputs[sources[index]]
    return tensor
