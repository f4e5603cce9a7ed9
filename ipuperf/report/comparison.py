"""Compare several runs: their figures in one table, how alike the runs are, and the cause of the largest change.

The last run of each trace is compared. Figures have names that do not depend on identifiers (op, module, phase, part of
time, category), so that different programs can be compared. A figure that a run does not have counts as 0.

Ops are compared by their names without the number at the end, because that number changes as soon as a program has one
more op. If several ops have one name, the second is "NAME (2)" in each run. So if one of them is new, the ops after it
are compared with their neighbours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import PART_OF_KIND, run_instances
from ipuperf.report.intervals import BY_HOST, Throughput, interval, ratio_interval
from ipuperf.report.step_time import TIME_PARTS, StepTime, step_time
from ipuperf.report.text import duration, size
from ipuperf.report.waiting import OWNERS
from ipuperf.trace import KINDS, MEMORY_CATEGORIES, WAITING_KINDS, Trace, TraceError

if TYPE_CHECKING:
    import pandas as pd

COMPARED: dict[str, str] = {
    "run": "The last run and what it holds",
    "time": "Time of the last run, on the IPU that sets its pace",
    "phase": "Phases, all IPUs",
    "module": "Modules, each without those inside it, all IPUs",
    "op": "Operations, all IPUs",
    "memory": "Memory by category, the IPUs of one replica",
    "fullest tile": "The fullest tile by category",
    "machine": "Figures of the machine",
}
"""The groups of figures and their titles."""

_SAME_PROGRAM = 0.5
"""Two runs are of different models if they have a smaller share of ops of the same type in common."""

COLUMNS = ("group", "key", "unit", "diff", "ratio")
"""Columns of a comparison's table besides those of the runs. A run cannot have one of these names."""

_MACHINE = ("clock_hz", "tiles_per_ipu", "bytes_per_tile", "num_ipus", "replicas")

Figures = dict[tuple[str, str, str], float]
"""A figure by (group, key, unit)."""


@dataclass(frozen=True)
class ComparedRun:
    """The last run of a trace: its time, its cycles by op and IPU, the common name of each op in all runs, and its
    memory as in ``trace.summary()``."""

    name: str
    trace: Trace
    time: StepTime
    operations: pd.DataFrame
    same_op: dict[str, str]
    memory: dict[str, Any]

    @classmethod
    def of(cls, name: str, trace: Trace) -> ComparedRun:
        """The last run of ``trace``. Raises ``TraceError`` if nothing was executed."""
        if not trace.columns("instances")["instance"].size:
            raise TraceError(f"{name}: nothing was executed, there is no run to compare")
        # Earlier runs have start-up effects, so the last run counts.
        rows = run_instances(trace)[1]
        operations = trace.operations_by_ipu(rows)
        same_op = _same_op(trace.columns("ops")["name"].tolist())
        return cls(name, trace, step_time(trace), operations, same_op, trace.summary()["memory"])

    @property
    def seconds(self) -> float:
        """Duration of the run."""
        return float(self.trace.seconds(self.time.total))

    @property
    def samples(self) -> int:
        """The samples that the run processes; 0 where the front end did not say."""
        return int(self.trace.meta.get("samples_per_run", 0))

    @property
    def interval(self) -> tuple[float, float]:
        """The seconds between which the measured time lies nine times of ten."""
        return interval(self.trace).around(self.seconds)

    @property
    def throughput(self) -> Throughput:
        """How much the run processes in a second, with bounds."""
        return Throughput.from_run(self.samples, self.seconds, interval(self.trace))

    def ratio_to(self, first_run: ComparedRun) -> tuple[float, float]:
        """Between which ratios the measured time over that of another run lies nine times of ten."""
        ratio = self.seconds / first_run.seconds if first_run.seconds else 1.0
        return ratio_interval(first_run.trace, self.trace).around(ratio)

    @property
    def peak(self) -> int | None:
        """Bytes of the fullest tile, gaps included; None if the trace has no memory."""
        fullest = self.memory["max_tile"]
        return None if fullest is None else int(fullest["bytes"])

    @property
    def fullest_ipu(self) -> tuple[int, np.ndarray]:
        """The IPU with the fullest tile, and the bytes of each of its tiles; not if :attr:`peak` is None."""
        ipu, table = int(self.memory["max_tile"]["ipu"]), self.trace.columns("tile_memory")
        rows = np.flatnonzero(table["ipu"] == ipu)
        tiles = np.bincount(table["tile"][rows], weights=table["bytes"][rows])
        return ipu, tiles.astype(np.int64)

    def on_fullest_tile(self) -> dict[str, int]:
        """Bytes by category on the fullest tile."""
        fullest, table = self.memory["max_tile"], self.trace.columns("tile_memory")
        if fullest is None:
            return {}
        rows = np.flatnonzero((table["ipu"] == fullest["ipu"]) & (table["tile"] == fullest["tile"]))
        return {str(table["category"][row]): int(table["bytes"][row]) for row in rows.tolist()}

    def figures(self, per_cycle: float, unit: str) -> Figures:
        """All figures. Times are cycles multiplied by ``per_cycle``, in ``unit``."""

        def time(cycles: float) -> float:
            return round(cycles * per_cycle)

        meta, ops = self.trace.meta, self.operations
        figures: Figures = {("run", "duration", unit): time(self.time.total)}
        figures["run", "FLOP", "flop"] = int(ops["flops"].sum())
        figures["run", "fullest tile", "bytes"] = self.peak or 0
        if self.samples:
            figures["run", "samples", "count"] = self.samples
        for part, cycles in self.time.parts.items():
            figures["time", part, unit] = time(cycles)
        for group, column in (
            ("phase", ops["phase"]),
            ("module", ops["module"]),
            ("op", ops["op"].map(lambda name: self.same_op.get(name, name))),
        ):
            for key, cycles in ops["cycles"].groupby(column, sort=False).sum().items():
                if cycles:
                    figures[group, str(key), unit] = time(int(cycles))
        for category in MEMORY_CATEGORIES:
            figures["memory", category, "bytes"] = self.memory["categories"][category]
        for category, count in self.on_fullest_tile().items():
            figures["fullest tile", category, "bytes"] = count
        for key in _MACHINE:
            figures["machine", key, "Hz" if key == "clock_hz" else "bytes" if key.startswith("bytes") else "count"] = (
                meta[key]
            )
        links = self.trace.columns("links")
        for kind in sorted(set(links["kind"])):
            of_kind = links["kind"] == kind
            figures["machine", f"{kind}: links", "count"] = int(of_kind.sum())
            figures["machine", f"{kind}: fastest", "bytes/s"] = float(links["bandwidth_bytes_per_s"][of_kind].max())
        return figures


@dataclass(frozen=True)
class Comparison:
    """A comparison of two or more runs with the first one.

    Attributes:
        runs: the runs in the given order.
        table: a row for each figure: group (see :data:`COMPARED`), key, unit, a column for each run under its name,
            diff (last less first) and ratio (last over first, NaN if the first is 0). Times are in cycles, or in ns if
            the clocks differ.
        machines_differ, models_differ: differences of machines and models in words; empty without any.
    """

    runs: tuple[ComparedRun, ...]
    table: pd.DataFrame
    machines_differ: tuple[str, ...]
    models_differ: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that a reader of the figures should see first."""
        none = [run.name for run in self.runs if run.peak is None]
        silent = (f"{', '.join(none)}: memory is not recorded and counts as 0",) if none else ()
        return (*self.machines_differ, *self.models_differ, *silent)

    @cached_property
    def time_unit(self) -> str:
        """``cycles`` where all clocks are the same, or else ``ns``."""
        clocks = {run.trace.meta["clock_hz"] for run in self.runs}
        return "cycles" if len(clocks) == 1 else "ns"

    def time(self, run: ComparedRun, cycles: int) -> int:
        """Cycles of a run in :attr:`time_unit`."""
        return cycles if self.time_unit == "cycles" else round(cycles * 1e9 / run.trace.meta["clock_hz"])

    @cached_property
    def growth(self) -> dict[str, float]:
        """By how much the last run's time and fullest tile are larger than the first run's, as shares of the latter.

        Memory is left out if one of the two traces does not record it.
        """
        first_run, last_run = self.runs[0], self.runs[-1]
        pairs: dict[str, tuple[float, float]] = {"time of a run": (first_run.seconds, last_run.seconds)}
        if first_run.peak is not None and last_run.peak is not None:
            pairs["peak tile memory"] = (first_run.peak, last_run.peak)
        return {name: _growth(old_figure, new_figure) for name, (old_figure, new_figure) in pairs.items()}

    def sentences(self) -> list[str]:
        """How the time and the fullest tile of each further run differ from the first run's, and why."""
        first_run = self.runs[0]
        return [
            line
            for run in self.runs[1:]
            for line in (
                _time_sentence(first_run, run),
                _samples_sentence(first_run, run),
                _ratio_sentence(first_run, run),
                *_memory_sentence(first_run, run),
            )
            if line
        ]

    def changed(self, group: str) -> pd.DataFrame:
        """The rows of a group that differ between runs, those with the largest difference first."""
        group_rows = self.table[self.table["group"] == group]
        values = group_rows[[run.name for run in self.runs]]
        spread = values.max(axis=1) - values.min(axis=1)
        return group_rows.loc[spread[spread > 0].sort_values(ascending=False, kind="stable").index]


@checked
def compare(traces: Mapping[str, Trace]) -> Comparison:
    """Compare the last runs of several traces, given by name.

    Raises:
        ValueError: there are fewer than two traces, or a run has a name of :data:`COLUMNS`.
        TraceError: nothing was executed in a trace.
    """
    import pandas as pd

    if len(traces) < 2:
        raise ValueError(f"compare: {len(traces)} trace(s) given, expected at least 2")
    reserved_names = [name for name in traces if name in COLUMNS]
    if reserved_names:
        raise ValueError(f"compare: a run cannot be called {reserved_names[0]!r}, the table has a column of that name")
    runs = tuple(ComparedRun.of(name, trace) for name, trace in traces.items())
    # Cycles of different clocks cannot be compared, so times are in ns then.
    clocks = {run.trace.meta["clock_hz"] for run in runs}
    one_clock = len(clocks) == 1
    figures = [
        run.figures(1 if one_clock else 1e9 / run.trace.meta["clock_hz"], "cycles" if one_clock else "ns")
        for run in runs
    ]
    # A dictionary keeps the order in which figures first appear.
    keys = dict.fromkeys(key for run_figures in figures for key in run_figures)
    order = sorted(keys, key=lambda key: list(COMPARED).index(key[0]))
    rows: dict[str, list[Any]] = {name: [key[place] for key in order] for place, name in enumerate(COLUMNS[:3])}
    rows |= {
        run.name: [run_figures.get(key, 0) for key in order] for run, run_figures in zip(runs, figures, strict=True)
    }
    first_figures, last_figures = figures[0], figures[-1]
    rows["diff"] = [last_figures.get(key, 0) - first_figures.get(key, 0) for key in order]
    rows["ratio"] = [
        last_figures.get(key, 0) / first_figures[key] if first_figures.get(key) else float("nan") for key in order
    ]
    further_runs = runs[1:]
    machines = tuple(text for run in further_runs for text in _machines_differ(runs[0], run))
    models = tuple(text for run in further_runs for text in _models_differ(runs[0], run))
    return Comparison(runs, pd.DataFrame(rows), machines, models)


def _same_op(names: list[str]) -> dict[str, str]:
    """The common name in all runs of each op of a program, given in order."""
    seen: Counter[str] = Counter()
    common_names = {}
    for name in names:
        bare = re.sub(r"\.\d+$", "", name)
        seen[bare] += 1
        common_names[name] = bare if seen[bare] == 1 else f"{bare} ({seen[bare]})"
    return common_names


def _growth(old: float, new: float) -> float:
    if not old:
        return float("inf") if new else 0.0
    return new / old - 1


def _machines_differ(first_run: ComparedRun, other_run: ComparedRun) -> list[str]:
    first_meta, other_meta = first_run.trace.meta, other_run.trace.meta
    differ = [
        f"{key} {first_meta[key]} and {other_meta[key]}"
        for key in ("machine", *_MACHINE)
        if first_meta[key] != other_meta[key]
    ]
    return [f"{first_run.name} and {other_run.name} are of different machines: {', '.join(differ)}"] if differ else []


def _models_differ(first_run: ComparedRun, other_run: ComparedRun) -> list[str]:
    """The difference of models in words, if less than half of the executed ops have one of the same type in the other
    run."""
    first_types, other_types = (_op_types(run) for run in (first_run, other_run))
    # An intersection of counters takes the smaller count of each type.
    common, most = (first_types & other_types).total(), max(first_types.total(), other_types.total())
    if common >= _SAME_PROGRAM * most:
        return []
    return [
        f"{first_run.name} and {other_run.name} are of different models: {first_types.total():,} and "
        f"{other_types.total():,} ops, of which {common:,} have the same type"
    ]


def _op_types(run: ComparedRun) -> Counter[str]:
    # The table has a row for each IPU, and an op counts once.
    ops = run.operations[run.operations["type"] != ""].drop_duplicates("op")
    return Counter(ops["type"].tolist())


# -- in words ----------------------------------------------------------------------------------------------------------


def _time_sentence(first_run: ComparedRun, other_run: ComparedRun) -> str:
    """How much longer or shorter the other run is, the part of time that changed most, and where."""
    old_seconds, new_seconds = first_run.seconds, other_run.seconds
    if old_seconds == new_seconds and first_run.time.parts == other_run.time.parts:
        return f"{other_run.name} takes as long as {first_run.name}, {duration(old_seconds)}, in every part."
    change = new_seconds - old_seconds
    parts = {
        name: other_run.trace.seconds(other_run.time.parts[name]) - first_run.trace.seconds(first_run.time.parts[name])
        for name in TIME_PARTS
    }
    sign = -1.0 if change < 0 else 1.0
    # For a longer run the part that grew most, for a shorter one the part that shrank most.
    part = max(parts, key=lambda name: sign * parts[name]) if change else max(parts, key=lambda n: abs(parts[n]))
    text = f"{other_run.name} takes {duration(new_seconds)}, "
    if change:
        direction = "longer" if change > 0 else "shorter"
        text += (
            f"{abs(_growth(old_seconds, new_seconds)):.1%} {direction} than {first_run.name} ({duration(old_seconds)})"
        )
    else:
        text += f"as long as {first_run.name}"
    text += f". The largest change is {TIME_PARTS[part]}: {_signed(parts[part])}"
    where = _where(first_run, other_run, part, 1.0 if parts[part] > 0 else -1.0)
    if where:
        text += f", above all {where}"
    if first_run.time.bound[0] != other_run.time.bound[0]:
        text += (
            f". {first_run.name} is bound by {first_run.time.bound[0]}, {other_run.name} by {other_run.time.bound[0]}"
        )
    return text + "."


def _samples_sentence(first_run: ComparedRun, other_run: ComparedRun) -> str:
    """The time of a sample, where the runs process different numbers of them; else ""."""
    old, new = first_run.samples, other_run.samples
    if not (old and new) or old == new:
        return ""
    old_seconds, new_seconds = first_run.seconds / old, other_run.seconds / new
    growth = _growth(old_seconds, new_seconds)
    return (
        f"It processes {new:,} samples in place of {old:,}: {duration(new_seconds)} a sample, {abs(growth):.1%} "
        f"{'longer' if growth > 0 else 'shorter'} than {duration(old_seconds)}."
    )


def _ratio_sentence(first_run: ComparedRun, other_run: ComparedRun) -> str:
    """Where the ratio of the measured times lies; "" for two runs that take the same time in every part."""
    if first_run.time.parts == other_run.time.parts:
        return ""
    basis = ratio_interval(first_run.trace, other_run.trace)
    if basis.group == BY_HOST:
        return (
            "Both wait for the host. What their scripts do between calls is not simulated unless `--between-calls` "
            "says it, so the order of the two on hardware is not certain."
        )
    low, high = other_run.ratio_to(first_run)
    text = f"Measured, {other_run.name} takes {low:.3g} to {high:.3g} times as long nine times of ten"
    return text + (": the order of the two is not certain." if low < 1 < high else ".")


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "+") + duration(abs(seconds))


def _where(first_run: ComparedRun, other_run: ComparedRun, part: str, sign: float) -> str:
    """The op at which a part of time grew (sign 1) or shrank (sign -1) most on the IPUs that set the pace, in words."""
    if part == "tile imbalance":
        return ""  # imbalance is what remains of all compute sets together, so it belongs to no op
    first_seconds, other_seconds = _by_op(first_run, part), _by_op(other_run, part)
    changes = {op: other_seconds.get(op, 0.0) - first_seconds.get(op, 0.0) for op in {**first_seconds, **other_seconds}}
    if not changes:
        return ""
    # Names are sorted first, so that a tie does not depend on the order of the ops.
    op = max(sorted(changes), key=lambda name: sign * changes[name])
    if sign * changes[op] <= 0:
        return ""
    # An op of both runs is shown with its number in the other run.
    names = {key: name for run in (first_run, other_run) for name, key in run.same_op.items()}
    name = names.get(op, op)
    return f"while another IPU is at {name}" if part.startswith("waiting: ") else f"in {name}"


def _by_op(run: ComparedRun, part: str) -> dict[str, float]:
    """Seconds of a part of time on the IPU that sets the pace, by the common name of each op.

    Waiting counts for the op that is waited for.
    """
    import pandas as pd

    time = run.time
    if part.startswith("waiting: "):
        waits, owner = time.waits, OWNERS.index(part.removeprefix("waiting: "))
        rows = (waits.ipu == time.ipu) & (waits.replica == time.replica) & (waits.blamed_op != "")
        cycles = waits.cycles[rows, owner] * waits.times[rows]
        cycles_by_op = pd.Series(cycles).groupby(waits.blamed_op[rows]).sum()
    else:
        # Waiting has an owner and is counted above, so its kinds do not count here.
        kinds = [kind for kind in KINDS if PART_OF_KIND[kind] == part and kind not in WAITING_KINDS]
        of_ipu = run.operations[(run.operations["ipu"] == time.ipu) & (run.operations["type"] != "")]
        cycles_by_op = of_ipu.set_index("op")[kinds].sum(axis=1).groupby(level=0).sum()
    return {
        run.same_op.get(op, op): float(run.trace.seconds(int(cycles))) for op, cycles in cycles_by_op.items() if cycles
    }


def _memory_sentence(first_run: ComparedRun, other_run: ComparedRun) -> list[str]:
    """How the fullest tile differs, and by which category; empty if it does not, or if memory is not recorded."""
    old_peak, new_peak = first_run.peak, other_run.peak
    if old_peak is None or new_peak is None or old_peak == new_peak:
        return []
    first_bytes, other_bytes = first_run.on_fullest_tile(), other_run.on_fullest_tile()
    changes = {name: other_bytes.get(name, 0) - first_bytes.get(name, 0) for name in MEMORY_CATEGORIES}
    sign = 1 if new_peak > old_peak else -1
    category = max(changes, key=lambda name: sign * changes[name])
    text = f"The fullest tile of {other_run.name} holds {size(new_peak)}, {abs(_growth(old_peak, new_peak)):.1%} "
    text += f"{'more' if new_peak > old_peak else 'less'} than that of {first_run.name} ({size(old_peak)})"
    if changes[category]:
        text += f"; the largest change is {category}, {changes[category]:+,} B"
    return [text + "."]
