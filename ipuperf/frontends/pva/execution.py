"""The executed runs and steps, with the cycles and bytes of each IPU.

A step is one execution of a program on one IPU; it takes no cycles on the others. Time in which an IPU runs no program
(the host's fixed cost of a run, idling) belongs to no step. The cycles of all steps of an IPU are therefore those of
``Trace.totals()`` minus such time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar, overload

import numpy as np

from ipuperf.trace import Slices, Trace, slices

from .absent import ReportPart
from .programs import ComputeSet, Program, Programs


class Cycles(ReportPart):
    """``total``: cycles from the first start to the last end, the host's cost of runs included."""

    def __init__(self, total: int) -> None:
        self.total = total


class From(ReportPart):
    """``min`` and ``max`` over the tiles of the cycle at which they begin; both are equal, as a phase's tiles begin
    together.
    """

    def __init__(self, cycle: int) -> None:
        self.min = self.max = cycle


class To(ReportPart):
    """``max`` over the tiles of the cycle at which they end."""

    ABSENT: ClassVar = {"min": "the trace holds the slowest and the average tile of a step"}

    def __init__(self, cycle: int) -> None:
        self.max = cycle


class ActiveCycles(ReportPart):
    """``cyclesFrom`` and ``cyclesTo``, from the start of the trace; equal on an IPU that does not run the program."""

    def __init__(self, start: int, end: int) -> None:
        self.cyclesFrom = From(start)
        self.cyclesTo = To(end)


class StepIpu(ReportPart):
    """One step's figures on one IPU.

    Attributes:
        cycles: cycles of the slowest tile.
        activeCycles: first and last cycle of the step.
        tileBalance, activeTileBalance: the average over the slowest tile, of all tiles and of the active ones: 0 to 1;
            1 in a step of no cycles.
        dataIn, dataOut: bytes received and sent.
    """

    def __init__(self, cycles: int, active: ActiveCycles, balance: tuple[float, float], data: tuple[int, int]) -> None:
        self.cycles = cycles
        self.activeCycles = active
        self.tileBalance, self.activeTileBalance = balance
        self.dataIn, self.dataOut = data


class Step(ReportPart):
    """One execution of ``program`` on one IPU; ``ipus`` has its figures on each IPU of the system."""

    ABSENT: ClassVar = {
        "cyclesByTile": "the trace holds the slowest and the average tile of this step: ipus[i].cycles, "
        "ipus[i].tileBalance",
    }

    def __init__(self, steps: Steps, row: int) -> None:
        self._steps = steps
        self._row = row
        self._step = int(steps.executed.step[row])
        columns = steps.columns
        self.program: Program = steps.programs.of(int(columns["program_id"][self._step]))
        by_tile = steps.by_tile.get((int(columns["segment"][self._step]), int(columns["seq"][self._step])))
        if by_tile is not None:
            self.cyclesByTile = steps.cycles_by_tile(by_tile, self._ipu)

    @property
    def _ipu(self) -> int:
        return int(self._steps.instances["ipu"][self._steps.executed.instance[self._row]])

    @property
    def computeSets(self) -> list[ComputeSet]:
        """The compute set of a step that has one."""
        return [self.program.computeset] if self.program.type.name == "OnTileExecute" else []

    @cached_property
    def ipus(self) -> list[StepIpu]:
        """One for each IPU of the system."""
        start = int(self._steps.executed.start[self._row])
        # All idle IPUs share one object, as it is read only.
        idle = StepIpu(0, ActiveCycles(start, start), (1.0, 1.0), (0, 0))
        result = [idle] * self._steps.ipus
        result[self._ipu] = self._own(start)
        return result

    def _own(self, start: int) -> StepIpu:
        columns, row = self._steps.columns, self._step
        dur, mean, active = (columns[name][row] for name in ("dur", "dur_mean", "active_tiles"))
        balance = (1.0, 1.0)
        if dur and active:
            tiles = self._steps.tiles_per_ipu
            balance = float(mean) / int(dur), float(mean) * tiles / (int(active) * int(dur))
        data = int(columns["bytes_in"][row]), int(columns["bytes_out"][row])
        return StepIpu(int(dur), ActiveCycles(start, start + int(dur)), balance, data)


class Steps(Sequence[Step]):
    """Steps in order of time. A step object is made when it is asked for."""

    def __init__(self, trace: Trace, programs: Programs, executed: Slices) -> None:
        self.columns, self.instances = trace.columns("steps"), trace.columns("instances")
        self.programs, self.executed, self._trace = programs, executed, trace
        self.ipus, self.tiles_per_ipu = int(trace.meta["num_ipus"]), int(trace.meta["tiles_per_ipu"])

    @cached_property
    def by_tile(self) -> dict[tuple[int, int], list[int]]:
        """Rows of table ``tile_runs`` by segment and sequence number."""
        runs = self._trace.columns("tile_runs")
        result: dict[tuple[int, int], list[int]] = {}
        for row, key in enumerate(zip(runs["segment"].tolist(), runs["seq"].tolist(), strict=True)):
            result.setdefault(key, []).append(row)
        return result

    def cycles_by_tile(self, rows: list[int], ipu: int) -> list[int]:
        """Cycles of every tile of the system."""
        runs, result = self._trace.columns("tile_runs"), np.zeros(self.ipus * self.tiles_per_ipu, dtype=np.int64)
        first_tile = ipu * self.tiles_per_ipu
        for row in rows:
            result[first_tile + runs["tile_from"][row] : first_tile + runs["tile_to"][row]] = runs["cycles"][row]
        return [int(cycles) for cycles in result]

    def of_run(self, run: int) -> Steps:
        """Return the steps of one run."""
        rows = np.flatnonzero(self.instances["parent"][self.executed.instance] == run)
        return Steps(self._trace, self.programs, self.executed.take(rows))

    def __len__(self) -> int:
        return len(self.executed)

    @overload
    def __getitem__(self, index: int) -> Step: ...

    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...

    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        rows = range(len(self))[index]
        return Step(self, rows) if isinstance(rows, int) else [Step(self, row) for row in rows]

    def __iter__(self) -> Iterator[Step]:
        return (Step(self, row) for row in range(len(self)))


class Microseconds(ReportPart):
    """``start`` and ``end`` of a run in microseconds of simulated time."""

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.end = end


class Run(ReportPart):
    """One call of the host that made the IPUs run: ``name``, ``steps``, ``microseconds``."""

    def __init__(self, trace: Trace, steps: Steps, row: int) -> None:
        runs = trace.columns("runs")
        start, dur = int(runs["start"][row]), int(runs["dur"][row])
        self.name = str(runs["name"][row])
        self.microseconds = Microseconds(1e6 * trace.seconds(start), 1e6 * trace.seconds(start + dur))
        self._every, self._run = steps, int(runs["run"][row])

    @cached_property
    def steps(self) -> Steps:
        """Steps of this run, in order of time."""
        return self._every.of_run(self._run)


class Execution(ReportPart):
    """The executed runs and steps."""

    ABSENT: ClassVar = {"blocks": "nothing is sampled here: every execution of every step is in steps"}

    def __init__(self, trace: Trace, programs: Programs) -> None:
        self._trace = trace
        self._programs = programs

    @cached_property
    def totalCycles(self) -> Cycles:
        """``total_cycles`` of the summary."""
        return Cycles(int(self._trace.summary()["total_cycles"]))

    @cached_property
    def steps(self) -> Steps:
        """Steps of all runs in order of time. Raises ``TraceError`` if there are too many to expand at once."""
        columns = self._trace.columns("steps")
        executed = slices(self._trace, steps=columns["program_id"] >= 0)
        ipu = self._trace.columns("instances")["ipu"][executed.instance]
        # By start, then IPU, lane and place in the program: equal starts have a fixed order.
        order = np.lexsort((columns["seq"][executed.step], columns["lane"][executed.step], ipu, executed.start))
        return Steps(self._trace, self._programs, executed.take(order))

    @cached_property
    def runs(self) -> list[Run]:
        """Calls of the host, in order."""
        return [Run(self._trace, self.steps, row) for row in range(len(self._trace.columns("runs")["run"]))]
