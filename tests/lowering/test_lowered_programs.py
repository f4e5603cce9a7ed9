"""Whole lowered programs on chips of few tiles: every step, the memory of every tile, every plan, as golden rows."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from casewise import digest
from programs import POPXL, drawn, encoder

from ipuperf.lowering import CollectiveMerging, DeviceProgram, Phase, TileVector, lower
from ipuperf.lowering.lower import SYNC_PATTERNS
from ipuperf.lowering.planner.plan import ConvolutionPlan
from ipuperf.machine import Machine
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


def small(machine: Machine, tiles: int, part: int) -> Machine:
    """The machine with chips of so many tiles, each with a part of its memory."""
    chip = machine.chip
    return replace(machine, chip=replace(chip, tiles=tiles, bytes_per_tile=chip.bytes_per_tile // part))


def plain(value: Any) -> Any:
    """A value as texts, numbers and tuples, without the places of lines."""
    if isinstance(value, TileVector):
        return value.dense().tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, str):
        return re.sub(r" at \S+:\d+", "", value)
    if isinstance(value, ConvolutionPlan):
        return value.explain(), plain(value.values())
    if is_dataclass(value):
        return type(value).__name__, *(plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return tuple([plain(item) for item in value])
    return value


def figures(program: DeviceProgram) -> dict[str, Any]:
    """The row of a program: sums that say where a change is, and digests of all that there is."""
    leaves = [step for ipu in range(len(program.ipus)) for step in program.leaves(ipu)]
    phases = [step for step in leaves if isinstance(step, Phase)]
    cycles: Counter[str] = Counter()
    for step in phases:
        cycles[step.kind] += step.cycles.max
    memory = program.memory
    categories: Counter[str] = Counter()
    for each in memory.categories.values():
        categories.update({name: vector.total for name, vector in each.items()})
    return {
        "steps": dict(Counter(type(step).__name__ for step in leaves)),
        "cycles": dict(cycles),
        "exchanged": sum(step.bytes_in for step in phases),
        "flops": sum(step.flops for step in phases),
        "always live": dict(categories),
        "most live": max(int(series.max(initial=0)) for series in memory.not_always_live.values()),
        "warnings": dict(Counter(warning.kind for warning in program.warnings)),
        "tree": digest(plain([program.ipus, program.functions, program.placement, program.streams])),
        "ops": digest([op._replace(line="") for op in program.ops]),
        "memory": digest(plain(memory)),
        "plans": digest(plain(program.plans)),
        "texts": digest(plain([*program.warnings, program.describe()])),
    }


def check(names: Sequence[str], golden_row: Any) -> None:
    """Compare some programs with their row, in which each figure has one entry for each of them."""
    rows = []
    for name in names:
        built, number = BUILT[name](), list(BUILT).index(name)
        sync_pattern, outlining, merging = WAYS[name]
        machine = small(built.machine, *CHIPS[number % len(CHIPS)])
        how = {"sync_pattern": sync_pattern, "outlining": outlining, "merging": merging}
        rows.append(figures(lower(built.ir, machine, name=name, **how)))
    golden_row({key: " | ".join(str(row[key]) for row in rows) for key in rows[0]})


@pytest.mark.parametrize("first", range(3))
def test_short_programs(first: int, golden_row: Any) -> None:
    check(list(POPXL)[first::3], golden_row)


@pytest.mark.parametrize("first", SEEDS[::3])
def test_random_programs(first: int, golden_row: Any) -> None:
    check([f"seed {seed}" for seed in range(first, first + 3)], golden_row)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pipelines(schedule: str, golden_row: Any) -> None:
    check([f"{schedule} pipeline"], golden_row)
