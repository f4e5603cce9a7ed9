"""Replicas that differ are simulated once for each class of them: odd counts, racks, ragged servers, exactly."""

from __future__ import annotations

import dataclasses
import pickle
import sys

import pytest
import simprograms as sp

from ipuperf import schedules
from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.models.encoder import EncoderOptions, encoder
from ipuperf.pipelines import build_pipeline
from ipuperf.simulation import simulate
from ipuperf.simulation.classes import ReplicaClasses, by_servers
from ipuperf.simulation.collectives import CollectiveRun
from ipuperf.trace import Trace


@pytest.fixture
def classes(monkeypatch):
    """Numbers of classes that were tried, one after the other."""
    module = sys.modules["ipuperf.simulation.simulate"]
    found = []
    before = module._build

    def noted(*arguments):
        world = before(*arguments)
        found.append(len(world.classes.members))
        return world

    monkeypatch.setattr(module, "_build", noted)
    return found


def pipeline(machine, stages, replicas, schedule=schedules.popart_pipeline):
    """A small transformer encoder, trained."""
    sizes = {"layers": stages, "hidden": 32, "heads": 2, "sequence": 8, "feed_forward": 64}
    model = encoder(EncoderOptions(stages=stages, replicas=replicas, **sizes), seed=None)
    timetable = schedule(stages, 16)
    build_pipeline(
        model.ir, model.parts, timetable, outputs=model.outputs, training=model.training, copies="every step"
    )
    return lower(model.ir, machine)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "stages", "replicas", "schedule", "tried"),
    [
        ("pod16", 1, 5, "popart_pipeline", [1, 2, 5]),
        ("pod16", 1, 9, "popart_pipeline", None),
        ("pod16", 2, 5, "popart_pipeline", [1]),
        ("pod16", 2, 7, "grouped", None),
        ("bow-pod64", 2, 15, "popart_pipeline", [1]),
        ("bow-pod64", 2, 30, "grouped", None),
        ("bow-pod64", 2, 31, "popart_pipeline", [1, 2]),
        ("bow-pod64", 4, 11, "popart_pipeline", [1, 2]),
        ("bow-pod64", 4, 15, "interleaved", None),
        ("pod64", 4, 13, "sequential", None),
        ("bow-pod256", 4, 17, "popart_pipeline", None),
        ("bow-pod256", 4, 31, "popart_pipeline", [2, 4, 6]),
        ("bow-pod256", 4, 63, "grouped", None),
    ],
)
def test_odd_counts_are_those_of_all_replicas_simulated(name, stages, replicas, schedule, tried, classes):
    """To the cycle and to the row; far fewer classes than replicas where there are many."""
    machine = load_machine(name)
    program = pipeline(machine, stages, replicas, getattr(schedules, schedule))
    few = simulate(program, machine)
    found = list(classes)
    assert few == simulate(program, machine, symmetry=False)
    assert found[-1] <= max(5, replicas // 5), found
    if tried is not None:
        assert found == tried


def test_a_ragged_last_server_has_classes_of_its_own(classes):
    """Seven replicas on three processes of the host: 3, 2 and 2 of them."""
    program = sp.program(sp.seq(sp.repeat(9, sp.h2d(64), sp.phase(7), sp.d2h(32))), replicas=7)
    machine = sp.machine("pod16", host_sync=1e-7, callback=1e-7)
    few = simulate(program, machine, host_processes=3)
    assert classes[0] == 2
    assert few == simulate(program, machine, host_processes=3, symmetry=False)


def test_members_of_one_class_in_several_groups(classes):
    """Two groups of four on the rungs of a machine of sixteen; they begin and end alike."""
    step = sp.collective("all_reduce", 4000, ((0, 1, 2, 3), (4, 5, 6, 7)), 5)
    program = sp.program(sp.seq(sp.phase(3), step, sp.phase(4)), replicas=8)
    few = simulate(program, sp.machine("pod16", latency=9))
    assert classes == [1]
    assert few == simulate(program, sp.machine("pod16", latency=9), symmetry=False)


@pytest.mark.parametrize("apart", [1, 2])
def test_rounds_that_nothing_disturbs_are_added(monkeypatch, apart):
    """An all-reduce of eight takes twice seven rounds; few of them are begun. Its sends take rungs or rails, one or two
    of them, so that they end apart and need different latencies."""
    begun = []
    before = CollectiveRun._begin

    def noted(self):
        begun.append(self._round)
        before(self)

    monkeypatch.setattr(CollectiveRun, "_begin", noted)
    step = sp.collective("all_reduce", 64_000, (tuple(range(8)),), 5, method="bidirectional_ring_pair")
    placement = tuple((apart * replica,) for replica in range(8))
    alone = sp.program(sp.seq(step), replicas=8, placement=placement)
    machine = sp.machine("pod16", latency=9, sync=10)
    trace = simulate(alone, machine)
    few = len(begun)
    monkeypatch.setattr(CollectiveRun, "_quiet_rounds", lambda self: 0)
    assert simulate(alone, machine) == trace
    assert few <= 5 < 14 <= len(begun) - few


def test_split():
    one = ReplicaClasses.all_alike(6)
    assert one.split([]) == one
    two = one.split([{1, 4}, {0, 2, 3, 5}])
    assert two.members == ((0, 2, 3, 5), (1, 4))
    assert two.of == (0, 1, 0, 0, 1, 0)
    assert two.split([{0, 1}]).members == ((0,), (1,), (2, 3, 5), (4,))
    assert ReplicaClasses.all_apart(2).members == ((0,), (1,))


def test_servers_have_the_same_classes():
    """Replicas 0 to 2 on server 0, 3 and 4 on server 1, 5 and 6 on server 2; 4 differs, and then 3 from 5 and 6."""
    servers, costs = [0, 0, 0, 1, 1, 2, 2], [3, 3, 3, 2, 2, 2, 2]
    assert by_servers(ReplicaClasses.all_alike(7), servers, costs).members == ((0, 1, 2), (3, 4, 5, 6))
    apart = ReplicaClasses.all_alike(7).split([{4}])
    assert by_servers(apart, servers, costs).members == ((0, 1, 2), (3,), (4,), (5, 6))


@pytest.mark.heavy
def test_everything_from_the_machine_to_the_trace_can_be_pickled():
    machine = load_machine("bow-pod64")
    program = pipeline(machine, 4, 5)
    assert pickle.loads(pickle.dumps(machine)) == machine
    trace = simulate(program, machine)
    copied = simulate(pickle.loads(pickle.dumps(program)), pickle.loads(pickle.dumps(machine)))
    again = pickle.loads(pickle.dumps(trace))
    assert isinstance(again, Trace)
    assert copied == trace == again
    assert pickle.loads(pickle.dumps(again)) == trace
    assert again.folded("instances") is not None


@pytest.mark.heavy
def test_a_built_program_can_be_pickled():
    machine = load_machine("pod16")
    model = encoder(EncoderOptions(stages=2, replicas=2, layers=2, hidden=32, heads=2, sequence=8), seed=None)
    timetable = schedules.grouped(2, 4)
    build_pipeline(
        model.ir, model.parts, timetable, outputs=model.outputs, training=model.training, copies="every step"
    )
    program, copied = lower(model.ir, machine), lower(pickle.loads(pickle.dumps(model.ir)), machine)
    assert copied.describe() == program.describe()
    assert dataclasses.replace(copied, memory=program.memory, plans=program.plans) == program
    assert simulate(copied, machine) == simulate(program, machine)
