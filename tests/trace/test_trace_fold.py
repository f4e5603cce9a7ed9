"""Folded sums against expanded slices, and windows against a plain loop."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.trace import KINDS, Trace, fitting_window, slice_batches, slice_count, slices
from ipuperf.trace.summary import union_length

META = {"machine": "m", "clock_hz": 1e9, "tiles_per_ipu": 4, "bytes_per_tile": 1000, "num_ipus": 8, "replicas": 2}

STEP = st.tuples(st.integers(0, 4), st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, 9), st.integers(0, 2))
INSTANCE = st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 1), st.integers(0, 100))


def small_trace(steps, instances) -> Trace:
    """Steps of (segment, kind, rel_start, dur, lane), instances of (segment, ipu, replica, start); nothing else."""
    count = len(steps)
    zero = [0] * count
    table = {
        "segment": [s[0] for s in steps],
        "seq": list(range(count)),
        "program_id": [-1] * count,
        "op_id": [-1] * count,
        "kind": [s[1] for s in steps],
        "rel_start": [s[2] for s in steps],
        "dur": [s[3] for s in steps],
        "dur_mean": [s[3] / 2 for s in steps],
        **dict.fromkeys(("active_tiles", "argmax_tile", "bytes_in", "bytes_out", "flops"), zero),
        "lane": [s[4] for s in steps],
        "loop": [-1] * len(steps),
    }
    extent = {s[0]: max(t[2] + t[3] for t in steps if t[0] == s[0]) for s in steps}
    runs = {
        "instance": list(range(len(instances))),
        "segment": [i[0] for i in instances],
        "ipu": [i[1] for i in instances],
        "replica": [i[2] for i in instances],
        "micro_batch": [-1] * len(instances),
        "iteration": [-1] * len(instances),
        "start": [i[3] for i in instances],
        "dur": [extent.get(i[0], 0) for i in instances],
        "parent": [0] * len(instances),
    }
    return Trace(META, {"steps": table, "instances": runs})


def loop(steps, instances):
    """Every slice by two plain loops: (replica, ipu, lane, start, dur, kind)."""
    return [
        (replica, ipu, step[4], start + step[2], step[3], step[1])
        for segment, ipu, replica, start in instances
        for step in steps
        if step[0] == segment
    ]


@pytest.mark.heavy
@settings(max_examples=60)
@given(st.lists(STEP, max_size=12), st.lists(INSTANCE, max_size=12))
def test_expand_and_totals_agree_with_a_plain_loop(steps, instances):
    trace = small_trace(steps, instances)
    expected = sorted(loop(steps, instances))
    frame = trace.expand()
    got = zip(frame.replica, frame.ipu, frame.lane, frame.start, frame.dur, frame.kind)
    assert sorted(tuple(row) for row in got) == expected
    assert frame[["replica", "ipu", "lane", "start"]].apply(tuple, axis=1).is_monotonic_increasing or len(frame) == 0
    totals = trace.totals()
    assert len(totals) == len({(i[2], i[1]) for i in instances})
    for row in totals.itertuples():
        for kind in KINDS:
            own = [s[4] for s in expected if (s[0], s[1], s[5]) == (row.replica, row.ipu, kind)]
            assert getattr(row, kind) == sum(own)
    assert slice_count(trace) == len(expected)


@settings(max_examples=60)
@given(st.lists(STEP, max_size=10), st.lists(INSTANCE, max_size=10), st.integers(-5, 120), st.integers(1, 60))
def test_window_keeps_exactly_the_slices_that_touch_it(steps, instances, begin, length):
    window = (begin, begin + length)
    trace = small_trace(steps, instances)
    expected = [
        s for s in loop(steps, instances) if s[3] < window[1] and (s[3] + s[4] > begin if s[4] else s[3] >= begin)
    ]
    frame = trace.expand(window)
    assert sorted(zip(frame.start, frame.dur)) == sorted((s[3], s[4]) for s in expected)
    assert slice_count(trace, window) == len(expected)


@pytest.mark.heavy
@settings(max_examples=40)
@given(st.lists(STEP, max_size=10), st.lists(INSTANCE, max_size=10), st.integers(-5, 120), st.integers(1, 60))
def test_clipped_slices_are_the_part_inside_the_window(steps, instances, begin, length):
    window = (begin, begin + length)
    trace = small_trace(steps, instances)
    whole, cut = trace.expand(window), trace.expand(window, clip=True)
    assert cut["start"].tolist() == whole["start"].clip(*window).tolist()
    assert (cut["start"] + cut["dur"]).tolist() == (whole["start"] + whole["dur"]).clip(*window).tolist()
    assert cut.drop(columns=["start", "dur"]).equals(whole.drop(columns=["start", "dur"]))


def test_windows_of_a_pipeline_add_up_only_when_they_are_clipped(trace):
    edges = [0, 100_000, 700_000, 10**9]
    windows = list(zip(edges, edges[1:]))
    total = trace.expand()["dur"].sum()
    assert sum(trace.expand(window, clip=True)["dur"].sum() for window in windows) == total
    assert sum(trace.expand(window)["dur"].sum() for window in windows) > total
    assert len(trace.expand((10**9, 2 * 10**9))) == 0
    with pytest.raises(ValueError, match="no window is given"):
        trace.expand(clip=True)


@settings(max_examples=40)
@given(st.lists(STEP, max_size=10), st.lists(INSTANCE, max_size=15), st.integers(1, 9))
def test_batches_are_the_slices_in_pieces(steps, instances, batch):
    trace = small_trace(steps, instances)
    pieces = list(slice_batches(trace, batch=batch))
    joined = np.concatenate([piece.start for piece in pieces]) if pieces else np.empty(0)
    assert joined.tolist() == slices(trace).start.tolist()


@settings(max_examples=60)
@given(st.lists(STEP, min_size=1, max_size=10), st.lists(INSTANCE, min_size=1, max_size=15), st.integers(1, 40))
def test_fitting_window_holds_as_much_as_allowed(steps, instances, limit):
    trace = small_trace(steps, instances)
    starts = sorted(s[3] for s in loop(steps, instances))
    window = fitting_window(trace, limit)
    if len(starts) <= limit:
        assert window is None
        return
    assert window is not None
    assert window[0] == starts[0]
    if starts[limit] > starts[0]:
        assert window[1] == starts[limit]
        assert slice_count(trace, window) <= limit


def test_totals_of_the_pipeline_are_the_sum_of_its_slices(trace):
    frame = trace.expand()
    sums = frame.groupby(["ipu", "kind"], observed=False)["dur"].sum()
    totals = trace.totals().set_index("ipu")
    for ipu in range(4):
        for kind in KINDS:
            assert totals.loc[ipu, kind] == sums[ipu, kind]
    assert isinstance(frame["op"].dtype, pd.CategoricalDtype)
    row = frame[frame.op == "fwd1.0/MatMul"].iloc[0]
    assert (row.program, row.kind, row.micro_batch) == ("fwd1.0/MatMul/exchange", "exchange", 0)


def test_a_segment_without_steps_has_no_slices():
    trace = small_trace([(0, "compute", 0, 5, 0)], [(0, 0, 0, 0), (6, 1, 0, 3)])
    assert slice_count(trace) == 1
    assert trace.totals()["compute"].tolist() == [5, 0]


@pytest.mark.parametrize("window", [(5, 5), (7, 2)])
def test_an_empty_window_is_refused(trace, window):
    with pytest.raises(ValueError, match="start < stop"):
        trace.expand(window)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12))
def test_union_length_counts_covered_cycles(intervals):
    intervals.sort()
    covered = {cycle for start, dur in intervals for cycle in range(start, start + dur)}
    start = np.array([i[0] for i in intervals], dtype=np.int64)
    dur = np.array([i[1] for i in intervals], dtype=np.int64)
    assert union_length(start, start + dur) == len(covered)
