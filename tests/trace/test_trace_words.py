"""Columns of repeated strings given as words and codes."""

import numpy as np
import pytest

from ipuperf.trace import Trace, TraceError, Words
from ipuperf.trace.columns import coerce_column
from ipuperf.trace.schema import TABLES

KIND = next(column for column in TABLES["steps"].columns if column.name == "kind")
NAME = next(column for column in TABLES["ops"].columns if column.name == "name")


def test_words_are_the_strings_they_stand_for():
    words = Words(("sync", "compute"), np.array([1, 0, 0, 1]))
    column = coerce_column("steps", KIND, words).strings()
    assert column.dtype == object
    assert column.tolist() == ["compute", "sync", "sync", "compute"]
    assert np.array_equal(column, coerce_column("steps", KIND, column.tolist()))
    assert not column.flags.writeable
    assert len(words) == 4


def test_no_rows():
    assert coerce_column("ops", NAME, Words((), np.empty(0, dtype=np.int64))).strings().tolist() == []


def test_a_word_that_is_not_allowed_is_named():
    with pytest.raises(TraceError, match=r"'steps', column 'kind'.*'sleep', allowed are compute"):
        coerce_column("steps", KIND, Words(("compute", "sleep"), np.array([0, 1])))


def test_a_word_that_is_no_string_is_named():
    with pytest.raises(TraceError, match=r"'ops', column 'name'.*is 3 \(int\), expected a string"):
        coerce_column("ops", NAME, Words(("a", 3), np.array([0, 1])))


@pytest.mark.parametrize("code", [-1, 2])
def test_a_code_without_a_word_is_named(code):
    with pytest.raises(TraceError, match=rf"'ops', column 'name'.*codes run from .*{code}.*there are 2 words"):
        coerce_column("ops", NAME, Words(("a", "b"), np.array([0, code, 1])))


def test_words_for_a_column_of_numbers_are_refused():
    column = next(column for column in TABLES["ops"].columns if column.name == "flops")
    with pytest.raises(TraceError, match="'ops', column 'flops'"):
        coerce_column("ops", column, Words(("a",), np.array([0])))


def test_a_trace_of_words_equals_one_of_strings():
    def trace(names, **options):
        runs = {"run": np.arange(3), "name": names, "start": np.zeros(3, int), "dur": np.zeros(3, int)}
        meta = {"machine": "m", "clock_hz": 1e9, "tiles_per_ipu": 4, "bytes_per_tile": 1000, "num_ipus": 2}
        return Trace(meta, {"steps": {}, "instances": {}, "runs": runs}, **options)

    codes = np.array([1, 0, 1])
    words = trace(Words(("a", "b"), codes))
    codes[:] = 0
    assert "runs 3" in repr(words)
    assert words.columns("runs")["name"].tolist() == ["b", "a", "b"]
    assert words.columns("runs")["name"] is words.columns("runs")["name"]
    assert words == trace(["b", "a", "b"]) == trace(Words(("b", "a"), np.array([0, 1, 0])), copy=False)
    assert words != trace(["b", "a", "a"])


def test_arrays_given_away_are_not_copied():
    start = np.zeros(2, dtype=np.int64)
    meta = {"machine": "m", "clock_hz": 1e9, "tiles_per_ipu": 4, "bytes_per_tile": 1000, "num_ipus": 2}
    runs = {"run": [0, 1], "name": ["a", "b"], "start": start, "dur": [1, 1]}
    trace = Trace(meta, {"steps": {}, "instances": {}, "runs": runs}, copy=False)
    assert trace.columns("runs")["start"] is start
    assert not start.flags.writeable
