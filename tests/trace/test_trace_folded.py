"""Folded tables: the rows that pencil and paper give, windows of them, in files and pickles; bad ones are refused."""

import pickle

import numpy as np
import pytest

from ipuperf.trace import (
    FoldedHostEvents,
    FoldedInstances,
    FoldedTransfers,
    FoldedVariables,
    SteadyLoop,
    Trace,
    TraceError,
)
from ipuperf.trace.folded import ranges


def whole(**arrays):
    return {name: np.array(values, dtype=np.int64) for name, values in arrays.items()}


def instances(**changes):
    """Segment 0 once, then three trips of (segment 1, twice segment 2) on two IPUs that do the same."""
    arrays = whole(
        parent=[-1, 0], count=[3, 2], period=[100, 20], start=[0, 10, 30], dur=[10, 20, 20], repeat=[-1, 0, 1],
        segment=[0, 1, 2], process=[0, 0, 0], number=[0, 1, 2], micro_batch=[-1, 0, 0], iteration=[-1, 0, 0],
        of=[0, 0], own=[0, 1], replica=[0, 1], ipu=[0, 4],
        micro_batch_steps=[[0, 0], [1, 0], [2, 1]], iteration_steps=[[0, 0], [1, 0], [0, 1]],
    )  # fmt: skip
    return FoldedInstances({**arrays, **whole(**changes)})


ROWS = [
    (0, 0, -1, -1),
    *[
        row
        for k in range(3)
        for row in [(10 + 100 * k, 1, k, k), (30 + 100 * k, 2, 2 * k, 0), (50 + 100 * k, 2, 2 * k + 1, 1)]
    ],
]
"""Start, segment, micro-batch and iteration of what each IPU does."""


def rows_of(columns):
    names = ("start", "segment", "micro_batch", "iteration", "replica", "ipu")
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


def expected(rows):
    return [(*row, replica, 4 * replica) for row in rows for replica in (0, 1)]


def test_instances_are_those_of_the_loops():
    table = instances()
    assert table.rows == 2 * len(ROWS)
    assert rows_of(table.columns()) == expected(ROWS)
    assert table.columns()["instance"].tolist() == list(range(20))
    assert table.repeats() == [SteadyLoop(10, 310, 3, 100, 0), SteadyLoop(30, 70, 2, 20, 1)]


@pytest.mark.parametrize("window", [(0, 1), (0, 10), (49, 51), (120, 160), (230, 231), (500, 600)])
def test_a_window_holds_what_touches_it(window):
    lengths = {0: 10, 1: 20, 2: 20}
    rows = [row for row in ROWS if row[0] < window[1] and row[0] + lengths[row[1]] > window[0]]
    assert rows_of(instances().columns(window)) == expected(rows)


def test_one_of_those_that_do_the_same():
    assert rows_of(instances().alone().columns()) == [(*row, 0, 0) for row in ROWS]


def transfers():
    """Four trips of one template: two sends, of two links and of one; the second is first by rank."""
    arrays = whole(
        parent=[-1], count=[4], period=[7], start=[5], dur=[3], repeat=[0], template=[0], bytes=[64], op_id=[2],
        kind=[0], owner=[0], number=[0],
        first=[0], sends=[2], rank=[1, 0], ipu=[8, 9], link_first=[0, 2], links=[2, 1], link_id=[3, 4, 5],
    )  # fmt: skip
    return FoldedTransfers(arrays, {"kinds": ("p2p",)})


def test_transfers_have_a_row_for_each_link_of_each_send():
    table, columns = transfers(), transfers().columns()
    assert table.rows == 12
    assert columns["start"].tolist() == [5] * 3 + [12] * 3 + [19] * 3 + [26] * 3
    assert columns["link_id"].tolist() == [5, 3, 4] * 4
    assert columns["ipu"].tolist() == [9, 8, 8] * 4
    assert columns["transfer"].tolist() == [n for pair in range(4) for n in (2 * pair, 2 * pair + 1, 2 * pair + 1)]
    assert set(columns["kind"].strings()) == {"p2p"}
    only = table.over_links_of(np.array([9])).columns()
    assert only["link_id"].tolist() == [5] * 4


def variables():
    arrays = whole(
        name=[0, 1], op_id=[-1, 3], category=[0, 0], dtype=[0, 0], ipu=[0, 1], always_live=[1, 0], location=[0, 0],
        class_id=[0, 1], first=[1, 0], runs=[1, 2], tile_from=[0, 4], tile_to=[2, 5], bytes=[8, 12],
    )  # fmt: skip
    words = {"names": ("a", "b"), "categories": ("constant",), "dtypes": ("float32",), "locations": ("tile",)}
    return FoldedVariables(arrays, words)


def test_variables_have_a_row_for_each_run():
    columns = variables().columns()
    assert columns["name"].strings().tolist() == ["a", "b", "b"]
    assert columns["bytes"].tolist() == [12, 8, 12]
    assert columns["always_live"].tolist() == [True, False, False]
    assert variables().rows == 3


def events():
    arrays = whole(
        parent=[-1], count=[2], period=[50], start=[0, 10, 10], dur=[10, 5, 0], repeat=[-1, 0, 0], line=[0, 1, 2],
        order=[-1, 1, 0],
    )  # fmt: skip
    return FoldedHostEvents(arrays, {"labels": ("session.run", "prepare b", "handle a")})


def test_host_events_come_by_start_and_line():
    columns = events().columns()
    assert columns["label"].strings().tolist() == ["session.run", *["handle a", "prepare b"] * 2]
    assert columns["start"].tolist() == [0, 10, 10, 60, 60]


def trace(synthetic):
    """A trace with folded tables, and the same with plain ones."""
    plain = synthetic.pipeline_trace()
    tables = {"steps": dict.fromkeys(()), "instances": instances()}
    tables["steps"] = {
        name: values[:3]
        for name, values in plain.columns("steps").items()
        if name not in ("segment", "dur", "rel_start")
    } | {"segment": [0, 1, 2], "dur": [10, 20, 20], "rel_start": [0, 0, 0]}
    tables |= {"transfers": transfers(), "host_events": events(), "variables": variables()}
    tables |= {name: plain.columns(name) for name in ("links", "ops", "programs")}
    folded = Trace({**plain.meta, "num_ipus": 10, "replicas": 2}, tables)
    own = {name: folded.columns(name) for name in (*tables, "loops")}
    return Trace({**plain.meta, "num_ipus": 10, "replicas": 2}, tables), Trace(folded.meta, own)


def test_a_trace_says_the_same_folded_and_not(synthetic, tmp_path):
    folded, plain = trace(synthetic)
    assert folded.totals().equals(plain.totals())
    assert folded.summary() == plain.summary()
    window = (45, 140)
    assert folded.expand(window).drop(columns="instance").equals(plain.expand(window).drop(columns="instance"))
    assert rows_of(folded.within(window).columns("instances")) == rows_of(plain.within(window).columns("instances"))
    assert folded.rows("instances") == plain.rows("instances") == 20
    assert folded.replicas == {0: 2}
    assert plain.replicas == {0: 1, 1: 1}
    folded.save(tmp_path / "t.ipt")
    read = Trace.load(tmp_path / "t.ipt")
    assert read.folded("instances") is not None
    assert read == folded == plain
    again = pickle.loads(pickle.dumps(folded))
    assert again.folded("transfers") is not None
    assert again == plain


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"count": [3, 0]}, "0 trips"),
        ({"parent": [0, 0]}, "its parent is 0"),
        ({"repeat": [-1, 0, 2]}, "in a loop that is not there"),
        ({"dur": [1, -1, 1]}, "dur is negative"),
        ({"process": [0, 0, 1]}, "a process has no members"),
        ({"start": [1]}, "has 3 rows, others have 1"),
        ({"iteration_steps": [[0], [0], [0]]}, "not one for each loop"),
        ({"count": [2**61, 2**61]}, "trips in"),
    ],
)
def test_bad_tables_are_refused(changes, fault):
    with pytest.raises(TraceError, match=fault):
        instances(**changes)


def test_too_many_rows_are_not_made():
    table = instances(count=[10**13, 2])
    assert table.rows == 2 * (1 + 3 * 10**13)
    with pytest.raises(TraceError, match=r"has 60,000,000,000,002 rows, .* look at a window"):
        table.columns()
    assert len(table.columns((10**12, 10**12 + 100))["start"]) == 2 * 3


def test_ranges():
    row, place = ranges(np.array([5, 0, 9]), np.array([2, 0, 1]))
    assert (row.tolist(), place.tolist()) == ([0, 0, 2], [5, 6, 9])
