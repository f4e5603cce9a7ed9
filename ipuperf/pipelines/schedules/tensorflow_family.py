"""TensorFlow's pipeline schedules: Grouped (also with overlapped I/O), Interleaved, Sequential.

Source: ``docs/reference/pipelines.md`` 2.3 to 2.5, which traces
``tensorflow:compiler/plugin/poplar/driver/visitors/pipeline_visitor_utils.h`` and ``pipeline_visitor.cc``. Forward
stage ``i`` has position ``i`` and backward stage ``i`` position ``2N - 1 - i``, so there are ``S = 2N`` positions in
training and ``S = N`` in inference. A schedule is a list of start offsets inside a block of ``S`` steps: all of
``0..S-1`` (Grouped), the rotations of the device list that never meet (Interleaved), or 0 alone (Sequential). The
number of micro-batches is a multiple of how many offsets there are. Inside a step the last position runs first, so a
Grouped IPU runs B then F; PopART is the other way round and a different family (``popart_family``).

``devices`` follows ``device_mapping``: per stage an IPU, or a list of IPUs for a concurrent stage, which counts as
one stage for length, FIFO depth and divisibility.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from .assembly import Placement, assemble
from .checks import Devices, check_apart, check_at_least, check_counts, check_devices, check_multiple
from .registry import schedule
from .stretching import stretched
from .timetable import Cell, ScheduleError, Timetable

_RECOMPUTE_RANK = 1_000_000
_INFEED_RANK, _OUTFEED_RANK = -1_000_000, 2_000_000


class RecomputationMode(Enum):
    """``pipelining_ops.RecomputationMode``: how a pipeline recomputes, if recomputation is allowed at all.

    ``Auto`` becomes ``RecomputeThenBackpropagate`` for Grouped and Interleaved, and
    ``RecomputeAndBackpropagateInterleaved`` for Sequential.
    """

    Auto = "Auto"
    RecomputeThenBackpropagate = "RecomputeThenBackpropagate"
    RecomputeAndBackpropagateInterleaved = "RecomputeAndBackpropagateInterleaved"


_THEN, _WITHIN = (
    RecomputationMode.RecomputeThenBackpropagate,
    RecomputationMode.RecomputeAndBackpropagateInterleaved,
)
_ALLOWED_MODES = {"grouped": (_THEN, _WITHIN), "interleaved": (_THEN,), "sequential": (_WITHIN,)}


def _mode(name: str, recompute: RecomputationMode | None, inference: bool) -> RecomputationMode | None:
    """The mode that runs, with ``Auto`` resolved (``pipeline_util.cc:885-935``)."""
    if recompute is None:
        return None
    if not isinstance(recompute, RecomputationMode):
        raise ScheduleError(f"{name}: recompute={recompute!r}; allowed are None and the members of RecomputationMode")
    if inference:
        raise ScheduleError(f"{name}: recompute={recompute.value} in inference, which has no backward; allowed is None")
    allowed = _ALLOWED_MODES[name.removesuffix("_overlapped")]
    if recompute is RecomputationMode.Auto:
        return allowed[0]
    if recompute not in allowed:
        names = ", ".join(("Auto", *(mode.value for mode in allowed)))
        raise ScheduleError(f"{name} does not support recomputation mode {recompute.value}; allowed: {names}")
    return recompute


def _placements(
    stages: int, starts: list[int], inference: bool, mode: RecomputationMode | None, overlapped: bool
) -> Iterator[Placement]:
    """Every cell with its step; ``starts[m]`` is the step in which micro-batch ``m`` enters."""
    # With overlapped I/O the infeed takes the step before the compute.
    lead = 1 if overlapped else 0
    for micro_batch, start in enumerate(starts):
        if overlapped:
            yield start, _INFEED_RANK, Cell("I", 0, micro_batch)
            # The compute is one step late because of the infeed, and the outfeed follows it in the step after.
            yield start + stages - 1 + 2, _OUTFEED_RANK, Cell("O", stages - 1, micro_batch)
        for stage in range(stages):
            yield start + lead + stage, -stage, Cell("F", stage, micro_batch)
            if inference:
                continue
            position = 2 * stages - 1 - stage
            yield start + lead + position, -position, Cell("B", stage, micro_batch)
            # The last stage is never recomputed (``docs/reference/pipelines.md`` 2.5).
            if mode is None or stage == stages - 1:
                continue
            recomputed = Cell("R", stage, micro_batch)
            # It takes the forward slot of the step before its backward (``docs/reference/pipelines.md`` 2.5).
            if mode is _THEN:
                yield start + lead + position - 1, _RECOMPUTE_RANK - position, recomputed
            else:
                yield start + lead + position, -position - 0.5, recomputed


def _schedule(
    name: str,
    stages: int,
    micro_batches: int,
    offsets: list[int],
    depth: int,
    devices: tuple[tuple[int, ...], ...],
    inference: bool,
    recompute: RecomputationMode | None,
    overlapped: bool = False,
) -> Timetable:
    """Micro-batch ``m`` starts at ``S * (m // L) + offsets[m % L]``; stage ``i`` has a FIFO of ``depth * (N-1-i)``."""
    mode = _mode(name, recompute, inference)
    positions = stages if inference else 2 * stages
    count = len(offsets)
    # The infeed comes one step before the first compute, the outfeed one step after the last.
    extra = 2 if overlapped else 0
    fifo = tuple(0 if inference else depth * (stages - 1 - stage) for stage in range(stages))
    # Where micro-batches enter at equal distances, a period has one of them, else all that enter in turn.
    equal = count in (1, positions) or not inference

    def table(total: int) -> Timetable:
        starts = [positions * (number // count) + offsets[number % count] for number in range(total)]
        return assemble(
            name,
            total,
            devices,
            _placements(stages, starts, inference, mode, overlapped),
            starts[-1] + positions + extra,
            fifo,
            stashed="stage inputs" if mode else "activations",
            inference=inference,
            ramp=offsets[-1] + extra,
            period=positions // count if equal else positions,
        )

    return stretched(table, micro_batches, 1 if equal else count)


@schedule(recompute=RecomputationMode.Auto)
def grouped(
    stages: int,
    micro_batches: int,
    *,
    inference: bool = False,
    recompute: RecomputationMode | None = None,
    devices: Devices | None = None,
) -> Timetable:
    """Grouped: ``M + 2N - 1`` steps, backward before forward in a step; M a multiple of ``2N``.

    Inference: ``M + N - 1`` steps, M a multiple of N. FIFO depth ``2(N-1-i)``. With ``RecomputeThenBackpropagate`` the
    forward of the next step's backward is recomputed after the step's other stages, with
    ``RecomputeAndBackpropagateInterleaved`` right before its backward; never on the last stage. Stages on one IPU run
    one after the other, the later stage first. Recomputation is off by default, as in ``IPUConfig.allow_recompute``.

    Raises:
        ScheduleError: an illegal M, device mapping or recomputation.
    """
    check_counts("grouped", stages, micro_batches)
    groups = check_devices("grouped", stages, devices, concurrent=True)
    positions = stages if inference else 2 * stages
    check_multiple("grouped", stages, micro_batches, positions)
    return _schedule("grouped", stages, micro_batches, list(range(positions)), 2, groups, inference, recompute)


def grouped_overlapped(
    stages: int,
    micro_batches: int,
    *,
    inference: bool = False,
    recompute: RecomputationMode | None = None,
    devices: Devices | None = None,
) -> Timetable:
    """Grouped with I/O tiles: infeed one step before, outfeed one step after the compute; two steps more.

    ``M + 2N + 1`` steps, M at least ``2N + 2``, no divisibility (``grouped_overlap_pipeline_visitor.cc:68-83``, see
    ``docs/reference/pipelines.md`` 2.4). Inference by the same rule with N positions: ``M + N + 1`` steps, M at least
    ``N + 2`` (our reading; the source has the training rule only). ``I`` cells stand on stage 0 and ``O`` cells on the
    last stage, where the infeed is taken and the outfeed is given; they run on I/O tiles beside the compute.

    Raises:
        ScheduleError: an illegal M, device mapping or recomputation.
    """
    name = "grouped_overlapped"
    check_counts(name, stages, micro_batches)
    groups = check_devices(name, stages, devices, concurrent=True)
    positions = stages if inference else 2 * stages
    formula = "N + 2" if inference else "2N + 2"
    check_at_least(name, stages, micro_batches, positions + 2, formula, "the number of micro-batches")
    offsets = list(range(positions))
    return _schedule(name, stages, micro_batches, offsets, 2, groups, inference, recompute, overlapped=True)


def _free_rotations(order: list[tuple[int, ...]]) -> list[int]:
    """Start offsets, chosen greedily, at which endlessly repeated copies of ``order`` never use an IPU together."""
    size = len(order)
    occupied: list[int] = []
    for offset in range(size):
        meets = (
            set(order[k]) & set(order[(k + offset - rotation) % size]) for rotation in occupied for k in range(size)
        )
        if not any(meets):
            occupied.append(offset)
    return occupied


@schedule(recompute=RecomputationMode.Auto)
def interleaved(
    stages: int,
    micro_batches: int,
    *,
    inference: bool = False,
    recompute: RecomputationMode | None = None,
    devices: Devices | None = None,
) -> Timetable:
    """Interleaved: ``2(M + N - 1)`` steps, one of forward and backward per IPU and step; M a multiple of N.

    Inference on distinct IPUs: ``M + N - 1`` steps, M a multiple of N; with IPUs used twice, as many micro-batches
    overlap as never meet on an IPU, and M is a multiple of that. FIFO depth ``N-1-i``. Recomputation runs in the
    forward slot of the step before the backward (only ``RecomputeThenBackpropagate``).

    Raises:
        ScheduleError: an illegal M or recomputation; in training also an IPU with more than one stage.
    """
    check_counts("interleaved", stages, micro_batches)
    groups = check_devices("interleaved", stages, devices, concurrent=True)
    if not inference:
        check_apart("interleaved", groups, "grouped or sequential")
    order = list(groups) if inference else [*groups, *reversed(groups)]
    offsets = _free_rotations(order)
    check_multiple("interleaved", stages, micro_batches, len(offsets))
    return _schedule("interleaved", stages, micro_batches, offsets, 1, groups, inference, recompute)


@schedule(recompute=RecomputationMode.Auto)
def sequential(
    stages: int,
    micro_batches: int,
    *,
    inference: bool = False,
    recompute: RecomputationMode | None = None,
    devices: Devices | None = None,
) -> Timetable:
    """Sequential: ``2NM`` steps (inference ``NM``), one stage at a time; any M, any device mapping, no FIFO.

    Recomputation (only ``RecomputeAndBackpropagateInterleaved``) runs right before the backward stage.

    Raises:
        ScheduleError: counts below 1, an illegal device mapping or recomputation.
    """
    check_counts("sequential", stages, micro_batches)
    groups = check_devices("sequential", stages, devices, concurrent=True)
    return _schedule("sequential", stages, micro_batches, [0], 0, groups, inference, recompute)
