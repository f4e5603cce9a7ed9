"""Schedules in the simulation: equal stages and free copies give the closed forms, a slow stage sets the pace."""

from __future__ import annotations

import pytest
import simprograms as s
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.schedules import (
    RecomputationMode,
    bubble_fraction,
    closed_form_time,
    equal_stage_time,
    grouped,
    interleaved,
    popart_pipeline,
    sequential,
    sharded,
    timetable_of,
)
from ipuperf.simulation import simulate

AUTO = RecomputationMode.Auto


def played(table, cycles):
    """The end of a program that runs ``table`` on pod4/pod16 with free copies; ``cycles(kind, stage)`` per cell."""
    rows = []
    meeting = (
        s.merged(*((i, i + 1, 0) for i in range(len(table.ipus) - 1)), name="step") if len(table.ipus) > 1 else None
    )
    for row in range(len(table.ipus)):
        steps = []
        for step in table.steps:
            steps += [s.phase(cycles(cell.kind, cell.stage), name=table.label(cell)) for cell in step[row]]
            if meeting is not None:
                steps.append(meeting)
        rows.append(s.seq(*steps))
    machine = s.machine("pod4" if len(rows) <= 4 else "pod16")
    return s.end(simulate(s.program(*rows), machine))


MAKERS = {
    "grouped": (grouped, lambda n, k: 2 * n * k),
    "interleaved": (interleaved, lambda n, k: n * k),
    "sequential": (sequential, lambda n, k: k),
    "popart_pipeline": (popart_pipeline, lambda n, k: 2 * n - 2 + k),
    "sharded": (sharded, lambda n, k: k),
}


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=15)
@given(n=st.integers(2, 8), k=st.integers(1, 3), f=st.integers(1, 50), more=st.integers(0, 60))
def test_equal_stages_and_free_copies_give_the_closed_form(name, n, k, f, more):
    make, count = MAKERS[name]
    m, b = count(n, k), f + more
    table = make(n, m)
    expected = closed_form_time(f, b, schedule=name, stages=n, micro_batches=m)
    assert played(table, lambda kind, stage: f if kind == "F" else b) == expected


@pytest.mark.heavy
@settings(max_examples=15)
@given(p=st.integers(2, 8), rounds=st.integers(1, 3), chunks=st.integers(1, 3), f=st.integers(1, 50))
def test_schedules_with_flush_idle_as_their_papers_say(p, rounds, chunks, f):
    """Idle part of p IPUs in m micro-batches where all cells of a step last the same: (p - 1) / (m + p - 1) of 1F1B as
    of GPipe, (p - 1) / (v m + p - 1) with v chunks, (p - 1) / (3m + p - 1) with gradients of weights apart."""
    m = p * rounds
    for name, stages, options, parts, work in (
        ("1f1b", p, {}, m + p - 1, 2 * f),
        ("interleaved_1f1b", p * chunks, {"chunks": chunks}, chunks * m + p - 1, 2 * f),
        ("zb_h1", p, {}, 3 * m + p - 1, f),
    ):
        table = timetable_of(name, stages, m, **options)
        assert played(table, lambda kind, stage: f) == parts * work
        assert bubble_fraction(table, f, 2 * f if name == "zb_h1" else f, f) == pytest.approx((p - 1) / parts)


@settings(max_examples=15)
@given(n=st.integers(2, 6), m=st.integers(1, 12), f=st.integers(1, 50), more=st.integers(0, 40))
def test_1f1b_is_as_long_as_interleaved(n, m, f, more):
    expected = closed_form_time(f, f + more, schedule="1f1b", stages=n, micro_batches=m)
    assert played(timetable_of("1f1b", n, m), lambda kind, stage: f if kind == "F" else f + more) == expected


@settings(max_examples=15)
@given(n=st.integers(2, 6), k=st.integers(1, 3), f=st.integers(1, 50), b=st.integers(1, 90))
def test_recomputation_takes_a_forward_again(n, k, f, b):
    for table in (popart_pipeline(n, 2 * n - 2 + k, recompute=True), grouped(n, 2 * n * k, recompute=AUTO)):
        found = played(table, lambda kind, stage: b if kind == "B" else f)
        assert found == equal_stage_time(table, f, b)


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_the_longest_stage_sets_the_steady_step(slow):
    """Ten more micro-batches cost ten times the slow stage's forward and backward, whatever the others do."""

    def cycles(kind, stage):
        return {"F": 10, "B": 20}[kind] * (3 if stage == slow else 1)

    for make in (popart_pipeline, grouped):
        short, long = make(4, 16), make(4, 24)
        assert played(long, cycles) - played(short, cycles) == 8 * 90
