"""Summary, operations and diff against figures worked out by hand from the made-up program."""

import json

import pytest

from ipuperf.trace import KINDS


@pytest.fixture(scope="module")
def summary(trace):
    return trace.summary()


def test_summary_is_json(summary):
    assert json.loads(json.dumps(summary)) == summary


def test_summary_of_time(trace, summary):
    runs = trace.table("runs")
    assert summary["total_cycles"] == (runs.start + runs.dur).max() - runs.start.min()
    assert summary["seconds"] == summary["total_cycles"] / 1.85e9
    totals = trace.totals()
    for kind in KINDS:
        assert summary["kinds"][kind]["cycles"] == pytest.approx(totals[kind].mean())
        assert summary["kinds"][kind]["share"] == pytest.approx(totals[kind].mean() / summary["total_cycles"])
    assert summary["tile_balance"] == pytest.approx(0.75)
    assert summary["tile_average"]["compute"]["cycles"] == pytest.approx(0.75 * totals["compute"].mean())


def test_summary_of_links_and_traffic(summary):
    link = summary["links"][0]
    assert (link["name"], link["transfers"], link["bytes"]) == ("ipu0->ipu1", 16, 16 * 50_000)
    assert link["busy_cycles"] == 16 * 1500
    # 2 runs, 8 micro-batches, 2500 cycles of 8 bytes
    assert summary["traffic"]["host_mid"] == {"bytes_in": 320_000, "bytes_out": 320_000}
    assert summary["traffic"]["remote_load"]["bytes_in"] == 4 * 2 * 9000 * 8


def test_summary_of_memory(trace, summary, synthetic):
    memory = summary["memory"]
    frame = trace.table("tile_memory").groupby(["ipu", "tile"])["bytes"].sum()
    assert memory["max_tile"]["bytes"] == frame.max()
    assert (memory["max_tile"]["ipu"], memory["max_tile"]["tile"]) == frame.idxmax()
    assert memory["fits"] is True
    assert memory["over_bytes"] == 0
    assert sum(memory["categories"].values()) == frame.sum()
    large = synthetic.pipeline_trace(scale=1.6, runs=1).summary()["memory"]
    assert large["fits"] is False
    assert large["over_bytes"] == large["max_tile"]["bytes"] - synthetic.TILE_BYTES
    assert large["largest_variables"] == [{"name": "w3", "bytes_on_tile": 180_000}]


def test_a_trace_of_nothing_has_a_summary(synthetic):
    empty = synthetic.Builder().trace()
    summary = empty.summary()
    assert summary["total_cycles"] == 0
    assert summary["tile_balance"] is None
    assert summary["memory"]["fits"] is None
    assert len(empty.operations()) == 0
    assert len(empty.totals()) == 0
    assert len(empty.expand()) == 0


def test_operations(trace):
    frame = trace.operations().set_index("op")
    matmul = frame.loc["fwd2.1/MatMul"]
    assert (matmul.type, matmul.phase, matmul.calls) == ("MatMul", "fwd", 16)
    assert matmul.cycles == 16 * (3000 + 60 + 9000)
    assert matmul.line == "model.py:36"
    assert matmul.module == "fwd2.1"
    assert matmul.compute_cycles == 16 * 9000
    assert matmul.flops == 16 * 9000 * 1000
    assert frame.share.sum() == pytest.approx(1.0)
    totals = trace.totals()[list(KINDS)].sum()
    assert frame.waiting_cycles.sum() == totals[["sync_external", "idle", "host_begin", "host_end", "host_run"]].sum()
    assert frame.cycles.sum() + frame.waiting_cycles.sum() == totals.sum()
    assert frame.loc["send"].calls == 3 * 16


def test_operations_by_ipu_add_up_to_the_totals_of_each_ipu(trace):
    """Waiting is beside an op's cycles, not in them, and every kind adds up to the cycle."""
    frame = trace.operations_by_ipu()
    totals = trace.totals().groupby("ipu")[list(KINDS)].sum()
    assert frame.groupby("ipu")[list(KINDS)].sum().equals(totals)
    load = frame[(frame.op == "x") & (frame.ipu == 0)].iloc[0]
    assert (load.cycles, load.waiting_cycles, load.kind) == (16 * 2500, 16 * 900, "host_mid")
    waits = frame[(frame.op == "(no op)") & (frame.ipu == 1)].iloc[0]
    assert (waits.cycles, waits.waiting_cycles, waits.kind) == (0, 2 * 400, "sync_external")
    adam = frame[frame.op == "adam1/Load"].iloc[0]
    assert (adam.ipu, adam.kind, adam.phase, adam.module) == (1, "remote_load", "update", "adam1")
    assert frame.share.sum() == pytest.approx(1.0)
    assert (
        len(frame[frame.op != "(no op)"]) == trace.operations()["op"].ne("(no op)").sum() + 4
    )  # "send" and "send_grad": on three


def _calls(synthetic, segments):
    """Calls by op of segments that one IPU executes one after the other."""
    build, start = synthetic.Builder(), 0
    for number, steps in enumerate(segments):
        dur = synthetic.add_segment(build, number, 0, "fwd", steps)
        build.add("instances", number, number, 0, 0, 0, 0, start, dur, 0)
        start += dur
    return build.trace().operations().set_index("op").calls.to_dict()


def test_a_call_goes_on_in_the_next_segment_of_its_ipu(synthetic):
    """A and C run on from one segment into the next, as a collective and what follows it; steps of no op never do."""
    segments = [
        [("A", "compute", 10)],
        [("A", "link", 5)],
        [("A", "compute", 3), ("B", "compute", 2), ("", "sync", 4)],
        [("", "sync", 4), ("C", "compute", 6)],
        [("C", "compute", 1)],
    ]
    assert _calls(synthetic, segments) == {"A": 1, "B": 1, "C": 1, "(no op)": 2}


def test_an_ipu_that_only_waits_for_others_makes_no_call(synthetic):
    """D is a collective of other IPUs; E waits, works, waits and works again in one call, over four segments."""
    segments = [
        [("D", "sync_external", 7)],
        [("E", "sync_external", 5)],
        [("E", "link", 5)],
        [("E", "sync_external", 1)],
        [("E", "compute", 1), ("D", "sync_external", 2)],
    ]
    assert _calls(synthetic, segments) == {"D": 0, "E": 1}


@pytest.mark.parametrize(
    ("rows", "calls"),
    [
        ([("A", 0, -1), ("A", 1, 0), ("B", 2, 0)], {"A": 5, "B": 5}),  # the first trip goes on with what came before
        ([("A", 0, 0), ("A", 1, 0)], {"A": 5}),
        ([("A", 3, 0), ("A", 3, 0)], {"A": 10}),
        ([("A", 3, 0), ("A", 2, 0)], {"A": 10}),
        ([("A", 3, -1), ("A", 3, -1)], {"A": 1}),
    ],
)
def test_calls_within_a_loop(synthetic, rows, calls):
    """Five trips; a program that comes again, or an earlier one, is a graph that is called again."""
    build = synthetic.Builder()
    looped = sum(loop >= 0 for *_, loop in rows)
    build.add("loops", 0, -1, 5, 10 * looped)
    names = sorted({name for name, *_ in rows})
    for number, name in enumerate(names):
        build.add("ops", number, name, name, "main", "fwd", 0, "model.py:1", "float16")
    for program in sorted({program for _, program, _ in rows}):
        build.add("programs", program, -1, program, "OnTileExecute", f"p{program}", 0, 0)
    for place, (name, program, loop) in enumerate(rows):
        row = (place, program, names.index(name), "compute", 10 * place, 10, 10.0, 4, 0, 0, 0, 0, 0, loop)
        build.add("steps", 0, *row)
    build.add("instances", 0, 0, 0, 0, 0, 0, 0, 10 * len(rows) + 40 * looped, 0)
    assert build.trace().operations().set_index("op").calls.to_dict() == calls


def test_diff_of_a_trace_with_itself_is_empty(trace):
    assert len(trace.diff(trace)) == 0


def test_diff_names_what_moved(trace, synthetic):
    other = synthetic.pipeline_trace(scale=1.1)
    moved = trace.diff(other, rtol=0.05)
    assert set(moved.table) == {"tile_memory", "liveness"}
    row = moved[moved.key == "IPU 0 / vertexCode"].iloc[0]
    assert row.ratio == pytest.approx(1.1, rel=1e-4)
    assert row["diff"] == row.target - row.source
    assert len(trace.diff(other, rtol=0.2)) == 0
    slower = trace.diff(synthetic.pipeline_trace(micro_batches=4))
    assert slower[(slower.table == "ops") & (slower.key == "send / link")].iloc[0].ratio == 0.5
    assert slower[slower.key == "0: session.run #0"].iloc[0]["diff"] < 0
    with pytest.raises(ValueError, match="rtol -1"):
        trace.diff(other, rtol=-1)


def test_diff_counts_what_is_missing_as_zero(trace, synthetic):
    fewer = trace.diff(synthetic.pipeline_trace(ipus=3))
    gone = fewer[fewer.key == "IPU 3 / stack"].iloc[0]
    assert (gone.target, gone.ratio) == (0, 0)
    back = synthetic.pipeline_trace(ipus=3).diff(trace)
    assert back[back.key == "IPU 3 / stack"].ratio.isna().all()


@pytest.mark.parametrize("other", [5, None, "trace.ipt"])
def test_diff_with_what_is_no_trace(trace, other):
    with pytest.raises(TypeError, match="diff: the target is .* expected a Trace"):
        trace.diff(other)


@pytest.mark.parametrize("rtol", ["a", None, float("nan")])
def test_diff_with_what_is_no_tolerance(trace, rtol):
    with pytest.raises(ValueError, match="rtol .*: expected a number of at least 0"):
        trace.diff(trace, rtol=rtol)


@pytest.mark.parametrize("window", ["ab", 5, (1,), (0, 1, 2), (5, 5), (9, 1), (0, None), ("0", "9"), (0, float("nan"))])
def test_expand_of_what_is_no_window(trace, window):
    with pytest.raises(ValueError, match="window .*: expected \\(start, stop\\) in cycles with start < stop"):
        trace.expand(window)
