"""Timetables against printed tables (``docs/reference/pipelines.md`` 2.4) and against rules that hold for every
schedule."""

from __future__ import annotations

import pytest

from ipuperf.schedules import (
    Cell,
    grouped,
    grouped_overlapped,
    interleaved,
    phased_parallel,
    phased_serial,
    popart_pipeline,
    sequential,
    sharded,
)

# Typed in, not computed (FB: forward and backward of the last PopART stage).
PRINTED = {
    (grouped, 2, 8): """
        |  F1  |  F2  |  F3  |B1+F4 |B2+F5 |B3+F6 |B4+F7 |B5+F8 |  B6  |  B7  |  B8  |
        |      |  F1  |B1+F2 |B2+F3 |B3+F4 |B4+F5 |B5+F6 |B6+F7 |B7+F8 |  B8  |      |""",
    (interleaved, 2, 6): """
        | F1 |    | F2 | B1 | F3 | B2 | F4 | B3 | F5 | B4 | F6 | B5 |    | B6 |
        |    | F1 | B1 | F2 | B2 | F3 | B3 | F4 | B4 | F5 | B5 | F6 | B6 |    |""",
    (sequential, 2, 2): """
        | F1 |    |    | B1 | F2 |    |    | B2 |
        |    | F1 | B1 |    |    | F2 | B2 |    |""",
    (popart_pipeline, 2, 5): """
        | F1 | F2 | F3+B1 | F4+B2 | F5+B3 | B4 | B5 |
        |    | FB1| FB2   | FB3   | FB4   | FB5|    |""",
    (grouped, 4, 8): """
        |F1|F2|F3|F4|F5   |F6   |F7   |B1+F8|B2   |B3   |B4   |B5|B6|B7|B8|
        |  |F1|F2|F3|F4   |F5   |B1+F6|B2+F7|B3+F8|B4   |B5   |B6|B7|B8|  |
        |  |  |F1|F2|F3   |B1+F4|B2+F5|B3+F6|B4+F7|B5+F8|B6   |B7|B8|  |  |
        |  |  |  |F1|B1+F2|B2+F3|B3+F4|B4+F5|B5+F6|B6+F7|B7+F8|B8|  |  |  |""",
    (interleaved, 4, 8): """
        |F1|  |F2|  |F3|  |F4|B1|F5|B2|F6|B3|F7|B4|F8|B5|  |B6|  |B7|  |B8|
        |  |F1|  |F2|  |F3|B1|F4|B2|F5|B3|F6|B4|F7|B5|F8|B6|  |B7|  |B8|  |
        |  |  |F1|  |F2|B1|F3|B2|F4|B3|F5|B4|F6|B5|F7|B6|F8|B7|  |B8|  |  |
        |  |  |  |F1|B1|F2|B2|F3|B3|F4|B4|F5|B5|F6|B6|F7|B7|F8|B8|  |  |  |""",
    (popart_pipeline, 4, 8): """
        |F1|F2|F3|F4 |F5   |F6   |F7+B1|F8+B2|B3   |B4   |B5 |B6|B7|B8|
        |  |F1|F2|F3 |F4   |F5+B1|F6+B2|F7+B3|F8+B4|B5   |B6 |B7|B8|  |
        |  |  |F1|F2 |F3+B1|F4+B2|F5+B3|F6+B4|F7+B5|F8+B6|B7 |B8|  |  |
        |  |  |  |FB1|FB2  |FB3  |FB4  |FB5  |FB6  |FB7  |FB8|  |  |  |""",
}


def _rows(text):
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.strip().splitlines()]


def _printed(text):
    return [[f"F{c[2:]}+B{c[2:]}" if c.startswith("FB") else c for c in row] for row in _rows(text)]


@pytest.mark.parametrize("case", list(PRINTED), ids=lambda case: f"{case[0].__name__}-{case[1]}-{case[2]}")
def test_printed_tables(case):
    schedule, stages, micro_batches = case
    table = schedule(stages, micro_batches)
    assert _rows(table.text()) == _printed(PRINTED[case])


def test_popart_three_stages_active_per_cycle():
    table = popart_pipeline(3, 5)  # pipelining.md: active stages per cycle, last forward and backward being one
    active = []
    for step in table.steps:
        cells = [cell for row in step for cell in row]
        active.append(len([c for c in cells if not (c.kind == "B" and c.stage == 2)]))
    assert active == [1, 2, 3, 4, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    "schedule",
    [grouped, grouped_overlapped, interleaved, sequential, popart_pipeline, sharded, phased_serial, phased_parallel],
)
@pytest.mark.parametrize("inference", [False, True])
def test_every_stage_runs_every_micro_batch_once_and_in_order(schedule, inference):
    table = schedule(4, 16, inference=inference)
    cells = [cell for step in table.steps for row in step for cell in row if cell.kind in "FB"]
    assert len(cells) == len(set(cells)) == (1 if inference else 2) * 4 * 16
    order = {
        cell: (time, rank) for time, step in enumerate(table.steps) for row in step for rank, cell in enumerate(row)
    }
    for cell, (time, rank) in order.items():
        if cell.kind == "F" and cell.stage:
            assert order[Cell("F", cell.stage - 1, cell.micro_batch)][0] < time
        if cell.kind == "B" and cell.stage < 3:
            assert order[Cell("B", cell.stage + 1, cell.micro_batch)][0] < time
        if cell.kind == "B":
            assert order[Cell("F", cell.stage, cell.micro_batch)] < (time, rank)
        if cell.micro_batch and cell.kind in "FB":
            assert order[Cell(cell.kind, cell.stage, cell.micro_batch - 1)] < (time, rank)


def test_grouped_overlapped_two_stages():
    assert _rows(grouped_overlapped(2, 6).text()) == [
        ["I1", "I2+F1", "I3+F2", "I4+F3", "I5+B1+F4", "I6+B2+F5", "B3+F6", "B4", "B5", "B6", ""],
        ["", "", "F1", "B1+F2+O1", "B2+F3+O2", "B3+F4+O3", "B4+F5+O4", "B5+F6+O5", "B6+O6", "", ""],
    ]


def test_sharded_is_one_micro_batch_at_a_time():
    table = sharded(3, 2, devices=[0, 1, 0])
    assert [[c.kind + str(c.stage) for row in step for c in row] for step in table.steps] == [
        [cell] for cell in ["F0", "F1", "F2", "B2", "B1", "B0"] * 2
    ]
    assert table.ipus == (0, 1)
    assert table.text().splitlines()[1].startswith("IPU1|     |F1.s1|")
