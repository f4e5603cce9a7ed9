"""Schedules of the literature that empty the pipeline before each weight update, with few micro-batches in flight.

One-forward-one-backward (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", there
also interleaved, as in Megatron-LM's ``megatron/core/pipeline_parallel/schedules.py``) and ZB-H1 (Qi et al. 2024, "Zero
Bubble Pipeline Parallelism"). No front end of the IPU has them: they are chosen by name (``timetable_of``).

Each IPU has a list of cells and runs at most one of them in a step. A cell runs as soon as the cells before it in the
list have run and its inputs have arrived. Steps end together here, so a step lasts as long as its longest cell. The
closed forms of the papers hold where all cells of a step take the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .assembly import Placement, assemble
from .checks import Devices, check_apart, check_counts, check_devices, check_multiple
from .registry import schedule
from .stretching import stretched
from .timetable import Cell, ScheduleError, Timetable

_COPIES = "when needed"


@schedule(name="1f1b", copies=_COPIES)
def one_forward_one_backward(stages: int, micro_batches: int, *, devices: Devices | None = None) -> Timetable:
    """1F1B with flush: ``2(M + N - 1)`` steps; stage i keeps ``N - i`` micro-batches at most. Any M.

    Raises:
        ScheduleError: counts below 1, or devices that give an IPU two stages.
    """
    check_counts("1f1b", stages, micro_batches)
    groups = check_devices("1f1b", stages, devices, concurrent=False)
    check_apart("1f1b", groups, "interleaved_1f1b")

    def rows(count: int) -> list[list[Cell]]:
        return [
            _alternating(
                [Cell("F", stage, number) for number in range(count)],
                [Cell("B", stage, number) for number in range(count)],
                # The warm-up has a forward for each stage that follows.
                stages - 1 - stage,
            )
            for stage in range(stages)
        ]

    return _assembled("1f1b", micro_batches, groups, rows, stages, 2)


@schedule(name="interleaved_1f1b", copies=_COPIES, stages_per_ipu=2)
def interleaved_one_forward_one_backward(
    stages: int, micro_batches: int, *, chunks: int = 2, devices: Devices | None = None
) -> Timetable:
    """1F1B over virtual stages: IPU i of P has the ``chunks`` stages i, i + P, i + 2P ...; M a multiple of P.

    ``2(chunks M + P - 1)`` steps, each of a stage: with the same layers, the bubble is that of 1F1B over ``chunks``.

    Raises:
        ScheduleError: stages that are no multiple of the chunks, an illegal M, or other devices than P in turn.
    """
    name = "interleaved_1f1b"
    check_counts(name, stages, micro_batches)
    check_counts(name, chunks, micro_batches, "chunks")
    if stages % chunks:
        raise ScheduleError(f"{name}: {stages} stages in {chunks} chunks; allowed are multiples of {chunks}")
    ipus = stages // chunks
    check_multiple(name, stages, micro_batches, ipus)
    groups = check_devices(name, stages, devices or [stage % ipus for stage in range(stages)], concurrent=False)
    check_apart(name, groups[:ipus], f"1f1b; the stages of an IPU are every {ipus}th")
    if groups != groups[:ipus] * chunks:
        raise ScheduleError(
            f"{name}: stages on IPUs {[group[0] for group in groups]}; allowed: {ipus} IPUs in turn, {chunks} times"
        )

    def rows(count: int) -> list[list[Cell]]:
        turns, placed = list(_turns(ipus, chunks, count)), []
        for ipu in range(ipus):
            forwards = [Cell("F", chunk * ipus + ipu, number) for chunk, number in turns]
            backwards = [Cell("B", (chunks - 1 - chunk) * ipus + ipu, number) for chunk, number in turns]
            # Megatron's warm-up: two forwards for each later IPU, and one group for each chunk but the last.
            placed.append(_alternating(forwards, backwards, 2 * (ipus - 1 - ipu) + (chunks - 1) * ipus))
        return placed

    # One micro-batch for each IPU is a group, and each of its stages takes two steps.
    return _assembled(name, micro_batches, groups, rows, stages, 2 * stages, ipus)


def _turns(ipus: int, chunks: int, micro_batches: int) -> Iterator[tuple[int, int]]:
    """Pairs (chunk, micro-batch) in Megatron's order: groups of as many micro-batches as IPUs, chunk by chunk."""
    for begin in range(0, micro_batches, ipus):
        for chunk in range(chunks):
            for number in range(begin, begin + ipus):
                yield chunk, number


@schedule(name="zb_h1", copies=_COPIES)
def zero_bubble_h1(stages: int, micro_batches: int, *, devices: Devices | None = None) -> Timetable:
    """ZB-H1: cells for gradients of weights fill steps in which an IPU would wait; ``3M + N - 1`` steps (M >= N).

    Stage i computes the gradients of its weights i micro-batches late. All stages therefore keep N micro-batches at
    most, as the first stage of 1F1B does. Any M.

    Raises:
        ScheduleError: counts below 1, or devices that give an IPU two stages.
    """
    check_counts("zb_h1", stages, micro_batches)
    groups = check_devices("zb_h1", stages, devices, concurrent=False)
    check_apart("zb_h1", groups, "interleaved_1f1b")
    return _assembled(
        "zb_h1",
        micro_batches,
        groups,
        lambda count: [list(_in_three(stage, stages - stage, count)) for stage in range(stages)],
        stages,
        3,
    )


def _in_three(stage: int, ahead: int, micro_batches: int) -> Iterator[Cell]:
    """The cells of a stage of ZB-H1: forwards run ``ahead`` of backwards, gradients of weights ``stage`` behind."""
    for turn in range(-ahead, micro_batches + stage):
        for kind, number in (("B", turn), ("W", turn - stage), ("F", turn + ahead)):
            if 0 <= number < micro_batches:
                yield Cell(kind, stage, number)


def _alternating(forwards: Sequence[Cell], backwards: Sequence[Cell], ahead: int) -> list[Cell]:
    """First ``ahead`` forwards, then a backward and a forward in turn."""
    ahead = min(ahead, len(forwards))
    cells = list(forwards[:ahead])
    for number, cell in enumerate(backwards):
        cells += [*forwards[ahead + number : ahead + number + 1], cell]
    return cells


def _assembled(
    name: str,
    micro_batches: int,
    groups: tuple[tuple[int, ...], ...],
    rows: Callable[[int], Sequence[Sequence[Cell]]],
    stages: int,
    period: int,
    advance: int = 1,
) -> Timetable:
    """The table in which each IPU runs its row; ``rows`` gives them by the number of micro-batches."""

    def table(count: int) -> Timetable:
        placements = list(_placed(rows(count), stages))
        total = max(step for step, _, _ in placements) + 1
        return assemble(name, count, groups, placements, total, period=period)

    return stretched(table, micro_batches, advance)


def _placed(rows: Sequence[Sequence[Cell]], stages: int) -> Iterator[Placement]:
    """Each cell of the rows, in the first step in which it is next in its row and its inputs are there."""
    placed: dict[Cell, int] = {}
    turn = [0] * len(rows)
    step = 0
    while any(turn[row] < len(cells) for row, cells in enumerate(rows)):
        for row, cells in enumerate(rows):
            cell = cells[turn[row]] if turn[row] < len(cells) else None
            # An input must be placed in an earlier step: results arrive at the end of a step.
            if cell is not None and all(placed.get(read_cell, step) < step for read_cell in _read_by(cell, stages)):
                placed[cell] = step
                turn[row] += 1
                yield step, 0, cell
        step += 1


def _read_by(cell: Cell, stages: int) -> list[Cell]:
    """The cells whose results a cell reads: of the stage before it, of the stage after it, of its own stage."""
    stage, number = cell.stage, cell.micro_batch
    if cell.kind == "F":
        return [Cell("F", stage - 1, number)] if stage else []
    if cell.kind == "W":
        return [Cell("B", stage, number)]
    return [Cell("F", stage, number), *([Cell("B", stage + 1, number)] if stage < stages - 1 else [])]
