"""The event loop stands on internals of SimPy; the versions that have them are those pyproject allows."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, URGENT, Event

from ipuperf.simulation.event_loop import EventLoop

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")


def test_simpy_is_bound_to_one_minor_version():
    """4.1.0 to 4.1.2 have ``_queue``, ``_eid``, ``_now`` and four values in an entry; a later minor version may not."""
    assert '"simpy>=4.1,<4.2"' in PYPROJECT
    assert re.match(r"4\.1(\.|$)", version("simpy"))


def test_what_is_overridden_is_what_simpy_calls():
    plain = inspect.signature(simpy.Environment.schedule).parameters
    assert (
        list(inspect.signature(EventLoop.schedule).parameters) == list(plain) == ["self", "event", "priority", "delay"]
    )
    assert list(inspect.signature(simpy.Environment.step).parameters) == ["self"]
    assert simpy.Environment.run is EventLoop.run
    with pytest.raises(EmptySchedule):
        EventLoop().step()


def test_entries_of_the_queue_are_those_of_simpy():
    """Time, priority, number and event, whoever puts them there."""
    queues = []
    for environment in (simpy.Environment(), EventLoop()):
        environment.timeout(7)
        environment.event().succeed()
        environment.process(iter_nothing())
        environment.schedule(environment.event(), URGENT, 3)
        queues.append([(time, priority, number) for time, priority, number, _ in sorted(environment._queue)])
        assert all(isinstance(entry[3], Event) for entry in environment._queue)
    assert queues[0] == queues[1] == [(0, URGENT, 2), (0, NORMAL, 1), (3, URGENT, 3), (7, NORMAL, 0)]


def iter_nothing():
    """A process that is over at once."""
    yield from ()


@pytest.mark.parametrize("environment", [simpy.Environment, EventLoop])
def test_processes_see_the_time_of_simpy(environment):
    events, seen = environment(), []

    def process(name, delay):
        for _ in range(3):
            yield events.timeout(delay)
            seen.append((name, events.now))

    events.process(process("a", 2))
    last = events.process(process("b", 3))
    events.run(until=last)
    assert seen == [("a", 2), ("b", 3), ("a", 4), ("b", 6), ("a", 6), ("b", 9)]
    assert events.now == 9


def test_a_failure_is_raised():
    events = EventLoop()
    events.event().fail(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        events.run()
