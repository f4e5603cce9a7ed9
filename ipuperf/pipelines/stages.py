"""What each stage executes: forward, recomputation and backward routines with their stashes.

A forward value that the backward needs is passed on directly when both run in the same straight line of the program
(:class:`.windows.WindowedProgram`), otherwise it waits in a *stash*: a ring of as many slots as there are
micro-batches in flight, written after the forward and read before the backward (or the recomputation), with a counter
on the device for each side. With recomputation only a stage's inputs and checkpoints wait, and the forward is executed
again: in one piece before the backward, or interleaved with it (:mod:`.inlining`).

Simplification: in one piece, checkpoints inside a stage are not used: the same ops run again as without them.
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
from .states import changed_by, depended_on, read_states

if TYPE_CHECKING:
    from .build import PipelineWriter


_FORMS = (Cast, Reshape, Transpose)
"""Ops that give a parameter another form."""


@dataclass
class PipelineStage:
    """One part of the pipeline with everything that is derived from it.

    Attributes:
        part: its number.
        own: outputs of its graph before gradients were asked for.
        derivative: its gradient graph, None when nothing in or before it is trained.
        provided: outputs that get a gradient.
        wanted: inputs (of the graph) whose gradients go to earlier stages.
        trained: ``(graph input, variable)`` of its trained parameters.
        forward, recompute, backward, weights: routines; the last one is a part of the backward that has cells of its
            own.
    """

    part: int
    description: StageGraph
    derivative: Derivative | None = None
    provided: list[Tensor] = field(default_factory=list)
    wanted: list[Tensor] = field(default_factory=list)
    trained: list[tuple[Tensor, Variable]] = field(default_factory=list)
    forward: Routine | None = None
    recompute: Routine | None = None
    backward: Routine | None = None
    weights: Routine | None = None

    @property
    def name(self) -> str:
        """For graphs and messages."""
        return f"stage{self.description.stage}" + (f"_ipu{self.description.ipu}" if self.concurrent else "")

    concurrent: bool = False
    own: int = 0


@dataclass(frozen=True)
class Lane:
    """How values get from one cell of a stage to a later one.

    Attributes:
        direct: whether they do without a stash.
        immediate: whether, moreover, no copy between IPUs comes between the two.
        stashes: where they wait if not.
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
        split: which part of the backward has cells of its own; None: it is one.
        recomputes: whether the forward is executed again, in one piece, before the backward.
        interleaved: whether its stretches are executed again within the backward.
        follows: whether the backward follows so soon that nothing is executed again after the last checkpoint.
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
        self.recomputes = recomputes
        self.interleaved = interleaved
        self.follows = follows
        changing = {t for t, source in zip(self.graph.inputs, stage.description.sources, strict=True)
                    if not isinstance(source, Data)}  # fmt: skip
        self.stretch = stretches(self.graph.ops, changing, set(stage.description.checkpoints))
        self.last_stretch = max(self.stretch.values(), default=0)
        self.source = dict(zip(self.graph.inputs, stage.description.sources, strict=True))
        self.states = self._read_states()
        if split is not None:
            self.late = builder.lane(stage, "F", "W", ("read", "late_read"))
            self.between = builder.lane(stage, "B", "W")
        self.seed: Variable | None = None

    # -- operands ----------------------------------------------------------------------------------------------------

    def _read_states(self) -> set[Tensor]:
        """Graph inputs that are variables the forward changes, whose earlier values the backward reads."""
        derivative = self.stage.derivative
        if derivative is None:
            return set()
        used = depended_on(derivative.graph.outputs, schedule(derivative.graph))
        pairs = zip(derivative.inputs, derivative.graph.inputs, strict=True)
        needed = {c.tensor for c, image in pairs if not c.is_gradient and image in used}
        again = self.recomputes or self.interleaved
        return read_states(self.stage.description, needed, changed_by(self.builder.parts), again=again)

    def fixed(self, tensor: Tensor) -> bool:
        """Whether a graph input is the same in all micro-batches of a weight update, as far as the backward sees."""
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
        """The variable or constant that a graph input is."""
        source = self.source[tensor]
        assert isinstance(source, Data)
        return source.tensor

    def data(self, routine: Routine, tensor: Variable | Constant) -> Tensor:
        """A variable or constant here; one in Streaming Memory is loaded."""
        if isinstance(tensor, Constant):
            return routine.constant(tensor.data, tensor.dtype, tensor.name)
        if tensor.remote is None:
            return routine.get(tensor)
        key = ("loaded", tensor)
        if key not in routine.local:
            buffer, entry = tensor.remote
            routine.local[key] = remote_load(buffer, entry, tensor.name)
        return routine.local[key]

    # -- what waits --------------------------------------------------------------------------------------------------

    def needed(self) -> list[Tensor]:
        """Forward tensors that change from micro-batch to micro-batch and that the backward reads."""
        derivative = self.stage.derivative
        if derivative is None:
            return []
        found = [c.tensor for c in derivative.inputs if not c.is_gradient and not self.fixed(c.tensor)]
        return [tensor for tensor in found if not isinstance(tensor, Constant)]

    def waiting(self) -> list[Tensor]:
        """Forward tensors that are put aside at the end of the forward. A checkpoint that no forward op of its stage
        reads, as it only goes to the next stage, is not (PopART's ``getStashCandidateTensors``,
        ``willow/src/transforms/pipeline.cpp``)."""
        if self.stage.derivative is None:
            return []
        if not (self.recomputes or self.interleaved):
            return [t for t in self.needed() if self.lane_of(t).direct or not self.of_parameters(t)]
        used = [t for t in self.graph.inputs if not self.fixed(t)]
        marked = [t for t in self.stage.description.checkpoints if t not in used and t.consumers]
        found = used + [t for t in marked if t in self.graph.outputs]
        return found + [t for t in self.needed() if t not in found and self.remains(t)]

    def of_parameters(self, tensor: Tensor) -> bool:
        """Whether a value is a parameter in another form (a transposed weight): it is made again, not stashed."""
        if tensor.producer is None:
            return isinstance(tensor, Constant) or self.fixed(tensor)
        return isinstance(tensor.producer, _FORMS) and all(self.of_parameters(t) for t in tensor.producer.inputs)

    def remains(self, tensor: Tensor) -> bool:
        """Whether a value is not computed again: it is made after the last checkpoint of a stage whose backward
        follows at once (PopART's ``setFinalFwdStageRecomputation``)."""
        return (
            self.follows and tensor.producer is not None and self.stretch.get(tensor.producer, 0) == self.last_stretch
        )

    def drop_outputs(self) -> None:
        """The forward does not hand out what is computed again."""
        kept = set(self.waiting())
        self.graph.outputs[:] = [t for index, t in enumerate(self.graph.outputs) if index < self.stage.own or t in kept]
        self.graph.version += 1

    def make_stashes(self) -> None:
        """Memory for what waits."""
        for lane in self.lanes():
            if not lane.direct:
                lane.stashes.make([t for t in self.waiting() if self.lane_of(t) is lane])
        if self.split is not None and not self.between.direct:
            self.between.stashes.make(self.split.carried)

    def lanes(self) -> list[Lane]:
        """The ways of forward values."""
        return [self.lane] if self.split is None else [self.lane, self.late]

    def lane_of(self, tensor: Tensor) -> Lane:
        """The way of a forward value: to the last cells that read it."""
        return self.late if self.split is not None and tensor in self.split.late else self.lane

    # -- routines ----------------------------------------------------------------------------------------------------

    def write_forward(self) -> None:
        """The forward graph, then the stashes, the state updates and the next seed."""
        routine = Routine(self.builder.ir, f"{self.stage.name}_fwd", self.ipu, "fwd")
        self.stage.forward = routine
        with routine.on():
            self.fill_forward(routine)

    def fill_forward(self, routine: Routine) -> None:
        """The ops of :meth:`write_forward`."""
        operands = {t: self.operand(routine, t) for t in self.graph.inputs}
        results = self.run_graph(routine, [operands[t] for t in self.graph.inputs])
        values = {**operands, **results}
        for lane in self.lanes():
            for tensor in lane.stashes.held:
                lane.stashes.put(routine, tensor, values[tensor])
            lane.stashes.advance(routine, "write")
        self.give_directly(routine, values)
        for index, variable in self.stage.description.updates.items():
            make(CopyVarUpdate, variable, results[self.graph.outputs[index]])
        if self.seed is not None:
            add_(self.seed, routine.constant(np.array([0, 1], np.uint32), UINT32, "next_micro_batch"))
        for index in self.builder.leaving(self.stage.part):
            routine.give(("output", index), results[self.graph.outputs[index]])

    def give_directly(self, routine: Routine, values: Mapping[Tensor, Tensor]) -> None:
        """Hand on what waits as results. What lies in a buffer that will change before it is read is copied."""
        for tensor in self.waiting():
            if not self.lane_of(tensor).direct:
                continue
            source = self.source.get(tensor)
            if isinstance(source, Seed | Data) or (isinstance(source, Activation) and not self.lies(tensor)):
                empty = undefined(TensorSpec(tensor.shape, tensor.dtype), tensor.name)
                routine.give(("saved", tensor), make(CopyVarUpdate, empty, values[tensor]))
            elif source is None:
                routine.give(("saved", tensor), values[tensor])

    def lies(self, tensor: Tensor) -> bool:
        """Whether an activation is still in the buffer it arrived in when the backward reads it."""
        return self.lane_of(tensor).immediate and self.builder.transport.received(self.stage.part, tensor).ring is None

    def run_graph(self, routine: Routine, operands: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """Call the forward graph."""
        names = [t.name for t in self.graph.outputs]
        call = routine.create(Call, operands, names, callee=self.graph)
        return dict(zip(self.graph.outputs, call.outputs, strict=True))

    def waited(self, routine: Routine, tensor: Tensor, side: str = "read") -> Tensor:
        """A value of the forward in a routine that reads it."""
        stashes = self.lane_of(tensor).stashes
        if tensor in stashes.held:
            return stashes.take(routine, tensor, side)
        source = self.source.get(tensor)
        if isinstance(source, Activation) and self.lies(tensor):
            return self.builder.transport.received(self.stage.part, tensor).read(routine)
        kind: Hashable = "host" if isinstance(source, HostInput) else "saved"
        return routine.argument((kind, tensor), tensor.spec, tensor.name)

    def write_recompute(self) -> None:
        """The forward graph again, from what waited; results are what the backward reads."""
        routine = Routine(self.builder.ir, f"{self.stage.name}_recompute", self.ipu, "recompute")
        self.stage.recompute = routine
        with routine.on():
            values = {t: self.waited(routine, t) for t in self.waiting()}
            self.lane.stashes.advance(routine, "read")
            operands = [values[t] if t in values else self.data(routine, self._data_of(t)) for t in self.graph.inputs]
            values = {**self.run_graph(routine, operands), **values}
        for tensor in self.needed():
            routine.give(("saved", tensor), values[tensor])

    def write_backward(self) -> None:
        """The ops of the gradient graph: gradients of outputs in, gradients of inputs out, parameters' gradients
        accumulated; with interleaved recomputation also those of the forward that are computed again."""
        routine = Routine(self.builder.ir, f"{self.stage.name}_bwd_pass", self.ipu, "bwd")
        self.stage.backward = routine
        with routine.on():
            self.fill_backward(routine)

    def fill_backward(self, routine: Routine) -> None:
        """The ops of :meth:`write_backward`."""
        derivative = self.stage.derivative
        assert derivative is not None
        late = set() if self.split is None else set(self.split.ops)
        ops = [op for op in schedule(derivative.graph) if op not in late]
        images, again = self.forward_values(routine, self.read_by(ops) if self.split else None)
        for connection, image in zip(derivative.inputs, derivative.graph.inputs, strict=True):
            tensor = connection.tensor
            if connection.is_gradient:
                images[image] = self.gradient_of(routine, tensor)
            elif tensor in images:
                images[image] = images[tensor]
        made = copy_ops(ops, routine.graph, images, self.ipu)
        interleave(routine.graph, again, self.stretch, set(self.waiting()), made.values())
        grads = self.use_gradients(routine, images)
        for tensor in self.stage.wanted:
            sent = self.builder.transport.sent(self.stage.part, tensor)
            if sent is None:
                routine.give(("gradient", tensor), grads[tensor])
            else:
                make(CopyVarUpdate, sent, grads[tensor])
        self.carry(routine, images)
        if not self.recomputes:
            for lane in self.lanes():
                lane.stashes.advance(routine, "read")

    def read_by(self, ops: Sequence[Op]) -> set[Tensor]:
        """The forward tensors that ops of the gradient graph read."""
        derivative = self.stage.derivative
        assert derivative is not None
        read = {tensor for op in ops for tensor in op.inputs}
        pairs = zip(derivative.inputs, derivative.graph.inputs, strict=True)
        return {c.tensor for c, image in pairs if not c.is_gradient and image in read}

    def use_gradients(self, routine: Routine, images: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Keep and accumulate the gradients that a routine makes, by forward tensor."""
        derivative = self.stage.derivative
        assert derivative is not None
        pairs = zip(derivative.outputs, derivative.graph.outputs, strict=True)
        grads = {c.tensor: images[t] for c, t in pairs if t in images}
        late = routine is self.stage.weights
        if self.split is not None:
            grads = {t: grad for t, grad in grads.items() if (t in self.split.trained) == late}
        self.builder.keep_gradients(routine, self.stage.part, grads)
        trained = [(v, grads[t]) for t, v in self.stage.trained if t in grads]
        self.builder.weights.accumulate(routine, trained, self.ipu)
        return grads

    def carry(self, routine: Routine, images: Mapping[Tensor, Tensor]) -> None:
        """Put aside what the gradients of weights are made of."""
        if self.split is None:
            return
        root = roots(routine.graph)
        for tensor in self.split.carried:
            value = images[tensor]
            if not self.between.direct:
                self.between.stashes.put(routine, tensor, value)
                continue
            if root.get(value, value).producer is None:  # a buffer that the next copies change
                value = make(CopyVarUpdate, undefined(TensorSpec(tensor.shape, tensor.dtype), tensor.name), value)
            routine.give(("saved", tensor), value)
        self.between.stashes.advance(routine, "write")

    def write_weights(self) -> None:
        """The part of the backward that makes gradients of weights."""
        derivative, split = self.stage.derivative, self.split
        assert derivative is not None
        assert split is not None
        routine = self.stage.weights = Routine(self.builder.ir, f"{self.stage.name}_bwd_weights", self.ipu, "bwd")
        with routine.on():
            images, _ = self.forward_values(routine, split.late, "late_read")
            for connection, image in zip(derivative.inputs, derivative.graph.inputs, strict=True):
                if not connection.is_gradient and connection.tensor in images:
                    images[image] = images[connection.tensor]
            held = self.between.stashes
            for tensor in split.carried:
                images[tensor] = (
                    held.take(routine, tensor)
                    if tensor in held.held
                    else routine.argument(("saved", tensor), tensor.spec, tensor.name)
                )
            copy_ops(split.ops, routine.graph, images, self.ipu)
            self.use_gradients(routine, images)
            held.advance(routine, "read")
            self.late.stashes.advance(routine, "late_read")

    def forward_values(
        self, routine: Routine, wanted: Collection[Tensor] | None, side: str = "read"
    ) -> tuple[dict[Tensor, Tensor], dict[Op, Op]]:
        """What a routine reads of the forward (``wanted``; None: all that the backward reads), there, and the copies
        of ops that compute it again."""
        derivative = self.stage.derivative
        assert derivative is not None
        every = wanted is None
        asked = [c.tensor for c in derivative.inputs if not c.is_gradient] if wanted is None else wanted
        needed = [t for t in self.needed() if t in asked]
        if self.recomputes:
            images = {t: routine.argument(("saved", t), t.spec, t.name) for t in needed}
        else:
            images = {t: self.waited(routine, t, side) for t in self.waiting() if every or t in asked}
        data = {t: self._data_of(t) for t in self.source if self.fixed(t)}
        missing = [t for t in needed if t not in images and t not in data]
        again = ancestors(missing, {*images, *data}, schedule(self.graph)) if missing else []
        read = {t for op in again for t in op.inputs} | set(asked)
        images.update({t: self.data(routine, tensor) for t, tensor in data.items() if t in read})
        constants = [t for t in read if isinstance(t, Constant)]
        images.update({t: self.data(routine, t) for t in sorted(constants, key=lambda t: t.id)})
        return images, copy_ops(again, routine.graph, images, self.ipu, self.stretch)

    def gradient_of(self, routine: Routine, output: Tensor) -> Tensor:
        """The gradient of an output: the loss's own, or the sum of what arrived from later stages."""
        arrived = self.builder.transport.arrived(self.stage.part, self.graph.outputs.index(output))
        training = self.builder.training
        assert training is not None
        parts = [arrival.read(routine) for arrival in arrived]
        if (self.stage.part, self.graph.outputs.index(output)) == (training.loss_part, training.loss_output):
            parts.append(self.loss_gradient(routine, output, training))
        if not parts:
            raise PipelineError(f"{self.stage.name}: output {output.id!r} has no gradient")
        with routine.named("gradient"):
            return reduce(add, parts)

    def loss_gradient(self, routine: Routine, loss: Tensor, training: Training) -> Tensor:
        """The loss scale in the loss's shape and type: a constant, or what the host has written."""
        if not training.variable_loss_scale:
            ones = np.full(loss.shape, training.loss_scale, loss.dtype.numpy)
            return routine.constant(ones, loss.dtype, "loss_gradient")
        scale = routine.get(self.builder.weights.scalar(LOSS_SCALE, training.loss_scale, self.ipu))
        with routine.named("loss_gradient"):
            return broadcast(scale if loss.dtype is scale.dtype else make(Cast, scale, dtype=loss.dtype), loss.shape)
