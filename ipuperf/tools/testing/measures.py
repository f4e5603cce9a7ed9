"""The figures that assertions bound: throughput, bubble and overlap. Each docstring defines exactly what counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ipuperf.tools.testing.subject import trace_of
from ipuperf.trace import KINDS, WAITING_KINDS, Trace, slice_batches

#: A set of time as sorted, disjoint intervals: starts and ends, in cycles.
Intervals = tuple[np.ndarray, np.ndarray]


def union(start: np.ndarray, end: np.ndarray) -> Intervals:
    """Return the time covered by intervals given in any order; empty intervals are ignored."""
    non_empty = end > start
    order = np.argsort(start[non_empty], kind="stable")
    start, end = (
        start[non_empty][order],
        np.maximum.accumulate(end[non_empty][order]) if non_empty.any() else end[non_empty],
    )
    # Ends are running maxima, so a gap before an interval means that no earlier one reaches it.
    begins = np.append(True, start[1:] > end[:-1]) if len(start) else np.empty(0, dtype=bool)
    ends = np.append(begins[1:], True) if len(start) else begins
    return start[begins], end[ends]


def length(intervals: Intervals) -> int:
    """Return the number of cycles in the set."""
    return int((intervals[1] - intervals[0]).sum())


def covered(start: np.ndarray, end: np.ndarray, by: Intervals) -> np.ndarray:
    """Return how many cycles of each interval ``[start, end)`` lie within a set (int64)."""
    cycles: np.ndarray = _before(end, by) - _before(start, by)
    return cycles


def _before(time: np.ndarray, by: Intervals) -> np.ndarray:
    """Return the cycles of the set before each time."""
    start, end = by
    if len(start) == 0:
        return np.zeros(len(time), dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(end - start)])
    place = np.searchsorted(start, time, side="right")
    # The last interval that begins before the time may end after it; that part does not count.
    inside = np.maximum(end[np.maximum(place - 1, 0)] - time, 0)
    return np.where(place > 0, total[place] - inside, 0).astype(np.int64)


KIND_GROUPS: dict[str, tuple[str, ...]] = {
    "host": ("host_begin", "host_mid", "host_end"),
    "links": ("link",),
    "ddr": ("remote_load", "remote_store"),
}
"""Short names for groups of kinds of steps. ``host`` excludes ``host_run``, the host's fixed cost of a run: the IPUs
have nothing to do then."""

WAITING_FOR_HOST = ("host_begin", "host_end")
"""Kinds of steps in which an IPU waits for the host."""


@dataclass(frozen=True)
class Share:
    """A part of a whole, both in cycles, and the contributors to the part with their cycles, the largest first."""

    part: int
    whole: int
    contributors: tuple[tuple[str, int], ...]

    @property
    def value(self) -> float:
        """Part over whole."""
        return self.part / self.whole


@dataclass(frozen=True)
class _Steps:
    """Executed steps in columns.

    The columns are replica, IPU, start and end in cycles, kind (index into ``KINDS``) and row of table ``steps``.
    """

    replica: np.ndarray
    ipu: np.ndarray
    start: np.ndarray
    end: np.ndarray
    kind: np.ndarray
    row: np.ndarray

    def covered(self, rows: np.ndarray) -> Intervals:
        """Return the time in which a step of the mask ``rows`` runs."""
        return union(self.start[rows], self.end[rows])

    def take(self, rows: np.ndarray) -> _Steps:
        """Return the steps of the mask ``rows``."""
        columns = (self.replica, self.ipu, self.start, self.end, self.kind, self.row)
        return _Steps(*(values[rows] for values in columns))


def throughput(subject: Any, samples_per_run: float) -> float:
    """Return samples per second: ``samples_per_run`` over the mean duration of a run, including the host's part.

    Raises:
        ValueError: the number of samples is not positive, or the trace has no run.
    """
    if not _is_number(samples_per_run) or samples_per_run <= 0:
        raise ValueError(f"samples_per_run: {samples_per_run!r}, expected a number above 0")
    trace = trace_of(subject)
    durations = trace.columns("runs")["dur"]
    if len(durations) == 0 or int(durations.sum()) == 0:
        raise ValueError("the trace has no run that takes time, so it has no throughput")
    return float(samples_per_run) / float(trace.seconds(float(durations.mean())))


def bubble_share(subject: Any, *, waiting_for_host: bool = False) -> float:
    """Return the share of IPU time spent waiting, 0 to 1; see :func:`bubble`."""
    return bubble(trace_of(subject), waiting_for_host).value


def bubble(trace: Trace, waiting_for_host: bool = False) -> Share:
    """Measure the IPU time spent waiting.

    IPU time is, for each stored IPU of each replica, the duration of all runs minus the host's fixed cost of a run
    (steps of kind ``host_run``). An IPU waits at each moment of this time at which no lane executes a step of another
    kind than ``idle`` and ``sync_external`` (waiting for other IPUs). Moments without any step count as waiting. A
    moment at which one lane waits and another works does not. Internal sync, exchange and transfers are not waiting.
    With ``waiting_for_host`` the kinds ``host_begin`` and ``host_end`` are waiting, too.

    Contributors: the ops (with kind) whose steps wait, by cycles of their steps, and "no step" for the remaining time.
    If several lanes wait at once, each counts.

    Raises:
        ValueError: no IPU has any time in the trace.
    """
    kinds = (*WAITING_KINDS, *(WAITING_FOR_HOST if waiting_for_host else ()))
    steps = _steps(trace, KINDS)
    runs = trace.columns("runs")
    if len(runs["start"]):
        # Time between runs belongs to the user's program, not to the IPUs.
        windows = union(runs["start"], runs["start"] + runs["dur"])
    else:
        windows = union(steps.start, steps.end)
    waits, host = np.isin(steps.kind, _codes(kinds)), steps.kind == KINDS.index("host_run")
    whole = part = 0
    contributors: Counter[str] = Counter()
    for rows in _by_ipu(trace, steps):
        time = _without(windows, steps.covered(rows & host))
        waiting = _without(time, steps.covered(rows & ~waits & ~host))
        whole += length(time)
        part += length(waiting)
        waiting_steps = steps.take(rows & waits)
        _count(trace, contributors, waiting_steps, covered(waiting_steps.start, waiting_steps.end, waiting))
        stepless = length(_without(waiting, steps.covered(rows & waits)))
        if stepless:
            contributors["no step"] += stepless
    if whole == 0:
        raise ValueError("no IPU has any time in this trace, so there is no share of it spent waiting")
    return Share(part, whole, tuple(contributors.most_common()))


def overlap_share(subject: Any, between: Sequence[str | Collection[str]]) -> float:
    """Return the share, 0 to 1, of the time of ``between[0]`` hidden behind ``between[1]``; see :func:`overlap`."""
    return overlap(trace_of(subject), between).value


def overlap(trace: Trace, between: Sequence[str | Collection[str]]) -> Share:
    """Measure the time of some kinds of steps that is hidden behind other kinds.

    ``between`` is a pair (hidden, behind). Each is a kind of step (``compute``, ``link``, ``host_mid`` ...), a group of
    :data:`KIND_GROUPS` (``host``, ``links``, ``ddr``), or several of them. The whole is the time, replica by replica,
    in which at least one IPU executes a step of the hidden kinds. The part is the share of it in which at least one
    other IPU of the replica, or another lane of the same IPU, executes a step of the kinds behind. Each moment of a
    replica counts once, however many IPUs execute such steps.

    Contributors: the ops (with kind) of the hidden kinds, by the cycles of their steps that are *not* hidden.

    Raises:
        ValueError: ``between`` is no pair of kinds, a kind is on both sides, or no step of the hidden kinds takes time.
    """
    hidden, behind = _pair(between)
    steps = _steps(trace, (*hidden, *behind))
    is_hidden_kind = np.isin(steps.kind, _codes(hidden))
    whole = part = 0
    contributors: Counter[str] = Counter()
    # Replicas run side by side: time hidden in one does not hide another's.
    for replica in np.unique(steps.replica).tolist():
        hidden_steps = steps.take((steps.replica == replica) & is_hidden_kind)
        behind_steps = steps.take((steps.replica == replica) & ~is_hidden_kind)
        time, cover = union(hidden_steps.start, hidden_steps.end), union(behind_steps.start, behind_steps.end)
        whole += length(time)
        part += int(covered(*time, cover).sum())
        _count(
            trace,
            contributors,
            hidden_steps,
            hidden_steps.end - hidden_steps.start - covered(hidden_steps.start, hidden_steps.end, cover),
        )
    if whole == 0:
        there = sorted({KINDS[code] for code in _steps(trace, KINDS).kind.tolist()})
        raise ValueError(
            f"no step of kind {', '.join(hidden)} takes time in this trace, so nothing can be hidden; it has "
            f"{', '.join(there) or 'no steps'}"
        )
    return Share(part, whole, tuple(contributors.most_common()))


# -- steps and kinds ---------------------------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _codes(kinds: Collection[str]) -> list[int]:
    return [KINDS.index(kind) for kind in kinds]


def _pair(between: Sequence[str | Collection[str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(between, str) or len(between) != 2:
        raise ValueError(f"between: {between!r}, expected a pair (hidden kinds, kinds they are hidden behind)")
    hidden, behind = (_kinds(part) for part in between)
    # A kind on both sides would be hidden behind itself.
    both = [kind for kind in hidden if kind in behind]
    if both:
        raise ValueError(f"between: {both[0]!r} is on both sides of {between!r}")
    return hidden, behind


def _kinds(names: str | Collection[str]) -> tuple[str, ...]:
    kinds: list[str] = []
    for name in (names,) if isinstance(names, str) else names:
        if name not in KINDS and name not in KIND_GROUPS:
            raise ValueError(
                f"between: unknown kind {name!r}, allowed are {', '.join(KINDS)} and the groups "
                f"{', '.join(KIND_GROUPS)}"
            )
        kinds += KIND_GROUPS.get(name, (name,))
    if not kinds:
        raise ValueError("between: no kinds on one side")
    return tuple(dict.fromkeys(kinds))


def _steps(trace: Trace, kinds: Collection[str]) -> _Steps:
    """Return all executed steps of these kinds that take time."""
    code_of = {kind: code for code, kind in enumerate(KINDS)}
    # Traces may be long: the steps are read in batches, and only those of these kinds are expanded.
    instances, table = trace.columns("instances"), trace.columns("steps")
    codes = np.array([code_of[kind] for kind in table["kind"]], dtype=np.int64)
    steps_of_kinds = np.isin(codes, [code_of[kind] for kind in kinds])
    pieces: list[_Steps] = []
    for batch in slice_batches(trace, steps=steps_of_kinds):
        chosen = batch.take(batch.dur > 0)
        owner = chosen.instance
        end = chosen.start + chosen.dur
        replica, ipu = instances["replica"][owner], instances["ipu"][owner]
        pieces.append(_Steps(replica, ipu, chosen.start, end, codes[chosen.step], chosen.step))
    if not pieces:
        nothing = np.empty(0, dtype=np.int64)
        return _Steps(nothing, nothing, nothing, nothing, nothing, nothing)
    names = ("replica", "ipu", "start", "end", "kind", "row")
    return _Steps(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in names))


def _by_ipu(trace: Trace, steps: _Steps) -> Iterator[np.ndarray]:
    """Yield the mask of the steps of each stored IPU of each replica, also for an IPU without steps."""
    instances = trace.columns("instances")
    pairs = np.stack([instances["replica"], instances["ipu"]], axis=1)
    for replica, ipu in np.unique(pairs, axis=0).tolist():
        yield (steps.replica == replica) & (steps.ipu == ipu)


def _without(time: Intervals, gone: Intervals) -> Intervals:
    """Return the part of a set of time that is not in another."""
    # Between two neighbouring edges both sets are constant, so each piece is inside or outside as a whole.
    edges = np.unique(np.concatenate([*time, *gone]))
    start, end = edges[:-1], edges[1:]
    remaining = (covered(start, end, time) > 0) & (covered(start, end, gone) == 0)
    return union(start[remaining], end[remaining])


def _count(trace: Trace, counter: Counter[str], steps: _Steps, cycles: np.ndarray) -> None:
    """Add the cycles of steps to the counter, by op and kind."""
    names = trace.step_ops
    kinds = trace.columns("steps")["kind"]
    totals = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(totals, steps.row, cycles)
    for row in np.flatnonzero(totals).tolist():
        counter[f"{names[row] or '(no op)'} / {kinds[row]}"] += int(totals[row])
