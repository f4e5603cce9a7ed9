"""Several runs side by side: their figures in one table, whether they are alike at all, and what made the largest
change, in words.

Of each trace the last run is compared. Every figure is there by a name that does not depend on identifiers (op, phase,
part of time, category), so that two programs can be compared; a figure that a run does not have counts as 0 there. Ops
go by their names without the number at the end, which is another one as soon as a program has one op more: of several
with one name the second is "NAME (2)" in each run. So where one of them is new, those behind it are compared with
their neighbours.
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
from ipuperf.report.step_time import TIME_PARTS, StepTime, step_time
from ipuperf.report.text import duration, size
from ipuperf.trace import KINDS, MEMORY_CATEGORIES, WAITING_KINDS, Trace, TraceError

if TYPE_CHECKING:
    import pandas as pd

COMPARED: dict[str, str] = {
    "run": "The last run and what it holds",
    "time": "Time of the last run, on the IPU that sets its pace",
    "phase": "Phases, all IPUs",
    "op": "Operations, all IPUs",
    "memory": "Memory by category, the IPUs of one replica",
    "fullest tile": "The fullest tile by category",
    "machine": "Figures of the machine",
}
"""Groups of figures, and what each is."""

_SAME_PROGRAM = 0.5
"""Two runs with a smaller share of ops of the same type in common are of different models."""

COLUMNS = ("group", "key", "unit", "diff", "ratio")
"""Columns of the table of a comparison beside those of the runs, which cannot have these names."""

_MACHINE = ("clock_hz", "tiles_per_ipu", "bytes_per_tile", "num_ipus", "replicas")

Figures = dict[tuple[str, str, str], float]
"""A figure by (group, key, unit)."""


@dataclass(frozen=True)
class ComparedRun:
    """The last run of a trace: its time, its cycles by op and IPU, what stands for each op in all runs, and its memory
    as ``trace.summary()`` has it."""

    name: str
    trace: Trace
    time: StepTime
    operations: pd.DataFrame
    same_op: dict[str, str]
    memory: dict[str, Any]

    @classmethod
    def of(cls, name: str, trace: Trace) -> ComparedRun:
        """TraceError for a trace of nothing."""
        if not trace.columns("instances")["instance"].size:
            raise TraceError(f"{name}: nothing was executed, there is no run to compare")
        rows = run_instances(trace)[1]
        operations = trace.operations_by_ipu(rows)
        same_op = _same_op(trace.columns("ops")["name"].tolist())
        return cls(name, trace, step_time(trace), operations, same_op, trace.summary()["memory"])

    @property
    def seconds(self) -> float:
        """Duration of the run."""
        return float(self.trace.seconds(self.time.total))

    @property
    def peak(self) -> int | None:
        """Bytes of the fullest tile, gaps included; None where the trace says nothing about memory."""
        fullest = self.memory["max_tile"]
        return None if fullest is None else int(fullest["bytes"])

    def on_fullest_tile(self) -> dict[str, int]:
        """Bytes by category on the fullest tile."""
        fullest, table = self.memory["max_tile"], self.trace.columns("tile_memory")
        if fullest is None:
            return {}
        rows = np.flatnonzero((table["ipu"] == fullest["ipu"]) & (table["tile"] == fullest["tile"]))
        return {str(table["category"][row]): int(table["bytes"][row]) for row in rows.tolist()}

    def figures(self, per_cycle: float, unit: str) -> Figures:
        """All figures; cycles times ``per_cycle`` are in ``unit``."""

        def time(cycles: float) -> float:
            return round(cycles * per_cycle)

        meta, ops = self.trace.meta, self.operations
        result: Figures = {("run", "duration", unit): time(self.time.total)}
        result["run", "FLOP", "flop"] = int(ops["flops"].sum())
        result["run", "fullest tile", "bytes"] = self.peak or 0
        for part, cycles in self.time.parts.items():
            result["time", part, unit] = time(cycles)
        for group, column in (
            ("phase", ops["phase"]),
            ("op", ops["op"].map(lambda name: self.same_op.get(name, name))),
        ):
            for key, cycles in ops["cycles"].groupby(column, sort=False).sum().items():
                if cycles:
                    result[group, str(key), unit] = time(int(cycles))
        for category in MEMORY_CATEGORIES:
            result["memory", category, "bytes"] = self.memory["categories"][category]
        for category, count in self.on_fullest_tile().items():
            result["fullest tile", category, "bytes"] = count
        for key in _MACHINE:
            result["machine", key, "Hz" if key == "clock_hz" else "bytes" if key.startswith("bytes") else "count"] = (
                meta[key]
            )
        links = self.trace.columns("links")
        for kind in sorted(set(links["kind"])):
            own = links["kind"] == kind
            result["machine", f"{kind}: links", "count"] = int(own.sum())
            result["machine", f"{kind}: fastest", "bytes/s"] = float(links["bandwidth_bytes_per_s"][own].max())
        return result


@dataclass(frozen=True)
class Comparison:
    """Two runs or more, the first of which the others are compared with.

    Attributes:
        runs: in the order in which they were given.
        table: a row for each figure: group (see :data:`COMPARED`), key, unit, a column for each run under its name,
            diff (last less first) and ratio (last over first, NaN where that is 0). Times are cycles, or ns where the
            clocks differ.
        machines_differ, models_differ: what is not alike, in words; empty where nothing is.
    """

    runs: tuple[ComparedRun, ...]
    table: pd.DataFrame
    machines_differ: tuple[str, ...]
    models_differ: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures has to know first."""
        none = [run.name for run in self.runs if run.peak is None]
        silent = (f"{', '.join(none)}: memory is not recorded and counts as 0",) if none else ()
        return (*self.machines_differ, *self.models_differ, *silent)

    @cached_property
    def growth(self) -> dict[str, float]:
        """By how much the last run's time and its fullest tile are larger than the first's, as a share of the first's.

        Memory is left out where one of the two traces does not record it.
        """
        first, last = self.runs[0], self.runs[-1]
        pairs: dict[str, tuple[float, float]] = {"time of a run": (first.seconds, last.seconds)}
        if first.peak is not None and last.peak is not None:
            pairs["peak tile memory"] = (first.peak, last.peak)
        return {name: _growth(old, new) for name, (old, new) in pairs.items()}

    def sentences(self) -> list[str]:
        """For each run but the first: how its time and its fullest tile differ from the first's, and why."""
        first = self.runs[0]
        return [line for run in self.runs[1:] for line in (_time_sentence(first, run), *_memory_sentence(first, run))]

    def changed(self, group: str) -> pd.DataFrame:
        """The rows of a group that are not the same in all runs, the largest difference between any two first."""
        own = self.table[self.table["group"] == group]
        values = own[[run.name for run in self.runs]]
        spread = values.max(axis=1) - values.min(axis=1)
        return own.loc[spread[spread > 0].sort_values(ascending=False, kind="stable").index]


@checked
def compare(traces: Mapping[str, Trace]) -> Comparison:
    """The last runs of several traces, by name, side by side.

    Raises:
        ValueError: fewer than two traces, or a name of :data:`COLUMNS`. TraceError: a trace of nothing.
    """
    import pandas as pd

    if len(traces) < 2:
        raise ValueError(f"compare: {len(traces)} trace(s) given, expected at least 2")
    taken = [name for name in traces if name in COLUMNS]
    if taken:
        raise ValueError(f"compare: a run cannot be called {taken[0]!r}, the table has a column of that name")
    runs = tuple(ComparedRun.of(name, trace) for name, trace in traces.items())
    clocks = {run.trace.meta["clock_hz"] for run in runs}
    same = len(clocks) == 1
    figures = [run.figures(1 if same else 1e9 / run.trace.meta["clock_hz"], "cycles" if same else "ns") for run in runs]
    keys = dict.fromkeys(key for found in figures for key in found)
    order = sorted(keys, key=lambda key: list(COMPARED).index(key[0]))
    rows: dict[str, list[Any]] = {name: [key[place] for key in order] for place, name in enumerate(COLUMNS[:3])}
    rows |= {run.name: [found.get(key, 0) for key in order] for run, found in zip(runs, figures, strict=True)}
    first, last = figures[0], figures[-1]
    rows["diff"] = [last.get(key, 0) - first.get(key, 0) for key in order]
    rows["ratio"] = [last.get(key, 0) / first[key] if first.get(key) else float("nan") for key in order]
    others = runs[1:]
    machines = tuple(text for run in others for text in _machines_differ(runs[0], run))
    models = tuple(text for run in others for text in _models_differ(runs[0], run))
    return Comparison(runs, pd.DataFrame(rows), machines, models)


def _same_op(names: list[str]) -> dict[str, str]:
    """For the ops of a program, in order, what stands for each in all runs."""
    seen: Counter[str] = Counter()
    result = {}
    for name in names:
        bare = re.sub(r"\.\d+$", "", name)
        seen[bare] += 1
        result[name] = bare if seen[bare] == 1 else f"{bare} ({seen[bare]})"
    return result


def _growth(old: float, new: float) -> float:
    if not old:
        return float("inf") if new else 0.0
    return new / old - 1


def _machines_differ(first: ComparedRun, other: ComparedRun) -> list[str]:
    one, two = first.trace.meta, other.trace.meta
    differ = [f"{key} {one[key]} and {two[key]}" for key in ("machine", *_MACHINE) if one[key] != two[key]]
    return [f"{first.name} and {other.name} are of different machines: {', '.join(differ)}"] if differ else []


def _models_differ(first: ComparedRun, other: ComparedRun) -> list[str]:
    """Whether less than half of the executed ops have their like, an op of the same type, in the other run."""
    one, two = (_op_types(run) for run in (first, other))
    common, most = (one & two).total(), max(one.total(), two.total())
    if common >= _SAME_PROGRAM * most:
        return []
    return [
        f"{first.name} and {other.name} are of different models: {one.total():,} and {two.total():,} ops, of which "
        f"{common:,} have the same type"
    ]


def _op_types(run: ComparedRun) -> Counter[str]:
    ops = run.operations[run.operations["type"] != ""].drop_duplicates("op")
    return Counter(ops["type"].tolist())


# -- in words ----------------------------------------------------------------------------------------------------------


def _time_sentence(first: ComparedRun, other: ComparedRun) -> str:
    """How much longer or shorter the other run is, the part of time that made most of it, and where that is."""
    old, new = first.seconds, other.seconds
    if old == new and first.time.parts == other.time.parts:
        return f"{other.name} takes as long as {first.name}, {duration(old)}, in every part."
    change = new - old
    parts = {
        name: other.trace.seconds(other.time.parts[name]) - first.trace.seconds(first.time.parts[name])
        for name in TIME_PARTS
    }
    sign = -1.0 if change < 0 else 1.0
    part = max(parts, key=lambda name: sign * parts[name]) if change else max(parts, key=lambda n: abs(parts[n]))
    text = f"{other.name} takes {duration(new)}, "
    if change:
        direction = "longer" if change > 0 else "shorter"
        text += f"{abs(_growth(old, new)):.1%} {direction} than {first.name} ({duration(old)})"
    else:
        text += f"as long as {first.name}"
    text += f". The largest change is {TIME_PARTS[part]}: {_signed(parts[part])}"
    where = _where(first, other, part, 1.0 if parts[part] > 0 else -1.0)
    if where:
        text += f", above all {where}"
    if first.time.bound[0] != other.time.bound[0]:
        text += f". {first.name} is bound by {first.time.bound[0]}, {other.name} by {other.time.bound[0]}"
    return text + "."


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "+") + duration(abs(seconds))


def _where(first: ComparedRun, other: ComparedRun, part: str, sign: float) -> str:
    """The op at which a part of time grew (sign 1) or shrank (-1) most, on the IPUs that set the pace, in words."""
    if part == "tile imbalance":
        return ""  # belongs to no op: it is the rest of all compute sets
    before, after = _by_op(first, part), _by_op(other, part)
    changes = {op: after.get(op, 0.0) - before.get(op, 0.0) for op in {**before, **after}}
    if not changes:
        return ""
    op = max(sorted(changes), key=lambda name: sign * changes[name])
    if sign * changes[op] <= 0:
        return ""
    names = {key: name for run in (first, other) for name, key in run.same_op.items()}
    name = names.get(op, op)
    return f"while another IPU is at {name}" if part.startswith("waiting: ") else f"in {name}"


def _by_op(run: ComparedRun, part: str) -> dict[str, float]:
    """Seconds of a part of time on the IPU that sets the pace, by what stands for each op; of waiting, by the op
    that is waited for."""
    time = run.time
    if part.startswith("waiting: "):
        table = time.waits.table()
        own = table[(table["ipu"] == time.ipu) & (table["replica"] == time.replica) & (table["blamed_op"] != "")]
        found = own.groupby("blamed_op")[part.removeprefix("waiting: ")].sum()
    else:
        kinds = [kind for kind in KINDS if PART_OF_KIND[kind] == part and kind not in WAITING_KINDS]
        own = run.operations[(run.operations["ipu"] == time.ipu) & (run.operations["type"] != "")]
        found = own.set_index("op")[kinds].sum(axis=1).groupby(level=0).sum()
    return {run.same_op.get(op, op): float(run.trace.seconds(int(cycles))) for op, cycles in found.items() if cycles}


def _memory_sentence(first: ComparedRun, other: ComparedRun) -> list[str]:
    """How the fullest tile differs, and by which category; nothing where it does not, or memory is not recorded."""
    old, new = first.peak, other.peak
    if old is None or new is None or old == new:
        return []
    before, after = first.on_fullest_tile(), other.on_fullest_tile()
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in MEMORY_CATEGORIES}
    sign = 1 if new > old else -1
    category = max(changes, key=lambda name: sign * changes[name])
    text = f"The fullest tile of {other.name} holds {size(new)}, {abs(_growth(old, new)):.1%} "
    text += f"{'more' if new > old else 'less'} than that of {first.name} ({size(old)})"
    if changes[category]:
        text += f"; the largest change is {category}, {changes[category]:+,} B"
    return [text + "."]
