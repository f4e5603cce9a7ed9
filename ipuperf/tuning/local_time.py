"""What the IPUs of a lowered program do on their own, whatever they wait for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipuperf.lowering import Repeat, Step
from ipuperf.lowering.steps import ControlStep, IoTiles, LocalStep

if TYPE_CHECKING:
    from ipuperf.lowering import DeviceProgram


@dataclass(frozen=True)
class LocalCycles:
    """Cycles that the compute tiles of one IPU spend in steps that touch nothing shared, by op (-1: of none).

    Attributes:
        total: in one run, with all trips; ``once``: of one execution.
    """

    total: Counter[int] = field(default_factory=Counter)
    once: Counter[int] = field(default_factory=Counter)


def local_cycles(program: DeviceProgram, ipu: int) -> LocalCycles:
    """Those of IPU ``ipu`` of a replica. It walks its list in order, so that no run is shorter than their sum."""
    found = LocalCycles()
    _walk(program, program.ipus[ipu], 1, found, set())
    return found


def _walk(program: DeviceProgram, step: Step, times: int, found: LocalCycles, seen: set[int]) -> None:
    if isinstance(step, IoTiles):
        return
    if isinstance(step, ControlStep):
        trips = times * step.count if isinstance(step, Repeat) else times
        for inner in program.inside(step):
            _walk(program, inner, trips, found, seen)
    elif isinstance(step, LocalStep):
        found.total[step.op_id] += times * step.duration
        if id(step) not in seen:
            seen.add(id(step))
            found.once[step.op_id] += step.duration
