"""Machines with faults: none equals plain, slower is never faster, stragglers and samples by hand."""

from __future__ import annotations

import dataclasses
import math
from random import Random
from unittest.mock import patch

import pytest
import simprograms as sp
from test_schedule_times import MAKERS

from ipuperf.simulation import SimulationError, sampled, simulate
from ipuperf.simulation.ipu import IpuProcess
from ipuperf.simulation.jitter import Draw
from ipuperf.simulation.samples import Sampler, quantile
from ipuperf.trace.schema import TABLES

COSTS = {"run": 1e-6, "call": 1e-6, "host_sync": 2e-7, "callback": 1e-7, "answer": 3e-8, "stream": 1e-7, "remote": 5e-8}
FIGURES = [
    "ipu {ipu} at {rate}",
    "ipu {ipu} tiles 0-1 at {rate}",
    "link ipu0-ipu1 at {rate}",
    "link ipu{ipu}-gateway0 at {rate}",
    "link nic0-host0 at {rate}",
    "ddr 0 at {rate}",
    "host run constant {time}",
    "host sync constant {time}",
    "host callback uniform {time} {time}",
]


def faults(rate, time, ipu=1):
    return [figure.format(ipu=ipu, rate=rate, time=time) for figure in FIGURES]


def require_same(one, other):
    for name in TABLES:
        found, wanted = one.columns(name), other.columns(name)
        for column in wanted:
            assert found[column].tolist() == wanted[column].tolist(), (name, column)


@pytest.mark.parametrize("seed", range(20))
def test_no_perturbation_is_the_plain_run_to_the_row(seed):
    program, machine = sp.random_program(seed), sp.machine("pod4", **COSTS, sync=5, latency=3)
    nothing = machine.with_faults(*(text for ipu in range(4) for text in faults(1, "0s", ipu)))
    for options in ({}, {"prefetch_depth": 0}, {"fidelity": "tile"})[: 3 if seed < 4 else 2]:
        require_same(simulate(program, nothing, **options), simulate(program, machine, **options))


@pytest.mark.parametrize("seed", range(20))
def test_slower_in_every_figure_is_never_faster(seed):
    """All IPUs, links and the host at once. (One slow thing alone may bring others into a better order.)"""
    program, machine = sp.random_program(seed), sp.machine("pod4", **COSTS, sync=5, latency=3)
    ends = [sp.end(simulate(program, machine))]
    for rate, time in ((0.9, "100ns"), (0.5, "1us")):
        slow = [text for ipu in range(4) for text in faults(rate, time, ipu)]
        slow += [f"link {ends} at {rate}" for ends in ("ipu0-ipu2", "ipu1-ipu3", "ipu2-ipu3")]
        slow += [f"link ipu{ipu}-nic0 at {rate}" for ipu in range(4)]
        ends.append(sp.end(simulate(program, machine.with_faults(*dict.fromkeys(slow)))))
    assert ends == sorted(ends)


@pytest.mark.parametrize("fault", [*faults(0.5, "1us", 0), "link ipu0-ipu1 down"])
def test_one_slow_figure_where_nothing_queues(fault):
    """A program of two IPUs in turns has one order of events."""
    steps = [sp.phase([100, 90]), sp.copy(0, 1, 9000), sp.load(5000), sp.h2d(600), sp.copy(1, 0, 9000), sp.d2h(600)]
    program = sp.program(sp.seq(*steps, sp.phase(40)), sp.seq(steps[1], sp.phase(70), steps[4]))
    machine = sp.machine("pod4", **COSTS, sync=5, latency=3)
    for depth in (0, 1):
        plain = sp.end(simulate(program, machine, prefetch_depth=depth))
        assert sp.end(simulate(program, machine.with_faults(fault), prefetch_depth=depth)) >= plain


@pytest.mark.parametrize("seed", range(10))
def test_every_way_to_simulate_gives_one_trace(seed):
    rng = Random(seed)
    program, machine = sp.random_program(seed), sp.machine("pod4", **COSTS, sync=5, latency=3)
    chosen = rng.sample([*faults(0.7, "300ns", rng.randrange(4)), "host sync exponential 200ns"], 3)
    faulty, draw = machine.with_faults(*chosen), (seed, 3)
    trace = simulate(program, faulty, draw=draw)
    require_same(trace, simulate(program, faulty, draw=draw, symmetry=False))
    assert trace == simulate(program, faulty, draw=draw, seed=5)
    for options in ({"fold": False}, {"fidelity": "tile"}):
        assert sp.end(simulate(program, faulty, draw=draw, **options)) == sp.end(trace)


def straggler(schedule, micro_batches, fault):
    """Cycles of two stages with forwards of 10 and backwards of 20 cycles and free copies."""
    table = MAKERS[schedule][0](2, micro_batches)
    meeting = sp.merged((0, 1, 0), name="step")
    rows = [
        sp.seq(
            *(
                step
                for cells in table.steps
                for step in [*(sp.phase(10 if cell.kind == "F" else 20) for cell in cells[ipu]), meeting]
            )
        )
        for ipu in range(2)
    ]
    return sp.end(simulate(sp.program(*rows), sp.machine("pod4").with_faults(*fault)))


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "fault", "by_hand"),
    [
        # F1 | F2,F1 | F3,B1+F2 | B1+F4,B2+F3 | B2,B3+F4 | B3,B4 | B4: the longer of the two IPUs in each step
        ("grouped", 4, (), 10 + 10 + 30 + 30 + 30 + 20 + 20),
        ("grouped", 4, ("ipu 1 at 0.5",), 10 + 20 + 60 + 60 + 60 + 40 + 20),
        ("grouped", 4, ("ipu 0 at 0.8",), 13 + 13 + 30 + 38 + 30 + 25 + 25),
        # a forward on one IPU beside a backward on the other, in turns
        ("interleaved", 4, (), 10 + 10 + 3 * (20 + 20) + 20 + 20),
        ("interleaved", 4, ("ipu 1 at 0.5",), 10 + 20 + 3 * (40 + 20) + 40 + 20),
        ("interleaved", 4, ("ipu 0 at 0.8",), 13 + 10 + 3 * (20 + 25) + 20 + 25),
        # one IPU after the other
        ("sequential", 2, (), 2 * (10 + 10 + 20 + 20)),
        ("sequential", 2, ("ipu 1 at 0.5",), 2 * (10 + 20 + 40 + 20)),
        ("sequential", 2, ("ipu 0 at 0.8",), 2 * (13 + 10 + 20 + 25)),
    ],
)
def test_a_straggler_by_hand(schedule, micro_batches, fault, by_hand):
    assert straggler(schedule, micro_batches, fault) == by_hand


def test_data_parallel_training_waits_for_its_slowest_replica():
    """Eight replicas of one IPU: all wait at the collective for the slow one, which computes 1,000 / 0.8 cycles."""
    program = sp.program(sp.seq(sp.phase(1000), sp.collective("all_reduce", 8000, (tuple(range(8)),))), replicas=8)
    machine = sp.machine("pod16", sync=7)
    plain = sp.end(simulate(program, machine))
    assert sp.end(simulate(program, machine.with_faults("ipu 5 at 0.8"))) == plain + 250
    assert sp.end(simulate(program, machine.with_faults("ipu 5 at 0.8", "ipu 6 at 0.9"))) == plain + 250


def test_slow_tiles_count_where_they_compute():
    """Tile 1 computes 50 cycles beside one with 100; it does not slow down exchanges."""
    program = sp.program(sp.seq(sp.phase([100, 50]), sp.phase([9, 9], "exchange")))
    for rate, end in ((1, 109), (0.5, 109), (0.4, 134)):
        assert sp.end(simulate(program, sp.machine("pod4").with_faults(f"ipu 0 tiles 1-1 at {rate}"))) == end


def test_a_link_at_half_and_a_link_that_is_down():
    """13,600 bytes over six links of 13.6 GB/s; half of them; over the three hops of two links at the rail."""
    program, machine = sp.program(sp.seq(sp.copy(0, 1, 136_000)), sp.seq(sp.copy(0, 1, 136_000))), sp.machine("pod4")
    for fault, links in (((), 6), (("link ipu0-ipu1 at 0.5",), 3), (("link ipu0-ipu1 down",), 2)):
        cycles = math.ceil(136_000 * 1_325_000_000 / (links * sp.LINK))
        assert sp.end(simulate(program, machine.with_faults(*fault))) == cycles


def test_a_neighbour_on_the_ddr():
    program = sp.program(sp.seq(sp.load(16_000)))
    for rate, cycles in ((1, 1325), (0.5, 2650), (0.25, 5300)):
        assert sp.end(simulate(program, sp.machine("pod4").with_faults(f"ddr 0 at {rate}"))) == cycles


HOST = ("host sync exponential 3us", "host callback lognormal 1us 0.5", "host run uniform 0 9us")


@pytest.mark.parametrize("seed", [3, 5, 6])
def test_a_sample_is_a_simulation(seed):
    program, machine = sp.random_program(seed), sp.machine("pod4", **COSTS, sync=5)
    faulty = machine.with_faults("ipu 0 at 0.9", *HOST)
    for options in ({}, {"prefetch_depth": 0, "callback_threads": 2, "host_processes": 2}):
        found = sampled(program, faulty, 4, seed, **options)
        ends = [sp.end(simulate(program, faulty, draw=(seed, sample), **options)) for sample in range(4)]
        assert found["cycles"] == sorted(ends)
        assert found["plain"] == sp.end(simulate(program, machine, **options))
        assert found == sampled(program, faulty, 4, seed, **options)
        assert found["cycles"] != sampled(program, faulty, 4, seed + 1, **options)["cycles"]


def meetings(sampler, machine):
    """The cycles of three samples, and how often their IPUs left what they share."""
    counts, left = [0, 0, 0], IpuProcess._leave_shared
    cycles = []
    for sample in range(3):

        def leave(process, sample=sample):
            counts[sample] += 1
            left(process)

        with patch.object(IpuProcess, "_leave_shared", leave):
            cycles.append(sampler.cycles(machine.faults, Draw(0, sample)))
    return cycles, counts


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("sync", ["50ns", "5us"])
def test_the_rest_of_a_run_is_not_simulated_again(depth, sync):
    """Inputs in a loop, then an update with collectives and outputs, of which each sample draws the host's times."""
    update = [
        step
        for size in range(100, 3000, 100)
        for step in (sp.phase(size), sp.collective("all_reduce", size, ((0, 1),)), sp.d2h(size))
    ]
    copies = [sp.copy(0, 1, 900), sp.phase(400)]
    program = sp.program(
        sp.seq(sp.repeat(9, sp.h2d(600), sp.phase(700), *copies), *update),
        sp.seq(sp.repeat(9, *copies), *update),
        replicas=2,
    )
    faulty = sp.machine("pod4", **COSTS, sync=5).with_faults(
        f"host sync exponential {sync}", f"host callback uniform 0 {sync}", "ipu 1 at 0.9"
    )
    ends = [sp.end(simulate(program, faulty, draw=(0, sample), prefetch_depth=depth)) for sample in range(12)]
    assert sampled(program, faulty, 12, prefetch_depth=depth)["cycles"] == sorted(ends)
    cycles, counts = meetings(Sampler(program, faulty, prefetch_depth=depth), faulty)
    assert cycles == ends[:3]
    # Without prefetching the IPUs wait for the host to the end.
    assert (max(counts[1:]) < counts[0] / 2) == (depth > 0)


def looped(seed, replicas):
    """Loops of host exchanges, copies, Streaming Memory and collectives, on IPU-Machines of their own or on one."""
    rng = Random(seed)
    streams, together = ["image", "label"][: rng.randint(1, 2)], rng.random() < 0.7
    ipus = rng.choice([2, 4])

    def trip():
        steps = [[] for _ in range(ipus)]
        if together:
            copies = [(rng.randrange(ipus), "h2d", rng.randrange(1, 3000), stream) for stream in streams]
            for own in steps:
                own.append(sp.host(*copies, ipus=range(ipus)))
        else:
            for stream in streams:
                steps[rng.randrange(ipus)].append(sp.h2d(rng.randrange(1, 3000), stream))
        for _ in range(rng.randint(1, 4)):
            for own in steps:
                own.append(sp.phase(rng.randrange(1, 4000)))
            kind = rng.choice(["copy", "copy", "load", "all_reduce", "out"])
            if kind == "copy":
                copied = sp.copy(*rng.sample(range(ipus), 2), rng.randrange(1, 9000))
                for ipu in copied.participants:
                    steps[ipu].append(copied)
            elif kind == "load":
                steps[rng.randrange(ipus)].append(sp.load(rng.randrange(1, 9000)))
            elif kind == "out":
                steps[rng.randrange(ipus)].append(sp.d2h(rng.randrange(1, 900)))
            elif replicas > 1 and rng.random() < 0.3:
                group = rng.choice([((0, 1, 2, 3),), ((0, 1), (2, 3))]) if replicas == 4 else ((0, 1),)
                steps[rng.randrange(ipus)].append(sp.collective("all_reduce", rng.randrange(1, 9000), group))
        return steps

    body, again = trip(), trip()
    count, more, second = rng.randint(5, 30), rng.randint(1, 4), rng.choice([0, 0, 9])
    lists = [sp.seq(*one, sp.repeat(count, *one, *two[:second]), *one) for one, two in zip(body, again)]
    if rng.random() < 0.3:
        lists = [sp.seq(sp.repeat(more, *own.steps)) for own in lists]
    placement = tuple(tuple(4 * replica + ipu for ipu in range(ipus)) for replica in range(replicas))
    if ipus == 2 and rng.random() < 0.5:
        placement = tuple((2 * replica, 2 * replica + 1) for replica in range(replicas))
    return sp.program(*lists, replicas=replicas, placement=placement)


@pytest.mark.parametrize("seed", range(20))
def test_trips_as_blocks_give_the_cycles_of_their_events(seed):
    """Samples know the trips of earlier ones; each takes the cycles of a simulation that knows nothing."""
    rng = Random(seed)
    program, machine = looped(seed, rng.choice([1, 2, 4])), sp.machine("pod16", **COSTS, sync=5, latency=3)
    time = rng.choice(["30ns", "300ns", "3us"])
    jitter = rng.choice([(f"host sync exponential {time}",), (f"host callback uniform 0 {time}",)] * 2 + [HOST])
    slow = rng.choice([(), ("ipu 0 at 0.9",), ("ipu 1 at 0.5", f"ipu {4 * program.replicas - 4} at 0.7")])
    faulty, depth = machine.with_faults(*jitter, *slow), rng.choice([0, 1, 1, 2])
    options = {"prefetch_depth": depth, "callback_threads": rng.choice([1, None])}
    found = sampled(program, faulty, 5, seed, **options)
    assert found["cycles"] == sorted(
        sp.end(simulate(program, faulty, draw=(seed, sample), symmetry=False, **options)) for sample in range(5)
    )
    for row, fault in zip(found["blame"], faulty.faults.texts, strict=True):
        alone = [
            sp.end(simulate(program, machine.with_faults(fault), draw=(seed, sample), **options)) for sample in range(5)
        ]
        assert row["alone"] == sorted(alone)[2] - found["plain"]


@pytest.mark.parametrize("slow", [(), ("ipu 0 at 0.9",)])
def test_trips_that_are_known_are_not_simulated(slow):
    """300 trips on replicas with IPU-Machines of their own; a slow one is not where the others are."""
    copies = [(0, "h2d", 600, "image"), (1, "h2d", 30, "label")]
    body = [sp.host(*copies), sp.phase(700), sp.copy(0, 1, 900)]
    rest = sp.collective("all_reduce", 600, ((0, 1, 2),))
    program = sp.program(*[sp.seq(sp.repeat(300, *body), rest)] * 2, replicas=3, placement=((0, 1), (4, 5), (8, 9)))
    faulty = sp.machine("pod16", **COSTS, sync=5).with_faults("host sync exponential 100ns", *slow)
    cycles, counts = meetings(Sampler(program, faulty), faulty)
    assert cycles == [sp.end(simulate(program, faulty, draw=(0, sample))) for sample in range(3)]
    assert max(counts[1:]) < 300


def test_the_start_of_a_run_has_the_distribution_that_was_asked_for():
    """The quantiles of an exponential distribution are -mean log(1 - q)."""
    program, machine = sp.program(sp.seq(sp.phase(100))), sp.machine("pod4")
    found = sampled(program, machine.with_faults("host run exponential 1ms"), 2000, 1)
    for row in found["quantiles"]:
        cycles = 100 - 1_325_000 * math.log1p(-row["part"])
        assert row["low"] <= cycles <= row["high"]
        assert row["low"] <= row["cycles"] <= row["high"]


def test_blame_of_faults_that_hide_each_other():
    """Of two equally slow replicas each costs all, and to repair one saves nothing; a hidden fault costs nothing."""
    program = sp.program(sp.seq(sp.phase(1000), sp.collective("all_reduce", 8000, ((0, 1, 2, 3),))), replicas=4)
    faulty = sp.machine("pod4").with_faults("ipu 0 at 0.5", "ipu 1 at 0.5", "ddr 0 at 0.5")
    found = sampled(program, faulty, 200)
    assert found["blame"] == [
        {"fault": "ipu 0 at 0.5", "alone": 1000, "repaired": 0},
        {"fault": "ipu 1 at 0.5", "alone": 1000, "repaired": 0},
        {"fault": "ddr 0 at 0.5", "alone": 0, "repaired": 0},
    ]
    # Nothing varies, so one simulation stands for all samples.
    assert found["cycles"] == [found["plain"] + 1000]
    assert {row["low"] for row in found["quantiles"]} == {row["high"] for row in found["quantiles"]}


@pytest.mark.parametrize(("count", "part"), [(20, 0.5), (200, 0.5), (200, 0.9), (200, 0.99), (1000, 0.99)])
def test_intervals_of_quantiles_hold_95_of_100(count, part):
    """The number of samples below the quantile is binomial: what the ranks leave out at each end is at most 2.5 %."""
    found = quantile(range(1, count + 1), part)
    mass = [math.comb(count, below) * part**below * (1 - part) ** (count - below) for below in range(count + 1)]
    low, high = found["low"] or 0, found["high"] or count + 1
    assert sum(mass[:low]) <= 0.025 < sum(mass[: low + 1])
    assert sum(mass[high:]) <= 0.025
    assert high > count or sum(mass[high - 1 :]) > 0.025


def test_callbacks_need_a_program_that_fits():
    with pytest.raises(SimulationError):
        sampled(sp.program(sp.seq(sp.phase(1)), replicas=9), sp.machine("pod4").with_faults("ipu 0 at 0.5"))


def test_faults_stand_in_the_trace():
    program, machine = sp.program(sp.seq(sp.phase(1))), sp.machine("pod4")
    assert "faults" not in simulate(program, machine).meta
    assert simulate(program, machine.with_faults("ipu 0 at 0.5")).meta["faults"] == {"texts": ["ipu 0 at 0.5"]}
    renamed = dataclasses.replace(machine.with_faults("ipu 0 at 0.5"), name="mine")
    assert renamed.faults.texts == ["ipu 0 at 0.5"]
