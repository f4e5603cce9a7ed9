"""External syncs in time, worked out by hand: who waits for whom, folding, wrong orders, several machines."""

from __future__ import annotations

import pytest
import simprograms as s

from ipuperf.lowering import ExternalSync
from ipuperf.machine import load_machine
from ipuperf.simulation import SimulationError, simulate
from ipuperf.simulation.algorithms import collective_syncs
from ipuperf.trace import check

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
    """Members on one machine: an external sync. On several: the global one; on a torus one for each pair of IPUs of a
    replica."""

    def replicas(count, ipus):
        return tuple(tuple(range(ipus * r, ipus * (r + 1))) for r in range(count))

    pod4, pod16, pod64 = map(load_machine, ("pod4", "pod16", "pod64"))
    wide = pod16.ipu_machine.global_sync_cycles
    assert wide == pod64.ipu_machine.global_sync_cycles > pod4.chip.external_sync_cycles == 600
    assert pod4.ipu_machine.global_sync_cycles == 0
    syncs = collective_syncs(pod16, replicas(4, 4))
    assert (syncs.before((0, 3)), syncs.before((4, 5, 7)), syncs.before((3, 4))) == (600, 600, wide)
    assert collective_syncs(pod4, replicas(4, 1)).before((0, 1, 2, 3)) == 600
    for count, ipus, pairs in ((64, 1, 1), (16, 4, 2), (8, 8, 4)):
        syncs = collective_syncs(pod64, replicas(count, ipus))
        assert (syncs.before((0, 2)), syncs.before((0, 63))) == (600 * pairs, wide * pairs)
