"""Writes the windows of a schedule into the main graph: host inputs, calls of routines, results, copies."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from ipuperf.functions import make
from ipuperf.ir import CONTEXT, Tensor
from ipuperf.ops import Accumulate, CopyVarUpdate
from ipuperf.pipelines.schedules import Cell

from .host_io import HostTraffic
from .model import HostInput, PipelineError, StageOutput
from .scope import Scope
from .stages import PipelineStage
from .windows import Window

if TYPE_CHECKING:
    from .build import PipelineWriter

Values = dict[tuple[str, int, Hashable], Tensor]
"""Results of routines by kind, part and key."""


class Emitter:
    """Writes the windows into a graph."""

    def __init__(
        self,
        builder: PipelineWriter,
        stages: Sequence[PipelineStage],
        outputs: Sequence[StageOutput],
        anchors: Mapping[StageOutput, Tensor],
    ) -> None:
        self._builder = builder
        self._stages: dict[int, list[PipelineStage]] = {}
        for stage in stages:
            self._stages.setdefault(stage.description.stage, []).append(stage)
        self._outputs = outputs
        self._anchors = anchors
        self._last_micro_batch = builder.timetable.micro_batches - 1
        self.traffic = HostTraffic(builder, self._last_micro_batch)

    def emit(self, scope: Scope, *, is_first_run: bool = True, is_last_run: bool = True) -> None:
        """Write one run of the schedule and its weight update.

        ``is_first_run`` and ``is_last_run`` say whether no other run comes before or after it with which its I/O may
        overlap.
        """
        program = self._builder.program
        self.traffic.begin(is_first_run=is_first_run, is_last_run=is_last_run)
        values: Values = {}
        self._segment(scope, program.before, values)
        if program.trips:
            body = scope.inner("steady")
            # Values do not leave an iteration: what later ones need waits in stashes.
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
            # Loads come first, so that the I/O tiles work beside the forwards and not after them.
            for cell, stage in forwards:
                self._load(scope, cell, stage, values)
            for cell in window.cells:
                for stage in self._of(cell):
                    self._run(scope, cell, stage, values, fresh)
            for cell, stage in forwards:
                self._store(scope, cell, stage, fresh)
            if self._copying(window):
                self._builder.transport.copies(scope, fresh, window.cells, window.time)
            # Backwards of the next time step, in a rotated window.
            for cell in window.after:
                for stage in self._of(cell):
                    self._run(scope, cell, stage, values, fresh)

    def _copying(self, window: Window) -> bool:
        """Whether copies follow a window. Nothing reads those of the very last step, but upstream copies then too."""
        return bool(window.executes()) or self._builder.transport.every_step

    def _of(self, cell: Cell) -> list[PipelineStage]:
        return self._stages.get(cell.stage, [])

    def _load(self, scope: Scope, cell: Cell, stage: PipelineStage, values: Values) -> None:
        """The host inputs of a forward."""
        part = stage.description
        sources = zip(part.graph.inputs, part.sources, strict=True)
        host_inputs = {tensor: source.stream for tensor, source in sources if isinstance(source, HostInput)}
        result_streams = [
            output.stream for output in self._outputs if output.part == stage.part and output.returned == "all"
        ]
        for tensor, loaded in self.traffic.load(scope, host_inputs, result_streams, part.ipu, cell.micro_batch).items():
            values["host", stage.part, (cell.micro_batch, tensor)] = loaded

    def _run(self, scope: Scope, cell: Cell, stage: PipelineStage, values: Values, fresh: Values) -> None:
        """Call the routine of a cell."""
        routine = {"F": stage.forward, "R": stage.recompute, "B": stage.backward, "W": stage.weights}.get(cell.kind)
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
            # Saved values and gradients of weights outlive the window; other results leave at its end.
            if key[0] == "saved":
                values["saved", stage.part, (cell.micro_batch, key[1])] = tensor
            elif key[0] == "weight gradient":
                values["", stage.part, key] = tensor
            else:
                fresh[cell.kind, stage.part, key] = tensor

    def _is_last(self, cell: Cell) -> bool:
        """Whether this forward may be that of the last micro-batch: it is, or the last one is an iteration of the same
        loop."""
        program, last = self._builder.program, Cell("F", cell.stage, self._last_micro_batch)
        return cell == last or (program.loops(cell) and program.loops(last))

    def _store(self, scope: Scope, cell: Cell, stage: PipelineStage, fresh: Values) -> None:
        """Send or keep the results of a forward."""
        ipu = stage.description.ipu
        for output in self._outputs:
            if output.part != stage.part:
                continue
            value = fresh["F", stage.part, ("output", output.output)]
            # Micro-batches count from 0, so the first result leaves after ``every`` of them.
            if output.returned == "all" and (cell.micro_batch + 1) % output.every:
                continue
            if output.returned == "all":
                self.traffic.store(scope, value, output.stream, ipu, cell.micro_batch)
            elif output.returned == "sum":
                with scope.on(ipu), CONTEXT.phase("other"):
                    make(Accumulate, self._anchors[output], value, kind="add")
            elif self._is_last(cell):
                with scope.on(ipu), CONTEXT.phase("other"):
                    make(CopyVarUpdate, self._anchors[output], value)
