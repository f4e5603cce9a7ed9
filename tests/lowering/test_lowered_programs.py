"""Whole lowered programs on chips of few tiles: every step, the memory of every tile, every plan, as golden rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
from lowered import figures, small
from programs import POPXL, drawn, encoder
from rows import Golden

from ipuperf.lowering import CollectiveMerging, lower
from ipuperf.lowering.lower import SYNC_PATTERNS
from ipuperf.runtime.executable import Executable

CHIPS = ((67, 60), (80, 1), (101, 20), (71, 4))
"""Tiles of a chip (some programs have 32 I/O tiles), and by what its memory is divided; its other figures are those of
a preset."""
OUTLINING = (None, 1.0, 0.05)
MERGING = (CollectiveMerging(), CollectiveMerging(None, None, None), CollectiveMerging(4000, 400, 4000, True))
SCHEDULES = ("grouped", "sharded", "popart_pipeline")

SEEDS = range(100, 148)

BUILT: Mapping[str, Callable[[], Executable]] = {
    **POPXL,
    **{f"seed {seed}": partial(drawn, "popxl", seed) for seed in SEEDS},
    **{f"{schedule} pipeline": partial(encoder, schedule, 2, hidden=32, sequence=8, feed_forward=48)
       for schedule in SCHEDULES},
}  # fmt: skip
WAYS = dict(zip(BUILT, itertools.cycle(itertools.product(SYNC_PATTERNS, OUTLINING, MERGING)), strict=False))
"""How each is lowered: sync pattern, outlining, merging."""


def check(names: Sequence[str], golden: Golden) -> None:
    """Compare some programs with their row."""
    rows = []
    for name in names:
        built, number = BUILT[name](), list(BUILT).index(name)
        sync_pattern, outlining, merging = WAYS[name]
        machine = small(built.machine, *CHIPS[number % len(CHIPS)])
        how = {"sync_pattern": sync_pattern, "outlining": outlining, "merging": merging}
        rows.append(figures(lower(built.ir, machine, name=name, **how)))
    golden(rows)


@pytest.mark.parametrize("first", range(3))
def test_short_programs(first: int, golden: Golden) -> None:
    check(list(POPXL)[first::3], golden)


@pytest.mark.parametrize("first", SEEDS[::3])
def test_random_programs(first: int, golden: Golden) -> None:
    check([f"seed {seed}" for seed in range(first, first + 3)], golden)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pipelines(schedule: str, golden: Golden) -> None:
    check([f"{schedule} pipeline"], golden)
