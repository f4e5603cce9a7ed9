"""The steps that the IPUs of a lowered program execute, and how often, without any waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ipuperf.lowering import DeviceProgram, Repeat, Step
from ipuperf.lowering.steps import ControlStep, IoTiles, LocalStep


@dataclass(frozen=True)
class LocalCycles:
    """Cycles that the compute tiles of one IPU spend in steps that touch nothing shared, by op (-1: no op).

    Attributes:
        total: cycles of one run, with all trips of loops.
        once: cycles of one execution of each step.
    """

    total: Counter[int] = field(default_factory=Counter)
    once: Counter[int] = field(default_factory=Counter)


def local_cycles(program: DeviceProgram, ipu: int) -> LocalCycles:
    """The local cycles of IPU ``ipu`` of a replica. It executes one step after the other, so no run is shorter."""
    cycles, seen = LocalCycles(), set[int]()
    for step, times in executed(program, ipu):
        if isinstance(step, LocalStep):
            cycles.total[step.op_id] += times * step.duration
            # Every call of a function gives the same step object, which counts once.
            if id(step) not in seen:
                seen.add(id(step))
                cycles.once[step.op_id] += step.duration
    return cycles


def executed(program: DeviceProgram, ipu: int) -> Iterator[tuple[Step, int]]:
    """The leaf steps of the compute tiles of IPU ``ipu`` of a replica, and how often each is executed at its place."""
    yield from _executed(program, program.ipus[ipu], 1)


def _executed(program: DeviceProgram, step: Step, times: int) -> Iterator[tuple[Step, int]]:
    # I/O tiles work beside the compute tiles and take none of their time.
    if isinstance(step, IoTiles):
        return
    if not isinstance(step, ControlStep):
        yield step, times
        return
    trips = times * step.count if isinstance(step, Repeat) else times
    for child in program.inside(step):
        yield from _executed(program, child, trips)
