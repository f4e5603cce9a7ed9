"""Steady states unfolded: true times against a list that is moved fold by fold, the rest as golden rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
from answers import shown
from rows import Golden

from ipuperf.simulation.folding import Fold, Unfolding, _same_wait, advance


def folds(seed: int) -> list[Fold]:
    """Folds as a simulation makes them: each ends after the one before, and begins after it or has it in its period."""
    r, made, end = random.Random(seed), list[Fold](), 0
    for _ in range(r.randint(1, 4)):
        begin = end + r.randint(0, 4) if not made or r.random() < 0.6 else max(0, made[-1].begin - r.randint(0, 3))
        end = max(begin, end) + r.randint(1, 5)
        drawn = [(r.randint(-1, 2), r.randint(0, 3), {n: r.randint(0, 2) for n in range(2)}) for _ in range(2)]
        counts = [(loop, trips if loop >= 0 else 0, slices) for loop, trips, slices in drawn]  # no loop makes no trips
        made.append(Fold(begin, end, r.randint(1, 6), *map(tuple, zip(*counts, strict=True))))
    return made


def moved(every: list[Fold], ends: list[int]) -> list[int]:
    """True ends: each fold in turn moves what is later, rows and the folds after it."""
    marks = [(fold.begin, fold.end) for fold in every]
    for number, fold in enumerate(every):
        first, last = marks[number]
        more = fold.count * (last - first)
        ends = [end + more if end > last else end for end in ends]
        marks = [
            tuple(time + more if time >= last else time for time in mark) if later > number else mark
            for later, mark in enumerate(marks)
        ]
    return ends


@pytest.mark.parametrize("seed", range(0, 40, 10))
def test_folds_move_what_comes_later(seed: int, golden: Golden) -> None:
    said = []
    for number in range(seed, seed + 10):
        every, r = folds(number), random.Random(number)
        unfolding, ends = Unfolding(every), list(range(every[-1].end + 4))
        true, loop = unfolding.rows(np.array(ends))
        assert true.tolist() == moved(every, ends)
        columns = {name: np.array([r.randint(-1, 2) for _ in ends]) for name in ("epoch", "stream", "loop")}
        columns |= {name: np.arange(len(ends)) for name in ("batch", "iteration")}
        instances = [unfolding.instances(process, np.array(ends), columns)[1] for process in (0, 1)]
        lists = [{name: array.tolist() for name, array in values.items()} for values in (unfolding.loops(), *instances)]
        said.append(shown([unfolding.depth, unfolding.time(ends[-1]), loop.tolist(), *lists]))
    golden(said)


def test_what_moved_and_what_waits() -> None:
    """Of loop counters the one that moved on; of waits whether both began as long before, or are one and the same."""
    cases = [((1, 2), (1, 2)), ((1, 2), (1, 5)), ((4, 2), (6, 2)), ((1, 2), (2, 3)), ((3, 0), (2, 0)), ((), ())]
    assert [advance(*case) for case in cases] == [(0, 0), (1, 3), (0, 2), None, None, (0, 0)]
    waits = [(None, None), (None, (1, 5)), ((1, 5), None), ((1, 5), (1, 9)), ((1, 5), (2, 15)), ((1, 5), (2, 14))]
    assert [_same_wait(*case, 20, 30) for case in waits] == [True, False, False, True, True, False]
