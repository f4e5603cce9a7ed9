"""Which op is which after a program changed, tolerances, and the text of a difference."""

from dataclasses import replace
from typing import Any

import pytest

from ipuperf.testing.compare import Moved, Tolerance, moved_sections, paired_operations
from ipuperf.testing.record import OpFigures, Record, record
from ipuperf.testing.text import moved_text


def program(*ops: tuple[str, int], scope: str = "main", calls: int = 1) -> list[OpFigures]:
    seen: dict[str, int] = {}
    found = []
    for kind, cycles in ops:
        seen[kind] = seen.get(kind, 0) + 1
        found.append(OpFigures(scope, kind, seen[kind], calls, cycles))
    return found


LAYERS = [("MatMul", 100), ("Add", 10), ("MatMul", 200), ("Add", 20), ("MatMul", 300), ("Add", 30)]


def changed(before: list[OpFigures], after: list[OpFigures]) -> list[tuple[int, int]]:
    pairs = [(old.cycles if old else 0, new.cycles if new else 0) for old, new in paired_operations(before, after)]
    assert sorted(a for a, _ in pairs if a) == sorted(op.cycles for op in before)
    assert sorted(b for _, b in pairs if b) == sorted(op.cycles for op in after)
    return [pair for pair in pairs if pair[0] != pair[1]]


def test_an_op_that_grows_stays_itself() -> None:
    assert changed(program(*LAYERS), program(*LAYERS[:2], ("MatMul", 250), *LAYERS[3:])) == [(200, 250)]


@pytest.mark.parametrize("place", range(len(LAYERS) + 1))
def test_a_new_op_anywhere_is_one_new_op(place: int) -> None:
    after = program(*LAYERS[:place], ("MatMul", 77), *LAYERS[place:])
    assert changed(program(*LAYERS), after) == [(0, 77)]
    assert changed(after, program(*LAYERS)) == [(77, 0)]


def test_a_new_layer_and_a_change_together() -> None:
    after = program(*LAYERS[:2], ("MatMul", 200), ("Gelu", 5), ("Add", 21), *LAYERS[4:])
    assert sorted(changed(program(*LAYERS), after)) == [(0, 5), (20, 21)]


def test_another_order_is_no_change_of_cycles_of_a_type() -> None:
    swapped = program(LAYERS[1], LAYERS[0], *LAYERS[2:])
    assert changed(program(*LAYERS), swapped) == []


def test_scopes_are_apart() -> None:
    before = program(("MatMul", 1)) + program(("MatMul", 2), scope="main/block")
    assert changed(before, program(("MatMul", 2), scope="main/block")) == [(1, 0)]


def kept(operations: list[OpFigures], **figures: dict[str, int]) -> Record:
    empty: dict[str, dict[str, int]] = {"system": {}, "cycles": {}, "memory": {}, "transfers": {}}
    return Record({}, {**empty, **figures}, tuple(operations))


def test_sections_show_the_largest_change_first_and_the_total_before_all() -> None:
    before = kept(program(*LAYERS), cycles={"total": 1000, "a": 10, "b": 10, "gone": 3})
    after = kept(
        program(("MatMul", 101), ("Add", 10), ("MatMul", 150), ("Add", 20), ("MatMul", 300), ("Add", 30)),
        cycles={"total": 1001, "a": 20, "b": 60, "new": 5},
    )
    found = moved_sections(before, after, Tolerance())
    assert [row.label for row in found["cycles"]] == ["total", "b", "a", "new", "gone"]
    assert found["operations"] == [
        Moved("main/MatMul 2", "MatMul", 200, 150),
        Moved("main/MatMul 1", "MatMul", 100, 101),
    ]
    assert list(found) == ["cycles", "operations"]
    assert list(moved_sections(before, after, Tolerance(), ["operations"])) == ["operations"]
    assert moved_sections(before, before, Tolerance()) == {}


def test_tolerance_is_relative_to_the_baseline() -> None:
    assert Tolerance(0.1).holds(100, 110)
    assert not Tolerance(0.1).holds(110, 98)
    assert not Tolerance(0.5).holds(0, 1)
    assert Tolerance(0.0, 5).holds(0, 5)
    assert str(Tolerance(0.01)) == "rtol=0.01"
    assert str(Tolerance(0.0, 8)) == "rtol=0, atol=8"
    before = kept(program(("MatMul", 100)))
    assert moved_sections(before, kept(program(("MatMul", 104))), Tolerance(0.05)) == {}
    assert moved_sections(before, kept(program(("MatMul", 106))), Tolerance(0.05))
    (more,) = moved_sections(before, kept(program(("MatMul", 100), calls=2)), Tolerance(0.05))["operations"]
    assert more.note == "calls 1 -> 2"


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), True, "0.1", None])
def test_a_tolerance_is_a_number_of_at_least_zero(value: Any) -> None:
    with pytest.raises(ValueError, match="rtol: .*expected a number of at least 0"):
        Tolerance(value)
    with pytest.raises(ValueError, match="atol: .*expected a number of at least 0"):
        Tolerance(0.0, value)


@pytest.mark.parametrize(("only", "message"), [(["ops"], "unknown section 'ops'"), ([], "no section")])
def test_sections_are_checked(only: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"only: {message}, the sections are system, cycles, memory, transfers, oper"):
        moved_sections(kept([]), kept([]), Tolerance(), only)


def test_the_text_aligns_columns_and_counts_the_rest() -> None:
    rows = [Moved("main/MatMul 1", "MatMul", 1000, 1250), Moved("main/Add 1", "Add", 0, 7, "new")]
    assert moved_text({"operations": rows}, 5).splitlines() == [
        "operations, cycles on all IPUs: 2 moved",
        "                 type    before  after  change        %",
        "  main/MatMul 1  MatMul   1,000  1,250    +250  +25.00%",
        "  main/Add 1     Add          0      7      +7           new",
    ]
    short = moved_text({"operations": rows * 3, "cycles": [Moved("total", "", 2, 1)]}, 2).splitlines()
    assert short[4] == "  ... and 4 more"
    assert short[-1].split() == ["total", "2", "1", "-1", "-50.00%"]


def test_a_record_of_a_trace_by_hand(make_trace: Any) -> None:
    trace = make_trace(
        [
            (0, 0, 0, 0, 10, "host_run", ""),
            (0, 0, 0, 10, 40, "compute", "main/f(3)/MatMul.12"),
            (0, 0, 0, 50, 5, "exchange", "main/f(4)/MatMul.9"),
            (0, 1, 0, 10, 30, "compute", "main/f(3)/Add.20"),
        ],
        runs=[(0, 60)],
        tiles=[(0, 0, "constant", 5), (0, 3, "constant", 7), (1, 0, "stack", 2)],
        transfers=[("p2p", "ipu_link", 100), ("p2p", "ipu_link", 20), ("stream", "pcie", 8)],
    )
    found = record(trace)
    assert found.header["machine"] == "handmade"
    assert found.header["program"] == "model"
    assert found.figures["system"] == {"IPUs": 2, "replicas": 1}
    assert found.figures["cycles"] == {
        "all IPUs: compute": 70,
        "all IPUs: exchange": 5,
        "all IPUs: host_run": 10,
        "critical IPU: compute": 40,
        "critical IPU: exchange": 5,
        "critical IPU: host": 10,
        "critical IPU: sync": 5,
        "total": 60,
    }
    assert found.figures["memory"] == {
        "IPU 0: category constant": 12,
        "IPU 0: fullest tile": 7,
        "IPU 1: category stack": 2,
        "IPU 1: fullest tile": 2,
    }
    assert found.figures["transfers"] == {"p2p over ipu_link": 120, "stream over pcie": 8}
    assert [(op.path, op.calls, op.cycles) for op in found.operations] == [
        ("(no op)", 1, 10),
        ("main/f/MatMul 1", 1, 5),  # created first
        ("main/f/MatMul 2", 1, 40),
        ("main/f/Add 1", 1, 30),
    ]
    assert replace(found.operations[1], number=2).name == "MatMul 2"
