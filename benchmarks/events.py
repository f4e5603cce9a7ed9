"""Speed of the simulation itself, where nothing is folded: events of IPUs and links, and steps of tiles, by CPU second.

**Events.** An event is a moment at which something happens to an IPU or to a transfer, so what a model written in plain
SimPy, with a process for each IPU and each transfer, has to schedule: a stretch of local steps ends; an IPU is let go
from one part of a shared step (a barrier, a latency, the host, its transfers) to the next; a transfer enters the
network; it leaves. They are counted in the trace (:func:`events_of`), so the number is that of the program and not of
the implementation. The whole of ``simulate`` is measured: reading the program, the event loop and the rows.

The programs are pipelines of an encoder on 16 IPUs, without folding and symmetry, with transfers that share links:
16 stages, and 4 replicas of 4 stages. The reference is bare SimPy: 16 processes that do nothing but yield timeouts.

**Tile-steps.** ``fidelity="tile"``: uneven phases on 1,472 tiles, trip by trip. The reference is the maximum of an
``int64`` array of that length with NumPy, per element.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
from bounds import Row, cpu_seconds

WIDE, NARROW, TILE = "event, pipeline of 16 stages", "event, 4 replicas of 4 stages", "tile-step"
BOUNDS = MappingProxyType({WIDE: 1.7, NARROW: 1.9, TILE: 12.0})
MACHINE, IPUS = "pod16", 16
MICRO_BATCHES = 2048
TIMEOUTS = 20_000  # of each process of the reference
TILES, PHASES, TRIPS = 1472, 20, 200


def bare_simpy() -> None:
    """Bare SimPy: IPUS processes and their timeouts."""
    import simpy

    loop = simpy.Environment()

    def process(number: int) -> Any:
        for turn in range(TIMEOUTS):
            yield loop.timeout(1 + (number + turn) % 7)

    for number in range(IPUS):
        loop.process(process(number))
    loop.run()


def events_of(trace: Any) -> int:
    """The events of a trace (see the module)."""
    steps, instances = trace.columns("steps"), trace.columns("instances")
    local = np.isin(steps["kind"], ("compute", "exchange", "sync"))
    size = int(instances["segment"].max()) + 1
    parts = np.bincount(steps["segment"], minlength=size)
    is_local = np.bincount(steps["segment"], weights=local, minlength=size) > 0
    transfers = len(np.unique(trace.columns("transfers")["transfer"]))
    return int(np.where(is_local, 1, parts)[instances["segment"]].sum()) + 2 * transfers


def pipeline(stages: int, layers: int) -> Any:
    """A lowered encoder of so many layers on IPUS IPUs."""
    from ipuperf import schedules
    from ipuperf.lowering import lower
    from ipuperf.machine import load_machine
    from ipuperf.models.encoder import EncoderOptions, encoder
    from ipuperf.pipelines import build_pipeline

    model = encoder(EncoderOptions(layers=layers, stages=stages, replicas=IPUS // stages), seed=None)
    timetable = schedules.interleaved(stages, MICRO_BATCHES)
    build_pipeline(model.ir, model.parts, timetable, outputs=model.outputs, training=model.training)
    return lower(model.ir, load_machine(MACHINE))


def uneven_phases() -> Any:
    """A program of one IPU: a loop of phases in which no two tiles are alike, and nothing else."""
    from ipuperf.lowering.program import DeviceProgram, MemoryReport, OpInfo
    from ipuperf.lowering.steps import Phase, Repeat, Sequence
    from ipuperf.lowering.tilevector import TileVector

    random, empty = np.random.default_rng(0), {0: np.zeros(0, dtype=np.int64)}
    busy = [TileVector.of(random.integers(0, 999, TILES)) for _ in range(PHASES)]
    body = Sequence(-1, "body", tuple([Phase(0, "phase", "compute", cycles) for cycles in busy]))
    main = Sequence(-1, "main", (Repeat(-1, "loop", TRIPS, body),))
    memory = MemoryReport({0: {}}, (), {0: ()}, empty, empty, empty, empty, 0)
    op = OpInfo(0, "op", "Op", "main", "fwd", 0)
    return DeviceProgram("phases", "gc200-1", 1, ((0,),), (main,), {}, (op,), memory, {})


def least(ours: Callable[[], object], reference: Callable[[], object], repeats: int) -> tuple[float, float]:
    """CPU seconds of both, run in turns: the least of each, which other work on the machine disturbs least."""
    pairs = [(cpu_seconds(ours), cpu_seconds(reference)) for _ in range(max(3, min(repeats, 7)))]
    mine, theirs = (min(times) for times in zip(*pairs, strict=True))
    return mine, theirs


def events(name: str, stages: int, layers: int, repeats: int) -> Row:
    """Seconds of an event of a pipeline."""
    from ipuperf.machine import load_machine
    from ipuperf.simulation import simulate

    machine, program, traces = load_machine(MACHINE), pipeline(stages, layers), []
    seconds, reference = least(
        lambda: traces.append(simulate(program, machine, fold=False, symmetry=False)), bare_simpy, repeats
    )
    return Row(name, seconds / events_of(traces[0]), "event of bare SimPy", reference / (IPUS * TIMEOUTS))


def tile_steps(repeats: int) -> Row:
    """Seconds of a tile-step."""
    from ipuperf.machine import load_machine
    from ipuperf.simulation import simulate

    machine, program = load_machine("gc200-1"), uneven_phases()
    numbers = np.random.default_rng(0).integers(0, 999, TILES)

    def maxima() -> None:
        for _ in range(PHASES * TRIPS):
            numbers.max()

    seconds, reference = least(lambda: simulate(program, machine, fidelity="tile", fold=False), maxima, repeats)
    count = TILES * PHASES * TRIPS
    return Row(TILE, seconds / count, "element of a NumPy maximum", reference / count)


def rows(repeats: int) -> list[Row]:
    """Two rows of events, one of tile-steps."""
    return [events(WIDE, 16, 16, repeats), events(NARROW, 4, 8, repeats), tile_steps(repeats)]
