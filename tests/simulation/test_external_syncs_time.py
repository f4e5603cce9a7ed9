"""External syncs in time, worked out by hand: who waits for whom, folding, wrong orders, several machines."""

from __future__ import annotations

import numpy as np
import pytest
import simprograms as s

from ipuperf.lowering import ExternalSync
from ipuperf.lowering.steps.collective import BROADCAST, HIERARCHICAL, MEET_IN_MIDDLE, RING_PAIR
from ipuperf.machine import load_machine
from ipuperf.simulation import SimulationError, simulate
from ipuperf.simulation.algorithms import collective_syncs
from ipuperf.simulation.ipu import IpuProcess
from ipuperf.simulation.recorder import Recorder
from ipuperf.trace import check
from ipuperf.trace.schema import TABLES

MACHINE = s.machine("pod4", sync=100)


def meet(name="c", ipus=(0, 1)):
    return ExternalSync(0, name, tuple(ipus))


def test_the_one_that_computes_makes_the_others_wait():
    """IPU 1 communicates at 500, when IPU 0 is there too, and IPU 0 goes on at once."""
    store = s.store(0)
    program = s.program(s.seq(s.phase(500), meet("store"), s.phase(30)), s.seq(meet("store"), store))
    trace = simulate(program, MACHINE)
    assert check(trace) == []
    assert s.end(trace) == 600  # 500 of IPU 0, then the sync of the transfer, which moves nothing
    waits = trace.table("steps")
    assert 500 in waits[waits["kind"] == "sync_external"]["dur"].tolist()


def test_syncs_of_two_ipus_come_one_after_the_other():
    """Each communicates once: 0 first, though 1 is ready from the beginning."""
    first, second = s.store(0, "a"), s.store(0, "b")
    one = s.seq(s.phase(50), meet("a"), first, meet("b"))
    other = s.seq(meet("a"), meet("b"), second)
    assert s.end(simulate(s.program(one, other), MACHINE)) == 50 + 100 + 100


@pytest.mark.parametrize("fidelity", ["phase", "tile"])
def test_folded_and_unfolded_alike(fidelity):
    body = s.seq(s.repeat(50, s.phase(40), meet(), s.store(0)))
    other = s.seq(s.repeat(50, s.phase(70), meet()))
    program = s.program(body, other)
    ends = {s.end(simulate(program, MACHINE, fidelity=fidelity, fold=fold)) for fold in (True, False)}
    assert ends == {70 + 49 * (100 + 40) + 100}  # IPU 0 computes again when its transfer is over


def test_different_orders_are_an_error():
    with pytest.raises(SimulationError, match="meet before different communication: 'a' on .*; 'b' on "):
        simulate(s.program(s.seq(meet("a")), s.seq(meet("b"))), MACHINE)


def test_who_never_comes_is_named():
    with pytest.raises(SimulationError, match=r"waits in step 'c' for the sync of 'c'"):
        simulate(s.program(s.seq(meet()), s.seq()), MACHINE)


@pytest.mark.parametrize(("ipus", "problem"), [((0, 2), "IPU 2 cannot take part"), ((1,), "it is of IPU 1")])
def test_wrong_participants(ipus, problem):
    with pytest.raises(SimulationError, match=problem):
        simulate(s.program(s.seq(meet(ipus=ipus)), s.seq()), MACHINE)


def test_syncs_of_a_round():
    """Members on one machine: an external sync. On several: the global one. A ring of replicas of several IPUs: another
    one for what the program decides in each round, which a broadcast does not."""

    def replicas(count, ipus):
        return tuple(tuple(range(ipus * r, ipus * (r + 1))) for r in range(count))

    pod4, pod16, pod64 = map(load_machine, ("pod4", "pod16", "pod64"))
    wide = pod16.ipu_machine.global_sync_cycles
    assert wide == pod64.ipu_machine.global_sync_cycles > pod4.chip.external_sync_cycles == 600
    assert pod4.ipu_machine.global_sync_cycles == 0
    assert collective_syncs(pod4, replicas(4, 1)).before((0, 1, 2, 3), RING_PAIR) == 600
    for machine, count, ipus, times in ((pod16, 4, 4, 2), (pod64, 64, 1, 1), (pod64, 16, 4, 2), (pod64, 8, 8, 2)):
        syncs = collective_syncs(machine, replicas(count, ipus))
        for method, each in ((RING_PAIR, times), (MEET_IN_MIDDLE, times), (HIERARCHICAL, times), (BROADCAST, 1)):
            found = [syncs.before(members, method) for members in ((0, 3), (4, 5, 7), (3, 4))]
            assert found == [600 * each, 600 * each, wide * each]


def _lists(rng, ipus):
    """Lists of steps with syncs one after the other, in and outside of loops: one IPU after the other communicates."""
    lists = [[] for _ in range(ipus)]
    for turn in range(int(rng.integers(1, 4))):
        block = [[] for _ in range(ipus)]
        for number in range(int(rng.integers(2, 7))):
            busy, sync = int(rng.integers(ipus)), meet(f"{turn}.{number}", range(ipus))
            for ipu, steps in enumerate(block):
                if rng.random() < 0.2:
                    steps.append(s.phase(int(rng.integers(1, 300))))
                steps.append(sync)
                if ipu == busy:
                    steps.append(s.store(int(rng.integers(0, 900))) if rng.random() < 0.6 else s.phase(50))
        trips = int(rng.integers(2, 30)) if rng.random() < 0.5 else 1
        for ipu, steps in enumerate(block):
            lists[ipu] += [s.repeat(trips, *steps)] if trips > 1 else steps
    return [s.seq(*steps) for steps in lists]


@pytest.mark.parametrize("options", [{}, {"fold": False}, {"symmetry": False, "seed": 3}, {"fidelity": "tile"}])
def test_standing_in_syncs_is_coming_to_each(options, monkeypatch):
    """IPUs that come once for several syncs do what those do that come to each of them, row for row."""
    programs = [s.program(*_lists(np.random.default_rng(seed), 3), replicas=1 + seed % 2) for seed in range(12)]
    machine = s.machine("pod16", sync=13)
    stood, record = [], Recorder.stand
    monkeypatch.setattr(Recorder, "stand", lambda self, syncs: stood.append(syncs) or record(self, syncs))
    ours = [simulate(program, machine, **options) for program in programs]
    assert sum(syncs.stop - syncs.first for syncs in stood) > 30
    each = IpuProcess.alike_ahead
    monkeypatch.setattr(IpuProcess, "alike_ahead", lambda self, participants: each(self, participants)[:1])
    stood.clear()
    for program, trace in zip(programs, ours, strict=True):
        reference = simulate(program, machine, **options)
        for table in TABLES:
            left, right = trace.columns(table), reference.columns(table)
            for column in left:
                np.testing.assert_array_equal(left[column], right[column], err_msg=f"{table}.{column}")
    assert not stood
