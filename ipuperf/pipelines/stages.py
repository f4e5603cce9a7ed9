"""What each stage executes: forward, recomputation and backward routines with their stashes.

A forward value that the backward needs is passed on directly when both run in the same straight line of the program
(:class:`.windows.WindowedProgram`), otherwise it waits in a *stash*: a ring of as many slots as there are
micro-batches in flight, written after the forward and read before the backward (or the recomputation), with a counter
on the device for each side. With recomputation only a stage's inputs and checkpoints wait, and the forward is executed
again: in one piece before the backward, or interleaved with it (:mod:`.inlining`).

Simplification: in one piece, checkpoints inside a stage are not used: the same ops run again as without them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.functions import make
from ipuperf.functions.arithmetic import add, add_
from ipuperf.functions.arranging import broadcast
from ipuperf.functions.shapes import undefined
from ipuperf.ir import UINT32, Constant, Derivative, Op, Tensor, TensorSpec, Variable, schedule
from ipuperf.ops import Call, Cast, CopyVarUpdate, Reshape, Transpose

from .inlining import ancestors, copy_ops, interleave, stretches
from .model import LOSS_SCALE, Activation, Data, HostInput, PipelineError, Seed, StageGraph, Training
from .remote import remote_load
from .routine import Routine
from .stashes import Stashes, TensorStash

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
        stashes: by forward tensor.
        forward, recompute, backward: routines.
    """

    part: int
    description: StageGraph
    derivative: Derivative | None = None
    provided: list[Tensor] = field(default_factory=list)
    wanted: list[Tensor] = field(default_factory=list)
    trained: list[tuple[Tensor, Variable]] = field(default_factory=list)
    stashes: dict[Tensor, TensorStash] = field(default_factory=dict)
    forward: Routine | None = None
    recompute: Routine | None = None
    backward: Routine | None = None

    @property
    def name(self) -> str:
        """For graphs and messages."""
        return f"stage{self.description.stage}" + (f"_ipu{self.description.ipu}" if self.concurrent else "")

    concurrent: bool = False
    own: int = 0


class PipelineStageWriter:
    """Writes the routines of one stage.

    Args:
        builder: what the stages share.
        stage: filled in.
        slots: micro-batches in flight between the forward and the reader of its stash.
        direct: whether forward values reach their reader without a stash.
        immediate: whether, moreover, no copy between IPUs comes between the two.
        recomputes: whether the forward is executed again, in one piece, before the backward.
        interleaved: whether its stretches are executed again within the backward.
        follows: whether the backward follows so soon that nothing is executed again after the last checkpoint.
    """

    def __init__(
        self,
        builder: PipelineWriter,
        stage: PipelineStage,
        slots: int,
        *,
        direct: bool,
        immediate: bool,
        recomputes: bool,
        interleaved: bool,
        follows: bool,
    ) -> None:
        self.builder = builder
        self.stage = stage
        self.graph = stage.description.graph
        self.ipu = stage.description.ipu
        self.direct = direct
        self.immediate = immediate
        self.recomputes = recomputes
        self.interleaved = interleaved
        self.follows = follows
        changing = {t for t, source in zip(self.graph.inputs, stage.description.sources, strict=True)
                    if not isinstance(source, Data)}  # fmt: skip
        self.stretch = stretches(self.graph.ops, changing, set(stage.description.checkpoints))
        self.last_stretch = max(self.stretch.values(), default=0)
        self.source = dict(zip(self.graph.inputs, stage.description.sources, strict=True))
        self.stashes = Stashes(builder, stage.name, self.ipu, slots, stage.stashes)
        self.seed: Variable | None = None
        self.changed = {variable for part in builder.parts for variable in part.updates.values()}

    # -- operands ----------------------------------------------------------------------------------------------------

    def fixed(self, tensor: Tensor) -> bool:
        """Whether a graph input is the same in all micro-batches of a weight update: no state that forwards change."""
        source = self.source.get(tensor)
        return isinstance(source, Data) and source.tensor not in self.changed

    def operand(self, routine: Routine, tensor: Tensor) -> Tensor:
        """A graph input as the forward sees it."""
        source = self.source[tensor]
        if isinstance(source, Data):
            return self.data(routine, source.tensor)
        if isinstance(source, HostInput):
            return routine.argument(("host", tensor), tensor.spec, tensor.name)
        if isinstance(source, Activation):
            return routine.get(self.builder.transport.received(self.stage.part, tensor))
        self.seed = self.seed or self.builder.seed_variable(self.stage)
        return routine.get(self.seed)

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
            return [t for t in self.needed() if self.direct or not self.of_parameters(t)]
        states = self.states()
        used = [t for t in self.graph.inputs if t in states or not isinstance(self.source[t], Data)]
        marked = [t for t in self.stage.description.checkpoints if t not in used and t.consumers]
        found = used + [t for t in marked if t in self.graph.outputs]
        return found + [t for t in self.needed() if t not in found and self.remains(t)]

    def states(self) -> set[Tensor]:
        """Graph inputs that forwards change and that the backward depends on."""
        reached, found = list(self.needed()), set()
        while reached:
            tensor = reached.pop()
            if tensor not in found:
                found.add(tensor)
                reached += tensor.producer.inputs if tensor.producer is not None else []
        return {t for t in self.graph.inputs if t in found and isinstance(self.source[t], Data) and not self.fixed(t)}

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
        if not self.direct:
            self.stashes.make(self.waiting())

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
        for tensor in self.stage.stashes:
            self.stashes.put(routine, tensor, values[tensor])
        self.stashes.advance(routine, "write")
        if self.direct:
            values.update({t: self.copied(values[t]) for t in self.waiting() if isinstance(self.source.get(t), Data)})
        for index, variable in self.stage.description.updates.items():
            make(CopyVarUpdate, variable, results[self.graph.outputs[index]])
        if self.direct:
            self.give_directly(routine, values)
        if self.seed is not None:
            add_(self.seed, routine.constant(np.array([0, 1], np.uint32), UINT32, "next_micro_batch"))
        for index in self.builder.leaving(self.stage.part):
            routine.give(("output", index), results[self.graph.outputs[index]])

    def give_directly(self, routine: Routine, values: Mapping[Tensor, Tensor]) -> None:
        """Hand on what waits as results. What lies in a buffer that will change before it is read is copied."""
        for tensor in self.waiting():
            source = self.source.get(tensor)
            if isinstance(source, Seed) or (isinstance(source, Activation) and not self.immediate):
                routine.give(("saved", tensor), self.copied(values[tensor]))
            elif source is None or isinstance(source, Data):
                routine.give(("saved", tensor), values[tensor])

    def copied(self, tensor: Tensor) -> Tensor:
        """The present value in memory of its own."""
        return make(CopyVarUpdate, undefined(TensorSpec(tensor.shape, tensor.dtype), tensor.name), tensor)

    def run_graph(self, routine: Routine, operands: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """Call the forward graph."""
        names = [t.name for t in self.graph.outputs]
        call = routine.create(Call, operands, names, callee=self.graph)
        return dict(zip(self.graph.outputs, call.outputs, strict=True))

    def waited(self, routine: Routine, tensor: Tensor) -> Tensor:
        """A value of the forward in the routine that reads it first."""
        if tensor in self.stage.stashes:
            return self.stashes.take(routine, tensor)
        source = self.source.get(tensor)
        if isinstance(source, Activation) and self.immediate:  # still in the buffer it arrived in
            return routine.get(self.builder.transport.received(self.stage.part, tensor))
        kind: Hashable = "host" if isinstance(source, HostInput) else "saved"
        return routine.argument((kind, tensor), tensor.spec, tensor.name)

    def write_recompute(self) -> None:
        """The forward graph again, from what waited; results are what the backward reads."""
        routine = Routine(self.builder.ir, f"{self.stage.name}_recompute", self.ipu, "recompute")
        self.stage.recompute = routine
        with routine.on():
            values = {t: self.waited(routine, t) for t in self.waiting()}
            self.stashes.advance(routine, "read")
            operands = [values[t] if t in values else self.operand(routine, t) for t in self.graph.inputs]
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
        images, again = self.forward_values(routine)
        for connection, image in zip(derivative.inputs, derivative.graph.inputs, strict=True):
            tensor = connection.tensor
            images[image] = self.gradient_of(routine, tensor) if connection.is_gradient else images[tensor]
        made = copy_ops(schedule(derivative.graph), routine.graph, images, self.ipu)
        interleave(routine.graph, again, self.stretch, set(self.waiting()), made.values())
        grads = {c.tensor: images[t] for c, t in zip(derivative.outputs, derivative.graph.outputs, strict=True)}
        self.builder.keep_gradients(routine, self.stage.part, grads)
        self.builder.weights.accumulate(routine, [(v, grads[t]) for t, v in self.stage.trained], self.ipu)
        for tensor in self.stage.wanted:
            sent = self.builder.transport.sent(self.stage.part, tensor)
            if sent is None:
                routine.give(("gradient", tensor), grads[tensor])
            else:
                make(CopyVarUpdate, sent, grads[tensor])
        if not self.recomputes:
            self.stashes.advance(routine, "read")

    def forward_values(self, routine: Routine) -> tuple[dict[Tensor, Tensor], dict[Op, Op]]:
        """What the backward reads of the forward, in its routine, and the copies of ops that compute it again."""
        assert self.stage.derivative is not None
        if self.recomputes:
            images = {t: routine.argument(("saved", t), t.spec, t.name) for t in self.needed()}
        else:
            images = {t: self.waited(routine, t) for t in self.waiting()}
        data = {t: source.tensor for t, source in self.source.items() if isinstance(source, Data) and t not in images}
        missing = [t for t in self.needed() if t not in images and t not in data]
        again = ancestors(missing, {*images, *data}, schedule(self.graph)) if missing else []
        read = {t for op in again for t in op.inputs} | {c.tensor for c in self.stage.derivative.inputs}
        images.update({t: self.data(routine, tensor) for t, tensor in data.items() if t in read})
        constants = [t for t in read if isinstance(t, Constant)]
        images.update({t: self.data(routine, t) for t in sorted(constants, key=lambda t: t.id)})
        return images, copy_ops(again, routine.graph, images, self.ipu, self.stretch)

    def gradient_of(self, routine: Routine, output: Tensor) -> Tensor:
        """The gradient of an output: the loss's own, or the sum of what arrived from later stages."""
        arrived = self.builder.transport.arrived(self.stage.part, self.graph.outputs.index(output))
        training = self.builder.training
        assert training is not None
        parts = [routine.get(t) for t in arrived]
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
