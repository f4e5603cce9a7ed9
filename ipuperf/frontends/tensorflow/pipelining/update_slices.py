"""A weight update traced as a whole, cut into the parts that update one variable each.

In a pipeline each IPU updates its own variables. What ``apply_gradients`` of an optimiser does to one variable is what
depends on that variable's gradient, and what changes the variable. Numbers that depend on several gradients (the norm
of all of them) are computed before all updates (:class:`Joint`), and so are larger tensors that depend on several
gradients of one IPU (the variance over replicas, which needs their means). State that several parts read and that no
gradient changes (a step counter, powers of beta) is kept once per part; state that no part reads goes with the first
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ..importer import Resource, resource_of
from ..importer.collectives import AllReduce
from ..importer.markers import is_marker, meaning_of
from ..importer.needed import SideEffects
from ..importer.operations import OPERATIONS
from ..importer.tracer import TracedFunction, changed_by

_EFFECTS = SideEffects(OPERATIONS)
has_effect = _EFFECTS.of


@dataclass
class UpdateSlice:
    """What updates one variable.

    Attributes:
        variable: the variable.
        operations: ops with effects, in order.
        state: other variables that they change.
        numbers: tensors from outside and other variables that they read.
    """

    variable: Resource
    operations: list[tf.Operation] = field(default_factory=list)
    state: dict[Resource, None] = field(default_factory=dict)
    numbers: dict[int, tf.Tensor] = field(default_factory=dict)


@dataclass
class Joint:
    """Numbers of an update that depend on several gradients.

    Attributes:
        parts: by gradient, the tensors that follow from it alone and that the numbers are computed from.
        results: the numbers that updates use, by their identity.
        wide: the gradients that larger tensors among them depend on, by their identity.
    """

    parts: dict[int, list[tf.Tensor]] = field(default_factory=dict)
    results: dict[int, tf.Tensor] = field(default_factory=dict)
    wide: dict[int, frozenset[int]] = field(default_factory=dict)


def _vanishes(op: tf.Operation, alone: bool) -> bool:
    """Whether an op is the difference of a tensor and itself, which depends on nothing; ``alone``: as in the only
    replica, where reductions pass tensors on."""
    return op.type == "Sub" and _passed(op.inputs[0], alone) is _passed(op.inputs[1], alone)


def _passed(tensor: tf.Tensor, alone: bool) -> tf.Tensor:
    """What a tensor is passed on from."""
    while tensor.op.type in ("Identity", "IdentityN") or (
        alone and is_marker(tensor.op) and isinstance(meaning_of(tensor.op), AllReduce)
    ):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def find_joint(update: TracedFunction, count: int, alone: bool) -> Joint:
    """The numbers of an update with ``count`` gradients that depend on several of them, but on no variable. Tensors of
    more elements than there are gradients are ``wide``: computed where their gradients are, if that is one place."""
    depends: dict[int, frozenset[int]] = {id(t): frozenset([i]) for i, t in enumerate(update.arguments)}
    joint: dict[int, frozenset[int]] = {}
    variable: set[int] = set()
    joint_numbers = Joint()
    for op in update.graph.get_operations():
        # IdentityN groups unrelated tensors, so each result follows its own operand only.
        if op.type == "IdentityN":
            for t, u in zip(op.outputs, op.inputs, strict=True):
                depends[id(t)] = depends.get(id(u), frozenset())
                for known in (joint, joint_numbers.wide):
                    if id(u) in known:
                        known[id(t)] = known[id(u)]
            continue
        if _vanishes(op, alone):
            continue
        sources = [depends.get(id(t), frozenset[int]()) for t in op.inputs]
        of = frozenset[int]().union(*sources)
        scales = len(of) == 1 and any(t.shape.rank for t in op.outputs)  # a gradient by a joint number
        mixes = len(of) > 1 or (any(id(t) in joint for t in op.inputs) and not scales)
        varies = any(t.dtype == tf.resource or id(t) in variable for t in op.inputs)
        # One number for each gradient (their stacked norms) still counts as small.
        small = op.outputs and all(_elements(t) <= count for t in op.outputs)
        # A product with a joint number is wide too, but is left to the updates.
        wide = len(of) > 1 or any(id(t) in joint_numbers.wide for t in op.inputs)
        if varies:
            variable.update(id(t) for t in op.outputs)
        if mixes and (small or wide) and not varies and all(len(source) <= 1 for source in sources):
            origins = of.union(*(joint.get(id(t), frozenset()) for t in op.inputs))
            joint.update(dict.fromkeys(map(id, op.outputs), origins))
            if not small:
                joint_numbers.wide.update(dict.fromkeys(map(id, op.outputs), origins))
            for t, source in zip(op.inputs, sources):
                for number in source:
                    joint_numbers.parts.setdefault(number, []).append(t)
            continue
        # The op reads a joint number and is none itself, so the number has to reach the updates.
        joint_numbers.results.update((id(t), t) for t in op.inputs if id(t) in joint)
        depends.update((id(t), of) for t in op.outputs if of)
    return joint_numbers


def _elements(tensor: tf.Tensor) -> float:
    count = tensor.shape.num_elements()
    return float("inf") if count is None or tensor.dtype == tf.resource else count


class Slicer:
    """Cuts an update.

    Args:
        update: the traced ``apply_gradients``; its arguments are the gradients of ``variables``.
        variables: the trained variables.
        name: the optimiser's, for errors.
        alone: there is one replica.
    """

    def __init__(self, update: TracedFunction, variables: Sequence[Resource], name: str, alone: bool) -> None:
        self._update = update
        self._alone = alone
        self._name = name
        self.slices = [UpdateSlice(v) for v in variables]
        self._outside = {id(inside): outside for outside, inside in update.graph.captures}
        self._gradients = {id(t): number for number, t in enumerate(update.arguments)}
        self.joint = find_joint(update, len(self.slices), alone)
        self._cut()

    def _cut(self) -> None:
        """Give every op with effects to its slices.

        Raises:
            NotImplementedError: an op depends on the gradients of several variables.
        """
        numbers = {s.variable: number for number, s in enumerate(self.slices)}
        # Only ops with effects are given out; the ops they read come along by themselves.
        effects = [op for op in self._update.graph.get_operations() if has_effect(op)]
        shared: list[tuple[tf.Operation, list[Resource]]] = []
        places: dict[tf.Operation, int] = {}
        for op in effects:
            written = [resource_of(self._outside[id(t)]) for t in changed_by(op)]
            needed = self._needed([op])
            of = {self._gradients[key] for key in needed if key in self._gradients}
            of |= {numbers[resource] for resource in written if resource in numbers}
            if len(of) > 1:
                raise mixed(self._name, op.name)
            if of:
                places[op] = of.pop()
                self._add(self.slices[places[op]], op, written, needed)
            else:
                shared.append((op, written))
        self._share(shared)
        for part in self.slices:
            chosen = set(part.operations)
            # Ops go back into the program's order, because reads and writes of one variable must not change places.
            part.operations = [op for op in effects if op in chosen]

    def _share(self, shared: Sequence[tuple[tf.Operation, list[Resource]]]) -> None:
        """Give ops to every slice that reads what they change, also for another such op; those of no slice to the
        first."""
        # An op that is added reads variables too, so the search goes on until nothing changes.
        changed = True
        while changed:
            changed = False
            for op, written in shared:
                for part in self.slices:
                    if op not in part.operations and any(r in part.state or self._reads(part, r) for r in written):
                        self._add(part, op, written, self._needed([op]))
                        changed = True
        for op, written in shared:
            if not any(op in part.operations for part in self.slices):
                self._add(self.slices[0], op, written, self._needed([op]))

    def _add(
        self, part: UpdateSlice, op: tf.Operation, written: Iterable[Resource], needed: dict[int, tf.Tensor]
    ) -> None:
        part.operations.append(op)
        part.state.update(dict.fromkeys(r for r in written if r != part.variable))
        part.numbers.update({key: t for key, t in needed.items() if key in self._outside})

    def _reads(self, part: UpdateSlice, resource: Resource) -> bool:
        return any(
            self._outside[key].dtype == tf.resource and resource_of(self._outside[key]) == resource
            for key in part.numbers
        )

    def _needed(self, operations: Sequence[tf.Operation]) -> dict[int, tf.Tensor]:
        """Inputs of the graph that ops are computed from."""
        inputs: dict[int, tf.Tensor] = {}
        waiting = [t for op in operations for t in op.inputs]
        seen: set[int] = set()
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            # Joint numbers are known beforehand and need nothing of this graph.
            if id(tensor) in self.joint.results:
                continue
            if id(tensor) in self._outside or id(tensor) in self._gradients:
                inputs[id(tensor)] = tensor
            passed = tensor.op.type == "IdentityN"
            if not _vanishes(tensor.op, self._alone):
                waiting += [tensor.op.inputs[tensor.value_index]] if passed else list(tensor.op.inputs)
        return inputs

    def outside(self, inside: tf.Tensor) -> tf.Tensor:
        """What an input of the graph stands for."""
        return self._outside[id(inside)]


def mixed(optimizer: str, op: str) -> NotImplementedError:
    """Gradients of several IPUs go into the update of one variable."""
    return NotImplementedError(
        f"pipeline: optimizer {optimizer!r} computes the update of a variable from the gradients of several "
        f"(op {op!r}): stages update their variables on their own IPUs, and only numbers such as the norm of all "
        "gradients come from several of them"
    )


def elementwise(part: UpdateSlice, shape: Sequence[int]) -> tf.Operation | None:
    """An op of a slice that does not work element by element on tensors of the variable's shape; None: all do."""
    wide = tuple(shape)
    waiting, seen = list(part.operations), set()
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        input_shapes = {tuple(t.shape) for t in op.inputs if t.dtype != tf.resource}
        output_shapes = {tuple(t.shape) for t in op.outputs}
        # A reduction leaves the shape of the variable; these types make a whole one, which no shard matches.
        if wide and (
            (wide in input_shapes and output_shapes - {wide})
            or (wide in output_shapes and op.type in ("Const", "Fill", "BroadcastTo"))
        ):
            return op
        waiting += [t.op for t in op.inputs if t.op.graph is op.graph]
    return None
