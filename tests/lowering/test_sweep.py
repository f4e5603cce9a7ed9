"""Bytes per step against a step-by-step sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.lowering import TileVector
from ipuperf.lowering.sweep import sweep

TILES = 7
VECTORS = st.lists(st.lists(st.integers(0, 60), min_size=TILES, max_size=TILES), min_size=1, max_size=5)
STORAGES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 12)), max_size=20)


@pytest.mark.heavy
@settings(max_examples=200)
@given(VECTORS, STORAGES, st.lists(st.integers(0, 40), min_size=TILES, max_size=TILES), st.integers(1, 13))
def test_totals_are_those_of_each_step(vectors, storages, always, steps):
    dense = np.array(vectors)
    live = np.array([(kind % len(vectors), a, b) for kind, a, b in storages], dtype=np.int64).reshape(-1, 3)
    found = sweep(steps, [TileVector.of(v) for v in dense], live, np.array(always))
    states = np.array([sum((dense[k] for k, a, b in live if a <= t < b), np.zeros(TILES, int)) for t in range(steps)])
    assert found.total.tolist() == states.sum(axis=1).tolist()
    assert found.fullest.tolist() == (states + always).max(axis=1).tolist()
    assert found.where.tolist() == (states + always).argmax(axis=1).tolist()
    assert found.peak.tolist() == states[states.sum(axis=1).argmax()].tolist()


def test_nothing_alive():
    found = sweep(3, [], np.empty((0, 3), dtype=np.int64), np.array([1, 5, 5]))
    assert (found.total.tolist(), found.fullest.tolist(), found.where.tolist()) == ([0] * 3, [5] * 3, [1] * 3)
    assert found.peak.tolist() == [0, 0, 0]
