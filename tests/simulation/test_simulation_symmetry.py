"""Replica symmetry: the trace is that of all replicas simulated, to the cycle and to the row, whatever they share."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
import simprograms as sp

from ipuperf import schedules
from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.models.encoder import EncoderOptions, encoder
from ipuperf.pipelines import build_pipeline
from ipuperf.simulation import SimulationError, simulate
from ipuperf.simulation.collectives import CollectiveRun
from ipuperf.simulation.errors import Asymmetric
from ipuperf.simulation.steps.remote_transfer import RemoteTransferKind
from ipuperf.trace.schema import TABLES

COSTS = {
    "run": 1e-6,
    "call": 1e-6,
    "host_sync": 2e-7,
    "callback": 1e-7,
    "answer": 3e-8,
    "stream": 1e-7,
    "remote": 5e-8,
}
"""Fixed costs in seconds, all above zero."""


@pytest.fixture
def full_runs(monkeypatch):
    """The reasons for which all replicas were simulated after all."""
    found = []
    before = Asymmetric.__init__

    def noted(self, reason, apart=()):
        found.append(reason)
        before(self, reason, apart)

    monkeypatch.setattr(Asymmetric, "__init__", noted)
    return found


def require_same(program, machine, **options):
    """The trace, the same with and without symmetry, and with rounds added in closed form or each one simulated."""
    one = simulate(program, machine, **options)
    with patch.object(CollectiveRun, "_quiet_rounds", lambda run: 0):
        all_of_them = simulate(program, machine, symmetry=False, **options)
    for name in TABLES:
        found, wanted = one.columns(name), all_of_them.columns(name)
        for column in wanted:
            assert found[column].tolist() == wanted[column].tolist(), (name, column)
            assert found[column].dtype == wanted[column].dtype
    assert one == all_of_them
    return one


def partition(rng, replicas):
    """Groups: all, one each, neighbours or strided ones of equal size, or odd ones."""
    sizes = [size for size in range(1, replicas + 1) if replicas % size == 0]
    size, members = rng.choice([replicas, *sizes]), list(range(replicas))
    kind = rng.randint(0, 5)
    if kind == 0:
        cut = rng.randint(1, replicas - 1)
        return (tuple(members[:cut]), tuple(members[cut:]))
    if kind <= 2:
        return tuple(tuple(members[number :: replicas // size]) for number in range(replicas // size))
    return tuple(tuple(members[number : number + size]) for number in range(0, replicas, size))


def step(rng, replicas):
    """A step of one IPU that shares something: a collective, DDR, the host; or none of it."""
    kinds = ["all_reduce", "reduce_scatter", "all_gather"]
    methods = ["auto", "auto", "bidirectional_ring_pair", "meet_in_middle_ring", "hierarchical"]
    choices = [
        lambda: sp.collective(
            rng.choice(kinds),
            rng.randint(0, 50_000),
            partition(rng, replicas),
            rng.randint(0, 9),
            method=rng.choice(methods),
        ),
        lambda: sp.load(rng.randint(0, 3000)),
        lambda: sp.store(rng.randint(0, 3000)),
        lambda: sp.h2d(rng.randint(0, 900), rng.choice(["image", "label"])),
        lambda: sp.d2h(rng.randint(0, 900)),
        lambda: sp.phase([rng.randint(0, 900) for _ in range(3)]),
    ]
    return rng.choice(choices)()


def bodies(rng, replicas, depth):
    """Matching steps of the two IPUs of a replica."""
    both = ([], [])
    for _ in range(rng.randint(1, 4)):
        what, ipu = rng.randint(0, 5), rng.randint(0, 1)
        if what <= 2:
            both[ipu].append(step(rng, replicas))
        elif what == 3:
            shared = sp.meeting(rng.randint(0, 2), ipu, rng.randint(0, 5000), rng.randint(0, 900))
            both[0].append(shared)
            both[1].append(shared)
        elif depth:
            count, inner = rng.randint(2, 20), bodies(rng, replicas, depth - 1)
            for steps, own in zip(both, inner, strict=True):
                steps.append(sp.repeat(count, *own))
    return both


def random_case(seed):
    """A program of two IPUs a replica, a machine and options; the same for the same seed."""
    rng = random.Random(seed)
    name, most = rng.choice([("pod4", 2), ("pod16", 8), ("pod16", 8), ("bow-pod64", 16), ("pod128", 64)])
    replicas = rng.choice([count for count in (2, 2, 3, 4, 5, 7, 8, 16, 40, 64) if count <= most])
    machine = sp.machine(
        name, **(COSTS if rng.random() < 0.5 else {}), latency=rng.choice([0, 13]), gateway_link=10**10
    )
    one, two = bodies(rng, replicas, 2)
    placement = [(2 * replica, 2 * replica + 1) for replica in range(replicas)]
    if rng.random() < 0.2:
        rng.shuffle(placement)
    program = sp.program(sp.seq(*one), sp.seq(*two), replicas=replicas, placement=tuple(placement))
    options = {
        "prefetch_depth": rng.choice([0, 1, 2]),
        "callback_threads": rng.choice([1, 2, None]),
        "host_processes": rng.choice([1, 1, 2, replicas]),
        "fold": rng.random() < 0.8,
    }
    return program, machine, options


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_on_machines_with_groups_and_odd_counts(seed):
    program, machine, options = random_case(seed)
    require_same(program, machine, **options)


TIMETABLES = {
    "grouped": lambda stages: schedules.grouped(stages, 2 * stages),
    "interleaved": lambda stages: schedules.interleaved(stages, 2 * stages),
    "sequential": lambda stages: schedules.sequential(stages, 2 * stages),
    "popart": lambda stages: schedules.popart_pipeline(stages, 40),
    "recompute": lambda stages: schedules.popart_pipeline(stages, 12, recompute=True),
    "sharded": lambda stages: schedules.sharded(stages, 6),
}


def pipeline(machine, schedule, stages, replicas):
    """A small transformer encoder, trained."""
    sizes = {"layers": stages, "hidden": 32, "heads": 2, "sequence": 8, "feed_forward": 64}
    model = encoder(EncoderOptions(stages=stages, replicas=replicas, **sizes), seed=None)
    copies = "when needed" if schedule == "sharded" else "every step"
    timetable = TIMETABLES[schedule](stages)
    build_pipeline(model.ir, model.parts, timetable, outputs=model.outputs, training=model.training, copies=copies)
    return lower(model.ir, machine)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "schedule", "stages", "replicas", "alike"),
    [
        ("pod4", "grouped", 2, 2, True),
        ("pod16", "interleaved", 4, 4, True),
        ("pod16", "sequential", 2, 8, True),
        ("bow-pod64", "popart", 4, 16, True),
        ("bow-pod64", "recompute", 4, 5, True),
        ("pod64", "sharded", 2, 32, True),
        ("pod128", "popart", 4, 32, True),
        ("pod16", "popart", 2, 3, False),
        ("pod16", "grouped", 2, 5, True),
        ("pod4", "popart", 1, 4, True),
    ],
)
def test_pipelines(name, schedule, stages, replicas, alike, full_runs):
    machine = load_machine(name)
    require_same(pipeline(machine, schedule, stages, replicas), machine)
    assert (not full_runs) == alike, full_runs


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_tile_by_tile_and_shuffled(seed):
    program, machine, options = random_case(seed)
    require_same(program, machine, **{**options, "fidelity": "tile"})
    shuffled = simulate(program, machine, seed=seed + 1, **options)
    assert shuffled == simulate(program, machine, **options)


@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_that_load_from_one_ddr_get_equal_shares(replicas, full_runs):
    """The DDR of an IPU-Machine moves 16 GB/s: 16,000 bytes for each of so many replicas."""
    program = sp.program(sp.seq(sp.load(16_000)), replicas=replicas)
    trace = require_same(program, sp.machine("pod4"))
    assert sp.end(trace) == -(-replicas * 16_000 * 1_325_000_000 // sp.DDR)
    assert not full_runs


def test_an_odd_replica_has_its_ddr_to_itself(full_runs):
    """Five replicas of one IPU: four share the DDR of the first IPU-Machine, the fifth is through before them."""
    trace = require_same(sp.program(sp.seq(sp.load(16_000)), replicas=5), sp.machine("pod16"))
    assert [dur for _, _, _, dur in sp.slices(trace, kind="remote_load")] == [5300] * 4 + [1325]
    assert full_runs == ["the remote_load transfers of the replicas are not equally fast"]


def test_members_at_different_distances_leave_apart(full_runs):
    """On the ring of IPUs 0, 1 and 3 the way from 3 to 0 has two hops, so 1 leaves before them."""
    placement = ((0,), (1,), (3,))
    program = sp.program(
        sp.seq(sp.collective("all_gather", 300, ((0, 1, 2),)), sp.phase(5)), replicas=3, placement=placement
    )
    require_same(program, sp.machine("pod4", latency=20))
    assert full_runs == ["not all replicas go through 'collective' alike"]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_host_servers_with_as_many_replicas_are_alike(processes, full_runs):
    """Four replicas on 1, 2 or 3 processes of the host: 4, 2 and 2, or 2, 1 and 1 replicas each; these are two classes
    from the beginning."""
    program = sp.program(sp.seq(sp.repeat(9, sp.h2d(0), sp.phase(7), sp.d2h(0))), replicas=4)
    require_same(program, sp.machine("pod4", **COSTS), host_processes=processes)
    assert not full_runs


def test_messages_are_about_all_replicas():
    """A replica whose IPUs wait for each other: the message is that of the full simulation."""
    one, two = sp.copy(0, 1, 8, name="one"), sp.copy(1, 0, 8, name="two")
    program = sp.program(sp.seq(one, two), sp.seq(two, one), replicas=2)
    said = []
    for symmetry in (True, False):
        with pytest.raises(SimulationError, match="deadlock") as caught:
            simulate(program, sp.machine("pod4"), symmetry=symmetry)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "replica 1 IPU 1" in said[0]


def test_a_kind_of_step_that_does_not_say_it_is_symmetric_is_simulated_with_all_replicas(monkeypatch):
    """The parties that execute such a step are those of all replicas."""
    seen = []
    before = RemoteTransferKind.run

    def run(self, party, leaf, step):
        seen.append(party.replica)
        yield from before(self, party, leaf, step)

    monkeypatch.setattr(RemoteTransferKind, "run", run)
    program = sp.program(sp.seq(sp.load(100)), replicas=3)
    simulate(program, sp.machine("pod4"))
    assert seen == [0]
    monkeypatch.setattr(RemoteTransferKind, "symmetric", False)
    simulate(program, sp.machine("pod4"))
    assert seen == [0, 0, 1, 2]
