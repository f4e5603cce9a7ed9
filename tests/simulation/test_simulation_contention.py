"""Shared links, DDR and host against schedules computed by hand, to the cycle.

Pinned rates (see ``simprograms``): clock 1.325 GHz, DDR 16 GB/s per IPU-Machine, PCIe 5.5 GB/s each way, IPU-Links 81.6
GB/s on a rung and 27.2 GB/s on a rail.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from math import ceil

import pytest
import simprograms as s
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.machine.topology import Topology
from ipuperf.simulation import SimulationError, fair_rates, simulate

CLOCK = 1_325_000_000


def cycles(nbytes, rate):
    return ceil(Fraction(nbytes * CLOCK, rate))


def ends(trace, kind):
    """End of each slice of this kind, by IPU."""
    return [start + dur for _, what, start, dur in s.slices(trace) if what == kind]


# -- DDR ---------------------------------------------------------------------------------------------------------------


def test_one_load_has_the_whole_ddr():
    trace = simulate(s.program(s.seq(s.load(1_600_000))), s.machine())
    assert s.slices(trace) == [(0, "remote_load", 0, 132_500)]


def test_gateway_link_limits_when_ddr_is_faster():
    assert s.end(simulate(s.program(s.seq(s.load(3_200_000))), s.machine(ddr=64_000_000_000))) == 132_500


def test_four_ipus_share_the_ddr():
    trace = simulate(s.program(s.seq(s.load(1_000_000)), replicas=4), s.machine())
    assert s.slices(trace) == [(ipu, "remote_load", 0, 331_250) for ipu in range(4)]


def test_load_that_starts_halfway_through_another():
    # A alone for 66,250 cycles moves half; then both at half rate for 132,500; then B's second half alone.
    program = s.program(s.seq(s.load(1_600_000)), s.seq(s.phase(66_250), s.load(1_600_000)))
    assert ends(simulate(program, s.machine()), "remote_load") == [198_750, 265_000]


def test_loads_and_stores_share_the_ddr():
    program = s.program(s.seq(s.load(1_600_000)), s.seq(s.store(1_600_000)))
    assert s.end(simulate(program, s.machine())) == 265_000


def test_stores_that_are_slower_leave_the_rest_to_loads():
    """The DDR gives 16 GB/s, 4 at most to stores; beside a store, a load has the other 12."""
    machine = s.machine()
    links = [
        dataclasses.replace(link, bandwidth_bytes_per_s=4_000_000_000) if link.destination.startswith("ddr") else link
        for link in machine.topology.links
    ]
    slow = dataclasses.replace(machine, topology=Topology(tuple(links), machine.num_ipus))
    assert s.end(simulate(s.program(s.seq(s.store(1_600_000))), slow)) == 530_000
    together = simulate(s.program(s.seq(s.load(1_600_000)), s.seq(s.store(1_600_000))), slow)
    assert ends(together, "remote_load") == [176_667]
    assert ends(together, "remote_store") == [530_000]
    # Four stores share what stores reach, not what loads do.
    four = simulate(s.program(*[s.seq(s.store(400_000)) for _ in range(4)]), slow)
    assert s.end(four) == 530_000


def test_each_ipu_machine_has_its_own_ddr():
    program = s.program(s.seq(s.load(1_600_000)), replicas=2, placement=((0,), (4,)))
    assert s.end(simulate(program, s.machine("pod16"))) == 132_500


def test_latency_and_sync_are_paid_before_the_transfer_and_padding_is_on_the_wire():
    machine = s.machine(remote=1000 / CLOCK, sync=600)
    trace = simulate(s.program(s.seq(s.load(100, wire=1_600_000))), machine)
    assert s.slices(trace) == [(0, "sync_external", 0, 600), (0, "remote_load", 600, 133_500)]
    moved = trace.columns("transfers")
    assert set(moved["start"]) == {1600}
    assert set(moved["bytes"]) == {1_600_000}
    assert trace.columns("steps")["bytes_in"].sum() == 100


def test_a_transfer_ends_at_the_next_whole_cycle():
    assert s.end(simulate(s.program(s.seq(s.load(1))), s.machine())) == 1
    assert s.end(simulate(s.program(s.seq(s.load(13))), s.machine())) == 2  # 12.08 bytes per cycle


# -- IPU-Links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rounds", "reduces"), [("all_reduce", 6, 3), ("reduce_scatter", 3, 3), ("all_gather", 3, 0)]
)
def test_collective_of_four_is_the_closed_form(kind, rounds, reduces):
    groups = ((0, 1, 2, 3),)
    program = s.program(s.seq(s.collective(kind, 4_000_001, groups, 50)), replicas=4)
    trace = simulate(program, s.machine(sync=600, latency=20))
    chunk = ceil(4_000_001 / 8)
    assert s.end(trace) == rounds * (600 + 20 + cycles(chunk, 27_200_000_000)) + reduces * 50
    moved = trace.columns("transfers")
    assert moved["bytes"].sum() == rounds * 4 * 2 * chunk  # one hop between neighbours
    assert set(moved["kind"]) == {kind}


def test_collective_of_two_on_a_rung():
    program = s.program(s.seq(s.collective("all_reduce", 8_160_000, ((0, 1),), 9)), replicas=2)
    trace = simulate(program, s.machine(sync=600, latency=20))
    assert s.end(trace) == 2 * (600 + 20 + cycles(4_080_000, 81_600_000_000)) + 9


def test_collective_of_eight_over_two_ipu_machines():
    gather = s.collective("all_gather", 16_000, (tuple(range(8)),), method="bidirectional_ring_pair")
    program = s.program(s.seq(gather), replicas=8)
    trace = simulate(program, s.machine("pod16", sync=100, latency=5))
    assert s.end(trace) == 7 * (100 + 5 + cycles(1000, 27_200_000_000))


def test_members_wait_for_the_last_one():
    """IPUs 0 and 1 share the network card of their IPU-Machine, IPU 4 has one to itself: it is there 1,325 earlier."""
    steps = s.seq(s.h2d(5500), s.collective("all_gather", 3, ((0, 1, 2),)))
    late = s.program(steps, replicas=3, placement=((0,), (1,), (4,)))
    trace = simulate(late, s.machine("pod16", sync=10))
    waits = {ipu: (start, dur) for ipu, kind, start, dur in s.slices(trace) if kind == "sync_external"}
    assert waits == {0: (2660, 10), 1: (2660, 10), 4: (1335, 1335)}


def test_two_collectives_share_a_rail():
    # Groups {1, 5} and {3, 7} of the ladder: routes 1-3-5 and 3-5-7 share the rail 3-5 in both directions.
    placement = ((1,), (3,), (5,), (7,))
    both = s.collective("all_gather", 2_720_000, ((0, 2), (1, 3)))
    apart = s.collective("all_gather", 2_720_000, ((0, 1), (2, 3)))
    machine = s.machine("pod16")
    assert s.end(simulate(s.program(s.seq(both), replicas=4, placement=placement), machine)) == 132_500
    assert s.end(simulate(s.program(s.seq(apart), replicas=4, placement=placement), machine)) == 66_250


def test_copy_meets_and_crosses_every_link_of_its_route():
    program = s.program(
        s.seq(s.phase(500), s.copy(0, 3, 27_200)), s.seq(), s.seq(), s.seq(s.copy(0, 3, 27_200), s.phase(5))
    )
    trace = simulate(program, s.machine(sync=7, latency=20))
    mine = [row for row in s.slices(trace) if row[1] != "idle"]
    assert mine == [
        (0, "compute", 0, 500),
        (0, "sync_external", 500, 7),
        (0, "link", 507, 40 + 1325),
        (3, "sync_external", 0, 507),
        (3, "link", 507, 40 + 1325),
        (3, "compute", 1872, 5),
    ]
    names = trace.columns("links")["name"]
    assert [names[i] for i in trace.columns("transfers")["link_id"]] == ["pod4/ipu0->ipu1", "pod4/ipu1->ipu3"]


# -- host --------------------------------------------------------------------------------------------------------------


def feed(slices, **options):
    machine = s.machine(callback=100 / CLOCK, stream=10 / CLOCK)
    program = s.program(s.seq(*[s.h2d(5500)] * slices), replicas=2)  # 1,325 cycles of PCIe when alone
    return simulate(program, machine, **options)


def test_host_feeds_two_replicas():
    # The slices of both replicas are ready at 200; 10 later both move at half rate for 2,650. Then the slots are free,
    # and the next slices are ready 200 later.
    trace = feed(2)
    assert ends(trace, "host_begin") == [200, 3060] * 2
    assert ends(trace, "host_mid") == [2860, 5720] * 2
    assert s.end(trace) == 5720


def test_two_slices_ahead():
    trace = feed(2, prefetch_depth=2)
    assert ends(trace, "host_begin") == [200] * 2  # the second slice is ready at 400, long before
    assert ends(trace, "host_mid") == [2860, 5520] * 2
    assert list(trace.columns("host_events")["start"]) == [0, 0, 200]


def test_threads_share_the_replicas_of_a_slice():
    program = s.program(s.seq(s.h2d(0)), replicas=4)
    machine = s.machine(host_sync=30 / CLOCK, callback=100 / CLOCK)
    waits = [s.end(simulate(program, machine, callback_threads=n)) for n in (1, 2, 3, 4, 9, None)]
    assert waits == [30 + 100 * callbacks for callbacks in (4, 2, 2, 1, 1, 1)]
    with pytest.raises(SimulationError, match="callback_threads is 0, it must be a whole number above 0 or None"):
        simulate(program, machine, callback_threads=0)


def test_a_host_sync_costs_once_for_all_replicas_and_all_streams_of_an_exchange():
    machine = s.machine("pod16", host_sync=1000 / CLOCK, callback=10 / CLOCK)
    exchange = s.host((0, "h2d", 0, "image"), (0, "h2d", 0, "label"), (0, "d2h", 0, "loss"), ipus=(0,))
    together = simulate(s.program(s.seq(exchange, exchange), replicas=8), machine)
    events = together.columns("host_events")
    # First slices of both streams; after the first exchange the next ones and the loss; then the loss alone.
    assert list(zip(events["label"], events["start"], events["dur"])) == [
        ("session.run", 0, 0),
        ("prepare image", 0, 1080),
        ("prepare label", 1080, 80),
        ("prepare image", 1160, 1080),
        ("prepare label", 2240, 80),
        ("handle loss", 2320, 80),
        ("handle loss", 2400, 1080),
    ]
    assert s.end(together) == 3480
    apart = s.seq(*[s.h2d(0, "image"), s.h2d(0, "label")] * 2)
    events = simulate(s.program(apart, replicas=8), machine).columns("host_events")
    assert list(events["dur"]) == [0, 1080, 80, 1080, 1080]


def test_each_process_of_the_host_serves_its_own_replicas():
    program = s.program(s.seq(s.h2d(0)), replicas=4)
    machine = s.machine(host_sync=30 / CLOCK, callback=100 / CLOCK)
    ends_ = [s.end(simulate(program, machine, host_processes=n)) for n in (1, 2, 3, 4)]
    assert ends_ == [30 + 100 * callbacks for callbacks in (4, 2, 2, 1)]
    labels = simulate(program, machine, host_processes=2).columns("host_events")["label"]
    assert list(labels) == ["session.run", "prepare image host 0", "prepare image host 1"]
    with pytest.raises(SimulationError, match="host_processes is 5, it must be a whole number from 1 to 4 .repl"):
        simulate(program, machine, host_processes=5)


def test_a_run_begins_with_the_last_of_its_processes():
    machine = s.machine("pod16", run=100 / CLOCK, spread=120 / CLOCK)
    program = s.program(s.seq(s.phase(7)), replicas=4)
    ends_ = [s.end(simulate(program, machine, host_processes=n)) for n in (1, 2, 3, 4)]
    assert ends_ == [107 + late for late in (0, 60, 60 + 40, 60 + 40 + 30)]  # expected maxima less the mean


def test_a_front_end_pays_for_its_calls_and_the_engine_does_not():
    machine = s.machine(run=100 / CLOCK, call=400 / CLOCK)
    program = s.program(s.seq(s.phase(7)))
    assert [s.end(simulate(program, machine, front_end=front)) for front in (True, False)] == [507, 107]


def test_without_prefetch_the_host_begins_when_asked():
    machine = s.machine(callback=100 / CLOCK)
    program = s.program(s.seq(s.phase(1000), s.h2d(0), s.phase(1000), s.h2d(0)))
    trace = simulate(program, machine, prefetch_depth=0)
    assert ends(trace, "host_begin") == [1100, 2300]
    assert ends(trace, "host_end") == [1200, 2400]  # the IPU waits until the host has seen that the slice is there
    late = simulate(program, s.machine(callback=100 / CLOCK, answer=20 / CLOCK), prefetch_depth=0)
    assert ends(late, "host_begin") == [1120, 2360]
    assert ends(late, "host_end") == [1240, 2480]
    assert ends(simulate(program, machine), "host_begin") == []  # one slice ahead: never waits
    assert s.end(simulate(program, machine)) == 2000


def test_without_prefetching_the_host_prepares_what_ipus_wait_for_and_no_more():
    """Asked at 0 and 10 while a callback of 100 cycles is under way; after each of the two copies the host is told that
    it is over (at 100 and 200), so the IPUs go on at 300 and 400; asked at 1300 and 2400."""
    one = s.seq(s.h2d(0), s.phase(1000), s.h2d(0))
    two = s.seq(s.phase(10), s.h2d(0), s.phase(2000), s.h2d(0))
    trace = simulate(s.program(one, two), s.machine(callback=100 / 1.325e9), prefetch_depth=0)
    events = trace.columns("host_events")
    assert events["start"][events["label"] == "prepare image"].tolist() == [0, 100, 1300, 2400]


def test_host_does_not_prepare_more_than_the_run_takes():
    trace = simulate(s.program(s.seq(s.repeat(3, s.h2d(8)))), s.machine(callback=1e-7), prefetch_depth=5)
    assert len(trace.columns("host_events")["label"]) == 1 + 3


def test_run_ends_when_the_host_has_handled_everything():
    machine = s.machine(run=1000 / CLOCK, callback=100 / CLOCK)
    trace = simulate(s.program(s.seq(s.d2h(5500)), replicas=2), machine)
    rows = [("host_run", 0, 1000), ("host_mid", 1000, 2650), ("host_run", 3650, 200)]
    assert s.slices(trace) == [(ipu, *row) for ipu in range(2) for row in rows]
    assert s.end(trace) == 3850
    events = trace.columns("host_events")
    assert list(events["label"]) == ["session.run", "handle loss"]
    assert list(events["start"]) == [0, 3650]


def test_streams_are_served_in_the_order_of_the_program():
    streams = {"label": ("h2d", 0), "image": ("h2d", 0)}
    program = s.program(s.seq(s.h2d(0, "image"), s.h2d(0, "label")), replicas=2, streams=streams)
    labels = simulate(program, s.machine(callback=1e-7)).columns("host_events")["label"]
    assert list(labels[1:]) == ["prepare label", "prepare image"]


# -- max-min fairness --------------------------------------------------------------------------------------------------


def test_what_a_tight_link_leaves_goes_to_the_others():
    assert fair_rates([(0,), (0, 1), (1,)], [10, 4]) == [8, 2, 2]
    assert fair_rates([(0, 1), (1, 2), (2,)], [100, 30, 60]) == [15, 15, 45]


@settings(derandomize=True)
@given(st.data())
def test_rates_are_max_min_fair(data):
    capacity = [data.draw(st.integers(1, 50)) * 720_720 for _ in range(4)]
    routes = data.draw(st.lists(st.sets(st.integers(0, 3), min_size=1).map(lambda r: tuple(sorted(r))), max_size=9))
    rates = fair_rates(routes, capacity)
    load = [sum(rate for rate, route in zip(rates, routes) if link in route) for link in range(4)]
    assert all(used <= limit for used, limit in zip(load, capacity))
    for rate, route in zip(rates, routes):  # every flow has a full link on which nobody is faster
        assert any(
            load[link] > capacity[link] - len(routes) and rate >= max(r for r, o in zip(rates, routes) if link in o) - 1
            for link in route
        )
    backwards = fair_rates(routes[::-1], capacity)
    assert backwards[::-1] == rates
