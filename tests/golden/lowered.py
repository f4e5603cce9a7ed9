"""Lowered programs as rows: sums that say where a change is, and digests of every step, tile and plan."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from executables import digest

from ipuperf.lowering import DeviceProgram, Phase, TileVector
from ipuperf.lowering.planner.plan import ConvolutionPlan
from ipuperf.lowering.timeline import LiveIntervals, Timeline
from ipuperf.machine import Machine


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
    if isinstance(value, LiveIntervals):
        return tuple(value)
    if isinstance(value, Timeline):
        leaf = value
        while isinstance(leaf, Timeline):
            leaf = leaf.parts[0]
        return plain(tuple(value)) if isinstance(leaf, tuple) else value.tolist()
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
