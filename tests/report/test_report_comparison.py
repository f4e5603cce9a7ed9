"""Runs side by side: the figures against the tables of the traces, what is alike, and the page."""

import json
import re
from copy import copy

import pytest

from ipuperf.report import compare, comparison_page, comparison_text, comparison_values, ratio_interval, step_time
from ipuperf.report.breakdown import run_instances
from ipuperf.trace import MEMORY_CATEGORIES, TraceError


@pytest.fixture(scope="module")
def slower(synthetic):
    """The same program, computing slower and holding more."""
    return synthetic.pipeline_trace(speed=0.8, scale=1.1)


@pytest.fixture(scope="module")
def comparison(trace, slower):
    return compare({"before": trace, "after": slower})


def of(comparison, group):
    return comparison.table[comparison.table["group"] == group].set_index("key")


def test_figures_are_those_of_the_last_runs(comparison, trace, slower):
    for name, one in (("before", trace), ("after", slower)):
        time = step_time(one)
        assert of(comparison, "time")[name].to_dict() == time.parts
        assert of(comparison, "run").loc["duration", name] == time.total == one.table("runs")["dur"].iloc[-1]
        slices = one.expand((one.table("runs")["start"].iloc[-1], 10**9))
        busy = slices[~slices["kind"].isin(("sync_external", "idle", "host_begin", "host_end", "host_run"))]
        by_op = busy[busy["op"] != ""].groupby("op", observed=True)["dur"].sum()
        ops = of(comparison, "op")[name].drop("(no op)", errors="ignore")
        assert ops.to_dict() == by_op[by_op > 0].to_dict()
        memory = one.table("tile_memory")
        held = memory.groupby("category")["bytes"].sum().reindex(MEMORY_CATEGORIES, fill_value=0)
        assert of(comparison, "memory")[name].to_dict() == held.to_dict()
        tiles = memory.groupby(["ipu", "tile"])["bytes"].sum()
        assert of(comparison, "fullest tile")[name].sum() == tiles.max()
    table = comparison.table
    assert (table["diff"] == table["after"] - table["before"]).all()


def test_ops_of_one_run_and_phases_add_up_to_those_of_its_ops(trace, comparison):
    each = [trace.operations_by_ipu(run_instances(trace, run)[1])["cycles"].sum() for run in (0, 1)]
    assert sum(each) == trace.operations_by_ipu()["cycles"].sum()
    for name in ("before", "after"):
        assert of(comparison, "phase")[name].sum() == of(comparison, "op")[name].sum()
    assert of(comparison, "op")["before"].sum() == each[1]


def test_growth_and_the_sentences_that_explain_it(comparison, trace, slower):
    runs = [one.table("runs")["dur"].iloc[-1] for one in (trace, slower)]
    peaks = [one.table("tile_memory").groupby(["ipu", "tile"])["bytes"].sum().max() for one in (trace, slower)]
    assert comparison.growth == pytest.approx(
        {"time of a run": runs[1] / runs[0] - 1, "peak tile memory": peaks[1] / peaks[0] - 1}
    )
    time, measured, memory = comparison.sentences()
    low, high = ratio_interval(trace, slower).around(runs[1] / runs[0])
    assert measured.startswith(f"Measured, after takes {low:.3g} to {high:.3g} times as long nine times of ten")
    assert time.startswith("after takes 1.005 ms, 23.4% longer than before (814.2 us). The largest change is compute,")
    assert re.search(r"above all in bwd\d\.\d/MatMul\.$", time)
    assert "10.0% more than that of before" in memory
    assert "the largest change is variableAlwaysLive, +27,000 B" in memory


def test_runs_of_different_samples_are_compared_by_the_sample(trace, slower):
    few, many = copy(trace), copy(slower)
    few.meta, many.meta = trace.meta | {"samples_per_run": 4}, slower.meta | {"samples_per_run": 16}
    compared = compare({"few": few, "many": many})
    assert compared.sentences()[1] == (
        "It processes 16 samples in place of 4: 62.8 us a sample, 69.1% shorter than 203.5 us."
    )
    assert of(compared, "run").loc["samples", ["few", "many"]].tolist() == [4, 16]
    many.meta["samples_per_run"] = 4
    assert not any("samples" in sentence for sentence in compare({"few": few, "many": many}).sentences())


def test_a_wait_is_explained_by_the_op_that_is_waited_for(synthetic):
    def two(first: int):
        build = synthetic.Builder()
        for ipu, cycles in ((0, first), (1, 100)):
            length = synthetic.add_segment(build, ipu, ipu, "fwd", [(f"op{ipu}", "compute", cycles)])
            build.add("instances", ipu, ipu, ipu, 0, -1, 0, 0, length, 0)
        build.add("instances", 2, 1, 1, 0, -1, 0, 1000, 100, 0)
        build.add("runs", 0, "run", 0, 1100)
        return build.trace(num_ipus=2)

    sentence, measured = compare({"a": two(500), "b": two(900)}).sentences()
    assert measured.endswith(": the order of the two is not certain.")
    assert sentence.startswith(
        "b takes 594.6 ns, as long as a. The largest change is waiting for an IPU with more work"
    )
    assert "while another IPU is at op0" in sentence


def test_ops_are_the_same_whatever_number_their_names_end_with(synthetic):
    def program(*names: str):
        build = synthetic.Builder()
        steps = [(name, "compute", 100 * (number + 1)) for number, name in enumerate(names)]
        length = synthetic.add_segment(build, 0, 0, "fwd", steps)
        build.add("instances", 0, 0, 0, 0, -1, 0, 0, length, -1)
        return build.trace()

    found = compare(
        {"a": program("m/MatMul.1", "m/MatMul.2", "m/Gelu.3"), "b": program("m/MatMul.2", "m/MatMul.3", "m/Add.4")}
    )
    ops = of(found, "op")
    assert ops["a"].to_dict() == {"m/MatMul": 100, "m/MatMul (2)": 200, "m/Gelu": 300, "m/Add": 0}
    assert ops["b"].to_dict() == {"m/MatMul": 100, "m/MatMul (2)": 200, "m/Gelu": 0, "m/Add": 300}


def test_equal_runs_are_said_to_be_equal(trace, synthetic):
    same = compare({"a": trace, "b": synthetic.pipeline_trace()})
    assert same.sentences() == ["b takes as long as a, 814.2 us, in every part."]
    assert set(same.growth.values()) == {0.0}
    assert "No figure differs." in comparison_text(same)
    assert not same.notes


def test_different_machines_and_models_are_said(trace, synthetic):
    faster = synthetic.pipeline_trace()
    faster.meta["clock_hz"], faster.meta["machine"] = 2 * trace.meta["clock_hz"], "other"
    found = compare({"a": trace, "b": faster})
    assert found.machines_differ == (
        "a and b are of different machines: machine synthetic and other, clock_hz 1850000000 and 3700000000",
    )
    assert not found.models_differ
    duration = found.table.query("group == 'run' and key == 'duration'").iloc[0]
    assert duration["unit"] == "ns"
    assert duration["b"] == round(1e9 * faster.seconds(step_time(faster).total))
    assert found.growth["time of a run"] == pytest.approx(-0.5)

    build = synthetic.Builder()
    length = synthetic.add_segment(build, 0, 0, "fwd", [("conv/Conv", "compute", 100)])
    build.add("instances", 0, 0, 0, 0, -1, 0, 0, length, -1)
    model = compare({"a": trace, "b": build.trace(num_ipus=4)})
    assert not model.machines_differ
    (words,) = model.models_differ
    assert re.fullmatch(r"a and b are of different models: \d+ and 1 ops, of which 0 have the same type", words)
    assert any("memory is not recorded" in note for note in model.notes)
    assert "peak tile memory" not in model.growth


def test_what_cannot_be_compared_is_an_error(trace, synthetic):
    with pytest.raises(ValueError, match=r"1 trace\(s\) given, expected at least 2"):
        compare({"a": trace})
    with pytest.raises(ValueError, match="cannot be called 'diff'"):
        compare({"a": trace, "diff": trace})
    with pytest.raises(TraceError, match="b: nothing was executed"):
        compare({"a": trace, "b": synthetic.Builder().trace()})


def test_values_are_those_of_the_table_and_json_can_hold_them(comparison):
    values = json.loads(json.dumps(comparison_values(comparison), allow_nan=False))
    found = {(row["group"], row["key"], row["unit"]): row["values"] for row in values["figures"]}
    for row in comparison.table.to_dict("records"):
        assert found[row["group"], row["key"], row["unit"]] == [row["before"], row["after"]]
    assert [run["cycles"] for run in values["runs"]] == [run.time.total for run in comparison.runs]
    assert values["sentences"] == comparison.sentences()


def test_the_page_shows_the_bars_curves_and_sentences(trace, slower, comparison):
    page = comparison_page(comparison)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|#)|https?://|url\(|@import|fetch\(|XMLHttpRequest""", page)
    assert not re.search(r"{{\w+}}", page)
    bars = re.findall(r'data-run="(\d)" data-part="([^"]*)" data-cycles="(\d+)"', page)
    for number, one in enumerate((trace, slower)):
        shown = {part: int(cycles) for run, part, cycles in bars if int(run) == number}
        assert {k: v for k, v in shown.items() if v} == {k: v for k, v in step_time(one).parts.items() if v}
        live = one.table("liveness")
        fullest = live.loc[(live["always_live"] + live["not_always_live"]).idxmax(), "ipu"]
        own = live[live["ipu"] == fullest]
        assert f"not always live, peak {own['not_always_live'].max():,} B" in page
        assert f"always live (dashed) {own['always_live'].max():,} B" in page
    assert page.count('<path class="curve"') == 4 + 2  # live bytes of two kinds, bytes of tiles
    for sentence in comparison.sentences():
        assert sentence in page
    heights = [
        [float(y) for y in re.findall(r"V([\d.]+)", line)]
        for line in re.findall(r'<path class="curve" d="([^"]*)"', page)
    ]
    assert min(map(min, heights)) == pytest.approx(20.0), "the highest peak is at the top of the picture"


def test_names_on_the_page_are_text(trace):
    page = comparison_page(compare({"<b>": trace, "&": trace}))
    assert "<title>Comparison of &lt;b&gt;, &amp; - ipuperf</title>" in page
    assert "<b>:" not in page
