"""Random timetables: what runs when, with free steps and several stages on an IPU."""

from __future__ import annotations

import itertools
from random import Random

from hypothesis import strategies as st

from ipuperf.schedules import Cell, Timetable
from ipuperf.schedules.assembly import Placement, assemble


def needs(cell: Cell, stages: int) -> list[Cell]:
    """The cells of other steps and of the same stage that come before a cell."""
    stage, number = cell.stage, cell.micro_batch
    found = []
    if cell.kind == "F" and stage:
        found.append(Cell("F", stage - 1, number))
    if cell.kind == "B":
        found.append(Cell("F", stage, number))
        if stage < stages - 1:
            found.append(Cell("B", stage + 1, number))
    if cell.kind == "W":
        found.append(Cell("B", stage, number))
    if number:
        found.append(Cell(cell.kind, stage, number - 1))
    return found


def listed(stages: int, micro_batches: int, ipus: list[int], split: bool, rng: Random) -> list[Placement]:
    """Cells in a random order that respects what they need, with steps in which IPUs do nothing."""
    every = itertools.product("FBW" if split else "FB", range(stages), range(micro_batches))
    left = {Cell(*what) for what in every}
    done: dict[Cell, int] = {}
    found: list[Placement] = []
    step = 0
    while left:
        for ipu in sorted(set(ipus)):
            rank = 0
            while rng.random() < 0.6:
                ready = [
                    cell
                    for cell in sorted(left, key=repr)
                    if ipus[cell.stage] == ipu
                    and all(
                        done.get(other, step + 1) < step + (other.stage == cell.stage and other.kind != cell.kind)
                        for other in needs(cell, stages)
                    )
                ]
                if not ready:
                    break
                cell = rng.choice(ready)
                left.remove(cell)
                done[cell] = step
                found.append((step, rank, cell))
                rank += 1
        step += 1
    return found


def periodic(stages: int, micro_batches: int, period: int, split: bool, rng: Random) -> list[Placement]:
    """Every micro-batch passes as the first, ``period`` steps after the one before it."""
    times: dict[tuple[str, int], int] = {}
    step = 0
    for stage in range(stages):
        times["F", stage] = step
        step += rng.randint(1, 3)
    least = rng.randint(0, 1)
    step = times["F", stages - 1] + rng.randint(least, 3)
    for stage in reversed(range(stages)):
        times["B", stage] = step
        times["W", stage] = step + rng.randint(0, 3)
        step += rng.randint(1, 3)
    backward_first = least == 1 and not split
    ranks = {"F": 1, "B": 0 if backward_first else 2, "W": 3}
    kinds = "FBW" if split else "FB"
    return [
        (time + period * m, ranks[kind], Cell(kind, stage, m))
        for (kind, stage), time in times.items()
        if kind in kinds
        for m in range(micro_batches)
    ]


def made(placements: list[Placement], ipus: list[int], micro_batches: int, period: int | None = None) -> Timetable:
    """A timetable of them."""
    total = max(step for step, _, _ in placements) + 1
    return assemble("random", micro_batches, tuple((ipu,) for ipu in ipus), placements, total, period=period)


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Placement], list[int], int, int | None]:
    """Cells, the IPU of each stage, micro-batches, period."""
    stages, split = draw(st.integers(1, 4)), draw(st.booleans())
    ipus = draw(st.lists(st.integers(0, stages - 1), min_size=stages, max_size=stages))
    rng = draw(st.randoms(use_true_random=False))
    if draw(st.booleans()):
        count, period = draw(st.integers(3, 9)), draw(st.integers(1, 3))
        return periodic(stages, count, period, split, rng), ipus, count, period
    count = draw(st.integers(1, 4))
    return listed(stages, count, ipus, split, rng), ipus, count, None
