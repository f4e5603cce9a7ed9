"""Algorithms of collectives: rounds, closed forms on ladder, torus and over gateways, bytes, contention, choice."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
import simprograms as s
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.lowering import Collective
from ipuperf.lowering.steps.collective import BROADCAST, HIERARCHICAL, MEET_IN_MIDDLE, METHODS, RING_PAIR
from ipuperf.machine import load_machine
from ipuperf.simulation import SimulationError, simulate
from ipuperf.simulation.algorithms import MAX_BROADCAST_BYTES, CollectiveSyncs, Planner, dimensions
from ipuperf.trace import check

CLOCK = 1_325_000_000
RUNG, RAIL, GATEWAY = 81_600_000_000, 27_200_000_000, 25_000_000_000
POD64 = load_machine("pod64").topology
KINDS = ("all_reduce", "reduce_scatter", "all_gather")


def cycles(nbytes, rate):
    return -(-nbytes * CLOCK // rate)


def run(machine, kind, nbytes, members, method="auto", reduce=0):
    """The trace of one collective among the IPUs ``members``, one replica each."""
    group = (tuple(range(len(members))),)
    step = s.collective(kind, nbytes, group, reduce, method=method)
    placement = tuple((ipu,) for ipu in members)
    return simulate(s.program(s.seq(step), replicas=len(members), placement=placement), machine)


def plan(topology, kind, nbytes, members, method="auto", reduce=0, sync=600):
    step = Collective(0, "c", kind, nbytes, (tuple(range(len(members))),), reduce, method)
    planner = Planner(topology, CLOCK, CollectiveSyncs(sync, sync, 4))
    found = planner.plan(step, tuple(members))
    return found, planner.estimate(found, step, tuple(members))


def deliver(rounds, members, kind):
    """Replay rounds on the data: what each member holds of each of the others at the end, as a check of nothing but
    the byte counts: the bytes that a member has received, as a fraction of the tensor."""
    received = dict.fromkeys(members, Fraction(0))
    sent = dict.fromkeys(members, Fraction(0))
    for item in rounds:
        for source, destination in item.sends:
            sent[source] += item.part * item.times
            received[destination] += item.part * item.times
    return sent, received


@pytest.mark.parametrize("method", [RING_PAIR, MEET_IN_MIDDLE, HIERARCHICAL])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_every_member_sends_and_receives_what_the_theory_asks_for(method, kind, size):
    """(R - 1) / R of the tensor for each half of an all-reduce: the lower bound, which all of them reach."""
    members = tuple(range(size))
    found, _ = plan(POD64, kind, 10_000, members, method)
    sent, received = deliver(found.rounds, members, kind)
    whole = Fraction(size - 1, size) * (2 if kind == "all_reduce" else 1)
    assert set(sent.values()) == set(received.values()) == {whole}
    added = sum(item.reduced * item.times for item in found.rounds)
    assert added == (0 if kind == "all_gather" else Fraction(size - 1, size))


@pytest.mark.parametrize(
    ("size", "method", "rounds"),
    [
        (4, RING_PAIR, 6), (4, MEET_IN_MIDDLE, 4), (4, HIERARCHICAL, 4), (5, MEET_IN_MIDDLE, 4), (64, RING_PAIR, 126),
        (64, MEET_IN_MIDDLE, 64), (2, RING_PAIR, 2), (2, MEET_IN_MIDDLE, 2),
    ],
)  # fmt: skip
def test_rounds_of_an_all_reduce(size, method, rounds):
    found, _ = plan(POD64, "all_reduce", 1000, tuple(range(size)), method)
    assert found.count == rounds


def test_meet_in_the_middle_on_an_ipu_machine():
    """Ring 0-1-3-2, half way round: one round both ways over the rails, one clockwise; then the same to gather."""
    trace = run(s.machine(sync=600, latency=20), "all_reduce", 4_000_001, range(4), MEET_IN_MIDDLE, 50)
    chunk = ceil(4_000_001 / 4)
    one = 600 + 20 + cycles(chunk, RAIL)
    assert s.end(trace) == 4 * one + 100 + 50  # two chunks come in the first round, one in the second
    assert trace.columns("transfers")["bytes"].sum() == (8 + 4) * 2 * chunk


def test_hierarchy_on_an_ipu_machine():
    """Rungs swap halves, rails swap halves of what is left, then the same way back."""
    trace = run(s.machine(sync=600, latency=20), "all_reduce", 4_000_000, range(4), HIERARCHICAL, 50)
    rung, rail = 600 + 20 + cycles(2_000_000, RUNG), 600 + 20 + cycles(1_000_000, RAIL)
    assert s.end(trace) == 2 * rung + 2 * rail + 100 + 50  # a half and a quarter of the tensor, in quarters
    assert trace.columns("transfers")["bytes"].sum() == 2 * 4 * (2_000_000 + 1_000_000)


@pytest.mark.parametrize("kind", KINDS)
def test_hierarchy_on_the_torus(kind):
    """One rung round with half the data, then rings of 32 that close on both rails: 31 rounds of 1 / 128. Meeting in
    the middle is 16 rounds of 1 / 64: fewer syncs, more bytes, which does not pay here any more."""
    size = 128 * 54_400
    trace = run(s.machine("pod64", sync=100, latency=5), kind, size, range(64), HIERARCHICAL)
    rung, rail = 105 + cycles(size // 2, RUNG), 105 + cycles(size // 128, RAIL)
    assert s.end(trace) == (rung + 31 * rail) * (2 if kind == "all_reduce" else 1)


def test_a_rail_of_the_ladder_is_a_ring_of_two_hops():
    """IPUs 0, 2, 4, 6 of a POD16: every second one up, the others down; both ways round each way of a link."""
    members = (0, 2, 4, 6)
    trace = run(s.machine("pod16", sync=100, latency=5), "all_gather", 8 * 27_200, members, RING_PAIR)
    assert s.end(trace) == 3 * (100 + 10 + cycles(2 * 27_200, RAIL))


def test_eight_on_a_rail_have_at_most_two_hops():
    topology = load_machine("pod16").topology
    ring = topology.ring(range(0, 16, 2))
    assert ring == (0, 4, 8, 12, 14, 10, 6, 2)
    assert max(topology.hops(*pair) for pair in zip(ring, ring[1:] + ring[:1])) == 2


def gateways(machine):
    """The links of a preset of several racks with the pinned rates of the tests."""
    return s.machine(machine, sync=100, latency=5, gateway_link=GATEWAY)


def test_two_racks_swap_through_their_gateways():
    """IPUs 0 and 64: 32 GB/s up, 25 GB/s across, 32 GB/s down; the GW-Link is the narrowest."""
    trace = run(gateways("pod128"), "all_gather", 500_000, (0, 64))
    assert s.end(trace) == 100 + 7 + cycles(250_000, GATEWAY)
    used = {
        name
        for name, link in zip(trace.columns("links")["name"], trace.columns("links")["link_id"])
        if link in set(trace.columns("transfers")["link_id"])
    }
    assert used == {
        "pod128/ipu0->gateway0",
        "pod128/gateway0->gateway16",
        "pod128/gateway16->ipu64",
        "pod128/ipu64->gateway16",
        "pod128/gateway16->gateway0",
        "pod128/gateway0->ipu0",
    }


def test_four_ipus_share_a_gateway():
    """Rungs and rails first: a quarter of the data of each of four IPUs then crosses the same GW-Link."""
    members = (0, 1, 2, 3, 64, 65, 66, 67)
    size = 8 * 100_000
    trace = run(gateways("pod128"), "reduce_scatter", size, members, HIERARCHICAL)
    rung, rail = 105 + cycles(size // 2, RUNG), 105 + cycles(size // 4, RAIL)
    assert s.end(trace) == rung + rail + 107 + cycles(4 * size // 8, GATEWAY)


def test_rings_of_four_racks_have_half_the_ports_each_way():
    topology = load_machine("pod256").topology
    assert topology.link("gateway0", "gateway16").bandwidth_bytes_per_s == 12_500_000_000
    assert load_machine("pod128").topology.link("gateway0", "gateway16").bandwidth_bytes_per_s == 25_000_000_000
    assert [len(rings) for rings in dimensions(topology, tuple(range(256)))] == [128, 8, 64]


# -- the choice --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("nbytes", [1600, 6_400_000])
@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_what_a_collective_takes_alone(kind, nbytes, size):
    machine = s.machine("pod16", sync=600, latency=20)
    _, estimate = plan(machine.topology, kind, nbytes, tuple(range(size)), reduce=40)
    trace = run(machine, kind, nbytes, range(size), reduce=40)
    assert s.end(trace) == estimate
    for method in (RING_PAIR, MEET_IN_MIDDLE, HIERARCHICAL):
        assert s.end(run(machine, kind, nbytes, range(size), method, 40)) >= s.end(trace)


def test_small_messages_meet_in_the_middle_and_large_ones_use_both_rings():
    """Five IPUs of a ladder fill no grid; PopLibs, too, takes meet_in_middle_ring up to some size."""
    topology, members = load_machine("pod16").topology, (0, 1, 2, 3, 5)
    assert plan(topology, "reduce_scatter", 1000, members)[0].method == MEET_IN_MIDDLE
    assert plan(topology, "reduce_scatter", 100_000_000, (0, 1, 2, 3))[0].method == RING_PAIR


def test_small_all_reduces_are_broadcasts():
    """GCL user guide, 4.1.1: up to 2,048 bytes times members, the latency paid once; whoever reduces for its own shard,
    has a group with a stride or a second rack does not. Named, it is taken for any size, and a ring where nothing is
    reduced for all."""
    pod64, members = load_machine("pod64").topology, tuple(range(0, 64, 8))
    largest = MAX_BROADCAST_BYTES // 8
    found, _ = plan(pod64, "all_reduce", largest, members)
    assert (found.method, found.count) == (BROADCAST, 1)
    sent, received = deliver(found.rounds, members, "all_reduce")
    assert set(sent.values()) == set(received.values()) == {7}
    assert plan(pod64, "all_reduce", largest + 1, members)[0].method == MEET_IN_MIDDLE
    assert plan(pod64, "reduce_scatter", 4, members)[0].method != BROADCAST
    assert plan(load_machine("pod128").topology, "all_reduce", 4, (0, 1, 64, 65))[0].method != BROADCAST
    strided = Collective(0, "c", "all_reduce", 4, ((0, 2), (1, 3)), 0)
    assert Planner(pod64, CLOCK, CollectiveSyncs(600, 600, 4)).plan(strided, (0, 2)).method != BROADCAST
    assert plan(pod64, "all_reduce", 10**6, members, BROADCAST)[0].method == BROADCAST
    assert plan(pod64, "all_gather", 4, members, BROADCAST)[0].method in (RING_PAIR, MEET_IN_MIDDLE)


def test_a_broadcast_is_one_round_and_adds_what_came():
    """Three others' tensors, in one sync, over the longest way of the ladder; all go on together."""
    trace = run(s.machine("pod16", sync=600, latency=20), "all_reduce", 4, (0, 4, 8, 12), reduce=50)
    hops = load_machine("pod16").topology.hops(0, 12)
    moving = cycles(4 * 4, RAIL)  # at most two sends from each side cross the middle, each way
    assert 600 + 20 * hops + cycles(4, RAIL) + 150 <= s.end(trace) <= 600 + 20 * hops + moving + 150
    links = sum(2 * load_machine("pod16").topology.hops(*pair) for pair in itertools.combinations((0, 4, 8, 12), 2))
    assert trace.columns("transfers")["bytes"].sum() == 4 * links


def test_sixty_four_replicas_take_the_hierarchy():
    topology = load_machine("pod64").topology
    for nbytes in (1000, 51_000_000):
        assert plan(topology, "all_reduce", nbytes, tuple(range(64)))[0].method == HIERARCHICAL


def test_hierarchy_without_a_grid_is_the_cheaper_ring():
    topology = load_machine("pod16").topology
    assert dimensions(topology, (0, 1, 2)) == [] == dimensions(topology, (0, 2, 4, 6))
    assert plan(topology, "all_gather", 8, (0, 1, 2), HIERARCHICAL)[0].method in (RING_PAIR, MEET_IN_MIDDLE)


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_two_collectives_of_one_replica_share_the_rails():
    """Replicas of two IPUs on the rungs of one IPU-Machine: IPU 0 of each on one rail, IPU 1 on the other; and replicas
    of (0, 2) and (4, 6), whose collectives both cross the links 2-4 and take twice as long there.

        0 <-> 4 and 2 <-> 6 swap 27,200,000 / 2 bytes: over 0-2-4 and 2-4-6; link 2-4 carries both. Replicas of two
        IPUs: two syncs of 100.
    """
    step = s.collective("all_gather", 27_200_000, ((0, 1),))
    machine = s.machine("pod16", sync=100, latency=5)
    apart = simulate(s.program(s.seq(step), s.seq(step), placement=((0, 1), (2, 3)), replicas=2), machine)
    assert s.end(apart) == 205 + cycles(13_600_000, RAIL)
    shared = simulate(s.program(s.seq(step), s.seq(step), placement=((0, 2), (4, 6)), replicas=2), machine)
    assert s.end(shared) == 210 + cycles(2 * 13_600_000, RAIL)


@settings(max_examples=25)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(METHODS),
    st.integers(0, 100_000),
    st.sets(st.integers(0, 15), min_size=2, max_size=9),
    st.integers(0, 50),
)
def test_bytes_are_conserved(kind, method, nbytes, members, reduce):
    members = sorted(members)
    machine = s.machine("pod16", sync=10, latency=3)
    trace = run(machine, kind, nbytes, members, method, reduce)
    check(trace)
    steps, instances = trace.columns("steps"), trace.columns("instances")
    links = steps["kind"] == "link"
    runs = np.array([int((instances["segment"] == segment).sum()) for segment in steps["segment"]])
    received, sent = (int((steps[name] * runs)[links].sum()) for name in ("bytes_in", "bytes_out"))
    assert received == sent
    found, _ = plan(machine.topology, kind, nbytes, tuple(members), method, reduce, sync=10)
    assert received == sum(item.chunk(nbytes) * len(item.sends) * item.times for item in found.rounds)


def test_an_unknown_method_is_refused():
    with pytest.raises(SimulationError, match="method is 'tree'; allowed: auto, bidirectional_ring_pair, meet"):
        run(s.machine(), "all_gather", 8, (0, 1), "tree")


def test_each_rack_has_its_own_host_server():
    """The host prepares a slice in 500 cycles a replica; replicas of one rack share it, those of two racks do not."""
    machine = s.machine("pod128", callback=500 / CLOCK, gateway_link=GATEWAY)
    waits = {}
    for second in (1, 64):
        program = s.program(s.seq(s.h2d(0)), placement=((0,), (second,)), replicas=2)
        waits[second] = [dur for _, _, _, dur in s.slices(simulate(program, machine), kind="host_begin")]
    assert waits == {1: [1000, 1000], 64: [500, 500]}
