"""The time of a run on the IPU that sets its pace, as a waterfall of parts, and what bounds the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import breakdown_cycles, pace, run_instances
from ipuperf.report.once import once
from ipuperf.report.waiting import OWNERS, Waits, waits
from ipuperf.trace import MOST_SLICES, Shortened, Trace, slice_count, slices

TIME_PARTS: dict[str, str] = {"compute": "compute, the average tile"}
TIME_PARTS |= {"tile imbalance": "compute, the slowest tile over the average", "exchange": "exchange between tiles"}
TIME_PARTS |= {"sync": "sync of the tiles", "links": "IPU-Links", "ddr": "Streaming Memory", "host": "host exchange"}
TIME_PARTS |= {
    **{
        f"waiting: {owner}": words
        for owner, words in {
            "host": "waiting for an IPU that the host holds up",
            "bubble": "waiting while the pipeline fills or drains",
            "imbalance": "waiting for an IPU with more work",
            "collective": "waiting for a collective of other IPUs",
            "link": "waiting for a copy between other IPUs",
            "ddr": "waiting for an IPU at its Streaming Memory",
            "sync": "sync between IPUs",
        }.items()
    }
}
"""The parts of the time of a run and what they are, in the order of a waterfall."""

assert [part.removeprefix("waiting: ") for part in TIME_PARTS if part.startswith("waiting: ")] == list(OWNERS)

_BOUND_BY: dict[str, str] = {
    "compute": "compute",
    "tile imbalance": "compute on its slowest tiles",
    "exchange": "exchange between tiles",
    "sync": "syncs",
    "links": "IPU-Links",
    "ddr": "Streaming Memory",
    "host": "the host",
    "waiting: host": "the host",
    "waiting: bubble": "the pipeline's filling and draining",
    "waiting: imbalance": "another IPU with more work",
    "waiting: collective": "collectives",
    "waiting: link": "IPU-Links",
    "waiting: ddr": "Streaming Memory",
    "waiting: sync": "syncs",
}


@dataclass(frozen=True)
class StepTime:
    """The time of one run on the IPU that sets its pace.

    Attributes:
        replica, ipu: that IPU (see :func:`~.breakdown.critical_ipu`).
        parts: cycles by :data:`TIME_PARTS`; they sum to the duration of the run.
        waits: the waits of all IPUs.
    """

    replica: int
    ipu: int
    parts: dict[str, int]
    waits: Waits

    @property
    def total(self) -> int:
        """Cycles of the run."""
        return sum(self.parts.values())

    @property
    def bound(self) -> tuple[str, int]:
        """What the run spends the most cycles on, in words, and these cycles."""
        sums: dict[str, int] = {}
        for part, cycles in self.parts.items():
            sums[_BOUND_BY[part]] = sums.get(_BOUND_BY[part], 0) + cycles
        name = max(sums, key=lambda name: sums[name])
        return name, sums[name]

    def sentence(self) -> str:
        """What bounds the run, with its share and its IPU; if that IPU waits for another, also which one."""
        name, cycles = self.bound
        text = f"bound by {name}: {100 * cycles / max(self.total, 1):.0f} % of the run on IPU {self.ipu}"
        waits = self.waits
        rows = (waits.ipu == self.ipu) & (waits.replica == self.replica) & (waits.blamed >= 0)
        if name == "another IPU with more work" and rows.any():
            blamed, place = np.unique(waits.blamed[rows], return_inverse=True)
            cycles = waits.cycles[rows, OWNERS.index("imbalance")] * waits.times[rows]
            text += f", which waits for IPU {int(blamed[np.argmax(np.bincount(place, weights=cycles))])}"
        return text


def followable(trace: Trace) -> bool:
    """Whether a trace has few enough steps to follow them one by one, which waits and paths need."""
    return slice_count(trace.short.trace) <= MOST_SLICES


@checked
@once
def step_time(trace: Trace, run: int | None = None) -> StepTime:
    """The time of a run (by default the last) by :data:`TIME_PARTS`.

    Compute is divided into the mean over all tiles of its IPU, with idle tiles as zero, and the imbalance above it. The
    launch of a compute set is part of its compute, as in the trace.

    Raises:
        ValueError: the trace has no such run, or nothing at all.
        TraceError: the run has more slices than can be expanded at once.
    """
    replica, ipu = pace(trace, run)
    split, run_waits = breakdown_cycles(trace, run), waits(trace, run)
    of_ipu = (run_waits.ipu == ipu) & (run_waits.replica == replica)
    cycles = (run_waits.cycles * run_waits.times[:, None])[of_ipu].sum(axis=0)
    waiting = dict(zip(OWNERS, cycles.tolist(), strict=True))
    balanced = min(_balanced(trace.short, run, (replica, ipu)), split["compute"])
    parts = {"compute": balanced, "tile imbalance": split["compute"] - balanced}
    parts |= {part: split[part] for part in ("exchange", "sync", "links", "ddr", "host")}
    # The breakdown counts waiting as sync; here it has owners.
    parts["sync"] -= sum(waiting.values())
    parts |= {f"waiting: {owner}": cycles for owner, cycles in waiting.items()}
    return StepTime(replica, ipu, parts, run_waits)


def _balanced(short: Shortened, run: int | None, which: tuple[int, int]) -> int:
    """Compute cycles of the average tile of an IPU in a run."""
    window, rows = run_instances(short.trace, run)
    instances, steps = short.trace.columns("instances"), short.trace.columns("steps")
    instance_rows = rows[(instances["replica"][rows] == which[0]) & (instances["ipu"][rows] == which[1])]
    expanded = slices(short.trace, rows=instance_rows, steps=(steps["kind"] == "compute") & (steps["lane"] == 0))
    inside = np.clip(expanded.start + expanded.dur, *window) - np.clip(expanded.start, *window)
    share = steps["dur_mean"][expanded.step] / np.maximum(expanded.dur, 1)
    return int(np.floor((inside * share * short.cuts.times(expanded.start)).sum()))
