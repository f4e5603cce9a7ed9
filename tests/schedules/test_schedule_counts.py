"""Steps, ramps, stash, in-flight counts, times and errors for N = 2..8 and all M up to 4N
(``docs/reference/pipelines.md`` 2.4 and 3)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.schedules import (
    RecomputationMode,
    ScheduleError,
    bubble_fraction,
    closed_form_time,
    equal_stage_time,
    grouped,
    grouped_overlapped,
    interleaved,
    phased_parallel,
    phased_serial,
    popart_pipeline,
    sequential,
    sharded,
    tutorial_columns_before_full,
)

N_RANGE = range(2, 9)

# Per schedule, as functions of N, M and stage i, written from docs/reference/pipelines.md 2.4 and not from the code:
# legal M, steps, ramp, stash, in flight; then for inference legal M, steps, ramp.
RULES = {
    grouped: (
        lambda n, m: m % (2 * n) == 0,
        lambda n, m: m + 2 * n - 1,
        lambda n: 2 * n - 1,
        lambda n, i: 2 * (n - 1 - i),
        lambda n, i: 2 * (n - 1 - i) + 1,
        lambda n, m: m % n == 0,
        lambda n, m: m + n - 1,
        lambda n: n - 1,
    ),
    grouped_overlapped: (
        lambda n, m: m >= 2 * n + 2,
        lambda n, m: m + 2 * n + 1,
        lambda n: 2 * n + 1,
        lambda n, i: 2 * (n - 1 - i),
        lambda n, i: 2 * (n - 1 - i) + 1,
        lambda n, m: m >= n + 2,
        lambda n, m: m + n + 1,
        lambda n: n + 1,
    ),
    interleaved: (
        lambda n, m: m % n == 0,
        lambda n, m: 2 * (m + n - 1),
        lambda n: 2 * n - 2,
        lambda n, i: n - 1 - i,
        lambda n, i: n - i,
        lambda n, m: m % n == 0,
        lambda n, m: m + n - 1,
        lambda n: n - 1,
    ),
    sequential: (
        lambda n, m: True,
        lambda n, m: 2 * n * m,
        lambda n: 0,
        lambda n, i: 0,
        lambda n, i: 1,
        lambda n, m: True,
        lambda n, m: n * m,
        lambda n: 0,
    ),
    popart_pipeline: (
        lambda n, m: m >= 2 * n - 1,
        lambda n, m: m + 2 * n - 2,
        lambda n: 2 * n - 2,
        lambda n, i: 2 * (n - 1 - i) + 1 if i < n - 1 else 0,
        lambda n, i: 2 * (n - 1 - i) + 1,
        lambda n, m: m >= n,
        lambda n, m: m + n - 1,
        lambda n: n - 1,
    ),
    sharded: (
        lambda n, m: True,
        lambda n, m: 2 * n * m,
        lambda n: 0,
        lambda n, i: 0,
        lambda n, i: 1,
        lambda n, m: True,
        lambda n, m: n * m,
        lambda n: 0,
    ),
}


@pytest.mark.parametrize("stages", N_RANGE)
@pytest.mark.parametrize("schedule", list(RULES))
def test_training_counts_for_every_micro_batch_count(schedule, stages):
    legal, steps, ramp, stash, in_flight, *_ = RULES[schedule]
    for m in range(1, 4 * stages + 1):
        if not legal(stages, m):
            with pytest.raises(ScheduleError, match=rf"{schedule.__name__} with {stages} stages.* but it is {m}\b"):
                schedule(stages, m)
            continue
        table = schedule(stages, m)
        assert len(table.steps) == steps(stages, m)
        assert (table.ramp_up, table.ramp_down) == (ramp(stages), ramp(stages))
        assert table.steady == steps(stages, m) - 2 * ramp(stages) > 0
        assert table.stash == tuple(stash(stages, i) for i in range(stages))
        peak = tuple(in_flight(stages, i) for i in range(stages))
        assert table.in_flight == tuple(min(p, m) for p in peak)


@pytest.mark.parametrize("stages", N_RANGE)
@pytest.mark.parametrize("schedule", list(RULES))
def test_inference_counts_for_every_micro_batch_count(schedule, stages):
    *_, legal, steps, ramp = RULES[schedule]
    for m in range(1, 4 * stages + 1):
        if not legal(stages, m):
            with pytest.raises(ScheduleError, match=rf"but it is {m}\b"):
                schedule(stages, m, inference=True)
            continue
        table = schedule(stages, m, inference=True)
        assert len(table.steps) == steps(stages, m)
        assert (table.ramp_up, table.ramp_down) == (ramp(stages), ramp(stages))
        assert table.stash == (0,) * stages
        assert table.stashed == "nothing"
        assert {cell.kind for cell in table.when} <= {"F", "I", "O"}
        bubbles = sum(not any(cell.kind in "FBR" for cell in cells) for step in table.steps for cells in step)
        assert bubbles == stages * (steps(stages, m) - m)


@pytest.mark.parametrize("stages", N_RANGE)
@pytest.mark.parametrize("schedule", [grouped, interleaved, popart_pipeline])
def test_steady_steps_are_the_full_ones(schedule, stages):
    m = 4 * stages
    table = schedule(stages, m)
    sizes = [sum(len(row) for row in step) for step in table.steps]
    full = stages if schedule is interleaved else 2 * stages
    empty = [any(not row for row in step) for step in table.steps]
    busiest = [t for t, size in enumerate(sizes) if size == full and not empty[t]]
    assert busiest == list(range(table.ramp_up, table.ramp_up + table.steady))
    for t in range(table.ramp_up, table.ramp_up + table.steady - table.period):
        shifted = [[(c.kind, c.stage, c.micro_batch + 1) for c in row] for row in table.steps[t]]
        assert shifted == [[(c.kind, c.stage, c.micro_batch) for c in row] for row in table.steps[t + table.period]]


@pytest.mark.heavy
@settings(max_examples=300)
@given(
    schedule=st.sampled_from([*RULES, phased_serial, phased_parallel]),
    stages=st.integers(1, 8),
    factor=st.integers(1, 32),
    inference=st.booleans(),
    f=st.integers(0, 1000),
    b=st.integers(0, 1000),
)
def test_walked_time_is_the_closed_form(schedule, stages, factor, inference, f, b):
    by = {grouped: 2 * stages, interleaved: stages}.get(schedule, 1)
    least = {grouped_overlapped: 2 * stages + 2, popart_pipeline: 2 * stages - 1}.get(schedule, by)
    m = max(least, by * (1 + factor % 4 if by > 1 else factor))
    table = schedule(stages, m, inference=inference)
    expected = closed_form_time(f, b, schedule=schedule.__name__, stages=stages, micro_batches=m, inference=inference)
    if schedule is phased_serial:
        assert len(table.ipus) == 1
    assert equal_stage_time(table, f, b) == expected


@pytest.mark.parametrize("stages", N_RANGE)
def test_closed_forms_written_out(stages):
    n, f, b = stages, 3, 7
    for m in range(1, 4 * n + 1):
        times = {
            name: closed_form_time(f, b, schedule=name, stages=n, micro_batches=m)
            for name in ("grouped", "interleaved", "sequential", "popart_pipeline")
        }
        assert times == {
            "grouped": (m + n - 1) * (f + b),
            "interleaved": n * f + (2 * m + n - 2) * b,
            "sequential": n * m * (f + b),
            "popart_pipeline": (m + n - 1) * (f + b),
        }


@pytest.mark.heavy
@pytest.mark.parametrize("stages", N_RANGE)
def test_recomputed_times(stages):
    n = stages
    auto = RecomputationMode.Auto
    for m in range(2 * n - 1, 4 * n + 1):
        for f, b in ((1, 2), (3, 1), (5, 5)):
            table = popart_pipeline(n, m, recompute=True)
            by_reference = (n - 1) * f + 2 * (f + b) + (m - 2) * (2 * f + b) + (n - 1) * (f + b)
            assert equal_stage_time(table, f, b) == by_reference
            for schedule, legal in ((popart_pipeline, True), (grouped, m % (2 * n) == 0), (sequential, True)):
                if legal:
                    mode = True if schedule is popart_pipeline else auto
                    closed = closed_form_time(
                        f, b, schedule=schedule.__name__, stages=n, micro_batches=m, recompute=True
                    )
                    assert equal_stage_time(schedule(n, m, recompute=mode), f, b) == closed


def test_bubble_fraction_is_the_textbook_one():
    for schedule in (grouped, popart_pipeline):
        assert bubble_fraction(schedule(4, 16), 1, 2) == pytest.approx(3 / 19)
    assert bubble_fraction(sequential(4, 16), 1, 2) == pytest.approx(3 / 4)
    assert 1 - bubble_fraction(interleaved(4, 4000), 1, 2) == pytest.approx(0.75, abs=1e-3)
    assert bubble_fraction(grouped(2, 4), 0, 0) == 0


@pytest.mark.parametrize("stages", N_RANGE)
def test_two_n_plus_one_holds_for_four_stages_only(stages):
    table = popart_pipeline(stages, 4 * stages)
    columns = 0  # the tutorial's figure: a column for the forwards of a cycle, one more for its backwards
    for step in table.steps:
        kinds = [{cell.kind for cell in row} for row in step]
        if all("F" in kind and "B" in kind for kind in kinds):
            break
        columns += any("F" in kind for kind in kinds) + any("B" in kind for kind in kinds)
    assert columns == 3 * stages - 3 == tutorial_columns_before_full(stages)
    assert (columns == 2 * stages + 1) is (stages == 4)
    assert table.ramp_up == 2 * stages - 2
    assert "N = 4 only" in " ".join((popart_pipeline.__doc__ or "").split())


def test_closed_form_refuses_what_has_none():
    with pytest.raises(ScheduleError, match="'zigzag'; allowed: grouped"):
        closed_form_time(1, 2, schedule="zigzag", stages=2, micro_batches=4)
    with pytest.raises(ScheduleError, match="no closed form for interleaved with"):
        closed_form_time(1, 2, schedule="interleaved", stages=2, micro_batches=4, recompute=True)
    with pytest.raises(ScheduleError, match="no closed form for grouped inference"):
        closed_form_time(1, 2, schedule="grouped", stages=2, micro_batches=4, recompute=True, inference=True)
    assert closed_form_time(1, 2, schedule="interleaved", stages=1, micro_batches=4, recompute=True) == 12
