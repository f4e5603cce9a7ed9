"""Files of baselines: there and back, damaged ones, tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from ipuperf.testing import BaselineError, tables
from ipuperf.testing.compare import Tolerance
from ipuperf.testing.files import read_record, text_of, write_text
from ipuperf.testing.record import OpFigures, Record

HEADER = {
    "ipuperf_version": "0.1.0",
    "schema_version": 1,
    "machine": "gc200-1",
    "clock_hz": 1,
    "tiles_per_ipu": 2,
    "bytes_per_tile": 3,
    "program": 'a "program"',
}
FIGURES = {"system": {"IPUs": 1}, "cycles": {"total": 5}, "memory": {}, "transfers": {"stream over pcie": 8}}
RECORD = Record(HEADER, FIGURES, (OpFigures("main", "MatMul", 1, 2, 3), OpFigures("", "", 1, 1, 9)))


@pytest.mark.parametrize("written", [RECORD, Record(HEADER, FIGURES, ())])
def test_there_and_back(tmp_path: Path, written: Record) -> None:
    path = tmp_path / "below" / "x.json"
    assert write_text(path, text_of(written))
    assert read_record(path) == written
    assert not write_text(path, text_of(written))
    assert [file.name for file in path.parent.iterdir()] == ["x.json"]


def test_one_op_is_one_line() -> None:
    lines = text_of(RECORD).splitlines()
    assert '    {"scope": "main", "type": "MatMul", "number": 1, "calls": 2, "cycles": 3},' in lines
    assert '    "total": 5' in lines


def damaged(**changes: Any) -> str:
    data = json.loads(text_of(RECORD))
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read: Expecting value"),
        (text_of(RECORD)[:-40], "cannot be read: "),
        ("<<<<<<< HEAD\n" + text_of(RECORD), "cannot be read: Expecting value"),
        ("[1]", 'does not say "format": "ipuperf cycle baseline"'),
        (damaged(format="else"), 'does not say "format"'),
        (damaged(format_version=9), "has layout version 9, this ipuperf reads 1"),
        (damaged(header=None), "'header' is missing"),
        (damaged(memory=None), "'memory' is missing"),
        (damaged(header={"machine": "x"}), "header.ipuperf_version is missing"),
        (damaged(header={**HEADER, "schema_version": "1"}), "header.schema_version is '1', expected a whole number"),
        (damaged(header={k: v for k, v in HEADER.items() if k != "clock_hz"}), "header.clock_hz is missing"),
        (damaged(cycles={"total": 1.5}), r"cycles\['total'\] is 1.5, expected a whole number"),
        (damaged(cycles=[]), r"cycles is \[\], expected names with values"),
        (damaged(operations={}), r"operations is \{\}, expected a list"),
        (damaged(operations=[{"scope": "main"}]), r"operations\[0\].type is missing"),
        (
            damaged(operations=[{"scope": "", "type": "", "number": 1, "calls": 1, "cycles": 1, "bytes": 1}]),
            r"operations\[0\] has an unknown key 'bytes'",
        ),
    ],
)
def test_damaged_files_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match=f"baseline .*x.json .*{message}"):
        read_record(path)


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(FileNotFoundError):
        read_record(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BaselineError, match="cannot be read: .*decode"):
        read_record(path)
    with pytest.raises(BaselineError, match="cannot be read"):
        read_record(tmp_path)


# -- tables ------------------------------------------------------------------------------------------------------------

ROWS = [{"vertex": "a", "elements": 1, "cycles": 100}, {"vertex": "b", "elements": 1, "cycles": 5}]
KEYS = ("vertex", "elements")


def test_moved_rows_are_shown_with_both_values() -> None:
    old = tables.normalised(ROWS, KEYS)
    new = tables.normalised([{**ROWS[0], "cycles": 110}, {"vertex": "c", "elements": 1, "cycles": 7}], KEYS)
    lines = tables.moved(old, new, KEYS)
    assert lines == ["- b | 1", "~ a | 1: cycles 100 -> 110 (+10.00%)", "+ c | 1: cycles 7"]
    assert tables.report("x.csv", lines, 2).splitlines() == [
        "x.csv: 3 rows moved",
        "  - b | 1",
        "  ~ a | 1: cycles 100 -> 110 (+10.00%)",
        "  ... and 1 more",
    ]
    assert tables.moved(old, old, KEYS) == []
    assert tables.moved(old, new, KEYS, Tolerance(0.1)) == ["- b | 1", "+ c | 1: cycles 7"]
    words = tables.normalised([{"vertex": "a", "plan": "AMP"}], ["vertex"])
    other = tables.normalised([{"vertex": "a", "plan": "SLIC"}], ["vertex"])
    assert tables.moved(words, other, ["vertex"], Tolerance(0.5)) == ["~ a: plan AMP -> SLIC"]


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        ([], KEYS, "no rows"),
        ([*ROWS, ROWS[0]], KEYS, r"two rows of a \| 1"),
        ([ROWS[0], {"vertex": "b"}], KEYS, "row 1 has columns vertex, row 0 has vertex, elements, cycles"),
        (ROWS, ["vortex"], "keys: 'vortex', the columns are vertex, elements, cycles"),
        (ROWS, [], r"keys: \[\], the columns are"),
    ],
)
def test_tables_that_cannot_be_compared(rows: Any, keys: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tables.normalised(rows, keys)


def test_tables_as_files(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    rows = tables.normalised(ROWS, KEYS)
    write_text(path, tables.text_of(rows))
    assert path.read_text() == "vertex,elements,cycles\na,1,100\nb,1,5\n"
    assert tables.read(path, KEYS) == rows
    for text, message in (
        ("", "no rows"),
        ("vertex,elements,cycles\na,1\n", "line 2 has more or fewer cells"),
        ("vertex,elements,cycles\na,1,2,3\n", "line 2 has more or fewer cells"),
        ("vertex,cycles\na,1\n", "keys: 'elements', the columns are vertex, cycles"),
        ('vertex,elements,cycles\n"a"b,1,2\n', "cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(BaselineError, match=message):
            tables.read(path, KEYS)
