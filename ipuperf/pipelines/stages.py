"""The routines of each stage: forward, recomputation and backward, with their stashes.

A forward value that the backward needs is passed on directly when both run in the same straight line of the program
(:class:`.windows.WindowedProgram`). Otherwise it waits in a *stash*: a ring with as many slots as there are
micro-batches in flight, written after the forward and read before the backward (or the recomputation), with a counter
on the device for each side. With recomputation only a stage's inputs and checkpoints wait, and the forward runs again:
in one piece before the backward, or interleaved with it (:mod:`.inlining`).

Simplification: recomputation in one piece ignores checkpoints inside a stage: the same ops run again as without them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.functions import make
from ipuperf.functions.arithmetic import add, add_
from ipuperf.functions.arranging import broadcast
from ipuperf.functions.shapes import undefined
from ipuperf.ir import UINT32, Constant, Derivative, Op, Tensor, TensorSpec, Variable, roots, schedule
from ipuperf.ops import Call, Cast, CopyVarUpdate, Reshape, Transpose

from .inlining import ancestors, copy_ops, interleave, stretches
from .model import LOSS_SCALE, Activation, Data, HostInput, PipelineError, Seed, StageGraph, Training
from .remote import remote_load
from .routine import Routine
from .splitting import SplitBackward
from .stashes import Stashes
from .states import depended_on, read_states

if TYPE_CHECKING:
    from .build import PipelineWriter


_FORMS = (Cast, Reshape, Transpose)
"""Ops that change the form of a parameter."""


@dataclass
class PipelineStage:
    """One part of the pipeline with everything that is derived from it.

    Attributes:
        part: its number.
        own_outputs: number of outputs of its graph before gradients were asked for.
        derivative: its gradient graph, None when nothing in or before it is trained.
        provided: outputs that get a gradient.
        input_gradients: inputs (of the graph) whose gradients go to earlier stages.
        trained: ``(graph input, variable)`` of its trained parameters.
        forward, recompute, backward, weights: routines; the last one is a part of the backward that has cells of its
            own.
    """

    part: int
    description: StageGraph
    derivative: Derivative | None = None
    provided: list[Tensor] = field(default_factory=list)
    input_gradients: list[Tensor] = field(default_factory=list)
    trained: list[tuple[Tensor, Variable]] = field(default_factory=list)
    forward: Routine | None = None
    recompute: Routine | None = None
    backward: Routine | None = None
    weights: Routine | None = None

    @property
    def name(self) -> str:
        """Name for graphs and messages."""
        return f"stage{self.description.stage}" + (f"_ipu{self.description.ipu}" if self.concurrent else "")

    concurrent: bool = False
    own_outputs: int = 0


@dataclass(frozen=True)
class Lane:
    """How values get from one cell of a stage to a later one.

    Attributes:
        direct: whether they need no stash.
        immediate: whether, in addition, no copy between IPUs comes between the two cells.
        stashes: where the values wait otherwise.
    """

    direct: bool
    immediate: bool
    stashes: Stashes


class PipelineStageWriter:
    """Writes the routines of one stage.

    Args:
        builder: what the stages share.
        stage: filled in.
        lane: from the forward to the backward, or to the recomputation.
        split: which part of the backward has cells of its own; None: the backward is one.
        recomputes: whether the forward runs again, in one piece, before the backward.
        interleaved: whether its stretches run again within the backward.
        follows: whether the backward follows so soon that nothing after the last checkpoint runs again.
    """

    def __init__(
        self,
        builder: PipelineWriter,
        stage: PipelineStage,
        lane: Lane,
        *,
        split: SplitBackward | None,
        recomputes: bool,
        interleaved: bool,
        follows: bool,
    ) -> None:
        self.builder = builder
        self.stage = stage
        self.graph = stage.description.graph
        self.ipu = stage.description.ipu
        self.lane = lane
        self.split = split
        self.recomputes, self.interleaved, self.follows = recomputes, interleaved, follows
        changing = {
            tensor
            for tensor, source in zip(self.graph.inputs, stage.description.sources, strict=True)
            if not isinstance(source, Data)
        }
        # Parameters are the same in all micro-batches, so only other inputs start a stretch.
        self.stretch = stretches(self.graph.ops, changing, set(stage.description.checkpoints))
        self.last_stretch = max(self.stretch.values(), default=0)
        self.source = dict(zip(self.graph.inputs, stage.description.sources, strict=True))
        self.states = self._read_states()
        if split is not None:
            # Both parts of the backward may read such a value, each at its own pace, hence two readers.
            self.late_lane = builder.lane(stage, "F", "W", ("read", "late_read"))
            self.backward_lane = builder.lane(stage, "B", "W")
        self.seed: Variable | None = None

    # -- operands ----------------------------------------------------------------------------------------------------

    def _read_states(self) -> set[Tensor]:
        """Graph inputs that are variables which the forward changes and whose earlier values the backward reads."""
        derivative = self.stage.derivative
        if derivative is None:
            return set()
        read_images = depended_on(derivative.graph.outputs, schedule(derivative.graph))
        pairs = zip(derivative.inputs, derivative.graph.inputs, strict=True)
        needed = {
            connection.tensor for connection, image in pairs if not connection.is_gradient and image in read_images
        }
        recomputed = self.recomputes or self.interleaved
        return read_states(self.stage.description, needed, self.builder.changed, recomputed=recomputed)

    def fixed(self, tensor: Tensor) -> bool:
        """Whether the backward sees the same value of a graph input in all micro-batches of a weight update."""
        return isinstance(self.source.get(tensor), Data) and tensor not in self.states

    def operand(self, routine: Routine, tensor: Tensor) -> Tensor:
        """A graph input as the forward sees it."""
        source = self.source[tensor]
        if isinstance(source, Data):
            return self.data(routine, source.tensor)
        if isinstance(source, HostInput):
            return routine.argument(("host", tensor), tensor.spec, tensor.name)
        if isinstance(source, Activation):
            return self.builder.transport.received(self.stage.part, tensor).read(routine)
        self.seed = self.seed or self.builder.seed_variable(self.stage)
        return routine.get(self.seed)

    def _data_of(self, tensor: Tensor) -> Variable | Constant:
        """The variable or constant behind a graph input."""
        source = self.source[tensor]
        assert isinstance(source, Data)
        return source.tensor

    def data(self, routine: Routine, tensor: Variable | Constant) -> Tensor:
        """A variable or constant in this routine; one in Streaming Memory is loaded, once per routine."""
        if isinstance(tensor, Constant):
            return routine.constant(tensor, tensor.dtype, tensor.name)
        if tensor.remote is None:
            return routine.get(tensor)
        key = ("loaded", tensor)
        # Loaded once per routine, as each load passes the DDR.
        if key not in routine.local:
            buffer, entry = tensor.remote
            routine.local[key] = remote_load(buffer, entry, tensor.name)
        return routine.local[key]

    # -- values that wait ----------------------------------------------------------------------------------------------

    def needed(self) -> list[Tensor]:
        """Forward tensors that change from micro-batch to micro-batch and that the backward reads."""
        derivative = self.stage.derivative
        if derivative is None:
            return []
        forward_tensors = [
            connection.tensor
            for connection in derivative.inputs
            if not connection.is_gradient and not self.fixed(connection.tensor)
        ]
        return [tensor for tensor in forward_tensors if not isinstance(tensor, Constant)]

    def waiting(self) -> list[Tensor]:
        """Forward tensors that are stashed or passed on at the end of the forward.

        A checkpoint that no forward op of its stage reads, as it only goes to the next stage, is not among them
        (PopART's ``getStashCandidateTensors``, ``willow/src/transforms/pipeline.cpp``).
        """
        if self.stage.derivative is None:
            return []
        if not (self.recomputes or self.interleaved):
            return [tensor for tensor in self.needed() if self.lane_of(tensor).direct or not self.of_parameters(tensor)]
        inputs = [tensor for tensor in self.graph.inputs if not self.fixed(tensor)]
        # An input that is a checkpoint waits anyway; one without a reader in the stage is not needed again.
        checkpoints = [
            tensor for tensor in self.stage.description.checkpoints if tensor not in inputs and tensor.consumers
        ]
        waiting = inputs + [tensor for tensor in checkpoints if tensor in self.graph.outputs]
        return waiting + [tensor for tensor in self.needed() if tensor not in waiting and self.remains(tensor)]

    def of_parameters(self, tensor: Tensor) -> bool:
        """Whether a value is a parameter in another form (a transposed weight), which is made again instead of
        stashed."""
        if tensor.producer is None:
            return isinstance(tensor, Constant) or self.fixed(tensor)
        return isinstance(tensor.producer, _FORMS) and all(
            self.of_parameters(operand) for operand in tensor.producer.inputs
        )

    def remains(self, tensor: Tensor) -> bool:
        """Whether a value is kept although its stage recomputes.

        It is made after the last checkpoint of a stage whose backward follows at once (PopART's
        ``setFinalFwdStageRecomputation``).
        """
        return (
            self.follows and tensor.producer is not None and self.stretch.get(tensor.producer, 0) == self.last_stretch
        )

    def drop_outputs(self) -> None:
        """Remove values that are computed again from the outputs of the forward."""
        waiting = set(self.waiting())
        self.graph.outputs[:] = [
            tensor
            for index, tensor in enumerate(self.graph.outputs)
            if index < self.stage.own_outputs or tensor in waiting
        ]
        self.graph.version += 1

    def make_stashes(self) -> None:
        """Make memory for values that wait."""
        for lane in self.lanes():
            if not lane.direct:
                lane.stashes.make([tensor for tensor in self.waiting() if self.lane_of(tensor) is lane])
        if self.split is not None and not self.backward_lane.direct:
            self.backward_lane.stashes.make(self.split.carried)

    def lanes(self) -> list[Lane]:
        """The lanes of forward values."""
        return [self.lane] if self.split is None else [self.lane, self.late_lane]

    def lane_of(self, tensor: Tensor) -> Lane:
        """The lane of a forward value, which ends at the last cells that read it."""
        return self.late_lane if self.split is not None and tensor in self.split.late else self.lane

    # -- routines ----------------------------------------------------------------------------------------------------

    def write_forward(self) -> None:
        """Write the forward graph, then the stashes, the state updates and the next seed."""
        routine = Routine(self.builder.ir, f"{self.stage.name}_fwd", self.ipu, "fwd")
        self.stage.forward = routine
        with routine.on():
            self.fill_forward(routine)

    def fill_forward(self, routine: Routine) -> None:
        """The ops of :meth:`write_forward`."""
        operands = {graph_input: self.operand(routine, graph_input) for graph_input in self.graph.inputs}
        results = self.run_graph(routine, [operands[graph_input] for graph_input in self.graph.inputs])
        values = {**operands, **results}
        for lane in self.lanes():
            for tensor in lane.stashes.by_tensor:
                lane.stashes.put(routine, tensor, values[tensor])
            # After all puts of this lane, which share the counter.
            lane.stashes.advance(routine, "write")
        self.give_directly(routine, values)
        for index, variable in self.stage.description.updates.items():
            make(CopyVarUpdate, variable, results[self.graph.outputs[index]])
        for average in self.stage.description.averages:
            self.builder.weights.keep_average(average, results[self.graph.outputs[average.factor]], self.ipu)
        if self.seed is not None:
            # The first word tells stages and replicas apart; only the second one counts micro-batches.
            add_(self.seed, routine.constant(np.array([0, 1], np.uint32), UINT32, "next_micro_batch"))
        for index in self.builder.leaving(self.stage.part):
            routine.give(("output", index), results[self.graph.outputs[index]])

    def give_directly(self, routine: Routine, values: Mapping[Tensor, Tensor]) -> None:
        """Pass on values that wait as results. A value in a buffer that will change before it is read is copied."""
        for tensor in self.waiting():
            if not self.lane_of(tensor).direct:
                continue
            source = self.source.get(tensor)
            if isinstance(source, Seed | Data) or (isinstance(source, Activation) and not self.lies(tensor)):
                # A buffer may be overwritten before the backward reads it, so the value is copied.
                empty = undefined(TensorSpec(tensor.shape, tensor.dtype), tensor.name)
                routine.give(("saved", tensor), make(CopyVarUpdate, empty, values[tensor]))
            # A host input is an operand of both routines, so the forward need not pass it on.
            elif source is None:
                routine.give(("saved", tensor), values[tensor])

    def lies(self, tensor: Tensor) -> bool:
        """Whether an activation is still in the buffer where it arrived when the backward reads it."""
        return self.lane_of(tensor).immediate and self.builder.transport.received(self.stage.part, tensor).ring is None

    def run_graph(self, routine: Routine, operands: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """Call the forward graph."""
        names = [tensor.name for tensor in self.graph.outputs]
        call = routine.create(Call, operands, names, callee=self.graph)
        return dict(zip(self.graph.outputs, call.outputs, strict=True))

    def waited(self, routine: Routine, tensor: Tensor, side: str = "read") -> Tensor:
        """A value of the forward in a routine that reads it later."""
        stashes = self.lane_of(tensor).stashes
        if tensor in stashes.by_tensor:
            return stashes.take(routine, tensor, side)
        source = self.source.get(tensor)
        if isinstance(source, Activation) and self.lies(tensor):
            return self.builder.transport.received(self.stage.part, tensor).read(routine)
        kind: Hashable = "host" if isinstance(source, HostInput) else "saved"
        return routine.argument((kind, tensor), tensor.spec, tensor.name)

    def write_recompute(self) -> None:
        """Run the forward graph again from the values that waited. The results are the values that the backward
        reads."""
        routine = Routine(self.builder.ir, f"{self.stage.name}_recompute", self.ipu, "recompute")
        self.stage.recompute = routine
        with routine.on():
            values = {tensor: self.waited(routine, tensor) for tensor in self.waiting()}
            self.lane.stashes.advance(routine, "read")
            operands = [
                values[tensor] if tensor in values else self.data(routine, self._data_of(tensor))
                for tensor in self.graph.inputs
            ]
            values = {**self.run_graph(routine, operands), **values}
        for tensor in self.needed():
            routine.give(("saved", tensor), values[tensor])

    def write_backward(self) -> None:
        """Write the ops of the gradient graph: gradients of outputs in, gradients of inputs out, parameters' gradients
        accumulated.

        With interleaved recomputation the routine also holds the forward ops that run again.
        """
        routine = Routine(self.builder.ir, f"{self.stage.name}_bwd_pass", self.ipu, "bwd")
        self.stage.backward = routine
        with routine.on():
            self.fill_backward(routine)

    def fill_backward(self, routine: Routine) -> None:
        """The ops of :meth:`write_backward`."""
        derivative = self.stage.derivative
        assert derivative is not None
        late_ops = set() if self.split is None else set(self.split.ops)
        ops = [op for op in schedule(derivative.graph) if op not in late_ops]
        images, recomputed_copies = self.forward_values(routine, _read_by(derivative, ops) if self.split else None)
        for connection, image in zip(derivative.inputs, derivative.graph.inputs, strict=True):
            tensor = connection.tensor
            if connection.is_gradient:
                images[image] = self.gradient_of(routine, tensor)
            elif tensor in images:
                images[image] = images[tensor]
        copies = copy_ops(ops, routine.graph, images, self.ipu)
        interleave(routine.graph, recomputed_copies, self.stretch, set(self.waiting()), copies.values())
        grads = self.use_gradients(routine, images)
        for tensor in self.stage.input_gradients:
            send_buffer = self.builder.transport.sent(self.stage.part, tensor)
            if send_buffer is None:
                routine.give(("gradient", tensor), grads[tensor])
            else:
                make(CopyVarUpdate, send_buffer, grads[tensor])
        # Carried tensors exist only now, after the gradient ops have been copied.
        self.carry(routine, images)
        # A recomputation has advanced the counters already.
        if not self.recomputes:
            for lane in self.lanes():
                lane.stashes.advance(routine, "read")

    def use_gradients(self, routine: Routine, images: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Keep and accumulate the gradients that a routine makes; gives them by forward tensor."""
        derivative = self.stage.derivative
        assert derivative is not None
        pairs = zip(derivative.outputs, derivative.graph.outputs, strict=True)
        grads = {connection.tensor: images[tensor] for connection, tensor in pairs if tensor in images}
        is_late = routine is self.stage.weights
        if self.split is not None:
            # Both routines are parts of one gradient graph; each keeps the gradients of its own part.
            grads = {tensor: grad for tensor, grad in grads.items() if (tensor in self.split.trained) == is_late}
        self.builder.keep_gradients(routine, self.stage.part, grads)
        trained = [(variable, grads[tensor]) for tensor, variable in self.stage.trained if tensor in grads]
        self.builder.weights.accumulate(routine, trained, self.ipu)
        return grads

    def carry(self, routine: Routine, images: Mapping[Tensor, Tensor]) -> None:
        """Stash the tensors from which the gradients of weights are made later."""
        if self.split is None:
            return
        root = roots(routine.graph)
        for tensor in self.split.carried:
            value = images[tensor]
            if not self.backward_lane.direct:
                self.backward_lane.stashes.put(routine, tensor, value)
                continue
            if root.get(value, value).producer is None:  # a buffer that the next copies change
                value = make(CopyVarUpdate, undefined(TensorSpec(tensor.shape, tensor.dtype), tensor.name), value)
            routine.give(("saved", tensor), value)
        self.backward_lane.stashes.advance(routine, "write")

    def write_weights(self) -> None:
        """Write the part of the backward that makes gradients of weights."""
        derivative, split = self.stage.derivative, self.split
        assert derivative is not None
        assert split is not None
        routine = self.stage.weights = Routine(self.builder.ir, f"{self.stage.name}_bwd_weights", self.ipu, "bwd")
        with routine.on():
            images, _ = self.forward_values(routine, split.late, "late_read")
            for connection, image in zip(derivative.inputs, derivative.graph.inputs, strict=True):
                if not connection.is_gradient and connection.tensor in images:
                    images[image] = images[connection.tensor]
            carried_stashes = self.backward_lane.stashes
            for tensor in split.carried:
                images[tensor] = (
                    carried_stashes.take(routine, tensor)
                    if tensor in carried_stashes.by_tensor
                    else routine.argument(("saved", tensor), tensor.spec, tensor.name)
                )
            copy_ops(split.ops, routine.graph, images, self.ipu)
            self.use_gradients(routine, images)
            carried_stashes.advance(routine, "read")
            self.late_lane.stashes.advance(routine, "late_read")

    def forward_values(
        self, routine: Routine, wanted_tensors: Collection[Tensor] | None, side: str = "read"
    ) -> tuple[dict[Tensor, Tensor], dict[Op, Op]]:
        """The forward values that a routine reads, and the copies of ops that compute some of them again.

        ``wanted_tensors`` limits them; None gives all that the backward reads.
        """
        derivative = self.stage.derivative
        assert derivative is not None
        reads_all = wanted_tensors is None
        requested = (
            [c.tensor for c in derivative.inputs if not c.is_gradient] if wanted_tensors is None else wanted_tensors
        )
        needed = [tensor for tensor in self.needed() if tensor in requested]
        if self.recomputes:
            images = {tensor: routine.argument(("saved", tensor), tensor.spec, tensor.name) for tensor in needed}
        else:
            images = {
                tensor: self.waited(routine, tensor, side)
                for tensor in self.waiting()
                if reads_all or tensor in requested
            }
        data = {tensor: self._data_of(tensor) for tensor in self.source if self.fixed(tensor)}
        missing = [tensor for tensor in needed if tensor not in images and tensor not in data]
        recomputed_ops = ancestors(missing, {*images, *data}, schedule(self.graph)) if missing else []
        operands = {tensor for op in recomputed_ops for tensor in op.inputs} | set(requested)
        images.update(
            {tensor: self.data(routine, source_tensor) for tensor, source_tensor in data.items() if tensor in operands}
        )
        constants = [tensor for tensor in operands if isinstance(tensor, Constant)]
        # Sorted, as the order of a set would differ between runs.
        images.update(
            {tensor: self.data(routine, tensor) for tensor in sorted(constants, key=lambda tensor: tensor.id)}
        )
        # Ops without a stretch, such as a transposition of a weight, are no recomputation.
        return images, copy_ops(recomputed_ops, routine.graph, images, self.ipu, self.stretch)

    def gradient_of(self, routine: Routine, output: Tensor) -> Tensor:
        """The gradient of an output: the gradient of the loss, plus what has arrived from later stages."""
        arrivals = self.builder.transport.arrived(self.stage.part, self.graph.outputs.index(output))
        training = self.builder.training
        assert training is not None
        parts = [arrival.read(routine) for arrival in arrivals]
        if (self.stage.part, self.graph.outputs.index(output)) == (training.loss_part, training.loss_output):
            is_variable, weights = training.variable_loss_scale, self.builder.weights
            factor = weights.scalar(LOSS_SCALE, training.loss_scale, self.ipu) if is_variable else None
            parts.append(_loss_gradient(routine, output, training, factor))
        if not parts:
            raise PipelineError(f"{self.stage.name}: output {output.id!r} has no gradient")
        # An output that several stages read gets the sum of their gradients.
        with routine.named("gradient"):
            return reduce(add, parts)


def _read_by(derivative: Derivative, ops: Sequence[Op]) -> set[Tensor]:
    """The forward tensors that ops of the gradient graph read."""
    operands = {tensor for op in ops for tensor in op.inputs}
    pairs = zip(derivative.inputs, derivative.graph.inputs, strict=True)
    return {connection.tensor for connection, image in pairs if not connection.is_gradient and image in operands}


def _loss_gradient(routine: Routine, loss: Tensor, training: Training, factor: Variable | None) -> Tensor:
    """The loss scale in the loss's shape and type: a constant, or the value of a variable that the host may write."""
    if factor is None:
        ones = np.full(loss.shape, training.loss_scale, loss.dtype.numpy)
        return routine.constant(ones, loss.dtype, "loss_gradient")
    scale = routine.get(factor)
    with routine.named("loss_gradient"):
        return broadcast(scale if loss.dtype is scale.dtype else make(Cast, scale, dtype=loss.dtype), loss.shape)
