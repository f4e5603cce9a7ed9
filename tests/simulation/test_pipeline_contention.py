"""Pipelines that share links, DDR and host, against schedules computed by hand, to the cycle.

Pinned rates (see ``simprograms``), in bytes per 1,325 cycles, called u below: a rail of the ladder 27,200, a rung
81,600, DDR 16,000, PCIe 5,500 each way. Rails of a ladder join IPUs 0-2-4-6 and 1-3-5-7, rungs join 0-1, 2-3, ...
"""

from __future__ import annotations

import pytest
import simprograms as s

from ipuperf.simulation import SimulationError, simulate
from ipuperf.trace import check

U = 1325
CLOCK = 1_325_000_000


def rows(trace, *kinds):
    """(ipu, kind, start, end) of the slices of these kinds (default: all but idle), by IPU and start."""
    found = [(ipu, kind, start, start + dur) for ipu, kind, start, dur in s.slices(trace)]
    found.sort(key=lambda row: (row[0], row[2]))
    return [row for row in found if (row[1] in kinds if kinds else row[1] != "idle")]


# -- (a) copies of two pipelines over one rail -------------------------------------------------------------------------


def test_two_replicas_copy_over_one_rail():
    # 1->5 goes over the rails 1-3 and 3-5, 3->7 over 3-5 and 5-7: each has half of 3-5, 54,400 bytes in 4u, not 2u.
    program = s.program(*[s.seq(s.copy(0, 1, 54_400))] * 2, replicas=2, placement=((1, 5), (3, 7)))
    trace = simulate(program, s.machine("pod16"))
    assert rows(trace) == [(ipu, "link", 0, 4 * U) for ipu in (1, 3, 5, 7)]


def test_a_second_pipeline_joins_on_the_rail():
    # Sync 7 and two hops of 20 cycles: the first copy enters at 47, the second, one u later, at 47 + u.
    #   47 .. +1u: A alone moves 27,200 of its 81,600
    #   .. +3u: half each, B moves its 27,200 in 2u and is through; A has 27,200 left
    #   .. +4u: A alone
    first, second = s.copy(0, 1, 81_600), s.copy(2, 3, 27_200)
    late = s.phase(U)
    program = s.program(s.seq(first), s.seq(first), s.seq(late, second), s.seq(second), placement=((1, 5, 3, 7),))
    trace = simulate(program, s.machine("pod16", sync=7, latency=20))
    assert rows(trace, "link") == [
        (1, "link", 7, 47 + 4 * U),
        (3, "link", U + 7, 47 + 3 * U),
        (5, "link", 7, 47 + 4 * U),
        (7, "link", U + 7, 47 + 3 * U),
    ]
    assert (7, "sync_external", 0, U + 7) in rows(trace)  # it waits for the late one


# -- (b) a pipeline copy against an all-reduce -------------------------------------------------------------------------


def test_copy_against_an_all_reduce():
    # The all-reduce of IPUs 1 and 7 sends 54,400 bytes each way over the rails 1-3-5-7, in two rounds. Both replicas
    # copy 27,200 bytes, replica 0 over the rail 3->5, replica 1 over 2->4.
    #   round 1 begins at 200 (two syncs: replicas of several IPUs) and enters at 215 (three hops of 5); the copies:
    #   110 + 100 + 5 = 215
    #   copy of replica 1, alone:                        215 + 1u
    #   copy of replica 0, half of the rail:             215 + 2u; the other way of the all-reduce, alone: 215 + 2u
    #   3->5 of the all-reduce: 27,200 left at 215 + 2u: 215 + 3u
    #   round 2 begins after 50 of reduction and 200 of syncs, enters 15 later, 2u alone, no reduction
    reduce = s.seq(s.collective("all_reduce", 108_800, ((0, 1),), 50))
    copy = s.copy(1, 2, 27_200)
    program = s.program(reduce, s.seq(s.phase(110), copy), s.seq(copy), replicas=2, placement=((1, 3, 5), (7, 2, 4)))
    trace = simulate(program, s.machine("pod16", sync=100, latency=5))
    half, whole = 215 + 2 * U, 215 + U
    first = 215 + 3 * U
    last = first + 50 + 200 + 15 + 2 * U
    assert rows(trace, "link") == [
        (1, "link", 200, first),
        (1, "link", first + 250, last),
        (2, "link", 210, whole),
        (3, "link", 210, half),
        (4, "link", 210, whole),
        (5, "link", 210, half),
        (7, "link", 200, first),
        (7, "link", first + 250, last),
    ]
    assert s.end(trace) == last


# -- (c) remote loads of the four IPUs of an IPU-Machine ---------------------------------------------------------------


def test_remote_loads_of_four_ipus():
    # A 64,000 from 0, B 64,000 from 1u, C 32,000 and D 16,000 from 3u; the DDR moves 16,000 per u.
    #   0..1u   A 16,000                              left: A 48,000
    #   1..3u   A, B 8,000 per u each                 left: A 32,000 B 48,000
    #   3..7u   A, B, C, D 4,000 per u each           left: A 16,000 B 32,000 C 16,000, D through at 7u
    #   7..10u  A, B, C 16,000 / 3 per u each         left: B 16,000, A and C through at 10u
    #   10..11u B alone                               176,000 bytes in 11u
    program = s.program(
        s.seq(s.load(64_000)),
        s.seq(s.phase(U), s.load(64_000)),
        s.seq(s.phase(3 * U), s.load(32_000)),
        s.seq(s.phase(3 * U), s.load(16_000)),
    )
    trace = simulate(program, s.machine())
    assert [end for *_, end in rows(trace, "remote_load")] == [10 * U, 11 * U, 10 * U, 7 * U]


# -- (d) the host feeds two replicas -----------------------------------------------------------------------------------


def test_host_feeds_two_pipelines():
    # v = 3u; PCIe moves 16,500 bytes per v each way. The host prepares in 1v for each replica, one slice ahead: images
    # are ready at 2v, labels at 4v. First meeting at 7 (sync), nobody waits for that later.
    # To the IPUs (image 33,000, label 16,500):
    #   2..4v    i0, i1 8,250 per v each              left: 16,500 each
    #   4..8v    i0, l0, i1, l1 4,125 per v each      99,000 bytes in 6v
    # To the host (loss 49,500, begins with the label of its IPU):
    #   4..10v   half each
    # Both go on 7 after 10v; the host then takes 2v for the losses.
    v = 3 * U
    exchange = s.host((0, "h2d", 33_000, "image"), (1, "h2d", 16_500, "label"), (1, "d2h", 49_500, "loss"))
    program = s.program(s.seq(exchange), s.seq(exchange), replicas=2)
    trace = simulate(program, s.machine(callback=v / CLOCK, sync=7))
    assert rows(trace, "sync_external", "host_begin", "host_mid", "host_end") == [
        (0, "sync_external", 0, 7), (0, "host_begin", 7, 2 * v), (0, "host_mid", 2 * v, 8 * v),
        (0, "host_end", 8 * v, 10 * v + 7),
        (1, "sync_external", 0, 7), (1, "host_begin", 7, 4 * v), (1, "host_mid", 4 * v, 10 * v),
        (1, "host_end", 10 * v, 10 * v + 7),
        (2, "sync_external", 0, 7), (2, "host_begin", 7, 2 * v), (2, "host_mid", 2 * v, 8 * v),
        (2, "host_end", 8 * v, 10 * v + 7),
        (3, "sync_external", 0, 7), (3, "host_begin", 7, 4 * v), (3, "host_mid", 4 * v, 10 * v),
        (3, "host_end", 10 * v, 10 * v + 7),
    ]  # fmt: skip
    assert s.end(trace) == 12 * v + 7
    assert check(trace) == []


def test_all_ipus_stand_during_a_host_exchange():
    # IPU 1 computes until 500; all meet at 507; IPU 0 copies for 1u; all go on 7 later. Alone IPU 0 would not wait.
    exchange = s.host((0, "h2d", 5500, "image"), ipus=(0, 1, 2))
    program = s.program(s.seq(exchange, s.phase(9)), s.seq(s.phase(500), exchange), s.seq(exchange))
    trace = simulate(program, s.machine(sync=7))
    over = 507 + U + 7
    assert rows(trace) == [
        (0, "sync_external", 0, 507), (0, "host_mid", 507, 507 + U), (0, "host_end", 507 + U, over),
        (0, "compute", over, over + 9),
        (1, "compute", 0, 500), (1, "sync_external", 500, 507), (1, "host_end", 507, over),
        (2, "sync_external", 0, 507), (2, "host_end", 507, over),
    ]  # fmt: skip
    alone = simulate(s.program(s.seq(s.h2d(5500)), s.seq(s.phase(500))), s.machine(sync=7))
    assert rows(alone, "host_mid", "host_end") == [(0, "host_mid", 0, U), (0, "host_end", U, U + 7)]


def test_slices_of_an_exchange_are_asked_for_together():
    # Without prefetching the host begins when it is asked, and takes 100 for a slice: it is asked for both at 0, and
    # told that both are there at 200 + 2u. When the IPU copies one after the other, it is asked for the second when the
    # host has seen that the first has arrived, at 200 + 1u.
    machine = s.machine(callback=100 / CLOCK)
    together = s.host((0, "h2d", 5500, "image"), (0, "h2d", 5500, "label"), ipus=(0,))
    trace = simulate(s.program(s.seq(together)), machine, prefetch_depth=0)
    arrived = 200 + 2 * U
    assert rows(trace) == [
        (0, "host_begin", 0, 200),
        (0, "host_mid", 200, arrived),
        (0, "host_end", arrived, arrived + 200),
    ]
    assert list(trace.columns("host_events")["start"]) == [0, 0, 100, arrived, arrived + 100]
    apart = simulate(s.program(s.seq(s.h2d(5500, "image"), s.h2d(5500, "label"))), machine, prefetch_depth=0)
    assert list(apart.columns("host_events")["start"]) == [0, 0, 100 + U, 200 + U, 300 + 2 * U]


# -- exchanges of several IPUs -----------------------------------------------------------------------------------------


def test_exchange_with_full_duplex_neighbours():
    # Four stages on IPUs 0, 1, 3, 2: rung, rail, rung. Activations of 81,600 go up (1u, 3u, 1u), gradients of 163,200
    # down (2u, 6u, 2u), all from 27 on (sync 7, one hop of 20); the two directions do not disturb each other.
    # Each IPU goes on when its own transfers are through: the outer ones after 2u, the inner ones after 6u.
    up = [(i, i + 1, 81_600) for i in range(3)]
    down = [(i + 1, i, 163_200) for i in range(3)]
    exchange = s.merged(*up, *down)
    program = s.program(*[s.seq(exchange, s.phase(5))] * 4, placement=((0, 1, 3, 2),))
    trace = simulate(program, s.machine(sync=7, latency=20))
    outer, inner = 27 + 2 * U, 27 + 6 * U
    assert rows(trace, "link") == [(ipu, "link", 7, end) for ipu, end in enumerate([outer, inner, outer, inner])]
    assert rows(trace, "compute") == [
        (ipu, "compute", end, end + 5) for ipu, end in enumerate([outer, inner, outer, inner])
    ]
    steps = trace.table("steps")
    links = steps[steps["kind"] == "link"]
    assert sorted(zip(links["bytes_in"], links["bytes_out"])) == [
        (81_600, 163_200),
        (163_200, 81_600),
        (244_800, 244_800),
        (244_800, 244_800),
    ]
    moved = trace.table("transfers")
    assert sorted(moved["bytes"]) == [81_600] * 3 + [163_200] * 3
    assert set(moved["kind"]) == {"p2p"}
    assert check(trace) == []


def test_skip_connection_shares_a_rung():
    # 0->1 has 136,000 bytes over the rung; 0->3 27,200 over the same rung and the rail 1->3, which limits it to 27,200
    # per u. What is left of the rung, 54,400 per u, goes to the first; after 1u it has 81,600 left and the rung alone.
    exchange = s.merged((0, 1, 136_000), (0, 2, 27_200))
    program = s.program(*[s.seq(exchange)] * 3, placement=((0, 1, 3),))
    trace = simulate(program, s.machine())
    assert rows(trace, "link") == [(0, "link", 0, 2 * U), (1, "link", 0, 2 * U), (3, "link", 0, U)]


def test_exchanges_in_a_loop_fold():
    # u for the copy one way, 2u for the other; then 10 of compute on IPU 1, for which IPU 0 waits.
    exchange = s.merged((0, 1, 81_600), (1, 0, 163_200))
    feed = s.host((0, "h2d", 550, "image"))
    one, two = s.repeat(700, feed, exchange), s.repeat(700, feed, exchange, s.phase(10))
    program = s.program(s.seq(one), s.seq(two), replicas=2)
    machine = s.machine(sync=3, callback=40 / CLOCK)
    trace = simulate(program, machine)
    assert trace == simulate(program, machine, fold=False)
    moved = trace.table("transfers")
    assert (moved["kind"] == "p2p").sum() == 2 * 700 * 2


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_exchange_that_one_ipu_never_reaches():
    exchange = s.merged((0, 1, 8), (1, 2, 8), name="activations")
    with pytest.raises(SimulationError, match=r"(?s)deadlock.*'activations' with IPU 1 and IPU 2 .*finished"):
        simulate(s.program(s.seq(exchange), s.seq(exchange), s.seq()), s.machine())


def test_exchanges_disagree():
    one, two = s.merged((0, 1, 8), (1, 0, 4), name="a"), s.merged((0, 1, 8), (1, 0, 5), name="b")
    with pytest.raises(
        SimulationError, match="IPU 1 and IPU 0 meet in different copies: 4 bytes in 'a'.*5 bytes in 'b'"
    ):
        simulate(s.program(s.seq(one), s.seq(two)), s.machine())


def test_host_exchange_that_one_ipu_never_reaches():
    exchange = s.host((0, "h2d", 8, "image"), name="feed")
    with pytest.raises(SimulationError, match="step 'feed' for the begin of host exchange 'feed' of IPUs 0, 1"):
        simulate(s.program(s.seq(exchange), s.seq()), s.machine())


def test_host_exchanges_disagree():
    one, two = s.host((0, "h2d", 8, "image"), name="a"), s.host((0, "h2d", 9, "image"), name="b")
    with pytest.raises(SimulationError, match="different host exchanges: 'a' on replica 0 IPU 0.*'b' on"):
        simulate(s.program(s.seq(one), s.seq(two)), s.machine())


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (s.merged(), "no copies"),
        (s.merged((0, 1, 8), (0, 1, 9)), "two copies from IPU 0 to IPU 1"),
        (s.merged((0, 1, 8), (1, 0, -9)), "bytes is -9"),
        (s.host(ipus=(1,)), "participants are IPU 1, allowed: IPU 0"),
        (s.host(ipus=(0, 4)), "participants are IPU 0 and IPU 4"),
        (s.host((1, "h2d", 8, "image"), ipus=(0,)), "a copy on IPU 1, allowed: IPU 0"),
        (s.host((0, "up", 8, "image")), "'up'; allowed: h2d, d2h"),
        (s.host((0, "h2d", -8, "image")), "bytes is -8"),
        (s.host((0, "h2d", 8, "image"), (0, "h2d", 9, "image")), "two copies of stream 'image' on IPU 0"),
    ],
)
def test_steps_that_make_no_sense(step, words):
    with pytest.raises(SimulationError, match=words):
        simulate(s.program(s.seq(step), s.seq()), s.machine())


def test_a_slow_host_hides_what_standing_costs():
    # Alone IPU 0 loads (1u + 600 of sync) and IPU 1 computes 2u at the same time: 2u, since 600 < 1u. Standing, both
    # meet (600), the load passes (1u), they meet again (600), then IPU 1 computes.
    # A host that needs 9u for a slice: alone ready at 9u, arrived at 10u, + 600; IPU 1 is through long before.
    # Standing: the same, then 2u of compute.
    exchange = s.host((0, "h2d", 5500, "image"))
    alone = s.program(s.seq(s.h2d(5500)), s.seq(s.phase(2 * U)))
    stand = s.program(s.seq(exchange), s.seq(exchange, s.phase(2 * U)))
    fast, slow = s.machine(sync=600), s.machine(sync=600, callback=9 * U / CLOCK)
    assert [s.end(simulate(program, fast)) for program in (alone, stand)] == [2 * U, 600 + U + 600 + 2 * U]
    assert [s.end(simulate(program, slow)) for program in (alone, stand)] == [10 * U + 600, 10 * U + 600 + 2 * U]
    # Many slices: the host is the bound either way, and only the tail differs: the last compute. A slot is free when
    # the copy is over, its sync included.
    loads = s.program(s.seq(s.repeat(50, s.h2d(5500))), s.seq(s.repeat(50, s.phase(2 * U))))
    stands = s.program(s.seq(s.repeat(50, exchange)), s.seq(s.repeat(50, exchange, s.phase(2 * U))))
    ends = [s.end(simulate(program, slow)) for program in (loads, stands)]
    assert ends == [50 * (10 * U + 600), 50 * (10 * U + 600) + 2 * U]
