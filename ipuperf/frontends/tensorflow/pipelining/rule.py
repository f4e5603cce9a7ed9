"""An optimiser as the update rule of a pipeline (:class:`ipuperf.pipelines.UpdateRule`): the parts of its traced
``apply_gradients``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from ipuperf import ir as _ir
from ipuperf.ops import CopyVarUpdate
from ipuperf.pipelines import UpdateRule
from ipuperf.pipelines.clipping import Reduced, meeting_place, moved
from ipuperf.pipelines.scope import Scope

from ..importer import Resource, Value, resource_of, tensor_of
from ..importer.tracer import TracedFunction
from ..importer.tracing import Frame, use_frame
from ..importer.values import narrowed
from ..programs.program import TracedProgram, spec_of
from .update_slices import Slicer, UpdateSlice, elementwise, mixed


class UpdateFrame(Frame):
    """The place of the update of one variable: variables are the tensors that the pipeline gives.

    Attributes:
        reduced: the pipeline has reduced the gradients, so the traced update leaves them as they are.
        tensors: by variable.
        written: variables that have been changed.
    """

    def __init__(
        self,
        program: TracedProgram,
        graph: _ir.Graph,
        tensors: Mapping[Resource, _ir.Tensor],
        executions: int = 1,
        reduced: bool = True,
    ) -> None:
        super().__init__(program, graph, executions=executions)
        self.tensors = tensors
        self.written: set[Resource] = set()
        self.reduced = reduced

    def shard(self, op: tf.Operation, changed: Sequence[Resource]) -> int | None:
        """None: the pipeline places its graphs."""
        return None

    def read(self, resource: Resource) -> _ir.Tensor:
        """The tensor of a variable.

        Raises:
            NotImplementedError: a number for all variables is computed from it.
        """
        if resource not in self.tensors:
            raise NotImplementedError(
                f"pipeline: a number that depends on all gradients is computed from variable "
                f"{self.program.name_of(resource)!r}; it can be computed from gradients and constants"
            )
        return self.tensors[resource]

    def assign(self, resource: Resource, value: _ir.Tensor) -> None:
        """Copy a value into the tensor of a variable."""
        self.written.add(resource)
        target = self.tensors[resource]
        self.create(CopyVarUpdate, [target, value], [f"{target.name}_assigned"])

    def in_place(self, resource: Resource) -> _ir.Tensor | None:
        """The tensor of a variable, which is changed."""
        self.written.add(resource)
        return self.tensors[resource]


class PipelineRule(UpdateRule):
    """The update rule of an optimiser.

    Args:
        update: its traced ``apply_gradients``.
        variables: the trained variables.
        name: the optimiser's, for errors.
        values: functions that give the present value of tensors from outside, by their identity.
        sharded: states are divided among the replicas.
        executions: how often a run updates the variables.
        reduced: the pipeline reduces the gradients over the replicas, else the update does.
    """

    def __init__(
        self,
        program: TracedProgram,
        update: TracedFunction,
        variables: Sequence[Resource],
        name: str,
        values: Mapping[int, Callable[[], float]],
        sharded: bool,
        executions: int,
        reduced: bool = True,
    ) -> None:
        self._program = program
        self._reduced = reduced
        self._executions = executions
        self._traced = update
        self._name = name
        self._values = values
        self._slicer = Slicer(update, variables, name, program.ir.replication_factor == 1)
        self._slices = {s.variable: s for s in self._slicer.slices}
        if sharded:
            self._check_elementwise()
        self.keys: dict[str, Resource] = {}
        self._joint: dict[int, dict[int, _ir.Tensor]] = {}

    @property
    def joins(self) -> bool:
        """Whether updates use numbers that depend on several gradients."""
        return bool(self._slicer.joint.results)

    def _check_elementwise(self) -> None:
        """NotImplementedError for an update that a shard of a variable cannot make for itself."""
        for part in self._slicer.slices:
            op = elementwise(part, tuple(spec_of(part.variable).shape))
            if op is not None:
                raise NotImplementedError(
                    f"replicated_optimizer_state_sharding: optimizer {self._name!r} has an op that needs the whole "
                    f"variable ({op.name!r}, {op.type}), but each replica updates a shard"
                )

    def _key(self, resource: Resource) -> str:
        """A name for a variable, by which :attr:`keys` finds it again."""
        name = self._program.name_of(resource)
        # Two variables may have one name, and names must lead back to one variable each.
        while self.keys.setdefault(name, resource) != resource:
            name += "_"
        return name

    def state(self, variable: _ir.Variable) -> Mapping[str, np.ndarray]:
        """The other variables that the update of a variable changes (their values come with each run)."""
        part = self._slices[self._program.resource(variable)]
        return {self._key(resource): _zeros(resource) for resource in part.state}

    def _numbers(self, part: UpdateSlice) -> dict[str, tuple[tf.Tensor, Resource | None]]:
        """Inputs of the update's graph that a part reads and nobody changes, by name."""
        numbers: dict[str, tuple[tf.Tensor, Resource | None]] = {}
        for inside in part.numbers.values():
            outside = self._slicer.outside(inside)
            if outside.dtype == tf.resource:
                resource = resource_of(outside)
                if resource != part.variable and resource not in part.state:
                    numbers[self._key(resource)] = inside, resource
            elif id(outside) in self._values:
                # The tensor's identity names the number, as tensors of different graphs may have equal names.
                numbers[f"number_{id(outside)}"] = inside, None
        return numbers

    def scalars(self) -> Mapping[str, float]:
        """Numbers that updates read: of variables (their values come with each run) and from outside."""
        values: dict[str, float] = {}
        for part in self._slicer.slices:
            for name, (inside, resource) in self._numbers(part).items():
                if resource is not None and spec_of(resource).shape.rank:
                    raise NotImplementedError(
                        f"pipeline: the update of optimizer {self._name!r} reads variable "
                        f"{self._program.name_of(resource)!r} of shape {spec_of(resource).shape}, which is neither its "
                        "own state nor a number"
                    )
                values[name] = 0.0 if resource is not None else self._values[id(self._slicer.outside(inside))]()
        return values

    def build(
        self,
        parameter: _ir.Variable,
        weight: _ir.Tensor,
        gradient: _ir.Tensor,
        state: Mapping[str, _ir.Tensor],
        scalars: Mapping[str, _ir.Tensor],
        shards: _ir.ReplicaGrouping | None,
    ) -> None:
        """Let the optimiser apply the gradient (to shards as to whole variables: it is element-wise then).

        Raises:
            ValueError: it does not update the variable.
        """
        part = self._slices[self._program.resource(parameter)]
        numbers = self._numbers(part)
        tensors = {part.variable: weight, **{self.keys[name]: tensor for name, tensor in state.items()}}
        numbers_inside: dict[int, _ir.Tensor] = {}
        for name, (inside, resource) in numbers.items():
            if resource is None:
                numbers_inside[id(inside)] = scalars[name]
            else:
                tensors[resource] = scalars[name]
        frame = UpdateFrame(self._program, weight.graph, tensors, self._executions, self._reduced)
        captured: list[Value] = [
            numbers_inside.get(id(inside), self._value(outside)) for outside, inside in self._traced.graph.captures
        ]
        known = self._joint.get(weight.ipu or 0)
        with use_frame(frame):
            # Only the operations of this slice are built; they read one gradient, so the other places do not count.
            self._traced.build(frame, [gradient] * len(self._traced.arguments), captured, [], part.operations, known)
        if part.variable not in frame.written:
            raise ValueError(
                f"optimizer {self._name!r}: apply_gradients did not update {self._program.name_of(part.variable)!r}"
            )

    def join(self, scope: Scope, gradients: Mapping[_ir.Variable, Reduced]) -> None:
        """Compute the numbers that depend on several gradients, on the IPU of the most of them, for every IPU; larger
        tensors on the one IPU that has their gradients.

        Raises:
            NotImplementedError: gradients are divided among the replicas, the numbers depend on variables, or larger
                tensors on gradients of several IPUs.
        """
        joint, arguments = self._slicer.joint, self._traced.arguments
        by_place = {self._program.resource(variable): reduced for variable, reduced in gradients.items()}
        # Slices are in the order of the gradients, which is that of the update's arguments.
        gradients_reduced = [by_place[part.variable] for part in self._slicer.slices]
        if any(reduced.shards for reduced in gradients_reduced):
            raise NotImplementedError(
                f"pipeline: optimizer {self._name!r} computes numbers from all gradients, which are divided among the "
                "replicas by replicated_optimizer_state_sharding; choose one of both"
            )
        places = {key: {gradients_reduced[number].ipu for number in joint.wide[key]} for key in joint.wide}
        if any(len(ipus) > 1 for ipus in places.values()):
            raise mixed(self._name, next(iter(joint.results.values())).op.name)
        numbers = [key for key in joint.results if key not in joint.wide]
        by_ipu = {
            ipu: [key for key in joint.results if places.get(key) == {ipu}]
            for ipu in {reduced.ipu for reduced in gradients_reduced}
        }
        known: dict[int, Value] = {}
        for number, tensors in joint.parts.items():
            # First each IPU computes what follows from its own gradients alone, so that only small numbers travel.
            arguments_known = [gradients_reduced[number].tensor if i == number else None for i in range(len(arguments))]
            self._joined(scope, gradients_reduced[number].ipu, arguments_known, tensors, known)
        # The rest is computed once, where most gradients are, and then sent to each IPU that updates.
        home = meeting_place(gradients_reduced)
        self._joined(scope, home, [None] * len(arguments), [joint.results[key] for key in numbers], known)
        for ipu, wide in by_ipu.items():
            self._joined(scope, ipu, [None] * len(arguments), [joint.results[key] for key in wide], known)
            self._joint[ipu] = {
                **{key: moved(scope, known[key], home, ipu) for key in numbers},
                **{key: known[key] for key in wide},
            }

    def _joined(
        self, scope: Scope, ipu: int, operands: Sequence[Value], tensors: Sequence[tf.Tensor], known: dict[int, Value]
    ) -> None:
        """Compute tensors of the update on an IPU and add them to what is known."""
        with scope.on(ipu):
            frame = UpdateFrame(self._program, scope.graph, {}, reduced=self._reduced)
            captured = [self._value(outside) for outside, _ in self._traced.graph.captures]
            with use_frame(frame):
                values = self._traced.build(frame, operands, captured, tensors, [], known)
                known.update((id(t), tensor_of(value, frame)) for t, value in zip(tensors, values, strict=True))

    def _value(self, outside: tf.Tensor) -> Value:
        """What the update captures and is not a number of the pipeline: handles, data."""
        if outside.dtype == tf.resource:
            return resource_of(outside)
        return outside.numpy() if hasattr(outside, "numpy") else None


def _zeros(resource: Resource) -> np.ndarray:
    spec = spec_of(resource)
    return narrowed(np.zeros(spec.shape, spec.dtype.as_numpy_dtype))
