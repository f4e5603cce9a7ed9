"""Recomputation slots, concurrent and shared devices, phases, errors that say what is allowed, and the figure."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ipuperf.schedules import (
    Cell,
    Liveness,
    RecomputationMode,
    ScheduleError,
    grouped,
    grouped_overlapped,
    interleaved,
    phase_numbers,
    phased_parallel,
    phased_serial,
    popart_pipeline,
    sequential,
    sharded,
    timetable_figure,
)

AUTO = RecomputationMode.Auto
THEN = RecomputationMode.RecomputeThenBackpropagate
WITHIN = RecomputationMode.RecomputeAndBackpropagateInterleaved


@pytest.mark.parametrize(
    ("table", "lead"),
    [
        (grouped(4, 8, recompute=AUTO), 1),
        (grouped(4, 8, recompute=WITHIN), 0),
        (grouped_overlapped(4, 11, recompute=AUTO), 1),
        (interleaved(4, 8, recompute=THEN), 1),
        (sequential(4, 3, recompute=AUTO), 0),
        (popart_pipeline(4, 9, recompute=True), 0),
    ],
)
def test_recomputation_slots(table, lead):
    recomputed = [cell for cell in table.when if cell.kind == "R"]
    assert len(recomputed) == 3 * table.micro_batches
    for cell in recomputed:
        assert cell.stage < 3
        time = table.when[cell]
        backward = Cell("B", cell.stage, cell.micro_batch)
        assert table.when[backward] - time == lead
        row = table.steps[time][cell.stage]
        if lead:
            assert row[-1] == cell  # after every stage of the step, in the forward slot
        else:
            assert row.index(cell) + 1 == row.index(backward)


def test_interleaved_recomputes_in_forward_steps_only():
    for step in interleaved(5, 15, recompute=AUTO).steps:
        for row in step:
            kinds = {cell.kind for cell in row}
            assert kinds <= {"F", "R"} or kinds == {"B"}


def test_recomputation_keeps_lengths_and_depths_and_changes_what_is_kept():
    plain, again = grouped(4, 8), grouped(4, 8, recompute=AUTO)
    assert (len(plain.steps), plain.stash, plain.stashed) == (len(again.steps), again.stash, "activations")
    assert again.stashed == "stage inputs"
    assert popart_pipeline(4, 8, recompute=True).stashed == "stage inputs"
    assert sequential(4, 8, recompute=AUTO).stashed == "nothing"


def test_concurrent_stage_counts_as_one():
    table = grouped(4, 8, devices=[0, [1, 2], 2, 3])  # the guide's example
    plain = grouped(4, 8)
    assert table.ipus == (0, 1, 2, 3)
    assert (len(table.steps), table.stash, table.ramp_up) == (len(plain.steps), plain.stash, plain.ramp_up)
    for step in table.steps:
        on_one = [cell for cell in step[1] if cell.stage == 1]
        assert on_one == [cell for cell in step[2] if cell.stage == 1]
    assert table.in_flight == plain.in_flight
    both = interleaved(3, 6, devices=[0, [1, 2], 3])
    assert all(len(row) <= 1 for step in both.steps for row in step)
    assert len(both.steps) == 2 * (6 + 3 - 1)


def test_stages_that_share_an_ipu_run_one_after_the_other():
    later_first = grouped(3, 6, devices=[0, 1, 0])
    for step in later_first.steps:
        positions = [c.stage if c.kind == "F" else 5 - c.stage for c in step[0]]
        assert positions == sorted(positions, reverse=True)
    ascending = popart_pipeline(3, 5, devices=[0, 1, 0])
    for step in ascending.steps:
        positions = [c.stage if c.kind == "F" else 4.5 - c.stage for c in step[0]]
        assert positions == sorted(positions)
    assert {len(row) for step in sequential(3, 2, devices=[0, 0, 0]).steps for row in step} == {1}


def test_interleaved_inference_on_shared_ipus_never_meets():
    order = interleaved(3, 2, inference=True, devices=[0, 1, 0])
    assert len(order.steps) == 6  # no rotation of 0, 1, 0 fits beside it
    free = interleaved(4, 4, inference=True, devices=[0, 0, 1, 1])
    assert all(len(row) <= 1 for step in free.steps for row in step)
    assert len(free.steps) == 4 * 2 + 2  # offsets 0 and 2
    with pytest.raises(ScheduleError, match="multiple of 2, but it is 3"):
        interleaved(4, 3, inference=True, devices=[0, 0, 1, 1])


@pytest.mark.parametrize(
    ("liveness", "separate", "phases", "pairs"),
    [
        (Liveness.AlwaysLive, False, 3, {0: 4, 1: 3, 2: 2}),
        (Liveness.AlwaysLive, True, 4, {0: 6, 1: 5, 2: 4}),
        (Liveness.OffChipAfterFwd, False, 6, {0: 10, 1: 9, 2: 8}),
        (Liveness.OffChipAfterFwd, True, 6, {0: 10, 1: 9, 2: 8}),
        (Liveness.OffChipAfterFwdNoOverlap, False, 8, {0: 14, 2: 12, 4: 10}),
        (Liveness.OffChipAfterEachPhase, False, 12, {0: 22, 4: 18, 8: 14}),
    ],
)
def test_phase_numbers_of_the_reference(liveness, separate, phases, pairs):
    numbers = phase_numbers(3, liveness, separate)
    assert numbers.phases == phases
    assert dict(zip(numbers.forward, numbers.backward, strict=True)) == pairs
    table = phased_serial(3, 2, liveness=liveness, separate_backward_phase=separate)
    length = max(pairs.values()) + 1
    assert len(table.steps) == 2 * length
    for phase, (forward, backward) in enumerate(pairs.items()):
        assert table.when[Cell("F", phase, 1)] == length + forward
        assert table.when[Cell("B", phase, 1)] == length + backward


def test_phased_parallel_alternates_even_and_odd_ipus():
    table = phased_parallel(3, 1, stages_per_phase=2)
    assert table.devices == ((0, 2), (1, 3), (0, 2))
    for time, step in enumerate(table.steps):
        for ipu, row in zip(table.ipus, step, strict=True):
            assert not row or ipu % 2 == time % 2
    assert len(phased_parallel(3, 2, inference=True).steps) == 6
    assert len(phased_serial(3, 2, inference=True, liveness=Liveness.OffChipAfterEachPhase).steps) == 18


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grouped(4, 6), "multiple of 8, but it is 6; the nearest allowed: 8"),
        (lambda: grouped(4, 18), "nearest allowed: 16 or 24"),
        (lambda: interleaved(4, 6), "multiple of 4, but it is 6"),
        (lambda: grouped(3, 10, inference=True), "multiple of 3, but it is 10"),
        (lambda: grouped_overlapped(4, 9), r"at least 10 \(2N \+ 2\), but it is 9"),
        (lambda: popart_pipeline(4, 6), r"gradient accumulation has to be at least 7 \(2N - 1\), but it is 6"),
        (lambda: popart_pipeline(4, 3, inference=True), r"device iterations.* at least 4 \(N\), but it is 3"),
        (lambda: sequential(0, 1), "at least 1"),
        (lambda: sharded(2, 0), "at least 1"),
        (lambda: grouped(2, 4.0), "integer of at least 1, not 4.0"),
        (lambda: grouped(True, 4), "integer of at least 1, not True"),
        (lambda: grouped(3, 6, devices=[0, 1]), "2 entries in devices for 3 stages"),
        (lambda: grouped(2, 4, devices=[0, -1]), "IPU numbers from 0 are allowed"),
        (lambda: grouped(2, 4, devices=[0, []]), "IPU numbers from 0 are allowed"),
        (lambda: grouped(2, 4, devices=[0, [1, 1]]), "names an IPU twice"),
        (lambda: interleaved(3, 3, devices=[0, 1, 0]), "allowed: every stage on IPUs of its own"),
        (lambda: popart_pipeline(2, 3, devices=[0, [1, 2]]), "runs on exactly one IPU"),
        (lambda: popart_pipeline(3, 5, devices=[0, 0, 1]), "pass them as one stage"),
        (lambda: popart_pipeline(2, 3, inference=True, recompute=True), "allowed is False"),
        (lambda: grouped(2, 4, inference=True, recompute=AUTO), "allowed is None"),
        (lambda: grouped(2, 4, recompute=True), "members of RecomputationMode"),
        (lambda: interleaved(2, 4, recompute=WITHIN), "allowed: Auto, RecomputeThenBackpropagate$"),
        (lambda: sequential(2, 4, recompute=THEN), "allowed: Auto, RecomputeAndBackpropagateInterleaved$"),
        (lambda: phased_serial(0, 1), "0 phases and 1 micro-batches"),
        (lambda: phased_serial(2, 1, ipus=[[0, 1], [2, 2]]), "names an IPU twice"),
        (lambda: phased_parallel(2, 1, ipus=[[0], [2]]), "odd phases are allowed on odd IPUs only"),
        (lambda: phase_numbers(2, "AlwaysLive"), "allowed are the members of Liveness"),
    ],
)
def test_errors_say_what_is_allowed(call, message):
    with pytest.raises(ScheduleError, match=message):
        call()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "table", [grouped(4, 16, recompute=AUTO), grouped_overlapped(2, 6), sequential(2, 2), popart_pipeline(4, 8)]
)
def test_figure_has_a_box_for_every_cell(table, tmp_path):
    figure = timetable_figure(table)
    (axes,) = figure.axes
    cells = [cell for step in table.steps for row in step for cell in row]
    drawn = [text.get_text() for text in axes.texts]
    assert sorted(label for label in drawn if label[-1].isdigit()) == sorted(map(table.label, cells))
    assert ("ramp-up" in drawn) is bool(table.ramp_up)
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"IPU {ipu}" for ipu in table.ipus]
    assert axes.get_xlim() == (0, len(table.steps))
    figure.savefig(tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size > 1000


def test_the_room_is_light_and_stands_alone():
    code = (
        "import sys, ipuperf.schedules as s; s.grouped(4, 8).text(); "
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('ipuperf.')}; "
        "assert not rooms & {'lowering', 'machine', 'simulation', 'frontends'}, rooms; "
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ.copy())
