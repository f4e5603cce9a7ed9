"""The time of a schedule whose stages all take equally long: by walking the table, and in closed form.

``f`` and ``b`` (forward and backward) are non-negative numbers in one unit; a recomputation takes ``f``. Copies, I/O
and weight update are free. ``w`` is the part of ``b`` for gradients of weights, where a timetable has separate cells
for these. Steps end together on all IPUs, so a step lasts as long as its busiest IPU.
"""

from __future__ import annotations

from ipuperf.base.near_names import instead_of

from .timetable import Cell, ScheduleError, Timetable

Number = float
"""Integers stay integers."""


def _busy(table: Timetable, forward: Number, backward: Number, weights: Number) -> list[list[Number]]:
    cost = {"F": forward, "R": forward, "B": backward, "W": weights, "I": 0, "O": 0}
    # In stages with separate cells for gradients of weights, `B` takes only the rest of `b`.
    split = {stage for stage in range(table.stages) if table.last_kind(stage) == "W"}

    def cell_time(cell: Cell) -> Number:
        return backward - weights if cell.kind == "B" and cell.stage in split else cost[cell.kind]

    return [[sum(cell_time(cell) for cell in cells) for cells in step] for step in table.steps]


def equal_stage_time(table: Timetable, f: Number, b: Number, w: Number = 0) -> Number:
    """The sum over the steps of the busiest IPU's time; a recomputation takes ``f``."""
    return sum(max(step) for step in _busy(table, f, b, w))


def bubble_fraction(table: Timetable, f: Number, b: Number, w: Number = 0) -> float:
    """The share of the IPUs' time in which they run nothing, for equal stages; 0 if nothing takes any time."""
    busy = _busy(table, f, b, w)
    total = len(table.ipus) * sum(max(step) for step in busy)
    return 1 - sum(map(sum, busy)) / total if total else 0.0


def _popart_recomputed(forward: Number, backward: Number, stages: int, micro_batches: int) -> Number:
    return (
        (stages - 1) * forward
        + 2 * (forward + backward)
        + (micro_batches - 2) * (2 * forward + backward)
        + (stages - 1) * (forward + backward)
    )


def _grouped_recomputed(forward: Number, backward: Number, stages: int, micro_batches: int) -> Number:
    return (
        stages * forward
        + max(2 * forward, forward + backward)
        + (micro_batches - 3) * (2 * forward + backward)
        + stages * (forward + backward)
        + backward
    )


def closed_form_time(
    f: Number,
    b: Number,
    *,
    schedule: str,
    stages: int,
    micro_batches: int,
    inference: bool = False,
    recompute: bool = False,
) -> Number:
    """Time for N equal stages on N IPUs, M micro-batches (``docs/reference/pipelines.md`` 2.4, row "time, equal
    stages").

    - ``grouped``, ``grouped_overlapped``, ``popart_pipeline``: ``(M + N - 1)(f + b)``, inference ``(M + N - 1) f``.
    - ``interleaved``: ``N f + (2M + N - 2) b`` for ``b >= f``; the table read backwards gives f and b exchanged for
      ``f > b``. That holds for N of 2 and more; one stage alone just alternates, ``M (f + b)``. Inference
      ``(M + N - 1) f``. ``1f1b``: the same, but only training with ``b >= f``.
    - ``sequential``, ``sharded``, ``phased_serial``, ``phased_parallel``: ``N M (f + b)``, inference ``N M f``.
    - with recomputation (N of 2 and more; nothing is recomputed for N = 1): ``popart_pipeline``
      ``(N-1) f + 2(f+b) + (G-2)(2f+b) + (N-1)(f+b)`` (that page); ``sequential`` ``M ((2N-1) f + N b)`` and ``grouped``
      in its ``Auto`` mode ``N f + max(2f, f+b) + (M-3)(2f+b) + N (f+b) + b`` (both derived here from the tables).

    M is not checked against the schedule's rules; the schedule functions do that.

    Raises:
        ScheduleError: an unknown schedule, or recomputation where there is no closed form (use
            :func:`equal_stage_time`).
    """
    n, m = stages, micro_batches
    overlapping = ("grouped", "grouped_overlapped", "interleaved", "1f1b", "popart_pipeline")
    serial = ("sequential", "sharded", "phased_serial", "phased_parallel")
    if schedule not in overlapping + serial:
        raise ScheduleError(f"closed_form_time: schedule {schedule!r}{instead_of(schedule, overlapping + serial)}")
    if recompute and n > 1:
        if inference or schedule not in ("grouped", "grouped_overlapped", "popart_pipeline", "sequential"):
            raise ScheduleError(
                f"closed_form_time: no closed form for {schedule}{' inference' if inference else ''} with "
                "recomputation; allowed: training with grouped, grouped_overlapped, popart_pipeline, sequential"
            )
        if schedule == "sequential":
            return m * ((2 * n - 1) * f + n * b)
        return (_popart_recomputed if schedule == "popart_pipeline" else _grouped_recomputed)(f, b, n, m)
    if schedule == "1f1b" and (f > b or inference):
        raise ScheduleError(f"closed_form_time: 1f1b, f={f}, b={b}, inference={inference}; allowed: training, b >= f")
    if schedule in serial:
        return n * m * (f if inference else f + b)
    if inference:
        return (m + n - 1) * f
    if schedule in ("interleaved", "1f1b") and n > 1:
        return n * min(f, b) + (2 * m + n - 2) * max(f, b)
    return (m + n - 1) * (f + b)
