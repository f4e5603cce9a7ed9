"""Real programs: what the outputs of a report say of them is the same, to the cycle and byte, and misleads nowhere."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from pagefacts import executions, facts_of

from ipuperf import pva
from ipuperf.report import compare, comparison_values, step_time, to_chrome_json, write_report
from ipuperf.report import folder as report_folder
from ipuperf.report.aligned import aligned
from ipuperf.report.instances import instance_work
from ipuperf.trace import KINDS, MEMORY_CATEGORIES, WAITING_KINDS, Trace


def remote_variables() -> Trace:
    """Four replicas with sharded optimiser state in Streaming Memory."""
    import ipuperf
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session

    return ipuperf.simulate_session(training_session(TrainingOptions(threshold=512)).session, machine="pod4")


def pipeline() -> Trace:
    """PopTorch's pipelining tutorial: four stages, recomputation, host I/O in which all IPUs meet."""
    pytest.importorskip("torch")
    from ipuperf.models.mnist_cnn import PipelineOptions
    from ipuperf.scenarios.pipeline_mnist import simulate

    return simulate(PipelineOptions())[0]


def overlapped() -> Trace:
    """Inference whose host I/O runs on I/O tiles beside the computation."""
    import popxl

    ir = popxl.Ir()
    ir.num_io_tiles = 32
    with ir.main_graph, popxl.in_sequence():
        weight = popxl.variable(np.ones((256, 256), np.float32), name="weight")
        source, sink = popxl.h2d_stream((64, 256), popxl.float32), popxl.d2h_stream((64, 256), popxl.float32)

        def step() -> None:
            with popxl.io_tiles():
                loaded = popxl.ops.io_tile_copy(popxl.ops.host_load(source))
            result = popxl.ops.io_tile_copy(popxl.ops.matmul(loaded, weight))
            with popxl.io_tiles():
                popxl.ops.host_store(sink, result)

        step()
        step()
    return popxl.Session(ir, "ipu_hw").executable.trace


pytestmark = pytest.mark.heavy

OUTPUTS = ("report.html", "summary.txt", "summary.json", "trace.ipt", "operations.csv")
"""The views whose figures are compared; pictures, which take half of the time, have tests of their own."""


@pytest.fixture(scope="module", params=[remote_variables, pipeline, overlapped], ids=lambda make: make.__name__)
def real(request: pytest.FixtureRequest) -> Trace:
    from ipuperf.runtime.install import install, installed_names, uninstall

    before = set(installed_names())
    install()
    try:
        return request.param()
    finally:
        uninstall(set(installed_names()) - before)


@pytest.fixture(scope="module")
def folder(real: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_folder, "VIEWS", [view for view in report_folder.VIEWS if view.name in OUTPUTS])
        write_report(real, place)
    return place


@pytest.fixture(scope="module")
def facts(folder: Path) -> dict:
    return facts_of((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "operations.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_all_outputs_have_the_same_cycles(real: Trace, folder: Path, facts: dict) -> None:
    total = int(real.table("runs").eval("start + dur").max())
    run = int(real.table("runs")["dur"].iloc[-1])
    assert re.search(r"Total cycles: +([\d,]+)", (folder / "summary.txt").read_text()).group(1) == f"{total:,}"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["total_cycles"], sum(summary["step_time"]["cycles"].values())) == (total, run)
    assert facts["total_cycles"] == total
    assert sum(part["cycles"] for part in facts["time"]["parts"]) == run
    assert pva.openReport(folder).execution.totalCycles.total == total
    values = comparison_values(compare({"a": real, "b": real}))
    assert [one["cycles"] for one in values["runs"]] == [run, run]
    assert aligned({"a": real}).seconds == real.seconds(run)
    assert step_time(real).total == run


def _shown(timeline: dict, ipu: int) -> dict[str, int]:
    """Cycles of each kind that the page draws on an IPU: every execution's steps, as often as the loops around them."""
    segments, shown = timeline["segments"], dict.fromkeys(KINDS, 0)
    trips = [1]
    for parent, count in zip(segments["loops"]["parent"], segments["loops"]["count"], strict=True):
        around = 1
        while parent >= 0:
            around, parent = around * segments["loops"]["count"][parent], segments["loops"]["parent"][parent]
        trips.insert(-1, count * around)
    rows = timeline["rows"]
    for row in (row for row, of_row in enumerate(rows["ipu"]) if of_row == ipu):
        for _, segment in executions(timeline, row):
            for step in range(segments["first"][segment], segments["first"][segment + 1]):
                if segments["lane"][step] == rows["lane"][row]:
                    kind = KINDS[segments["kind"][step]]
                    shown[kind] += segments["dur"][step] * trips[segments["loop"][step]]
    return shown


def test_all_outputs_have_the_same_cycles_of_each_kind_on_each_ipu(
    real: Trace, folder: Path, rows: list[dict[str, str]], facts: dict, tmp_path: Path
) -> None:
    slices = real.expand()
    ipus = sorted(set(slices["ipu"]))
    exact = slices[slices["program_id"] >= 0]
    by_program: dict[tuple[int, str], int] = {}
    for step in pva.openReport(folder).execution.steps:
        for ipu, own in enumerate(step.ipus):
            key = (ipu, step.program.name)
            by_program[key] = by_program.get(key, 0) + own.cycles
    to_chrome_json(real, tmp_path / "x.json")
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    first = {ipu: alike[0][1] for alike in real.short.twins.values() for _, ipu in alike}
    for ipu in ipus:
        own = slices[slices["ipu"] == ipu]
        expected = {kind: int(own[own["kind"] == kind]["dur"].sum()) for kind in KINDS}
        assert {
            kind: sum(int(row[kind]) for row in rows if int(row["ipu"]) == first[ipu]) for kind in KINDS
        } == expected
        shown = _shown(facts["timeline"], ipu)
        if facts["timeline"]["window"] is None:
            assert shown == expected
        steps = exact[exact["ipu"] == ipu].groupby("program", observed=True)["dur"].sum()
        found = {name: cycles for (place, name), cycles in by_program.items() if place == ipu and cycles}
        assert found == steps[steps > 0].to_dict()
    of_kind = {kind: sum(e["args"]["cycles"] for e in events if e.get("cat") == kind) for kind in KINDS}
    assert of_kind == {kind: int(slices[slices["kind"] == kind]["dur"].sum()) for kind in KINDS}


def test_all_outputs_have_the_same_bytes(real: Trace, folder: Path, facts: dict) -> None:
    memory = real.table("tile_memory")
    held = {name: int(memory[memory["category"] == name]["bytes"].sum()) for name in MEMORY_CATEGORIES}
    summary = json.loads((folder / "summary.json").read_text())["memory"]
    assert summary["categories"] == held
    text = (folder / "summary.txt").read_text()
    for name, count in held.items():
        if count:
            assert re.search(rf"{name}: +{count:,} B", text), name
    on_page = dict.fromkeys(MEMORY_CATEGORIES, 0)
    for tiles in facts["memory"].values():
        for name, runs in tiles["categories"].items():
            on_page[name] += sum(value * count for value, count in runs)
    assert on_page == held
    tiles = pva.openReport(folder).compilation.tiles
    assert sum(tile.memory.total.includingGaps for tile in tiles) == sum(held.values())
    assert sum(tile.memory.total.excludingGaps for tile in tiles) == sum(held.values()) - held["gaps"]
    figures = comparison_values(compare({"a": real, "b": real}))["figures"]
    assert {row["key"]: row["values"][0] for row in figures if row["group"] == "memory"} == held
    assert summary["max_tile"]["bytes"] == max(tile.memory.total.includingGaps for tile in tiles)


def test_every_op_says_what_it_is_and_where_it_comes_from(rows: list[dict[str, str]]) -> None:
    named = [row for row in rows if row["op"] != "(no op)"]
    assert named
    for row in named:
        assert all(row[key] for key in ("op", "type", "phase", "graph", "module", "line", "ipu", "kind")), row
        assert re.search(r":\d+$", row["line"]), row
        waiting = sum(int(row[kind]) for kind in (*WAITING_KINDS, "host_begin", "host_end", "host_run"))
        assert int(row["waiting_cycles"]) == waiting
        assert int(row["cycles"]) + waiting == sum(int(row[kind]) for kind in KINDS)


def test_waiting_has_an_owner_and_the_ipu_that_sets_the_pace_is_named(real: Trace, folder: Path) -> None:
    time, run = step_time(real), real.table("runs").iloc[-1]
    slices = real.expand((int(run.start), int(run.start + run.dur)), clip=True)
    lanes = slices.groupby(["replica", "ipu"])["lane"].max()
    for (replica, ipu), lane in lanes.items():
        own = slices[(slices["replica"] == replica) & (slices["ipu"] == ipu)]
        stands = int(own[own["kind"].isin(WAITING_KINDS)]["dur"].sum())
        if lane == 0 and own["dur"].sum() == run.dur:  # every cycle is a step's
            found = time.waits.table().query(f"replica == {replica} and ipu == {ipu}")
            assert int((found["dur"]).sum()) == stands
    assert f"on IPU {time.ipu}" in time.sentence()
    assert time.sentence() in (folder / "summary.txt").read_text()
    ends = slices.assign(end=slices["start"] + slices["dur"]).groupby("ipu")["end"].max()
    assert ends[time.ipu] == ends.max()


def test_what_an_instance_is_for_is_not_waiting(real: Trace) -> None:
    slices, work = real.expand(), instance_work(real)
    waiting = slices[slices["kind"].isin(WAITING_KINDS)].groupby("instance")["dur"].sum()
    ids = real.columns("instances")["instance"]
    found = {int(ids[row]): int(count) for row, count in enumerate(work.waiting.tolist()) if count}
    assert found == waiting[waiting > 0].to_dict()
