"""Flows on shared links, to the cycle: who ends, enters and changes rate in one instant."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.machine import load_machine
from ipuperf.simulation.event_loop import EventLoop
from ipuperf.simulation.network import Network
from ipuperf.simulation.recorder import Label, Recorder
from ipuperf.simulation.templates import Send

POD4 = load_machine("pod4")
ROUTE = POD4.topology.route(0, 1)
LATENCY = sum(link.latency_cycles for link in ROUTE)
BYTES_PER_CYCLE = Fraction(min(link.bandwidth_bytes_per_s for link in ROUTE), POD4.chip.clock_hz)


def ends(sends, seed=None):
    """End of each flow; ``sends`` are (time, bytes), all over the same link."""
    events = EventLoop(seed)
    recorder = Recorder(1)
    network = Network(events, POD4.topology.links, POD4.chip.clock_hz, recorder)
    found = {}
    for number, (time, size) in enumerate(sends):

        def send(number=number, size=size):
            sent = Send((number,), ROUTE, 0)
            network.send([sent], size, Label("p2p", 0), lambda _: found.update({number: events.now}))

        events.after(time, send)
    events.exhaust(lambda: None)
    assert len(recorder.transfers) == sum(size > 0 for _, size in sends)
    return [found[number] for number in range(len(sends))]


def exact(sends):
    """The same with fractions, from one moment at which something changes to the next (up to 16 flows)."""
    waiting = sorted((time + LATENCY, number, size) for number, (time, size) in enumerate(sends))
    left, found, now = {}, {}, 0
    while waiting or left:
        arrival = waiting[0][0] if waiting else None
        rate = BYTES_PER_CYCLE / len(left) if left else None
        first = min(now - (-n // rate) for n in left.values()) if left else None
        then = min(t for t in (arrival, first) if t is not None)
        left = {number: size - rate * (then - now) for number, size in left.items()}
        now = then
        found.update({number: now for number, size in left.items() if size <= 0})
        left = {number: size for number, size in left.items() if size > 0}
        while waiting and waiting[0][0] == now:
            _, number, size = waiting.pop(0)
            if size:
                left[number] = Fraction(size)
            else:
                found[number] = now
    return [int(found[number]) for number in range(len(sends))]


def test_flow_that_enters_when_another_ends_is_not_ended_with_it():
    alone = ends([(0, 10_000)])[0]
    both = ends([(0, 10_000), (alone - LATENCY, 10_000)])
    assert both == [alone, 2 * alone - LATENCY]


def test_a_plan_that_comes_back_ends_once():
    """The end of the first flow is put off by a second and then reached as if that had never been: only once."""
    assert ends([(0, 1000), (0, 0), (0, 1000)]) == exact([(0, 1000), (0, 0), (0, 1000)])


@pytest.mark.parametrize("seed", [None, 1])
@settings(max_examples=100)
@given(sends=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 900)), min_size=1, max_size=9))
def test_against_fractions(seed, sends):
    assert ends(sends, seed) == exact(sends)


POD16 = load_machine("pod16")


def moved(groups):
    """End of each send by owner; ``groups`` are (time, bytes, ends of each route, owner of the first)."""
    events, found = EventLoop(), {}
    network = Network(events, POD16.topology.links, POD16.chip.clock_hz, Recorder(1))

    def move(size, pairs, owner):
        routes = [POD16.topology.route(*pair) for pair in pairs]
        sends = [Send((owner[0], owner[1] + n), route, 0) for n, route in enumerate(routes)]
        for bundle in network.templates.bundles(sends):
            network.move(
                bundle, (), size, Label("p2p", 0), lambda done: found.update({one.owner: events.now for one in done})
            )

    for time, *what in groups:
        events.after(time, partial(move, *what))
    events.exhaust(lambda: None)
    return found


@pytest.mark.heavy
@given(
    groups=st.lists(
        st.tuples(
            st.integers(0, 200),
            st.integers(0, 3000),
            st.lists(
                st.tuples(st.integers(0, 15), st.integers(0, 15)).filter(lambda ends: ends[0] != ends[1]), min_size=1
            ),
        ),
        max_size=5,
    )
)
@settings(max_examples=60)
def test_sends_together_are_as_fast_as_one_by_one(groups):
    """Sends of one size that begin together are parted where their rates differ: each ends as if it were alone."""
    alone = [
        (time, size, [ends], (group, number))
        for group, (time, size, pairs) in enumerate(groups)
        for number, ends in enumerate(pairs)
    ]
    found = moved([(time, size, pairs, (group, 0)) for group, (time, size, pairs) in enumerate(groups)])
    assert found == moved(alone)
    assert len(found) == len(alone)
