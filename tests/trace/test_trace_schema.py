"""What a trace accepts and what it refuses, and how it says so."""

import numpy as np
import pytest

from ipuperf.trace import KINDS, TABLES, Trace, TraceError

META = {"machine": "m", "clock_hz": 1e9, "tiles_per_ipu": 4, "bytes_per_tile": 1000, "num_ipus": 2}
EMPTY = {"steps": {}, "instances": {}}


def runs(**changes):
    return {"run": [0, 1], "name": ["a", "b"], "start": [0, 5], "dur": [5, 5], **changes}


def test_tables_are_those_of_the_contract():
    assert list(TABLES) == [
        *("ops", "programs", "steps", "loops", "instances", "tile_runs", "plans"),
        *("tile_memory", "code", "variables", "live_intervals", "liveness"),
        *("links", "transfers", "counters", "host_events", "runs"),
    ]
    assert TABLES["steps"].column_names == (
        *("segment", "seq", "program_id", "op_id", "kind", "rel_start", "dur", "dur_mean", "active_tiles"),
        *("argmax_tile", "bytes_in", "bytes_out", "flops", "lane", "loop"),
    )
    assert TABLES["instances"].column_names == (
        *("instance", "segment", "ipu", "replica", "micro_batch", "iteration", "start", "dur", "parent"),
    )
    assert len(KINDS) == 12
    for table in TABLES.values():
        assert table.meaning
        for column in table.columns:
            assert column.meaning
            assert column.dtype in ("i8", "i4", "f8", "bool", "str")


def test_columns_have_the_dtype_of_the_schema_and_are_read_only():
    trace = Trace(META, {**EMPTY, "runs": runs()})
    columns = trace.columns("runs")
    assert [values.dtype for values in columns.values()] == [np.int32, object, np.int64, np.int64]
    with pytest.raises(ValueError, match="read-only"):
        columns["start"][0] = 7
    frame = trace.table("runs")
    frame.loc[0, "start"] = 7
    assert trace.columns("runs")["start"][0] == 0
    assert len(trace.table("ops")) == 0
    assert "runs 2" in repr(trace)


def test_the_array_given_is_copied():
    start = np.array([0, 5])
    trace = Trace(META, {**EMPTY, "runs": runs(start=start)})
    start[0] = 99
    assert trace.columns("runs")["start"][0] == 0


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({}, "missing table(s) steps, instances"),
        ({**EMPTY, "step": {}}, "unknown table 'step'"),
        ({**EMPTY, "runs": {"run": [0]}}, "missing column(s) name, start, dur"),
        ({**EMPTY, "runs": runs(end=[1, 2])}, "unknown column 'end'"),
        ({**EMPTY, "runs": runs(start=[0])}, "different lengths (run 2, name 2, start 1, dur 2)"),
        ({**EMPTY, "runs": runs(start=[0.0, 1.0])}, "dtype is float64, expected int64 (cycles)"),
        ({**EMPTY, "runs": runs(start=[True, False])}, "dtype is bool"),
        ({**EMPTY, "runs": runs(run=[0, 2**31])}, "does not fit int32"),
        ({**EMPTY, "runs": runs(name=["a", None])}, "row 1 is None (NoneType), expected a string"),
        ({**EMPTY, "runs": runs(start=[[0, 1]])}, "2 dimensions"),
        ({**EMPTY, "runs": runs(start=3)}, "0 dimensions"),
        ({**EMPTY, "runs": runs(run=[1, 1])}, "1 appears more than once"),
        ({**EMPTY, "counters": {"track": ["a"], "t": [0], "value": [np.nan]}}, "not a finite number"),
        (
            {**EMPTY, "tile_memory": {"ipu": [0], "tile": [0], "category": ["weights"], "bytes": [1]}},
            "row 0 is 'weights', allowed are variableAlwaysLive",
        ),
    ],
)
def test_tables_that_are_refused(tables, words):
    with pytest.raises(TraceError) as error:
        Trace(META, tables)
    assert words in str(error.value)


def test_op_ids_are_not_negative():
    ops = {"op_id": [-1], "name": ["a"], "type": ["a"], "graph": ["g"], "phase": ["fwd"], "flops": [1], "line": [""]}
    ops["dtype"] = ops["module"] = [""]
    with pytest.raises(TraceError, match="-1 is negative"):
        Trace(META, {**EMPTY, "ops": ops})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": 3}, "meta machine: 3"),
        ({"clock_hz": 0}, "meta clock_hz: 0"),
        ({"num_ipus": 2.5}, "meta num_ipus: 2.5"),
        ({"replicas": True}, "meta replicas: True"),
        ({"warnings": "none"}, "meta warnings: 'none'"),
        ({"oom": "no"}, "meta oom: 'no'"),
        ({"schema_version": 99}, "meta schema_version: 99"),
        ({"extra": {"a": [1, object()]}}, "extra.a[1]: object cannot be written as JSON"),
        ({"extra": float("inf")}, "not a finite number"),
    ],
)
def test_meta_that_is_refused(changes, words):
    with pytest.raises(TraceError) as error:
        Trace({**META, **changes}, EMPTY)
    assert words in str(error.value)


def test_meta_is_completed_and_made_plain():
    meta = Trace({**META, "seed": np.int64(3), "shape": (1, np.float32(0.5))}, EMPTY).meta
    assert meta["seed"] == 3
    assert type(meta["seed"]) is int
    assert meta["shape"] == [1, 0.5]
    assert (meta["replicas"], meta["warnings"], meta["oom"]) == (1, [], False)
    assert {"schema_version", "ipuperf_version", "assumptions"} <= meta.keys()
    with pytest.raises(TraceError, match="missing key 'clock_hz'"):
        Trace({"machine": "m"}, EMPTY)


@pytest.mark.parametrize(("held", "oom"), [(600, False), (601, True)])
def test_oom_is_derived_from_tile_memory(held, oom):
    memory = {"ipu": [0, 0], "tile": [1, 1], "category": ["stack", "gaps"], "bytes": [400, held]}
    assert Trace(META, {**EMPTY, "tile_memory": memory}).meta["oom"] is oom


def test_unknown_table_name_is_refused(trace):
    with pytest.raises(TraceError, match="no table 'slices'"):
        trace.table("slices")


def test_seconds(trace):
    assert trace.seconds(1_850_000_000) == 1.0
    assert trace.seconds(np.array([185, 370])).tolist() == pytest.approx([1e-7, 2e-7])


def test_a_table_that_is_made_later_is_made_once_and_checked_then():
    made = []

    def good():
        made.append(1)
        return {"run": [0], "name": ["main"], "start": [0], "dur": [7]}

    trace = Trace(META, {"steps": {}, "instances": {}, "runs": good, "ops": lambda: {"op_id": [1]}})
    assert made == []
    assert trace.columns("runs")["dur"].tolist() == trace.table("runs")["dur"].tolist() == [7]
    assert made == [1]
    with pytest.raises(TraceError, match=r"trace table 'ops': missing column\(s\) name"):
        trace.columns("ops")
