"""Columns of repeated strings given as words and codes."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf.trace import TraceError, Words
from ipuperf.trace.columns import coerce_column
from ipuperf.trace.schema import TABLES

KIND = next(column for column in TABLES["steps"].columns if column.name == "kind")
NAME = next(column for column in TABLES["ops"].columns if column.name == "name")


def test_words_are_the_strings_they_stand_for():
    words = Words(("sync", "compute"), np.array([1, 0, 0, 1]))
    column = coerce_column("steps", KIND, words)
    assert column.dtype == object
    assert column.tolist() == ["compute", "sync", "sync", "compute"]
    assert np.array_equal(column, coerce_column("steps", KIND, column.tolist()))
    assert not column.flags.writeable
    assert len(words) == 4


def test_no_rows():
    assert coerce_column("ops", NAME, Words((), np.empty(0, dtype=np.int64))).tolist() == []


def test_a_word_that_is_not_allowed_is_named():
    with pytest.raises(TraceError, match=r"'steps', column 'kind'.*'sleep', allowed are compute"):
        coerce_column("steps", KIND, Words(("compute", "sleep"), np.array([0, 1])))


def test_a_word_that_is_no_string_is_named():
    with pytest.raises(TraceError, match=r"'ops', column 'name'.*is 3 \(int\), expected a string"):
        coerce_column("ops", NAME, Words(("a", 3), np.array([0, 1])))
