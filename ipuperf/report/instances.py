"""What instances are for, and when they work: waiting is nobody's forward or backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.trace import PHASES, WAITING_KINDS

if TYPE_CHECKING:
    from ipuperf.trace import Trace


@dataclass(frozen=True)
class InstanceWork:
    """For each row of table ``instances``.

    Attributes:
        phase: what it is for, as an index into ``PHASES``: the phase on whose ops it works for most cycles.
        start, dur: cycles from its first to the end of its last step that is not waiting for another IPU (kinds
            ``sync_external`` and ``idle``); ``dur`` is 0 where it only waits.
        waiting: cycles of its steps that are.
    """

    phase: np.ndarray
    start: np.ndarray
    dur: np.ndarray
    waiting: np.ndarray


def step_phases(trace: Trace) -> np.ndarray:
    """For each row of table ``steps`` the phase of its op as an index into ``PHASES``, -1 for one of no op, and
    ``len(PHASES)`` where it waits for another IPU."""
    steps, ops = trace.columns("steps"), trace.columns("ops")
    by_op = {int(op): PHASES.index(phase) for op, phase in zip(ops["op_id"], ops["phase"], strict=True)}
    phase = np.array([by_op.get(int(op), -1) for op in steps["op_id"]], dtype=np.int64)
    return np.where(np.isin(steps["kind"], list(WAITING_KINDS)), len(PHASES), phase)


def instance_work(trace: Trace) -> InstanceWork:
    """What each instance is for, and when it works."""
    steps, template, instances = trace.columns("steps"), trace.template, trace.columns("instances")
    phase, place = step_phases(trace), template.place(steps["segment"])
    works, cycles = phase < len(PHASES), steps["dur"] * template.trips
    count = len(template.segments) + 1  # the last is that of instances without steps
    spent = np.zeros((count, len(PHASES)), dtype=np.int64)
    known = works & (phase >= 0)
    np.add.at(spent, (place[known], phase[known]), cycles[known])
    waiting = np.zeros(count, dtype=np.int64)
    np.add.at(waiting, place[~works], cycles[~works])
    first, last = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    does = works & (cycles > 0)
    np.minimum.at(first, place[does], steps["rel_start"][does].astype(np.int64))
    np.maximum.at(last, place[does], template.reach[does])
    first = np.minimum(first, last)
    best = np.where(spent.max(axis=1) > 0, spent.argmax(axis=1), PHASES.index("other"))
    own = template.place(instances["segment"])
    return InstanceWork(best[own], instances["start"] + first[own], (last - first)[own], waiting[own])
