"""Timetables that break a rule: one error that names the cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipuperf.schedules import (
    SCHEDULES,
    Cell,
    ScheduleError,
    Timetable,
    check_order,
    closed_form_time,
    popart_pipeline,
    timetable_of,
)
from ipuperf.schedules.assembly import Placement, assemble

F0, F1, B0, B1, W0 = Cell("F", 0, 0), Cell("F", 1, 0), Cell("B", 0, 0), Cell("B", 1, 0), Cell("W", 0, 0)
LEGAL = [(0, 0, F0), (1, 0, F1), (1, 1, B1), (3, 0, B0)]


def made(cells: list[Placement], **options: object) -> Timetable:
    """Two stages, one micro-batch unless ``options`` say otherwise."""
    options = {"micro_batches": 1, "devices": ((0,), (1,)), "total": 5, **options}
    return assemble("mine", placements=cells, **options)


def test_what_is_derived() -> None:
    table = made(LEGAL)
    assert (table.stash, table.in_flight, table.stashed, table.period) == ((1, 0), (1, 1), "activations", 5)
    assert made([*LEGAL, (4, 0, W0)]).in_flight == (1, 1)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (LEGAL[1:], "F of stage 0, micro-batch 0 is in no step; all 1 are needed"),
        ([*LEGAL, (4, 0, F1)], "F of stage 1, micro-batch 0 in step 4 runs twice; it ran in 1"),
        (
            [(0, 0, F0), (0, 0, F1), *LEGAL[2:]],
            "F of stage 1, .* in step 0 reads F of stage 0, .* in step 0",
        ),
        ([*LEGAL[:3], (1, 0, B0)], "B of stage 0, micro-batch 0 in step 1 reads B of stage 1, micro-batch 0 in step 1"),
        (
            [(0, 0, F0), (1, 1, F1), (1, 0, B1), (3, 0, B0)],
            "B of stage 1, .* in step 1 needs F of stage 1, .* step 1",
        ),
        ([*LEGAL, (2, 0, W0)], "W of stage 0, micro-batch 0 in step 2 needs B of stage 0, micro-batch 0 in step 3"),
        ([*LEGAL, (4, 0, Cell("F", 0, 1))], "F of stage 0, micro-batch 1 in step 4, of 2 stages and 1 micro-batches"),
        (
            [*LEGAL, (4, 0, Cell("X", 0, 0))],
            "X of stage 0, .* in step 4: allowed kinds are F, R, B, W, I, O",
        ),
        ([*LEGAL, (5, 0, W0)], "in step 5; there are 5 steps and 2 stages"),
        ([*LEGAL, (-1, 0, W0)], "in step -1; there are 5 steps"),
        ([*LEGAL, (4, 0, Cell("F", 2, 0))], "there are 5 steps and 2 stages"),
    ],
)
def test_one_error_names_the_cell(cells: list[Placement], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        made(cells)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "count"), [(0, 4), (2, 0), (-2, 4), (True, 4), (2, 4.0), ("2", 4)])
def test_counts_that_no_schedule_has(name: str, stages: object, count: object) -> None:
    with pytest.raises(ScheduleError, match="(has|have) to be (an integer of )?at least 1"):
        timetable_of(name, stages, count)


def test_micro_batches_come_in_order() -> None:
    swapped = [(0, 0, Cell("F", 0, 1)), (1, 0, F0), (2, 0, B0), (3, 0, Cell("B", 0, 1))]
    with pytest.raises(ScheduleError, match="F of stage 0, micro-batch 1 in step 0, but .* before it in step 1"):
        made(swapped, devices=((0,),), micro_batches=2)
    at_once = [(0, 0, F0), (0, 1, Cell("F", 0, 1)), (2, 0, B0), (3, 0, Cell("B", 0, 1))]
    with pytest.raises(ScheduleError, match="in step 0, but the micro-batch before it in step 0; .* one in a step"):
        made(at_once, devices=((0,),), micro_batches=2)


def test_too_small_a_stash() -> None:
    cells = [(m + 4 * (kind == "B"), 0, Cell(kind, 0, m)) for kind in "FB" for m in range(4)]
    options = {"devices": ((0,),), "micro_batches": 4, "total": 8}
    assert made(cells, **options).stash == made(cells, **options, stash=(4,)).stash == (4,)
    with pytest.raises(ScheduleError, match="stage 0 has a stash of 2, but 4 of its micro-batches .* allowed are 3"):
        made(cells, **options, stash=(2,))


def test_a_table_that_was_changed_later() -> None:
    table = popart_pipeline(2, 4)
    with pytest.raises(ScheduleError, match="is on IPU 0; its stage is on"):
        check_order(replace(table, devices=((1,), (0,))), [])


@pytest.mark.parametrize(
    ("name", "stages", "count", "options", "message"),
    [
        (
            "1f1b",
            2,
            2,
            {"devices": [0, 0]},
            r"IPUs \[\[0\], \[0\]\] puts several .* use interleaved_1f1b",
        ),
        ("zb_h1", 2, 0, {}, "both have to be at least 1"),
        ("interleaved_1f1b", 3, 2, {}, "3 stages in 2 chunks; allowed are multiples of 2"),
        ("interleaved_1f1b", 4, 3, {}, "must be a multiple of 2, but it is 3"),
        ("interleaved_1f1b", 4, 4, {"devices": [0, 1, 1, 0]}, "allowed: 2 IPUs in turn, 2 times"),
        ("1f1b", 2, 2, {"inference": True}, "no option 'inference'; allowed: devices"),
        ("zb_h2", 2, 2, {}, f"allowed: {', '.join(SCHEDULES)}"),
    ],
)
def test_what_schedules_with_flush_refuse(name: str, stages: int, count: int, options: dict, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        timetable_of(name, stages, count, **options)


def test_their_tables_by_hand() -> None:
    assert timetable_of("1f1b", 3, 4).text().splitlines() == [
        "IPU0|F1|F2|F3|  |  |B1|F4|B2|  |B3|  |B4|",
        "IPU1|  |F1|F2|  |B1|F3|B2|F4|B3|  |B4|  |",
        "IPU2|  |  |F1|B1|F2|B2|F3|B3|F4|B4|  |  |",
    ]
    assert timetable_of("zb_h1", 3, 4).text().splitlines() == [
        "IPU0|F1|F2|F3|  |  |B1|W1|F4|B2|W2|B3|W3|B4|W4|",
        "IPU1|  |F1|F2|  |B1|F3|B2|W1|F4|B3|W2|B4|W3|W4|",
        "IPU2|  |  |F1|B1|F2|B2|F3|B3|W1|F4|B4|W2|W3|W4|",
    ]
    rows = timetable_of("interleaved_1f1b", 4, 2).text().splitlines()
    assert [" ".join(row.split("|")[1:]).split() for row in rows] == [
        ["F1.s0", "F2.s0", "F1.s2", "F2.s2", "B1.s2", "B2.s2", "B1.s0", "B2.s0"],
        ["F1.s1", "F2.s1", "F1.s3", "B1.s3", "F2.s3", "B2.s3", "B1.s1", "B2.s1"],
    ]


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("count", [4, 12])
def test_micro_batches_in_flight(stages: int, count: int) -> None:
    """1F1B keeps N - i on stage i; ZB-H1 N on each, of which i wait for the gradients of weights alone."""
    assert timetable_of("1f1b", stages, count).in_flight == tuple(range(stages, 0, -1))
    zero = timetable_of("zb_h1", stages, count)
    assert zero.in_flight == (stages,) * stages
    assert zero.stash == tuple(range(stages, 0, -1))


def test_no_closed_form_of_1f1b_with_short_backwards() -> None:
    with pytest.raises(ScheduleError, match="1f1b, f=3, b=2, inference=False; allowed: training, b >= f"):
        closed_form_time(3, 2, schedule="1f1b", stages=2, micro_batches=4)
