"""Waiting has an owner: programs written by hand of which every cycle is known."""

import pytest

from ipuperf.report import breakdown_cycles, critical_ipu, step_time
from ipuperf.report.breakdown import run_instances
from ipuperf.report.waiting import OWNERS, waits

OPS = {"fwd": 0, "bwd": 1, "update": 2, "load": 3, "copy": 4, "reduce": 5, "": -1}


def program(synthetic, rows, length, transfers=()):
    """IPUs that do (op, kind, start, end) each, one instance of one segment for each; a wait is what is left out."""
    build = synthetic.Builder()
    for op, number in OPS.items():
        if number >= 0:
            phase = op if op in ("fwd", "bwd", "update") else "io"
            build.add("ops", number, op, op, "main", phase, 0, "", "")
    build.add("runs", 0, "run", 0, length)
    for ipu, steps in enumerate(rows):
        for seq, (op, kind, start, end) in enumerate(steps):
            mean = (end - start) / 2
            build.add("steps", ipu, seq, -1, OPS[op], kind, start, end - start, mean, 9, 0, 0, 0, 0, 0, -1)
        build.add("instances", ipu, ipu, ipu, 0, -1, -1, 0, length, 0)
    for number, op in enumerate(transfers):
        build.add("transfers", number, 0, 0, 1, 8, OPS[op], "all_reduce", 0)
    if transfers:
        build.add("links", 0, "link", "ipu_link", "a", "b", 1e9, 1)
    return build.trace(num_ipus=len(rows))


def owners(trace, ipu):
    return waits(trace).by_ipu().get(ipu, {})


def test_waiting_for_more_work_is_imbalance(synthetic):
    """Both IPUs are without stages: one works for 60 cycles, the other for 100."""
    trace = program(synthetic, [[("", "compute", 0, 60)], [("", "compute", 0, 100)]], 100)
    assert owners(trace, 0) == {"imbalance": 40}
    assert owners(trace, 1) == {}
    table = waits(trace).table()
    assert table[["ipu", "start", "dur", "blamed_ipu"]].to_numpy().tolist() == [[0, 60, 40, 1]]


def test_a_pipeline_that_fills_and_drains(synthetic):
    """Two stages, one micro-batch: F on 0, F and B on 1, B on 0. IPU 1 waits for the first, IPU 0 in the middle."""
    trace = program(
        synthetic,
        [
            [("fwd", "compute", 0, 10), ("bwd", "compute", 30, 40)],
            [("fwd", "compute", 10, 20), ("bwd", "compute", 20, 30)],
        ],
        40,
    )
    assert owners(trace, 0) == {"bubble": 20}
    assert owners(trace, 1) == {"bubble": 20}


def test_the_steady_part_of_a_pipeline_is_imbalance(synthetic):
    """Stage 0 works 10 of each 20 cycles, stage 1 all of them, between their first backward and last forward passes."""
    first = [("fwd", "compute", 0, 10), ("fwd", "compute", 20, 25), ("bwd", "compute", 40, 45)]
    first += [("fwd", "compute", 45, 50), ("bwd", "compute", 60, 70)]
    second = [
        ("fwd", "compute", 10, 20),
        ("bwd", "compute", 20, 40),
        ("fwd", "compute", 40, 50),
        ("bwd", "compute", 50, 60),
    ]
    trace = program(synthetic, [first, second], 70)
    # every IPU has begun its backward passes at 40, no forward pass is left from 50 on
    assert owners(trace, 0) == {"bubble": 10 + 15 + 10}
    assert owners(trace, 1) == {"bubble": 10 + 10}
    longer = [*first, ("fwd", "compute", 80, 85), ("bwd", "compute", 95, 99)]
    other = [*second, ("fwd", "compute", 70, 85), ("bwd", "compute", 85, 95)]
    assert owners(program(synthetic, [longer, other], 99), 0)["imbalance"] == 10 + 10


@pytest.mark.parametrize(
    ("op", "kind", "owner"),
    [
        ("load", "remote_load", "ddr"),
        ("load", "host_mid", "host"),
        ("load", "host_begin", "host"),
        ("", "host_run", "host"),
        ("copy", "link", "link"),
        ("reduce", "link", "collective"),
    ],
)
def test_what_the_other_does_meanwhile_owns_the_wait(synthetic, op, kind, owner):
    trace = program(synthetic, [[("", "compute", 0, 10)], [(op, kind, 0, 50)]], 50, ["reduce"])
    assert owners(trace, 0) == {owner: 40}
    assert waits(trace).blamed_op.tolist() == [op]


def test_waits_are_passed_on_to_what_caused_them(synthetic):
    """IPU 0 waits for 1, which waits for 2 until 30 and works until 50."""
    rows = [[("", "compute", 0, 10)], [("", "compute", 0, 10), ("", "compute", 30, 50)], [("load", "host_mid", 0, 30)]]
    trace = program(synthetic, rows, 50)
    assert owners(trace, 0) == {"host": 20, "imbalance": 20}
    assert owners(trace, 1) == {"host": 20}


def test_time_in_which_nobody_does_anything_is_sync(synthetic):
    trace = program(synthetic, [[("", "compute", 0, 10), ("", "sync_external", 10, 15)], [("", "compute", 0, 10)]], 15)
    assert owners(trace, 0) == owners(trace, 1) == {"sync": 5}


def test_every_waiting_cycle_has_one_owner_and_parts_sum_to_the_run(trace):
    for run in (0, 1):
        found = waits(trace, run)
        assert (found.cycles.sum(axis=1) == found.end - found.start).all()
        assert (found.cycles >= 0).all()
        time = step_time(trace, run)
        assert time.total == trace.table("runs").dur[run]
        assert (
            sum(time.parts[f"waiting: {owner}"] for owner in OWNERS) + time.parts["sync"]
            == (breakdown_cycles(trace, run)["sync"])
        )
        split = breakdown_cycles(trace, run)
        assert time.parts["compute"] + time.parts["tile imbalance"] == split["compute"]
        assert time.parts["compute"] == pytest.approx(0.75 * split["compute"], rel=0.01)


def test_the_ipu_that_works_longest_sets_the_pace_of_those_that_end_together(synthetic):
    rows = [[("", "compute", 0, 10), ("", "host_run", 10, 40)], [("", "compute", 0, 30)], [("", "compute", 0, 30)]]
    trace = program(synthetic, rows, 40)
    assert critical_ipu(trace, run_instances(trace)[1]) == (0, 1)
    assert step_time(trace).sentence() == "bound by compute: 38 % of the run on IPU 1"


def test_the_sentence_names_the_ipu_that_is_waited_for(synthetic):
    trace = program(synthetic, [[("", "exchange", 0, 40), ("", "compute", 90, 100)], [("", "compute", 0, 90)]], 100)
    time = step_time(trace)
    assert (time.ipu, time.bound) == (1, ("compute", 45))
    assert "exchange" not in time.sentence()
