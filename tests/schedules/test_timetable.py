"""Timetables against the printed tables of the reference and their closed forms."""

from __future__ import annotations

import pytest

from ipuperf.schedules import Cell, ScheduleError, grouped, interleaved, popart_pipeline, sequential


def _rows(table):
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.text().splitlines()]


def test_grouped_two_stages_eight_micro_batches():
    assert _rows(grouped(2, 8)) == [
        ["F1", "F2", "F3", "B1+F4", "B2+F5", "B3+F6", "B4+F7", "B5+F8", "B6", "B7", "B8"],
        ["", *["F1", "B1+F2", "B2+F3", "B3+F4", "B4+F5", "B5+F6", "B6+F7", "B7+F8", "B8"], ""],
    ]


def test_sequential_two_stages_two_micro_batches():
    assert _rows(sequential(2, 2)) == [
        ["F1", "", "", "B1", "F2", "", "", "B2"],
        ["", "F1", "B1", "", "", "F2", "B2", ""],
    ]


def test_popart_two_stages_five_micro_batches():
    assert _rows(popart_pipeline(2, 5)) == [
        ["F1", "F2", "F3+B1", "F4+B2", "F5+B3", "B4", "B5"],
        ["", "F1+B1", "F2+B2", "F3+B3", "F4+B4", "F5+B5", ""],
    ]


@pytest.mark.parametrize("stages", range(2, 9))
def test_closed_forms(stages):
    for factor in (1, 2, 3):
        m = 2 * stages * factor
        assert len(grouped(stages, m).steps) == m + 2 * stages - 1
        assert len(interleaved(stages, m).steps) == 2 * (m + stages - 1)
        assert len(sequential(stages, m).steps) == 2 * stages * m
        assert len(popart_pipeline(stages, m).steps) == m + 2 * stages - 2


@pytest.mark.parametrize("schedule", [grouped, interleaved, sequential, popart_pipeline])
def test_every_stage_runs_every_micro_batch_once_and_in_order(schedule):
    table = schedule(4, 8)
    seen: dict[Cell, int] = {}
    for time, step in enumerate(table.steps):
        for cells in step:
            for cell in cells:
                assert cell not in seen
                seen[cell] = time
    assert len(seen) == 2 * 4 * 8
    for cell, time in seen.items():
        if cell.kind == "F" and cell.stage:
            assert seen[Cell("F", cell.stage - 1, cell.micro_batch)] < time
        if cell.kind == "B" and cell.stage < 3:
            assert seen[Cell("B", cell.stage + 1, cell.micro_batch)] < time


def test_illegal_counts_are_refused():
    with pytest.raises(ScheduleError, match="multiple of 8, but it is 6"):
        grouped(4, 6)
    with pytest.raises(ScheduleError, match="multiple of 4, but it is 6"):
        interleaved(4, 6)
    with pytest.raises(ScheduleError, match="at least 7 .* but it is 6"):
        popart_pipeline(4, 6)
    with pytest.raises(ScheduleError, match="at least 1"):
        sequential(0, 1)
