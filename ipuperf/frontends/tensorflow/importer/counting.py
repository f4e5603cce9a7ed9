"""Values that are known when the program is compiled: folded constants, and how often a loop runs.

TensorFlow computes ops whose operands are known on the host. A number of iterations follows from loop variables that
are known before the loop and change by known steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework.func_graph import FuncGraph

from .needed import function_of
from .values import Value

#: Attributes that say where or how an op runs, not what it computes.
_IGNORED = ("_", "parallel_iterations")


def _attribute(value: Any) -> Any:
    if isinstance(value, tf.DType):
        return value.as_datatype_enum
    if isinstance(value, (list, tuple)):
        return [_attribute(v) for v in value]
    if isinstance(value, tf.TensorShape):
        return value.as_list() if value.rank is not None else None
    if type(value).__name__ == "TensorShapeProto":
        return _attribute(tf.TensorShape(value))
    return value


def fold(op: tf.Operation, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of ``op`` for these operands."""
    attributes: list[Any] = []
    for name in op.node_def.attr:
        if not name.startswith(_IGNORED):
            attributes += [name, _attribute(op.get_attr(name))]
    # The op runs at once and on the processor, although a graph is being built around it.
    with context.eager_mode(), tf.device("/CPU:0"):
        eager = [tf.convert_to_tensor(a, t.dtype) for a, t in zip(operands, op.inputs, strict=True)]
        results = execute.execute(
            op.type.encode(), len(op.outputs), inputs=eager, attrs=tuple(attributes), ctx=context.context()
        )
        return [np.asarray(t.numpy()) for t in results]


#: Iterations after which a loop whose counters change by other than constant steps counts as endless.
MOST_STEPS = 100_000


@dataclass
class Counted:
    """What is known of a loop before it runs.

    Attributes:
        trips: number of iterations.
        invariant: loop variables that do not change.
        final: values after the loop of those that change by constant steps.
        data: it is the greatest number; data decide whether the loop ends before.
    """

    trips: int
    invariant: set[int]
    final: Mapping[int, np.ndarray]
    data: bool = False


class UnknownValue(Exception):
    """A value does not follow from what is known."""


@dataclass
class _Evaluation:
    """Values of a graph that follow from those of some of its inputs."""

    known: dict[int, np.ndarray] = field(default_factory=dict)

    def value(self, tensor: tf.Tensor) -> np.ndarray:
        """The value of a tensor, or :class:`UnknownValue`."""
        key = id(tensor)
        if key not in self.known:
            results = self._results(tensor.op)
            self.known.update((id(t), v) for t, v in zip(tensor.op.outputs, results, strict=True))
        return self.known[key]

    def _results(self, op: tf.Operation) -> Sequence[np.ndarray]:
        from .operations import OPERATIONS

        if op.type == "Const":
            return [tf.make_ndarray(op.get_attr("value"))]
        if not op.inputs:
            raise UnknownValue(op.name)
        operands = [self.value(t) for t in op.inputs]
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            called = function_of(op, "f")
            # A function has tensors of its own, so its values are kept apart.
            evaluation = _Evaluation({id(t): v for t, v in zip(called.inputs, operands, strict=True)})
            return [evaluation.value(t) for t in called.outputs[: len(op.outputs)]]
        if not OPERATIONS.folds(op.type):
            raise UnknownValue(op.name)
        return operands if op.type == "Identity" else fold(op, operands)


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _parts(condition: tf.Tensor) -> list[tf.Tensor]:
    """What has to hold all together."""
    origin = _origin(condition)
    if origin.op.type != "LogicalAnd":
        return [origin]
    return [part for operand in origin.op.inputs for part in _parts(operand)]


class _Loop:
    """A loop: ``cond`` and ``body`` over variables with initial ``values``.

    Attributes:
        data: what a part of the condition depends on that is not known.
    """

    def __init__(self, cond: FuncGraph, body: FuncGraph, values: Sequence[Value]) -> None:
        self.cond, self.body, self.values = cond, body, values
        self.data: UnknownValue | None = None
        pairs = list(zip(body.inputs, body.outputs, strict=True))
        self.invariant = {i for i, (argument, result) in enumerate(pairs) if _origin(result) is argument}
        self.fixed = {i: v for i, v in enumerate(values) if i in self.invariant and isinstance(v, np.ndarray)}
        self.steps = {i: step for i in range(len(pairs)) if (step := self._step(i)) is not None}

    def _step(self, index: int) -> np.ndarray | None:
        """What a variable changes by in each iteration; None where that is not a known number."""
        if index in self.invariant or not isinstance(self.values[index], np.ndarray):
            return None
        argument, change = self.body.inputs[index], _origin(self.body.outputs[index]).op
        if change.type not in ("Add", "AddV2", "Sub"):
            return None
        left, right = (_origin(t) for t in change.inputs)
        # `number - variable` is no constant step.
        if left is not argument and (right is not argument or change.type == "Sub"):
            return None
        known = _Evaluation({id(self.body.inputs[i]): v for i, v in self.fixed.items()})
        try:
            step = known.value(right if left is argument else left)
        except UnknownValue:
            return None
        return -step if change.type == "Sub" else step

    def at(self, trip: int) -> dict[int, np.ndarray]:
        """Variables that are known before iteration ``trip``."""
        values = dict(self.fixed)
        for i, step in self.steps.items():
            start = self.values[i]
            values[i] = np.asarray(start + np.asarray(trip).astype(start.dtype) * step).astype(start.dtype)
        return values

    def holds(self, known: Mapping[int, np.ndarray]) -> bool:
        """The condition, or those parts of it, joined by "and", that follow from these variables.

        Raises:
            UnknownValue: none of them does.
        """
        evaluation = _Evaluation({id(self.cond.inputs[i]): v for i, v in known.items()})
        values = []
        for part in _parts(self.cond.outputs[0]):
            try:
                values.append(bool(np.asarray(evaluation.value(part)).reshape(())))
            except UnknownValue as reason:
                self.data = reason
        if not values:
            raise self.data or UnknownValue(self.cond.name)
        return all(values)

    def trips_of_steps(self) -> int:
        """The number of iterations where all counters change by constant steps: the condition holds up to one and not
        from there on."""
        if not self.holds(self.at(0)):
            return 0
        # Doubling and then halving finds 10^9 trips with some sixty evaluations.
        high = 1
        while self.holds(self.at(high)):
            high *= 2
            if high > 1 << 31:
                raise UnknownValue("the condition always holds")
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.holds(self.at(middle)) else (low, middle)
        return high

    def trips_by_running(self) -> int:
        """The number of iterations, found by running what counts."""
        state = {i: v for i, v in enumerate(self.values) if isinstance(v, np.ndarray)}
        for trip in range(MOST_STEPS):
            if not self.holds(state):
                return trip
            evaluation = _Evaluation({id(self.body.inputs[i]): v for i, v in state.items()})
            next_values: dict[int, np.ndarray] = {}
            for i in state:
                try:
                    next_values[i] = evaluation.value(self.body.outputs[i])
                except UnknownValue:
                    # What becomes unknown drops out; the condition may not need it.
                    continue
            state = next_values
        raise UnknownValue("the loop does not end")


def count(cond: FuncGraph, body: FuncGraph, values: Sequence[Value]) -> Counted:
    """How often a loop over variables with these initial values runs.

    Raises:
        UnknownValue: its condition depends on data.
    """
    loop = _Loop(cond, body, values)
    try:
        trips = loop.trips_of_steps()
    except UnknownValue:
        loop.data = None  # what has no constant step may still be known
        trips = loop.trips_by_running()
    known = loop.at(trips)
    return Counted(trips, loop.invariant, {i: known[i] for i in loop.steps}, loop.data is not None)
