"""``build_pipeline``: stage graphs and a timetable become the main graph of a program.

One weight update (or inference run) is: the windows before the loop, the loop, the windows after it
(:mod:`~ipuperf.pipelines.windows`), the weight update. A window loads the micro-batches' inputs, runs its stages,
stores results, copies between IPUs. Everything is an op of the program, so its values, its time and its memory are
those of any other program; nothing here knows cycles.

Overlapped I/O is the software pipeline that PopART makes of a loop (``transforms/decomposeloops.cpp``): an I/O buffer
of its own per stream; each forward first copies its input from there to the compute tiles, and while it runs the I/O
tiles store the result of the forward before and load the input of the next (:mod:`~ipuperf.pipelines.host_io`).

Simplifications: results of a stage that wait for the copies of a later window are put aside by an on-tile copy;
timetables with infeed and outfeed cells of their own (TensorFlow's overlapped pipelines) are not built.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ipuperf.ir import UINT32, Constant, Ir, Recomputation, Stream, Tensor, TensorSpec, Variable, dtype_of
from ipuperf.ops import Accumulate, CopyVarUpdate, HostStore, Init, autodiff
from ipuperf.ops.control import reached_by_gradients
from ipuperf.schedules import Cell, Timetable

from .host_io import HostTraffic
from .model import (
    Activation,
    Data,
    HostInput,
    HostIo,
    Offload,
    PipelineError,
    Seed,
    StageGraph,
    StageOutput,
    Training,
)
from .scope import Scope, place
from .stages import Stage, StageWriter, Stash
from .transport import Transport
from .weights import Weights
from .windows import Program, Window, program_of

_NO_OFFLOAD = Offload()
_PLAIN_IO = HostIo()
_SEED_STRIDE = 0x9E3779B9
"""Distance between the seeds of two replicas and stages: 2**32 divided by the golden ratio."""

Values = dict[tuple[str, int, Hashable], Tensor]


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
        scalars: variables of hyper-parameters by (name, IPU); the host may rewrite their data.
        seeds: variables that hold the stages' seeds.
    """

    ir: Ir
    timetable: Timetable
    program: Program
    repeats: int
    stages: tuple[Stage, ...]
    hops: tuple[tuple[int, int, int], ...]
    state: Mapping[tuple[Variable, str], Variable]
    scalars: Mapping[tuple[str, int], Variable]
    seeds: tuple[Variable, ...]

    def stash_bytes(self) -> dict[int, int]:
        """Bytes of stashes on each IPU of a replica (those in Streaming Memory left out)."""
        found: dict[int, int] = {}
        for stage in self.stages:
            on_chip = sum(s.bytes for s in stage.stashes.values() if s.ring is not None)
            found[stage.description.ipu] = found.get(stage.description.ipu, 0) + on_chip
        return found


def build_pipeline(
    ir: Ir,
    parts: Sequence[StageGraph],
    timetable: Timetable,
    *,
    outputs: Sequence[StageOutput] = (),
    training: Training | None = None,
    offload: Offload = _NO_OFFLOAD,
    repeats: int = 1,
    seed: int = 0,
    copies: str = "every step",
    recompute: str = "in one piece",
    host_io: HostIo = _PLAIN_IO,
) -> Pipeline:
    """Fill the main graph of ``ir`` with ``repeats`` runs of a pipeline.

    Args:
        ir: holds the stage graphs, and variables, constants and streams in its main graph.
        parts: the stages; those of a stage number are concurrent.
        timetable: from :mod:`ipuperf.schedules`, for as many stages; with training it must not be an inference one.
        outputs: results for the host.
        training: None for inference.
        offload: what lives in Streaming Memory or is sharded.
        repeats: weight updates (device iterations) of a run.
        seed: of everything random.
        recompute: how stages whose forward the timetable repeats do it, with values that wait or not: ``in one piece``
            before the backward; ``interleaved`` with it, from checkpoint to checkpoint; ``always``: interleaved, and
            stages without repeated forward, too, do it up to their last checkpoint.
        copies: ``every step``: all copies between stages in each step, through every stage in between (TensorFlow and
            PopART pipelines); ``when needed``: only what has been made, straight to its readers (sharded, phased).
        host_io: overlapped or synthetic host I/O.

    Raises:
        PipelineError: parts that contradict the timetable or each other.
    """
    if copies not in ("every step", "when needed"):
        raise PipelineError(f"copies={copies!r}; allowed are 'every step' and 'when needed'")
    if recompute not in ("in one piece", "interleaved", "always"):
        raise PipelineError(f"recompute={recompute!r}; allowed are 'in one piece', 'interleaved' and 'always'")
    every_step = copies == "every step"
    if host_io.overlaps and (every_step or host_io.tiles < 1):
        raise PipelineError(
            f"overlapped I/O with {host_io.tiles} I/O tiles and copies={copies!r}; it needs at least 1 I/O tile and "
            "copies='when needed' (a pipeline's stages cannot be overlapped with I/O)"
        )
    _check_outputs(outputs, parts, timetable)
    periods = math.lcm(*(output.every for output in outputs))
    builder = Builder(ir, parts, timetable, training, offload, seed, host_io,
                      every_step=every_step, periods=periods, recompute=recompute)  # fmt: skip
    return builder.build(outputs, repeats)


class Builder:
    """State of one :func:`build_pipeline`; the other modules of the room ask it for buffers and variables."""

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
        self.timetable = timetable
        self.training = training
        self.offload = offload
        self.main = Scope(ir.main_graph)
        self.host_io = host_io
        ir.num_io_tiles = host_io.tiles or ir.num_io_tiles
        self.program = program_of(timetable, periods, peel=host_io.overlaps)
        self._seed = seed
        self._seeds: list[Variable] = []
        _check(self.parts, timetable, training)
        windows = (*self.program.before, *self.program.body, *self.program.after)
        rotated = any(window.after for window in windows)
        self.transport = Transport(self, self.parts, every_step=every_step, gradients_wait=rotated and every_step)
        if training is not None:
            self.weights = Weights(self, training)
        self._leaving: dict[int, set[int]] = {number: set() for number in range(len(self.parts))}

    # -- what the other modules ask ------------------------------------------------------------------------------------

    def buffer(self, spec: TensorSpec, ipu: int, name: str, *, zero: bool, tile_set: str = "compute") -> Tensor:
        """A tensor of the main graph that is written in place; zeros at the start of a run if ``zero``."""
        init = "zero" if zero else "undefined"
        made = self.main.op(Init, [], name, ipu=ipu, tile_set=tile_set, shape=spec.shape, dtype=spec.dtype, init=init)
        return made.outputs[0]

    def variable(
        self, name: str, data: np.ndarray, ipu: int, *, shard_over: int | None = None, remote: bool = False
    ) -> Variable:
        """A variable of the main graph, equal on all replicas."""
        grouping, graph = self.ir.grouping(), self.ir.main_graph
        dtype = dtype_of(data)
        shape: tuple[int, ...] = data.shape
        meta: tuple[int, ...] = ()
        if shard_over is not None:
            shape, meta = (-(-data.size // shard_over),), data.shape
        place_of = (self.ir.remote_buffer(shape, dtype, 1, meta), 0) if remote else None
        spec = TensorSpec(shape, dtype, meta)
        variable = Variable(graph.tensor_id(name), spec, graph, data, grouping, remote=place_of, shard_over=shard_over)
        variable.ipu = ipu
        graph.add(variable)
        return variable

    def stash(self, tensor: Tensor, slots: int, ipu: int, stage: str) -> Stash:
        """Memory for ``slots`` values of ``tensor``."""
        offload = self.offload
        if offload.activations and tensor.spec.elements >= max(1, offload.min_elements):
            buffer = self.ir.remote_buffer(tensor.shape, tensor.dtype, slots)
            return Stash(tensor, slots, None, buffer)
        shape = tensor.shape if slots == 1 else (slots, *tensor.shape)
        ring = self.buffer(TensorSpec(shape, tensor.dtype), ipu, f"{stage}_stash_{tensor.name}", zero=False)
        return Stash(tensor, slots, ring, None)

    def seed_variable(self, stage: Stage) -> Variable:
        """The seed of a stage: (seed, micro-batches since the weights were uploaded), one per replica."""
        replicas, graph = self.ir.replication_factor, self.ir.main_graph
        first = self._seed + stage.part * _SEED_STRIDE * 31
        rows = [[(first + replica * _SEED_STRIDE) & 0xFFFFFFFF, 0] for replica in range(replicas)]
        data = np.array(rows, np.uint32)
        grouping = self.ir.grouping(group_size=1)
        value = data if grouping.num_groups > 1 else data[0]
        variable = Variable(graph.tensor_id(f"{stage.name}_seed"), TensorSpec((2,), UINT32), graph, value, grouping)
        variable.ipu = stage.description.ipu
        graph.add(variable)
        self._seeds.append(variable)
        return variable

    def leaving(self, part: int) -> list[int]:
        """Outputs of a part that its forward routine hands out."""
        return sorted(self._leaving[part])

    # -- building ------------------------------------------------------------------------------------------------------

    def build(self, outputs: Sequence[StageOutput], repeats: int) -> Pipeline:
        """Everything, in order."""
        stages = [Stage(number, part, concurrent=self._concurrent(part)) for number, part in enumerate(self.parts)]
        for part in self.parts:
            place(part.graph, part.ipu)
            self._place_data(part)
            for source in part.sources:
                if isinstance(source, Activation):
                    self._leaving[source.part].add(source.output)
        for output in outputs:
            self._leaving[output.part].add(output.output)
        if self.training is not None:
            self._differentiate(stages)
        self.transport.plan(stages)
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
                self.main.op(HostStore, [anchor], ipu=ipu, outputs=0, stream=output.stream)
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
        )

    def _emit_runs(self, emitter: Emitter, repeats: int) -> None:
        """All runs of the schedule, in a loop; the first and the last on their own where I/O overlaps across runs."""
        trips = repeats
        if emitter.traffic.across and repeats > 1:
            emitter.emit(self.main, last=False)
            trips -= 2
        if trips == 1 and trips == repeats:
            emitter.emit(self.main)
        elif trips > 0:
            scope = self.main.inner("weight_update" if self.training else "pipeline_run")
            emitter.emit(scope, first=trips == repeats, last=trips == repeats)
            scope.close(trips=trips)
        if trips < repeats:
            emitter.emit(self.main, first=False)

    def _count_transfers(self, outputs: Sequence[StageOutput], repeats: int) -> None:
        """Slices of each stream in a run."""
        every = repeats * self.timetable.micro_batches
        for part in self.parts:
            for source in part.sources:
                if isinstance(source, HostInput):
                    source.stream.transfers = every
        for output in outputs:
            output.stream.transfers = every // output.every if output.returned == "all" else 1

    def _concurrent(self, part: StageGraph) -> bool:
        return sum(other.stage == part.stage for other in self.parts) > 1

    def _place_data(self, part: StageGraph) -> None:
        """Parameters and states lie on the IPU of the stage that uses them."""
        held = [source.tensor for source in part.sources if isinstance(source, Data)]
        for variable in (*held, *part.updates.values()):
            if isinstance(variable, Constant):
                continue
            if variable.ipu is not None and variable.ipu != part.ipu:
                raise PipelineError(
                    f"variable {variable.id!r} is used by stages on IPU {variable.ipu} and IPU {part.ipu}; all stages "
                    "that use a variable have to be on one IPU: put them there, or give each its own variable"
                )
            variable.ipu = part.ipu
            size, state = variable.spec.elements, variable in part.updates.values()
            away = self.offload.weights and not state and size >= max(1, self.offload.min_elements)
            if away and variable.remote is None:
                variable.remote = (self.ir.remote_buffer(variable.shape, variable.dtype, 1), 0)

    def _differentiate(self, stages: Sequence[Stage]) -> None:
        """Gradient graphs, last stage first; what gets a gradient follows from what is trained and what is lost."""
        training = self.training
        assert training is not None
        trainable = set(training.trainable)
        reachable = _depends_on(self.parts, trainable)
        asked: dict[int, set[int]] = {number: set() for number in range(len(self.parts))}
        asked[training.loss_part].add(training.loss_output)
        for stage in sorted(stages, key=lambda s: -s.description.stage):
            part = stage.description
            provided = [part.graph.outputs[index] for index in sorted(asked[stage.part])]
            if not provided:
                continue
            reached = reached_by_gradients(part.graph, provided)
            for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
                if tensor not in reached:
                    continue
                if isinstance(source, Data) and source.tensor in trainable:
                    assert isinstance(source.tensor, Variable)
                    stage.trained.append((tensor, source.tensor))
                elif isinstance(source, Activation) and (source.part, source.output) in reachable:
                    stage.wanted.append(tensor)
                    asked[source.part].add(source.output)
            required = [t for t, _ in stage.trained] + stage.wanted
            if not required:
                continue
            before = stage.own = len(part.graph.outputs)
            stage.provided = provided
            again = Recomputation(frozenset(part.recomputed), frozenset(part.checkpoints))
            stage.derivative = autodiff(part.graph, provided, required, recomputation=again)
            place(stage.derivative.graph, part.ipu)
            for tensor in part.graph.outputs[before:]:
                tensor.ipu = part.ipu
        self._check_trained(stages, trainable)

    def _check_trained(self, stages: Sequence[Stage], trainable: set[Variable]) -> None:
        users: dict[Variable, list[str]] = {}
        for stage in stages:
            for _, variable in stage.trained:
                users.setdefault(variable, []).append(stage.name)
        if trainable and not users:
            raise PipelineError("no trainable variable has a gradient: the loss depends on none of them")

    def _write(self, stage: Stage) -> None:
        number = stage.description.stage
        repeated = any(cell.kind == "R" and cell.stage == number for cell in self.program.segment_of)
        marked = bool(stage.description.checkpoints) and self._recompute == "always"
        interleaved = stage.derivative is not None and (
            (repeated and self._recompute != "in one piece") or (marked and not repeated)
        )
        recomputes = repeated and not interleaved
        reader = "R" if recomputes else "B"
        direct = not self.program.crosses("F", reader, number)
        if recomputes and self.program.crosses("R", "B", number):
            raise PipelineError(f"{self.timetable.name}: a recomputation and its backward lie in different iterations")
        slots = slots_of(self.timetable, number, reader)
        immediate = self._immediate(number, reader)
        writer = StageWriter(
            self,
            stage,
            slots,
            direct=direct,
            immediate=immediate,
            recomputes=recomputes and stage.derivative is not None,
            interleaved=interleaved,
            follows=interleaved and not repeated,
        )
        if interleaved:
            writer.drop_outputs()
        writer.make_stashes()
        writer.write_forward()
        if stage.derivative is not None:
            if writer.recomputes:
                writer.write_recompute()
            writer.write_backward()

    def _immediate(self, stage: int, reader: str) -> bool:
        """Whether the forward and its reader are always in one window with no copies between them."""
        for window in (*self.program.before, *self.program.body, *self.program.after):
            here = set(window.cells)
            for cell in window.executes():
                if cell.kind == "F" and cell.stage == stage and Cell(reader, stage, cell.micro_batch) not in here:
                    return False
        return True

    def _anchors(self, outputs: Sequence[StageOutput]) -> dict[StageOutput, Tensor]:
        """Where results wait that go to the host once per run."""
        found = {}
        for output in outputs:
            if output.returned in ("final", "sum"):
                part = self.parts[output.part]
                value = part.graph.outputs[output.output]
                found[output] = self.buffer(
                    value.spec, part.ipu, f"anchor_{output.stream.name}", zero=output.returned == "sum"
                )
        return found


class Emitter:
    """Writes the windows into a graph."""

    def __init__(
        self,
        builder: Builder,
        stages: Sequence[Stage],
        outputs: Sequence[StageOutput],
        anchors: Mapping[StageOutput, Tensor],
    ) -> None:
        self._builder = builder
        self._stages = stages
        self._outputs = outputs
        self._anchors = anchors
        self._last = builder.timetable.micro_batches - 1
        self.traffic = HostTraffic(builder, self._last)

    def emit(self, scope: Scope, *, first: bool = True, last: bool = True) -> None:
        """One run of the schedule and its weight update; ``first`` and ``last`` say whether no other run comes before
        or after it that its I/O may overlap with."""
        program = self._builder.program
        self.traffic.begin(first=first, last=last)
        values: Values = {}
        self._segment(scope, program.before, values)
        if program.trips:
            body = scope.inner("steady")
            self._segment(body, program.body, {})
            body.close(trips=program.trips)
            values = {}
            self._segment(scope, program.after, values)
        if self._builder.training is not None:
            gradients = {
                key[1]: tensor
                for (_, _, key), tensor in values.items()
                if isinstance(key, tuple) and key[0] == "weight gradient"
            }
            self._builder.weights.update(scope, gradients)

    def _segment(self, scope: Scope, windows: Sequence[Window], values: Values) -> None:
        for window in windows:
            fresh: Values = {}
            forwards = [(cell, stage) for cell in window.cells if cell.kind == "F" for stage in self._of(cell)]
            for cell, stage in forwards:
                self._load(scope, cell, stage, values)
            for cell in window.cells:
                for stage in self._of(cell):
                    self._run(scope, cell, stage, values, fresh)
            for cell, stage in forwards:
                self._store(scope, cell, stage, fresh)
            if self._copying(window):
                self._builder.transport.copies(scope, fresh, window.executes() if not window.after else window.cells)
            for cell in window.after:
                for stage in self._of(cell):
                    self._run(scope, cell, stage, values, fresh)
            if window.after and not self._builder.transport.every_step:
                self._builder.transport.copies(scope, fresh, window.after)

    def _copying(self, window: Window) -> bool:
        """Nothing reads what the very last step would copy, but upstream copies then too."""
        return bool(window.executes()) or self._builder.transport.every_step

    def _of(self, cell: Cell) -> list[Stage]:
        return [stage for stage in self._stages if stage.description.stage == cell.stage]

    def _load(self, scope: Scope, cell: Cell, stage: Stage, values: Values) -> None:
        """The host inputs of a forward."""
        part = stage.description
        sources = zip(part.graph.inputs, part.sources, strict=True)
        wanted = {tensor: source.stream for tensor, source in sources if isinstance(source, HostInput)}
        results = [o.stream for o in self._outputs if o.part == stage.part and o.returned == "all"]
        for tensor, loaded in self.traffic.load(scope, wanted, results, part.ipu, cell.micro_batch).items():
            values["host", stage.part, (cell.micro_batch, tensor)] = loaded

    def _run(self, scope: Scope, cell: Cell, stage: Stage, values: Values, fresh: Values) -> None:
        """Call the routine of a cell."""
        routine = {"F": stage.forward, "R": stage.recompute, "B": stage.backward}.get(cell.kind)
        if routine is None:
            if cell.kind in "IO":
                raise PipelineError(f"{self._builder.timetable.name}: overlapped I/O on I/O tiles cannot be built")
            return  # a stage without gradient has nothing to do backwards
        operands: dict[Hashable, Tensor] = {}
        for key in routine.arguments:
            assert isinstance(key, tuple)
            kind, tensor = key
            operands[key] = values[kind, stage.part, (cell.micro_batch, tensor)]
        for key, tensor in routine.call(scope, operands).items():
            assert isinstance(key, tuple)
            if key[0] == "saved":
                values["saved", stage.part, (cell.micro_batch, key[1])] = tensor
            elif key[0] == "weight gradient":
                values["", stage.part, key] = tensor
            else:
                fresh[cell.kind, stage.part, key] = tensor

    def _is_last(self, cell: Cell) -> bool:
        """Whether this forward is that of the last micro-batch: it is, or the last one is an iteration of the loop."""
        program = self._builder.program
        last = program.segment_of[Cell("F", cell.stage, self._last)]
        return cell.micro_batch == self._last or (program.segment_of[cell] == 1 <= last <= program.trips)

    def _store(self, scope: Scope, cell: Cell, stage: Stage, fresh: Values) -> None:
        """Send or keep the results of a forward."""
        ipu = stage.description.ipu
        for output in self._outputs:
            if output.part != stage.part:
                continue
            value = fresh["F", stage.part, ("output", output.output)]
            if output.returned == "all" and (cell.micro_batch + 1) % output.every:
                continue
            if output.returned == "all":
                self.traffic.store(scope, value, output.stream, ipu, cell.micro_batch)
            elif output.returned == "sum":
                scope.op(Accumulate, [self._anchors[output], value], ipu=ipu, kind="add")
            elif self._is_last(cell):
                scope.op(CopyVarUpdate, [self._anchors[output], value], ipu=ipu)


def slots_of(timetable: Timetable, stage: int, reader: str) -> int:
    """The most micro-batches whose forward has run on ``stage`` and whose ``reader`` (B or R) has not, in the order of
    execution."""
    row = timetable.ipus.index(timetable.devices[stage][0])
    count = peak = 0
    for step in timetable.steps:
        for cell in step[row]:
            if cell.stage == stage and cell.kind == "F":
                count += 1
                peak = max(peak, count)
            elif cell.stage == stage and cell.kind == reader:
                count -= 1
    return peak


def _depends_on(parts: Sequence[StageGraph], trainable: set[Variable]) -> set[tuple[int, int]]:
    """Outputs (part, output) that depend on a trainable variable of their own or an earlier part."""
    found: set[tuple[int, int]] = set()
    for number in sorted(range(len(parts)), key=lambda n: parts[n].stage):
        part = parts[number]
        for index, output in enumerate(part.graph.outputs):
            reached = reached_by_gradients(part.graph, [output])
            for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
                if tensor in reached and (
                    (isinstance(source, Data) and source.tensor in trainable)
                    or (isinstance(source, Activation) and (source.part, source.output) in found)
                ):
                    found.add((number, index))
    return found


def _check(parts: Sequence[StageGraph], timetable: Timetable, training: Training | None) -> None:
    """Raise unless parts, timetable and training fit together."""
    numbers = sorted({part.stage for part in parts})
    if numbers != list(range(timetable.stages)):
        raise PipelineError(
            f"the stage graphs have stages {numbers}, the schedule {timetable.name} has 0 to {timetable.stages - 1}"
        )
    if (training is None) != timetable.inference:
        what = "inference" if timetable.inference else "training"
        raise PipelineError(f"the schedule {timetable.name} is for {what}; training is {training is not None}")
    for number, part in enumerate(parts):
        if part.ipu not in timetable.devices[part.stage]:
            raise PipelineError(
                f"stage {part.stage} is on IPU {part.ipu}, the schedule has it on {list(timetable.devices[part.stage])}"
            )
        if len(part.sources) != len(part.graph.inputs):
            raise PipelineError(
                f"stage {part.stage}: {len(part.sources)} sources for the {len(part.graph.inputs)} inputs of its graph"
            )
        _check_recomputation(part, timetable)
        for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
            spec = _spec_of(source, parts, number)
            if spec is not None and spec != tensor.spec:
                raise PipelineError(f"stage {part.stage}: input {tensor.id!r} is {tensor.spec}, its source is {spec}")
    if training is not None:
        last = parts[training.loss_part].stage
        if last != timetable.stages - 1:
            raise PipelineError(
                f"the loss is computed in stage {last}; it has to be in the last, {timetable.stages - 1}"
            )


def _check_recomputation(part: StageGraph, timetable: Timetable) -> None:
    """Raise unless what a stage recomputes is its own and not recomputed by the schedule."""
    for op in part.recomputed:
        if op.graph is not part.graph:
            raise PipelineError(f"stage {part.stage} recomputes {op.where()}, which is not in {part.graph.name!r}")
    for tensor in part.checkpoints:
        if tensor.graph is not part.graph:
            raise PipelineError(f"stage {part.stage} has checkpoint {tensor.id!r}, which is not in {part.graph.name!r}")
    if part.recomputed and any(cell.kind == "R" and cell.stage == part.stage for cell in timetable.when):
        raise PipelineError(
            f"stage {part.stage} recomputes {len(part.recomputed)} ops inside its backward pass, but the schedule "
            f"{timetable.name} runs its whole forward again; leave out one of the two"
        )


def _spec_of(source: object, parts: Sequence[StageGraph], number: int) -> TensorSpec | None:
    if isinstance(source, Data):
        return source.tensor.spec
    if isinstance(source, HostInput):
        return source.stream.spec
    if isinstance(source, Activation):
        maker = parts[source.part]
        if maker.stage >= parts[number].stage:
            raise PipelineError(
                f"stage {parts[number].stage} uses a result of stage {maker.stage}; only results of earlier stages can "
                "be used"
            )
        return maker.graph.outputs[source.output].spec
    if isinstance(source, Seed):
        return TensorSpec((2,), UINT32)
    raise PipelineError(f"stage {parts[number].stage}: unknown source {source!r}")


def _check_outputs(outputs: Sequence[StageOutput], parts: Sequence[StageGraph], timetable: Timetable) -> None:
    for output in outputs:
        stream: Stream = output.stream
        value = parts[output.part].graph.outputs[output.output]
        if stream.direction != "d2h" or stream.spec != value.spec:
            raise PipelineError(
                f"result {value.id!r} ({value.spec}) cannot go to stream {stream.id!r} ({stream.spec}, "
                f"{stream.direction})"
            )
        if output.returned not in ("all", "final", "sum"):
            raise PipelineError(f"result {value.id!r}: returned={output.returned!r}; allowed are all, final, sum")
        count = timetable.micro_batches
        if output.every < 1 or count % output.every or (output.every > 1 and output.returned != "all"):
            raise PipelineError(
                f"result {value.id!r}: every={output.every} of {count} micro-batches with "
                f"returned={output.returned!r}; allowed are 1 and, with returned='all', other divisors of the number "
                "of micro-batches"
            )
