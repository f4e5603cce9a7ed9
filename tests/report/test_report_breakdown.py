"""The breakdown of a run against painting every cycle by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.report import breakdown, breakdown_cycles
from ipuperf.report.breakdown import PART_OF_KIND
from ipuperf.trace import KINDS

STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 25), st.integers(0, 12), st.integers(0, 2))


def one_ipu(synthetic, steps, dur=40, instances=((0, 0, 0),), run=(0, 40)):
    """Steps (kind, start, cycles, lane) of one segment; instances (ipu, replica, start); one run."""
    build = synthetic.Builder()
    for seq, (kind, start, cycles, lane) in enumerate(steps):
        build.add("steps", 0, seq, -1, -1, kind, start, cycles, float(cycles), 1, 0, 0, 0, 0, lane, -1)
    for number, (ipu, replica, start) in enumerate(instances):
        build.add("instances", number, 0, ipu, replica, 0, 0, start, dur, 0)
    build.add("runs", 0, "run", run[0], run[1])
    return build.trace(num_ipus=4)


@settings(max_examples=80)
@given(st.lists(STEP, max_size=8), st.integers(0, 20), st.integers(0, 20))
def test_each_cycle_counts_once(synthetic, steps, start, begin):
    trace = one_ipu(synthetic, steps, instances=((0, 0, start),), run=(begin, 40))
    parts = breakdown_cycles(trace)
    assert sum(parts.values()) == 40
    expected = dict.fromkeys(parts, 0)
    for cycle in range(begin, begin + 40):
        here = [s for s in steps if start + s[1] <= cycle < start + s[1] + s[2]]
        here.sort(key=lambda s: (s[0] in ("idle", "sync_external"), s[3], KINDS.index(s[0])))
        expected[PART_OF_KIND[here[0][0]] if here else "sync"] += 1
    assert parts == expected


def test_waiting_yields_to_work_of_another_lane(synthetic):
    steps = [("compute", 0, 10, 0), ("idle", 10, 10, 0), ("host_mid", 5, 10, 1)]
    parts = breakdown_cycles(one_ipu(synthetic, steps, dur=20, run=(0, 20)))
    assert parts == {"compute": 10, "exchange": 0, "sync": 5, "links": 0, "ddr": 0, "host": 5}


def test_the_ipu_that_ends_last_counts_and_the_lowest_of_equals(synthetic):
    from ipuperf.report import critical_ipu
    from ipuperf.report.breakdown import run_instances

    trace = one_ipu(synthetic, [("compute", 0, 5, 0)], dur=5, instances=((0, 0, 0), (3, 0, 9), (2, 0, 9)), run=(0, 14))
    assert critical_ipu(trace, run_instances(trace)[1]) == (0, 2)
    assert breakdown_cycles(trace) == {"compute": 5, "exchange": 0, "sync": 9, "links": 0, "ddr": 0, "host": 0}


def test_the_pipeline_sums_to_its_run(trace):
    for run in (0, 1, None):
        parts = breakdown(trace, run)
        runs = trace.table("runs")
        assert sum(parts.values()) == pytest.approx(runs.dur[1 if run is None else run] / 1.85e9)
    cycles = breakdown_cycles(trace)
    assert cycles["ddr"] == 15_000
    assert cycles["host"] == 0, "IPU 3 works longest of the four that end together, and only IPU 0 has host I/O"
    assert cycles["links"] == 8 * 1500


def test_unknown_runs_and_empty_traces(trace, synthetic):
    with pytest.raises(ValueError, match="run 7: the trace has runs 0, 1"):
        breakdown(trace, 7)
    with pytest.raises(ValueError, match="nothing was executed"):
        breakdown(synthetic.Builder().trace())
    build = synthetic.Builder()
    build.add("runs", 0, "run", 0, 10)
    assert breakdown_cycles(build.trace())["sync"] == 10


def test_a_trace_without_runs_is_one_run(synthetic):
    build = synthetic.Builder()
    build.add("steps", 0, 0, -1, -1, "link", 0, 6, 6.0, 1, 0, 0, 0, 0, 0, -1)
    build.add("instances", 0, 0, 0, 0, 0, 0, 100, 8, 0)
    assert breakdown_cycles(build.trace()) == {"compute": 0, "exchange": 0, "sync": 2, "links": 6, "ddr": 0, "host": 0}
