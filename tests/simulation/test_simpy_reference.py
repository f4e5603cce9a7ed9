"""The event loop and the tiles against plain SimPy: cycle for cycle, row for row.

The reference loop puts everything into SimPy's queue as an event of SimPy's and lets SimPy handle it; the reference
tiles are a SimPy process each, which meet at a barrier.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
import simprograms as s
import simpy
from simpy.events import NORMAL

from ipuperf.simulation import simulate
from ipuperf.simulation.event_loop import EventLoop
from ipuperf.trace.schema import TABLES

POD = s.machine(latency=3, run=3e-8, callback=2e-8, stream=3e-9, remote=1e-8, sync=7)
SIMULATE = sys.modules["ipuperf.simulation.simulate"]


class SimpyLoop(EventLoop):
    """Everything is an event in the queue of SimPy, which pops and handles it."""

    now = property(lambda self: self._now, lambda self, value: None)
    handled = 0

    def __init__(self, seed=None):
        super().__init__(seed)
        self.soon = lambda action: self.after(0, action)

    def after(self, delay, action, stage=NORMAL):
        event = simpy.Event(self)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: action())
        simpy.Environment.schedule(self, event, stage, delay)

    def step(self):
        SimpyLoop.handled += 1
        simpy.Environment.step(self)

    def exhaust(self, between):
        while self._queue:
            if self._queue[0][0] > self.now:
                between()
            self.step()


class TileProcesses:
    """A SimPy process for each tile; the cycles of a step are those at which SimPy's clock stands at the barrier."""

    met = 0

    def __init__(self, count):
        self.count = count

    def work(self, cycles):
        clock = simpy.Environment()

        def tile(busy):
            yield clock.timeout(busy)

        barrier = simpy.AllOf(clock, [clock.process(tile(busy)) for busy in cycles.tolist()])
        clock.run(until=barrier)
        TileProcesses.met += 1
        if clock.now:
            yield int(clock.now)


def same(one, other):
    for name in TABLES:
        left, right = one.columns(name), other.columns(name)
        for column in left:
            np.testing.assert_array_equal(left[column], right[column], err_msg=f"{name}.{column}")


def programs():
    for seed in range(25):
        program = s.random_program(seed)
        if max(sum(1 for _ in program.walk(ipu)) for ipu in range(2)) <= 400:
            yield seed, program


@pytest.mark.parametrize("options", [{}, {"symmetry": False, "fold": False}])
def test_the_event_loop_is_simpys(options, monkeypatch):
    ours = [(program, simulate(program, POD, prefetch_depth=seed % 3, **options)) for seed, program in programs()]
    monkeypatch.setattr(SIMULATE, "EventLoop", SimpyLoop)
    SimpyLoop.handled = 0
    for (seed, program), (_, trace) in zip(programs(), ours, strict=True):
        same(trace, simulate(program, POD, prefetch_depth=seed % 3, **options))
    assert SimpyLoop.handled > 1000


@pytest.mark.heavy
def test_tiles_are_those_of_a_process_each(monkeypatch):
    ours = [simulate(program, POD, fidelity="tile") for _, program in programs()]
    phases = [simulate(program, POD) for _, program in programs()]
    monkeypatch.setattr(SIMULATE, "Tiles", TileProcesses)
    TileProcesses.met = 0
    for (_, program), tile, phase in zip(programs(), ours, phases, strict=True):
        reference = simulate(program, POD, fidelity="tile")
        same(tile, reference)
        same(phase, reference)
    assert TileProcesses.met > 100


@pytest.mark.parametrize("fold", [True, False])
def test_a_barrier_of_1472_tiles(fold, monkeypatch):
    """The slowest of uneven tiles, again and again, in all three ways."""
    rng = np.random.default_rng(0)
    steps = [s.phase(rng.integers(0, 999, 1472).tolist()) for _ in range(3)]
    program = s.program(s.seq(s.repeat(4, *steps, s.sync(5), s.load(800)), *steps))
    traces = [simulate(program, POD, fold=fold, fidelity=fidelity) for fidelity in ("phase", "tile")]
    monkeypatch.setattr(SIMULATE, "Tiles", TileProcesses)
    traces.append(simulate(program, POD, fold=fold, fidelity="tile"))
    for trace in traces[:2]:
        assert trace.expand()["dur"].tolist() == traces[2].expand()["dur"].tolist()
    assert s.end(traces[0]) == s.end(traces[1]) == s.end(traces[2])
