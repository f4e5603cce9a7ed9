"""Each step as it is, and with each of its fields spoiled: what it says of itself, and what the simulation answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import simprograms as s
from answers import answer, shown
from rows import Golden

from ipuperf.lowering.steps import (
    Call,
    ExternalSync,
    HostCopy,
    IoTiles,
    IpuTransfer,
    Repeat,
    Sequence,
    Step,
    TileSetCopy,
)
from ipuperf.lowering.steps.base import Place
from ipuperf.lowering.tilevector import TileVector
from ipuperf.simulation import simulate

POD4 = s.machine(run=2e-6, call=1e-6, spread=3e-7, host_sync=5e-7, callback=4e-7, answer=6e-7, stream=2e-7, remote=8e-7,
                 sync=600, latency=50)  # fmt: skip
STEPS: dict[str, Step] = {"phase": s.phase([9, 4, 7]), "exchange": s.phase(12, "exchange"), "sync": s.sync()}
STEPS |= {"load": s.load(3000, 4096), "store": s.store(3000), "h2d": s.h2d(500), "d2h": s.d2h(700)}
STEPS |= {"call": Call(-1, "call", "f"), "all_reduce": s.collective("all_reduce", 5000, ((0, 1),), 8)}
STEPS |= {"all_gather": s.collective("all_gather", 5000, ((0,), (1,)), 8, method="clockwise_ring")}
STEPS |= {"copy": s.copy(0, 1, 4000), "copies": s.merged((0, 1, 900), (1, 0, 70))}
STEPS |= {"host": s.host((0, "h2d", 300, "image"), (1, "h2d", 60, "label"), (1, "d2h", 8, "loss"))}
STEPS |= {"external": ExternalSync(0, "meeting", (0, 1)), "repeat": s.repeat(7, s.phase(3), s.load(100))}
STEPS |= {"io": IoTiles(-1, "I/O tiles", (s.h2d(40),)), "to io": TileSetCopy(0, "over", "io", 64, 20, 9)}
OTHERS: dict[type, tuple[Any, ...]] = {
    int: (-1, 0, 1, 10**7), str: ("odd", "compute", "exchange", "d2h", "store", "all_gather", "label"),
    TileVector: (TileVector.uniform(-1, 3), TileVector.uniform(5, 1473), TileVector.uniform(0, 2)),
    tuple: ((), (0,), (1,), (0, 1, 2), (-1, 0), ((0,), (0,)), ((0, 1), (1,)), ((1, 0),), (IpuTransfer(0, 0, 5),),
            (IpuTransfer(1, 2, 5),), (IpuTransfer(0, 1, -5),), (IpuTransfer(0, 1, 5),) * 2,
            (HostCopy(2, "h2d", 5, "image"),), (HostCopy(0, "up", 5, "image"),), (HostCopy(0, "h2d", -5, "image"),),
            (HostCopy(0, "h2d", 5, "image"),) * 2),
    Sequence: (s.seq(), s.seq(s.phase(-4))),
}  # fmt: skip
"""What a field of each type is changed to."""


def spoiled(step: Step) -> Iterator[tuple[str, Step]]:
    """The step with one field changed at a time."""
    yield "as it is", step
    for field in fields(step):
        value = getattr(step, field.name)
        for other in OTHERS[type(value)]:
            if field.name not in ("op_id", "name") and other != value and _alike(value, other):
                yield f"{field.name}={shown(other)[:70]}", replace(step, **{field.name: other})


def _alike(value: Any, other: Any) -> bool:
    """Whether two tuples hold the same kind of thing."""
    return not (isinstance(value, tuple) and other and value) or type(value[0]) is type(other[0])


def simulated(step: Step) -> str:
    """Cycles and rows of a program of two replicas in which both IPUs have the step where both take part in it."""
    both = hasattr(step, "parties") or isinstance(step, ExternalSync)
    tiles = 32 if getattr(step, "io_tiles", False) else 0
    main = s.seq(s.phase(5), step, s.phase(3))
    program = s.program(main, main if both else s.seq(s.phase(60)), replicas=2, functions={"f": s.function(s.phase(2))})
    trace = simulate(replace(program, io_tiles=tiles), POD4)
    totals = trace.totals()
    numbers = [int(totals[name].sum()) for name in totals.columns[2:-1]]
    return f"{int(trace.columns('runs')['dur'][0])} cycles, {numbers}, {trace.rows('steps')}, {trace.rows('transfers')}"


def told(step: Step) -> Iterator[str]:
    """What a step says of itself."""
    place = Place(0, 2, 2, POD4)
    yield " / ".join(step.describe())
    yield f"{list(step.amounts())} {[len(step.host_slices(ipu)) for ipu in (0, 1)]} {step.io_tiles}"
    yield "; ".join(step.faults(place)) if not isinstance(step, (Call, Repeat, Sequence)) else ""
    for name in ("cost", "duration", "tiles", "slowest"):
        if hasattr(step, name):
            yield f"{name} {getattr(step, name)}"
    for name in ("received", "sent"):
        if hasattr(step, name):
            yield f"{name} {[getattr(step, name)(ipu) for ipu in (0, 1)]}"
    yield str(step.parties()) if hasattr(step, "parties") else ""


@pytest.mark.parametrize("name", STEPS)
def test_spoiled_steps(name: str, golden: Golden) -> None:
    steps = list(spoiled(STEPS[name]))
    said = [f"{change}: {answer(lambda step=step: ' '.join(told(step)))}" for change, step in steps]
    answers = [f"{change}: {answer(lambda step=step: simulated(step))}" for change, step in steps]
    golden(said + answers)
