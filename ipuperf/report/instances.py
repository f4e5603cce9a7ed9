"""The phases of instances, and the time in which they work. Waiting belongs to no forward or backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipuperf.trace import PHASES, WAITING_KINDS, Trace


@dataclass(frozen=True)
class InstanceWork:
    """The work of each row of table ``instances``.

    Attributes:
        phase: the phase of the ops on which it works for the most cycles, as an index into ``PHASES``.
        start, dur: cycles from its first to the end of its last step that does not wait for another IPU (kinds
            ``sync_external`` and ``idle``); ``dur`` is 0 if it only waits.
        waiting: cycles of its waiting steps.
    """

    phase: np.ndarray
    start: np.ndarray
    dur: np.ndarray
    waiting: np.ndarray


def step_phases(trace: Trace) -> np.ndarray:
    """The phase of each row of table ``steps``, as an index into ``PHASES``.

    It is -1 for steps without an op, and ``len(PHASES)`` for steps that wait for another IPU.
    """
    steps, ops = trace.columns("steps"), trace.columns("ops")
    by_op = {int(op): PHASES.index(phase) for op, phase in zip(ops["op_id"], ops["phase"], strict=True)}
    phase = np.array([by_op.get(int(op), -1) for op in steps["op_id"]], dtype=np.int64)
    return np.where(np.isin(steps["kind"], list(WAITING_KINDS)), len(PHASES), phase)


def instance_work(trace: Trace) -> InstanceWork:
    """The phase of each instance, and the time in which it works."""
    steps, template, instances = trace.columns("steps"), trace.template, trace.columns("instances")
    phase, place = step_phases(trace), template.place(steps["segment"])
    works, cycles = phase < len(PHASES), steps["dur"] * template.trips
    # All instances of a segment are alike, so the sums are made once for each segment.
    count = len(template.segments) + 1  # the last one is for instances without steps
    spent = np.zeros((count, len(PHASES)), dtype=np.int64)
    known = works & (phase >= 0)
    np.add.at(spent, (place[known], phase[known]), cycles[known])
    waiting = np.zeros(count, dtype=np.int64)
    np.add.at(waiting, place[~works], cycles[~works])
    first_begin, last_end = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    does = works & (cycles > 0)
    np.minimum.at(first_begin, place[does], steps["rel_start"][does].astype(np.int64))
    np.maximum.at(last_end, place[does], template.reach[does])
    # If an instance does no work, both become 0.
    first_begin = np.minimum(first_begin, last_end)
    best = np.where(spent.max(axis=1) > 0, spent.argmax(axis=1), PHASES.index("other"))
    segment_index = template.place(instances["segment"])
    return InstanceWork(
        best[segment_index],
        instances["start"] + first_begin[segment_index],
        (last_end - first_begin)[segment_index],
        waiting[segment_index],
    )
