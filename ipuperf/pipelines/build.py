"""``build_pipeline``: stage graphs and a timetable become the main graph of a program.

One weight update (or inference run) consists of the windows before the loop, the loop, the windows after it
(:mod:`~ipuperf.pipelines.windows`) and the weight update. A window loads the micro-batches' inputs, runs its stages,
stores results and copies between IPUs. Everything is an op of the program, so its values, its time and its memory are
those of any other program. Nothing here knows cycles.

Overlapped I/O is the software pipeline that PopART makes of a loop (``transforms/decomposeloops.cpp``). Each stream has
an I/O buffer of its own, and each forward first copies its input from there to the compute tiles. While the forward
runs, the I/O tiles store the result of the forward before and load the input of the next
(:mod:`~ipuperf.pipelines.host_io`).

Simplifications: an on-tile copy keeps results of a stage that wait for the copies of a later window; timetables with
infeed and outfeed cells of their own (TensorFlow's overlapped pipelines) are not built.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ipuperf.base.collector import collector_paused
from ipuperf.functions import make, make_all
from ipuperf.functions.shapes import init
from ipuperf.ir import CONTEXT, UINT32, Constant, Grouping, Ir, Stream, Tensor, TensorSpec, Variable, dtype_of
from ipuperf.ops import Accumulate, CopyVarUpdate, HostStore
from ipuperf.pipelines.schedules import Timetable, copies_of

from .checks import check_options, check_outputs, check_parts
from .differentiation import differentiate
from .emission import Emitter
from .model import (
    GRADIENT_SCALE,
    LOSS_SCALE,
    Activation,
    Data,
    GradientOutput,
    HostInput,
    HostIo,
    Offload,
    PipelineError,
    StageGraph,
    StageOutput,
    Training,
    VariableOutput,
)
from .remote import remote_load
from .revision import BuildRequest, revised
from .routine import Routine
from .scope import Scope, place
from .splitting import split_of
from .stages import Lane, PipelineStage, PipelineStageWriter
from .stashes import Stashes, TensorStash
from .states import changed_by
from .transport import Transport
from .weights import Weights
from .windows import WindowedProgram, program_of, windows_of

_NO_OFFLOAD = Offload()
_PLAIN_IO = HostIo()
_SEED_STRIDE = 0x9E3779B9
"""Distance between the seeds of two replicas and stages: 2**32 divided by the golden ratio."""


@dataclass(frozen=True)
class Pipeline:
    """A built pipeline.

    Attributes:
        ir: the program; its main graph runs ``repeats`` weight updates (or inference runs).
        timetable: what runs when.
        program: its straight lines and its loop.
        stages: one per stage graph, with stashes and routines.
        hops: (from IPU, to IPU, bytes) of the copies of a step.
        state: optimiser state by (variable, name).
        scalars: variables of numbers by (name, IPU): hyper-parameters and those of :meth:`scaled`; the host may rewrite
            their data.
        seeds: variables that hold the stages' seeds.
        stashes: rings in which values wait for a later cell.
        updated_on: the IPU on which each variable is updated.
        gradient_scale: scale of accumulated gradients without the loss scale; None if the loss scale is compiled in.
    """

    ir: Ir
    timetable: Timetable
    program: WindowedProgram
    repeats: int
    stages: tuple[PipelineStage, ...]
    hops: tuple[tuple[int, int, int], ...]
    state: Mapping[tuple[Variable, str], Variable]
    scalars: Mapping[tuple[str, int], Variable]
    seeds: tuple[Variable, ...]
    stashes: tuple[Stashes, ...]
    updated_on: Mapping[Variable, int]
    gradient_scale: float | None = None

    def scaled(self, loss_scale: float) -> dict[str, float]:
        """The scalars of a loss scale by name; none where the loss scale is compiled in."""
        if self.gradient_scale is None:
            return {}
        # Gradients carry the loss scale, so their own scale takes it out again.
        return {LOSS_SCALE: loss_scale, GRADIENT_SCALE: self.gradient_scale / loss_scale}

    def stash_bytes(self) -> dict[int, int]:
        """Bytes of stashes on each IPU of a replica, without those in Streaming Memory."""
        ipu_bytes: dict[int, int] = {}
        for stash in self.stashes:
            on_chip = sum(
                tensor_stash.bytes for tensor_stash in stash.by_tensor.values() if tensor_stash.ring is not None
            )
            ipu_bytes[stash.ipu] = ipu_bytes.get(stash.ipu, 0) + on_chip
        return {ipu: ipu_bytes.get(ipu, 0) for ipu in sorted({stage.description.ipu for stage in self.stages})}


@collector_paused()
def build_pipeline(
    ir: Ir,
    parts: Sequence[StageGraph],
    timetable: Timetable,
    *,
    outputs: Sequence[StageOutput] = (),
    variables: Sequence[VariableOutput] = (),
    training: Training | None = None,
    offload: Offload = _NO_OFFLOAD,
    repeats: int = 1,
    seed: int = 0,
    copies: str | None = None,
    recompute: str = "in one piece",
    host_io: HostIo = _PLAIN_IO,
) -> Pipeline:
    """Fill the main graph of ``ir`` with ``repeats`` runs of a pipeline.

    Args:
        ir: holds the stage graphs, and variables, constants and streams in its main graph.
        parts: the stages; those with the same stage number are concurrent.
        timetable: from :mod:`ipuperf.schedules` (:func:`~ipuperf.schedules.timetable_of` makes it by name), for as many
            stages; with training it must not be an inference one.
        outputs: results for the host.
        variables: variables whose last values the host gets.
        training: None for inference.
        offload: what lives in Streaming Memory or is sharded.
        repeats: weight updates (device iterations) of a run.
        seed: of everything random.
        recompute: how stages run their forward again where the timetable repeats it. ``in one piece`` runs it before
            the backward; ``interleaved`` within it, from checkpoint to checkpoint. ``always`` is interleaved, and
            stages without a repeated forward also recompute up to their last checkpoint.
        copies: ``every step`` makes all copies between stages in each step, through every stage in between (TensorFlow
            and PopART pipelines). ``when needed`` copies only new results, straight to their readers (sharded, phased).
            None: as the timetable's schedule is registered.
        host_io: overlapped or synthetic host I/O.

    Raises:
        PipelineError: the parts contradict the timetable or each other.
    """
    copies = copies_of(timetable) if copies is None else copies
    # Front ends pass everything through here, so a revision holds for all of them.
    request = revised(BuildRequest(ir, parts, timetable, outputs, training, offload, host_io, copies, repeats))
    parts, outputs, training, offload, host_io = (
        request.parts,
        request.outputs,
        request.training,
        request.offload,
        request.host_io,
    )
    check_options(copies, recompute, host_io)
    check_parts(parts, timetable, training)
    check_outputs(outputs, parts, timetable)
    # A result sent every n-th micro-batch needs a loop body in which n is a whole number of micro-batches.
    periods = math.lcm(*(output.every for output in outputs))
    builder = PipelineWriter(ir, parts, timetable, training, offload, seed, host_io,
                      every_step=copies == "every step", periods=periods, recompute=recompute)  # fmt: skip
    return builder.build(outputs, variables, repeats)


class PipelineWriter:
    """The state of one :func:`build_pipeline`. The other modules of the room get buffers and variables from it."""

    def __init__(
        self,
        ir: Ir,
        parts: Sequence[StageGraph],
        timetable: Timetable,
        training: Training | None,
        offload: Offload,
        seed: int,
        host_io: HostIo,
        *,
        every_step: bool,
        periods: int = 1,
        recompute: str,
    ) -> None:
        self._recompute = recompute
        self.ir = ir
        self.parts = list(parts)
        self.changed = changed_by(parts)
        self.timetable = timetable
        self.training = training
        self.offload = offload
        self.main = Scope(ir.main_graph)
        self.host_io = host_io
        ir.num_io_tiles = host_io.tiles or ir.num_io_tiles
        self._periods = periods
        self._seed = seed
        self._seeds: list[Variable] = []
        self.stashes: list[Stashes] = []
        # Rotated windows run backwards after their copies, so these results are sent with the next copies.
        rotated = every_step and any(window.after for window in windows_of(timetable.shortest))
        self.transport = Transport(self, self.parts, every_step=every_step, gradients_wait=rotated)
        if training is not None:
            self.weights = Weights(self, training)
        self._passed_outputs: dict[int, set[int]] = {number: set() for number in range(len(self.parts))}

    # -- buffers and variables for the other modules -------------------------------------------------------------------

    def buffer(self, spec: TensorSpec, ipu: int, name: str, *, zero: bool, tile_set: str = "compute") -> Tensor:
        """A tensor of the main graph that is written in place; ``zero`` makes it zeros at the start of a run."""
        with self.main.on(ipu), CONTEXT.on_tiles(tile_set), CONTEXT.phase("other"):
            return init(spec.shape, spec.dtype, name, "zero" if zero else "undef")

    def variable(
        self,
        name: str,
        data: np.ndarray,
        ipu: int,
        *,
        shard_over: int | None = None,
        remote: bool = False,
        grouping: Grouping | None = None,
    ) -> Variable:
        """A variable of the main graph, with the same data in all groups of replicas (default: one group)."""
        grouping, graph = grouping or self.ir.grouping(), self.ir.main_graph
        dtype = dtype_of(data)
        shape: tuple[int, ...] = data.shape
        meta: tuple[int, ...] = ()
        if shard_over is not None:
            # The last shard is padded, so every replica has the same size.
            shape, meta = (-(-data.size // shard_over),), data.shape
        place_of = (self.ir.remote_buffer(shape, dtype, 1, meta), 0) if remote else None
        spec = TensorSpec(shape, dtype, meta)
        if grouping.num_groups > 1:
            # The host copy has one leading axis over groups of replicas.
            data = np.repeat(data[np.newaxis], grouping.num_groups, axis=0)
        variable = Variable(graph.tensor_id(name), spec, graph, data, grouping, remote=place_of, shard_over=shard_over)
        variable.ipu = ipu
        graph.add(variable)
        return variable

    def stash(self, tensor: Tensor, slots: int, ipu: int, stage: str) -> TensorStash:
        """Memory for ``slots`` values of ``tensor``, in Streaming Memory where activations are offloaded."""
        offload = self.offload
        if offload.activations and tensor.spec.elements >= max(1, offload.min_elements):
            buffer = self.ir.remote_buffer(tensor.shape, tensor.dtype, slots)
            return TensorStash(tensor, slots, None, buffer)
        # A single slot has no axis over slots, so that nothing has to be sliced.
        shape = tensor.shape if slots == 1 else (slots, *tensor.shape)
        ring = self.buffer(TensorSpec(shape, tensor.dtype), ipu, f"{stage}_stash_{tensor.name}", zero=False)
        return TensorStash(tensor, slots, ring, None)

    def seed_variable(self, stage: PipelineStage) -> Variable:
        """The seed of a stage: (seed, micro-batches since the weights were uploaded), one per replica."""
        replicas, graph = self.ir.replication_factor, self.ir.main_graph
        # The seeds of a stage's replicas end before those of the next one begin.
        stage_seed = self._seed + stage.part * _SEED_STRIDE * max(31, replicas)
        rows = [[(stage_seed + replica * _SEED_STRIDE) & 0xFFFFFFFF, 0] for replica in range(replicas)]
        data = np.array(rows, np.uint32)
        # Each replica is a group of its own, as each has its own seed.
        grouping = self.ir.grouping(group_size=1)
        value = data if grouping.num_groups > 1 else data[0]
        variable = Variable(graph.tensor_id(f"{stage.name}_seed"), TensorSpec((2,), UINT32), graph, value, grouping)
        variable.ipu = stage.description.ipu
        graph.add(variable)
        self._seeds.append(variable)
        return variable

    def leaving(self, part: int) -> list[int]:
        """Outputs of a part that its forward routine passes to other parts or to the host."""
        return sorted(self._passed_outputs[part])

    # -- building ------------------------------------------------------------------------------------------------------

    def build(self, outputs: Sequence[StageOutput], variables: Sequence[VariableOutput], repeats: int) -> Pipeline:
        """Write the whole program, in order."""
        stages = [
            PipelineStage(number, part, concurrent=self._concurrent(part)) for number, part in enumerate(self.parts)
        ]
        for part in self.parts:
            place(part.graph, part.ipu)
            self._place_data(part)
            for source in part.sources:
                # Outputs that neither a stage nor the host reads stay inside the forward routine.
                if isinstance(source, Activation):
                    self._passed_outputs[source.part].add(source.output)
        for output in outputs:
            self._passed_outputs[output.part].add(output.output)
        if self.training is not None:
            differentiate(self.parts, stages, self.training)
            self.weights.gradients_of.update(variable for stage in stages for _, variable in stage.trained)
        # Transport comes after differentiation, as it needs the gradients that stages pass back.
        self.transport.plan(stages)
        self.program = program_of(
            self.timetable,
            self._periods,
            peel=self.host_io.overlaps,
            settling=self.transport.settling,
            rotates=self.transport.every_step,
        )
        # The routines of backwards write to these buffers, so they exist before the stages are written.
        self._kept_gradients = {} if self.training is None else self._gradient_anchors(self.training, repeats)
        for stage in stages:
            self._write(stage)
        if self.training is not None:
            self.weights.write_updates()
        anchors = self._anchors(outputs)
        self._count_transfers(outputs, repeats)
        self._emit_runs(Emitter(self, stages, outputs, anchors), repeats)
        for output, anchor in anchors.items():
            if not self.host_io.synthetic:
                ipu = self.parts[output.part].ipu
                self._send(anchor, output.stream, ipu)
        # Sent after all runs, when accumulated gradients and variables have their last values.
        self._send_rest(variables)
        weights = self.weights if self.training is not None else None
        return Pipeline(
            self.ir,
            self.timetable,
            self.program,
            repeats,
            tuple(stages),
            tuple(self.transport.bytes_per_step()),
            weights.state if weights else {},
            weights.scalars if weights else {},
            tuple(self._seeds),
            tuple(self.stashes),
            weights.updated_on if weights else {},
            weights.gradient_scale if weights else None,
        )

    def _send(self, value: Tensor, stream: Stream, ipu: int) -> None:
        with self.main.on(ipu):
            self.main.create(HostStore, [value], [], stream=stream)

    def _send_rest(self, variables: Sequence[VariableOutput]) -> None:
        """At the end of a run, send the gradients that have waited for it, and variables."""
        if self.host_io.synthetic:
            return
        for gradient, anchor in self._kept_gradients.items():
            if anchor is not None:
                self._send(anchor, gradient.stream, self.parts[gradient.part].ipu)
        for output in variables:
            variable = output.variable
            output.stream.transfers = 1
            ipu = variable.ipu or 0
            with self.main.on(ipu):
                value = variable if variable.remote is None else remote_load(*variable.remote, variable.name)
            self._send(value, output.stream, ipu)

    def _gradient_anchors(self, training: Training, repeats: int) -> dict[GradientOutput, Tensor | None]:
        """Buffers of gradients that go to the host once per run; None for gradients that are sent at once."""
        anchors: dict[GradientOutput, Tensor | None] = {}
        for gradient in training.gradients:
            once = gradient.returned != "all"
            gradient.stream.transfers = 1 if once else repeats * self.timetable.micro_batches
            anchors[gradient] = None
            if once:
                ipu, name = self.parts[gradient.part].ipu, f"anchor_{gradient.stream.name}"
                anchors[gradient] = self.buffer(gradient.stream.spec, ipu, name, zero=gradient.returned == "sum")
        return anchors

    def keep_gradients(self, routine: Routine, part: int, grads: Mapping[Tensor, Tensor]) -> None:
        """In a backward routine, send the gradients that the host gets, or put them into their buffers."""
        for gradient, anchor in self._kept_gradients.items():
            if gradient.part != part or self.host_io.synthetic:
                continue
            value = grads[gradient.tensor]
            if anchor is None:
                make_all(HostStore, [value], [], stream=gradient.stream)
            elif gradient.returned == "sum":
                make(Accumulate, routine.get(anchor), value, kind="add")
            else:
                make(CopyVarUpdate, routine.get(anchor), value)

    def _emit_runs(self, emitter: Emitter, repeats: int) -> None:
        """Write all runs of the schedule as a loop. Where I/O overlaps across runs, the first and the last stand on
        their own."""
        trips = repeats
        if emitter.traffic.across and repeats > 1:
            emitter.emit(self.main, is_last_run=False)
            # The first and the last run stand outside the loop, as one has no run before it and one no run after it.
            trips -= 2
        if trips == 1 and trips == repeats:
            emitter.emit(self.main)
        elif trips > 0:
            scope = self.main.inner("weight_update" if self.training else "pipeline_run")
            emitter.emit(scope, is_first_run=trips == repeats, is_last_run=trips == repeats)
            scope.close(trips=trips)
        if trips < repeats:
            emitter.emit(self.main, is_first_run=False)

    def _count_transfers(self, outputs: Sequence[StageOutput], repeats: int) -> None:
        """Set how many slices of each stream a run transfers."""
        micro_batches = repeats * self.timetable.micro_batches
        for part in self.parts:
            for source in part.sources:
                if isinstance(source, HostInput):
                    source.stream.transfers = micro_batches
        for output in outputs:
            output.stream.transfers = micro_batches // output.every if output.returned == "all" else 1

    def _concurrent(self, part: StageGraph) -> bool:
        return sum(part_of_stage.stage == part.stage for part_of_stage in self.parts) > 1

    def _place_data(self, part: StageGraph) -> None:
        """Put parameters and states on the IPU of the stage that uses them."""
        data_tensors = [source.tensor for source in part.sources if isinstance(source, Data)]
        for variable in (*data_tensors, *part.updates.values()):
            # A constant may lie on several IPUs, as each graph gets a copy.
            if isinstance(variable, Constant):
                continue
            if variable.ipu is not None and variable.ipu != part.ipu:
                raise PipelineError(
                    f"variable {variable.id!r} is used by stages on IPU {variable.ipu} and IPU {part.ipu}; all stages "
                    "that use a variable have to be on one IPU: put them there, or give each its own variable"
                )
            variable.ipu = part.ipu
            elements, state = variable.spec.elements, variable in self.changed
            # State stays on chip, as every forward writes it.
            is_offloaded = self.offload.weights and not state and elements >= max(1, self.offload.min_elements)
            if is_offloaded and variable.remote is None:
                variable.remote = (self.ir.remote_buffer(variable.shape, variable.dtype, 1), 0)

    def _write(self, stage: PipelineStage) -> None:
        number = stage.description.stage
        repeated = self.program.runs("R", number)
        marked = bool(stage.description.checkpoints) and self._recompute == "always"
        interleaved = stage.derivative is not None and (
            (repeated and self._recompute != "in one piece") or (marked and not repeated)
        )
        recomputes = repeated and not interleaved
        # Stashes are read by the cell that runs first after the forward.
        reader = "R" if recomputes else "B"
        # A stage has one recomputation routine, whose results stay in place only within one segment.
        if recomputes and self.program.crosses("R", "B", number):
            raise PipelineError(f"{self.timetable.name}: a recomputation and its backward lie in different iterations")
        split = None
        if stage.derivative is not None and self.timetable.last_kind(number) == "W":
            split = split_of(stage.derivative, dict(stage.trained))
            if repeated or interleaved:
                raise PipelineError(
                    f"{self.timetable.name}: stage {number} has cells of its own for gradients of weights; its forward "
                    "cannot be executed again: leave out R cells and checkpoints"
                )
        writer = PipelineStageWriter(
            self,
            stage,
            self.lane(stage, "F", reader),
            split=split,
            recomputes=recomputes and stage.derivative is not None,
            interleaved=interleaved,
            follows=interleaved and not repeated,
        )
        # Values that run again need no stash, so they leave the outputs before stashes are made.
        if interleaved:
            writer.drop_outputs()
        writer.make_stashes()
        writer.write_forward()
        if stage.derivative is not None:
            if writer.recomputes:
                writer.write_recompute()
            writer.write_backward()
            if split is not None:
                writer.write_weights()

    def lane(self, stage: PipelineStage, begin: str, end: str, readers: Sequence[str] = ("read",)) -> Lane:
        """The lane of values from cells ``begin`` to cells ``end`` of a stage."""
        number, ipu = stage.description.stage, stage.description.ipu
        slots = self.timetable.alive(number, begin, end)
        return Lane(
            direct=not self.program.crosses(begin, end, number),
            immediate=self.program.immediate(begin, end, number),
            stashes=Stashes(self, stage.name, ipu, slots, readers),
        )

    def _anchors(self, outputs: Sequence[StageOutput]) -> dict[StageOutput, Tensor]:
        """Buffers of results that go to the host once per run."""
        anchors = {}
        for output in outputs:
            if output.returned in ("final", "sum"):
                part = self.parts[output.part]
                value = part.graph.outputs[output.output]
                anchors[output] = self.buffer(
                    value.spec, part.ipu, f"anchor_{output.stream.name}", zero=output.returned == "sum"
                )
        return anchors
