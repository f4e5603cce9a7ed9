"""What each view of the page shows, of several runs: figures by name, one value for each run.

They are those that the table of a comparison does not have: limits of the machine, waiting by owner, the slowest tile
over the average, modules with all inside, links, and the critical path. A figure that a run does not have counts as 0.
Times are in the unit of the comparison. Limits and links are of the whole trace, all others of the last run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ipuperf.report.comparison import ComparedRun, Comparison
from ipuperf.report.critical_path import critical_path, path_cycles
from ipuperf.report.limits import limits
from ipuperf.report.palette import KIND_LABELS
from ipuperf.trace.modules import parent_of
from ipuperf.trace.operations import NO_OP_NAME

Amounts = Mapping[tuple[str, str], float]
"""The amounts of one run by name and unit."""


@dataclass(frozen=True)
class ComparedFigure:
    """A figure of several runs: its name, unit, a value for each run, and its level where figures make a tree."""

    name: str
    unit: str
    values: tuple[float, ...]
    level: int = 0

    @property
    def spread(self) -> float:
        """The difference of the largest and the smallest value."""
        return max(self.values) - min(self.values)


def used_limits(comparison: Comparison) -> list[ComparedFigure]:
    """The share of each limit of the machine that is used, as on the page's summary."""
    amounts = []
    for run in comparison.runs:
        used = limits(run.trace, run.trace.summary(), run.trace.operations_by_ipu(of_each_class=True))
        amounts.append({(limit["label"], "share"): float(limit["share"]) for limit in used})
    return _merged(amounts)


def waiting(comparison: Comparison) -> list[ComparedFigure]:
    """The waiting cycles of each IPU by owner."""
    return _changed(
        {
            (f"IPU {ipu}, {owner}", comparison.time_unit): comparison.time(run, cycles)
            for ipu, owners in run.time.waits.by_ipu().items()
            for owner, cycles in owners.items()
        }
        for run in comparison.runs
    )


def slowest_tiles(comparison: Comparison) -> list[ComparedFigure]:
    """The compute cycles of each op in which the average tile waits for the slowest, on all IPUs."""
    return _changed(_by_op(comparison, run, "imbalance_cycles") for run in comparison.runs)


def modules(comparison: Comparison) -> list[ComparedFigure]:
    """The cycles of each module with all inside, as a tree: parents first, siblings by their cycles."""
    amounts: list[dict[tuple[str, str], float]] = []
    for run in comparison.runs:
        cycles: dict[tuple[str, str], float] = defaultdict(float)
        own = run.operations["cycles"].groupby(run.operations["module"]).sum()
        for path, count in own[own > 0].items():
            for ancestor in _ancestors(str(path) or NO_OP_NAME):
                cycles[ancestor, comparison.time_unit] += comparison.time(run, int(count))
        amounts.append(cycles)
    by_path = {figure.name: figure for figure in _merged(amounts)}
    children: dict[str, list[str]] = defaultdict(list)
    for path in by_path:
        children[parent_of(path)].append(path)

    def tree(parent: str, level: int) -> Iterator[ComparedFigure]:
        for path in sorted(children[parent], key=lambda path: (-max(by_path[path].values), path)):
            yield ComparedFigure(path, by_path[path].unit, by_path[path].values, level)
            yield from tree(path, level + 1)

    return list(tree("", 0))


def links(comparison: Comparison) -> list[ComparedFigure]:
    """The bytes of each link, and the cycles in which it is busy."""
    amounts: list[dict[tuple[str, str], float]] = []
    for run in comparison.runs:
        used = [link for link in run.trace.summary()["links"] if link["bytes"]]
        amounts.append({(link["name"], "bytes"): float(link["bytes"]) for link in used})
        amounts[-1] |= {
            (f"{link['name']}, busy", comparison.time_unit): comparison.time(run, link["busy_cycles"]) for link in used
        }
    return _changed(amounts)


def path_parts(comparison: Comparison) -> list[ComparedFigure]:
    """The critical path by op and kind of step, on all IPUs."""
    amounts: list[dict[tuple[str, str], float]] = []
    for run in comparison.runs:
        table = path_cycles(run.trace, critical_path(run.trace))
        cycles: dict[tuple[str, str], float] = defaultdict(float)
        for op, kind, count in zip(table["op"], table["kind"], table["cycles"], strict=True):
            name = f"{run.same_op.get(op, op) or NO_OP_NAME}, {KIND_LABELS[kind]}"
            cycles[name, comparison.time_unit] += comparison.time(run, int(count))
        amounts.append(cycles)
    return _changed(amounts)


def _by_op(comparison: Comparison, run: ComparedRun, column: str) -> Amounts:
    names = run.operations["op"].map(lambda name: run.same_op.get(name, name))
    sums = run.operations[column].groupby(names, sort=False).sum().items()
    return {(str(name), comparison.time_unit): comparison.time(run, int(count)) for name, count in sums if count}


def _ancestors(path: str) -> list[str]:
    """The path and those of the modules around it."""
    parts = path.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _merged(amounts: Iterable[Amounts]) -> list[ComparedFigure]:
    """A figure for each name of any run, in the order in which names come."""
    runs = list(amounts)
    keys = dict.fromkeys(key for run in runs for key in run)
    return [ComparedFigure(name, unit, tuple(run.get((name, unit), 0) for run in runs)) for name, unit in keys]


def _changed(amounts: Iterable[Amounts]) -> list[ComparedFigure]:
    """The figures that differ, those with the largest difference first."""
    return sorted((figure for figure in _merged(amounts) if figure.spread), key=lambda figure: -figure.spread)
