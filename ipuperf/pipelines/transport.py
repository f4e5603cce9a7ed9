"""How activations and gradients get from one stage to another.

With ``every_step`` a value goes one stage further per time step, through every stage in between (PopART copies to
adjacent stages only and chains the rest). All copies then run in every step, also for idle stages (PopART and
TensorFlow mask none of them). Otherwise a new value is copied straight to its readers. It arrives in a buffer of the
receiving IPU, where it stays until the next copy into it. Values whose readers come later wait in a ring
(:mod:`.lifetimes`).

A value that only passes through an IPU is first saved there by an on-tile copy and then sent on, so that it does not
hold up other copies. The copies of a step are two exchanges, activations and then gradients, as in PopART's schedule
(``popart:willow/src/popx/popprograms.cpp``: first ``C<i>F``, then ``C<i>B``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ipuperf.functions import make
from ipuperf.functions.shapes import undefined
from ipuperf.ir import CONTEXT, Phase, Tensor, TensorSpec
from ipuperf.ops import CopyVarUpdate, IpuCopy
from ipuperf.pipelines.schedules import Cell

from .lifetimes import Wait, wait_of
from .model import Activation, StageGraph
from .routine import Routine
from .scope import Scope
from .stashes import Stashes

if TYPE_CHECKING:
    from .build import PipelineWriter
    from .stages import PipelineStage


@dataclass(frozen=True, eq=False)
class Hop:
    """One copy to a buffer, from a buffer or from a new result of a stage.

    Attributes:
        kind, part: the stage execution that makes the value (``F`` or ``B`` of which part).
        key: which result of its routine.
        source: the buffer to copy from, None: the result itself.
        target: the buffer to copy to.
    """

    kind: str
    part: int
    key: Hashable
    spec: TensorSpec
    origin: int
    destination: int
    source: Tensor | None
    target: Tensor

    @cached_property
    def idle(self) -> TensorSpec:
        """The spec of what an idle stage sends."""
        return TensorSpec(self.spec.shape, self.spec.dtype)

    @property
    def phase(self) -> Phase:
        """Its phase: activations belong to the forward pass, gradients to the backward."""
        return "fwd" if self.kind == "F" else "bwd"


@dataclass(frozen=True)
class Arrival:
    """A buffer of one reader, and the ring in which values wait after they arrive there; None: they do not wait.

    Attributes:
        wait: says in which steps a value arrives.
    """

    buffer: Tensor
    ring: Stashes | None
    wait: Wait

    def read(self, routine: Routine) -> Tensor:
        """The next value for the reader."""
        if self.ring is None:
            return routine.get(self.buffer)
        value = self.ring.take(routine, self.buffer)
        self.ring.advance(routine, "read")
        return value

    def put(self, scope: Scope, value: Tensor, phase: Phase) -> None:
        """Put a value that has arrived into the ring."""
        if self.ring is not None:
            with scope.on(self.ring.ipu), CONTEXT.phase(phase):
                self.ring.put(scope, self.buffer, value)
                self.ring.advance(scope, "write")


class Transport:
    """All copies of a pipeline.

    Args:
        builder: gives buffers.
        parts: the stages.
        every_step: see the module's text.
        gradients_wait: whether backwards run after the copies of their window, so that their results wait in a buffer
            for the next ones.
    """

    def __init__(
        self, builder: PipelineWriter, parts: Sequence[StageGraph], *, every_step: bool, gradients_wait: bool
    ) -> None:
        self._builder = builder
        self._parts = parts
        self.every_step = every_step
        self._gradients_wait = gradients_wait
        self._received: dict[tuple[int, Tensor], Arrival] = {}
        self._arrived: dict[tuple[int, int], list[Arrival]] = {}
        self._sent: dict[tuple[int, Tensor], Tensor] = {}
        self.hops: list[Hop] = []
        self._waiting: dict[Tensor, list[Arrival]] = {}
        self.settling = 0
        """Steps after which results that wait arrive in every step, once their cell runs in every step."""

    # -- queries of stages ---------------------------------------------------------------------------------------------

    def received(self, part: int, tensor: Tensor) -> Arrival:
        """Where input ``tensor`` of a part's graph arrives."""
        return self._received[part, tensor]

    def arrived(self, part: int, output: int) -> list[Arrival]:
        """Where the gradients of an output arrive, one per reader."""
        return self._arrived.get((part, output), [])

    def sent(self, part: int, tensor: Tensor) -> Tensor | None:
        """The buffer in which the gradient of input ``tensor`` waits for the copy; None: it is copied at once."""
        return self._sent.get((part, tensor))

    # -- planning ----------------------------------------------------------------------------------------------------

    def plan(self, stages: Sequence[PipelineStage]) -> None:
        """Make the buffers and the list of hops."""
        for (part, output), readers in self._readers().items():
            self._forward_chain(part, output, readers)
        for stage in stages:
            for tensor in stage.input_gradients:
                self._backward_chain(stage, tensor)

    def _readers(self) -> dict[tuple[int, int], list[tuple[int, Tensor]]]:
        """For each output that later stages read: (part, graph input) of the readers."""
        readers: dict[tuple[int, int], list[tuple[int, Tensor]]] = {}
        for number, part in enumerate(self._parts):
            for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
                if isinstance(source, Activation):
                    readers.setdefault((source.part, source.output), []).append((number, tensor))
        return readers

    def _relay(self, stage: int) -> int:
        """The IPU that keeps values which only pass through a stage."""
        return next(part.ipu for part in self._parts if part.stage == stage)

    def _forward_chain(self, part: int, output: int, readers: Sequence[tuple[int, Tensor]]) -> None:
        maker = self._parts[part]
        value = maker.graph.outputs[output]
        key = ("output", output)
        levels: dict[int, dict[int, Tensor]] = {}
        last_stage = max(self._parts[number].stage for number, _ in readers)
        for number, tensor in readers:
            reader = self._parts[number]
            level = levels.setdefault(reader.stage, {})
            # Readers of a stage that are on one IPU share a buffer.
            if reader.ipu not in level:
                level[reader.ipu] = self._buffer(value, reader.ipu, f"stage{reader.stage}_{tensor.name}")
            self._received[number, tensor] = self._arrival(level[reader.ipu], "F", maker, reader)
        chain: list[list[Hop]] = []
        origin, source = maker.ipu, None
        for stage in range(maker.stage + 1, last_stage + 1):
            level = levels.setdefault(stage, {})
            if not level and self.every_step:
                ipu = self._relay(stage)
                level[ipu] = self._buffer(value, ipu, f"stage{stage}_relay_{value.name}")
            chain.append(
                [Hop("F", part, key, value.spec, origin, ipu, source, target) for ipu, target in level.items()]
            )
            if self.every_step:
                # The next hop starts where this one ended; one IPU of a stage passes the value on.
                origin, source = next(iter(level.items()))
        self.hops += [hop for hops in chain for hop in hops]

    def _backward_chain(self, stage: PipelineStage, tensor: Tensor) -> None:
        reader = stage.description
        activation = dict(zip(reader.graph.inputs, reader.sources, strict=True))[tensor]
        assert isinstance(activation, Activation)
        maker = self._parts[activation.part]
        key = ("gradient", tensor)
        name = f"gradient_{tensor.name}"
        source: Tensor | None = None
        if self._gradients_wait:
            source = self._sent[stage.part, tensor] = self._buffer(
                tensor, reader.ipu, f"stage{reader.stage}_{name}_sent"
            )
        chain: list[Hop] = []
        origin = reader.ipu
        stages_between = range(reader.stage - 1, maker.stage, -1) if self.every_step else ()
        for number in stages_between:
            ipu = self._relay(number)
            target = self._buffer(tensor, ipu, f"stage{number}_relay_{name}")
            chain.append(Hop("B", stage.part, key, tensor.spec, origin, ipu, source, target))
            origin, source = ipu, target
        target = self._buffer(tensor, maker.ipu, f"stage{maker.stage}_{name}")
        chain.append(Hop("B", stage.part, key, tensor.spec, origin, maker.ipu, source, target))
        arrival = self._arrival(target, "B", reader, maker)
        self._arrived.setdefault((activation.part, activation.output), []).append(arrival)
        self.hops += chain

    def _arrival(self, buffer: Tensor, kind: str, maker: StageGraph, reader: StageGraph) -> Arrival:
        """Where results of ``maker`` arrive at ``reader``, with a ring if they have to wait there."""
        wait = wait_of(self._builder.timetable, kind, maker.stage, reader.stage, every_step=self.every_step)
        # Every value is read before the next copy into the buffer, which is then enough.
        if not wait.slots:
            return Arrival(buffer, None, wait)
        ring = Stashes(self._builder, f"stage{reader.stage}", reader.ipu, wait.slots)
        ring.make([buffer])
        if self.every_step:
            self.settling = max(self.settling, abs(reader.stage - maker.stage))
        arrival = Arrival(buffer, ring, wait)
        self._waiting.setdefault(buffer, []).append(arrival)
        return arrival

    def _buffer(self, like: Tensor, ipu: int, name: str) -> Tensor:
        return self._builder.buffer(like.spec, ipu, name, zero=False)

    # -- copying -----------------------------------------------------------------------------------------------------

    def copies(
        self,
        scope: Scope,
        values: Mapping[tuple[str, int, Hashable], Tensor],
        executed_cells: Sequence[Cell],
        step: int,
    ) -> None:
        """Write the copies at the end of a step in which ``executed_cells`` ran; ``values`` holds their results."""
        executed = {(cell.kind, cell.stage) for cell in executed_cells}
        hops = [hop for hop in self.hops if self.every_step or (hop.kind, self._parts[hop.part].stage) in executed]
        # No copy of this step may write where another one reads, as copies in a row are one exchange.
        sources = {hop: self._source(scope, hop, values) for hop in hops}
        overwritten = {hop.target for hop in hops}
        for hop in hops:
            if hop.source in overwritten:
                copy_target = self._undefined(scope, hop)
                with scope.on(hop.origin), CONTEXT.phase(hop.phase):
                    sources[hop] = make(CopyVarUpdate, copy_target, sources[hop])
        landed: dict[Tensor, Tensor] = {}
        # Activations before gradients, as in PopART's schedule; sorting is stable.
        for hop in sorted(hops, key=lambda hop: hop.kind == "B"):
            if hop.origin != hop.destination:
                with scope.on(hop.destination), CONTEXT.phase(hop.phase):
                    landed[hop.target] = make(
                        IpuCopy,
                        sources[hop],
                        hop.target,
                        source=hop.origin,
                        destination=hop.destination,
                        exchange=hop.kind,
                    )
        for hop in hops:
            # Stages on one IPU need no exchange between IPUs.
            if hop.origin == hop.destination:
                with scope.on(hop.destination), CONTEXT.phase(hop.phase):
                    landed[hop.target] = make(CopyVarUpdate, hop.target, sources[hop])
        for hop in hops:
            for arrival in self._waiting.get(hop.target, ()):
                # In other steps an idle stage sent no particular contents.
                if arrival.wait.arrives(self._builder.timetable, step):
                    arrival.put(scope, landed[hop.target], hop.phase)

    def _source(self, scope: Scope, hop: Hop, values: Mapping[tuple[str, int, Hashable], Tensor]) -> Tensor:
        """The tensor to copy; an idle stage sends a tensor with no particular contents."""
        if hop.source is not None:
            return hop.source
        result = values.get((hop.kind, hop.part, hop.key))
        if result is not None:
            return result
        return self._undefined(scope, hop)

    def _undefined(self, scope: Scope, hop: Hop) -> Tensor:
        """A new tensor like the hop's on its origin, with no particular contents."""
        with scope.on(hop.origin), CONTEXT.phase(hop.phase):
            return undefined(hop.idle, "idle")

    def bytes_per_step(self) -> Iterator[tuple[int, int, int]]:
        """(from IPU, to IPU, bytes) of every hop between IPUs."""
        for hop in self.hops:
            if hop.origin != hop.destination:
                yield hop.origin, hop.destination, hop.spec.bytes
