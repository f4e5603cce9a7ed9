"""Bytes per step against a step-by-step sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.lowering import TileVector
from ipuperf.lowering.sweep import sweep
from ipuperf.lowering.timeline import Block, LiveIntervals, Storage

TILES = 7
VECTORS = st.lists(st.lists(st.integers(0, 60), min_size=TILES, max_size=TILES), min_size=1, max_size=5)
STORAGES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 12)), max_size=20)


def flat(steps, storages):
    """A graph without calls in which these (kind, begin, end) live."""
    block = Block()
    block.add(["step"] * steps)
    block.entries += [Storage(kind, 0, begin, end) for kind, begin, end in storages]
    return block


def check(block, vectors, lives, always):
    """The totals of ``block`` against the sums of what lives at each step, ``lives`` as (kind, begin, end)."""
    dense, steps = np.array(vectors), block.length
    found = sweep(block, [TileVector.of(v) for v in dense], np.arange(len(dense)), np.array(always))
    states = np.array([sum((dense[k] for k, a, b in lives if a <= t < b), np.zeros(TILES, int)) for t in range(steps)])
    assert found.total.tolist() == states.sum(axis=1).tolist()
    assert found.fullest.tolist() == (states + always).max(axis=1).tolist()
    assert found.where.tolist() == (states + always).argmax(axis=1).tolist()
    assert found.peak.tolist() == states[states.sum(axis=1).argmax()].tolist()


@pytest.mark.heavy
@settings(max_examples=200)
@given(VECTORS, STORAGES, st.lists(st.integers(0, 40), min_size=TILES, max_size=TILES), st.integers(1, 13))
def test_totals_are_those_of_each_step(vectors, storages, always, steps):
    lives = [(kind % len(vectors), a, b) for kind, a, b in storages]
    check(flat(steps, lives), vectors, lives, always)


@pytest.mark.heavy
@settings(max_examples=200)
@given(st.data(), VECTORS, STORAGES, STORAGES, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_calls_are_what_their_steps_are_when_they_are_written_out(data, vectors, inner, outer, gaps):
    """A graph is called again and again, between and during the lives of its caller's storages; the caller goes on
    using what the callee hands over."""
    count = len(vectors)
    callee = flat(5, [(kind % count, min(a, 5), min(b, 5)) for kind, a, b in inner])
    result = Storage(data.draw(st.integers(0, count - 1)), 0, 3, 5)
    callee.entries.append(result)
    callee.handed = frozenset([result])
    main, lives = Block(), []
    main.add(["first"])
    for gap in gaps:
        call = main.place(callee)
        begin, used = call.offset, main.length + data.draw(st.integers(0, gap))
        call.open[result] = Storage(result.kind, 0, begin + 3, used)
        lives += [(s.kind, begin + s.begin, begin + s.end) for s in callee.entries if s is not result]
        lives.append((result.kind, begin + 3, used))
        main.add(["step"] * gap)
    for kind, a, b in outer:
        main.entries.append(Storage(kind % count, 0, min(a, main.length), min(b, main.length)))
        lives.append((kind % count, min(a, main.length), min(b, main.length)))
    check(main, vectors, lives, range(TILES))
    found = {}
    for block, begins in main.begins().items():
        for kind, begin, end in block.lives.tolist():
            found.setdefault(kind, []).append((((begin, end),), begins))
    for kind, parts in found.items():
        spans = sorted({(a, b) for k, a, b in lives if k == kind and a < b})
        intervals = LiveIntervals(tuple(parts))
        assert list(intervals) == spans
        assert [intervals.live_at(t) for t in range(20)] == [any(a <= t < b for a, b in spans) for t in range(20)]
        assert intervals == LiveIntervals(((tuple(spans), np.zeros(1, np.int64)),))
        assert hash(intervals) == hash(LiveIntervals(((tuple(spans), np.zeros(1, np.int64)),)))


def test_nothing_alive():
    found = sweep(flat(3, []), [], np.empty(0, dtype=np.int64), np.array([1, 5, 5]))
    assert (found.total.tolist(), found.fullest.tolist(), found.where.tolist()) == ([0] * 3, [5] * 3, [1] * 3)
    assert found.peak.tolist() == [0, 0, 0]
