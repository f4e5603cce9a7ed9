"""The time line of the page: its address, the sums of an interval, folded rows, and whom an IPU waits for."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from chromium import Browser, Page

from ipuperf.report import report_page, waits
from ipuperf.trace import Trace, slices

KINDS_OF_PART = {
    "compute": ("compute",),
    "exchange": ("exchange",),
    "sync": ("sync",),
    "waiting for IPUs": ("sync_external", "idle"),
    "IPU-Links": ("link",),
    "Streaming Memory": ("remote_load", "remote_store"),
    "host": ("host_begin", "host_mid", "host_end", "host_run"),
}


def written(trace: Trace, folder: Path) -> Path:
    file = folder / "page.html"
    file.write_text(report_page(trace), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def file(trace: Trace, tmp_path_factory: Any) -> Path:
    return written(trace, tmp_path_factory.mktemp("page"))


@pytest.fixture
def shown(browser: Browser, file: Path) -> Iterator[Page]:
    page = browser.open(file, "timeline")
    yield page
    assert (page.problems, page.requests) == ([], [])
    page.close()


def slices_of(trace: Trace) -> pd.DataFrame:
    """The slices with duration, with what their steps compute and receive."""
    found, steps, instances = slices(trace), trace.columns("steps"), trace.columns("instances")
    frame = pd.DataFrame({"start": found.start, "dur": found.dur, "ipu": instances["ipu"][found.instance]})
    for name in ("kind", "lane", "flops", "bytes_in"):
        frame[name] = steps[name][found.step]
    return frame[frame["dur"] > 0]


def sums(page: Page, begin: int, end: int) -> dict[str, Any]:
    """The sums of an interval as the page has them."""
    found: dict[str, Any] = page.run(f"sumsBetween({begin}, {end})")
    return found


def expected_sums(table: pd.DataFrame, begin: int, end: int) -> dict[str, float]:
    """Cycles of each part, FLOP and bytes in of these slices: each counts with its part inside the interval."""
    inside = (table["start"] + table["dur"]).clip(upper=end) - table["start"].clip(lower=begin)
    inside = inside.clip(lower=0)
    share = inside / table["dur"]
    cycles = {part: inside[table["kind"].isin(kinds)].sum() for part, kinds in KINDS_OF_PART.items()}
    return {**cycles, "FLOP": (share * table["flops"]).sum(), "bytes": (share * table["bytes_in"]).sum()}


def check_sums(page: Page, trace: Trace, begin: int, end: int) -> None:
    table = slices_of(trace)
    found = sums(page, begin, end)
    rows = page.run("facts.timeline.rows.map(row => [row.ipu, row.lane])")
    totals = dict.fromkeys([*KINDS_OF_PART, "FLOP", "bytes"], 0.0)
    for (ipu, lane), row in zip(rows, found["ipus"], strict=True):
        expected = expected_sums(table[(table["ipu"] == ipu) & (table["lane"] == lane)], begin, end)
        shown_values = [*row["parts"], row["flops"], row["bytesIn"]]
        assert shown_values == pytest.approx(list(expected.values()))
        totals = {name: totals[name] + value for name, value in expected.items()}
    assert [*found["all"]["parts"], found["all"]["flops"], found["all"]["bytesIn"]] == pytest.approx(
        list(totals.values())
    )
    busy = trace.table("transfers").drop_duplicates(["link_id", "start", "dur"])
    if not trace.table("loops").empty or busy.empty:
        return
    names = trace.table("links").set_index("link_id")["name"]
    inside = (busy["start"] + busy["dur"]).clip(upper=end) - busy["start"].clip(lower=begin)
    by_link = inside.clip(lower=0).groupby(names[busy["link_id"]].to_numpy()).sum()
    shown_links = {lane["name"]: lane["cycles"] for lane in found["lanes"] if lane["name"] in by_link.index}
    assert shown_links == by_link.to_dict()


@pytest.mark.parametrize("part", [(0.0, 1.0), (0.2, 0.21), (0.333, 0.7), (0.9, 1.0)])
def test_sums_of_an_interval_are_those_of_the_slices(part, shown, trace):
    end = int(trace.summary()["total_cycles"])
    check_sums(shown, trace, round(part[0] * end), round(part[1] * end))


def test_sums_look_into_loops(browser: Browser, rich: Trace, tmp_path: Path):
    page = browser.open(written(rich, tmp_path), "timeline")
    table = slices_of(rich)
    begin, end = table["start"].min(), (table["start"] + table["dur"]).max()
    length = end - begin
    for low, high in ((0, 1), (0.1, 0.15), (0.11, 0.93), (0.5, 0.50001)):
        check_sums(page, rich, round(begin + low * length), round(begin + high * length) + 1)
    assert page.problems == []
    page.close()


def test_an_interval_is_selected_by_keyboard_and_mouse(shown, trace):
    said = "({...document.getElementById('timeline-selection').dataset})"
    shown.press("w", "m")
    window = shown.run("({...document.getElementById('timeline-window').dataset})")
    selected = shown.run(said)
    assert (selected["from"], selected["to"]) == (window["from"], window["to"])
    cells = shown.run(
        "[...document.querySelectorAll('#timeline-selection table')[0].rows].map(row => row.cells[0].textContent)"
    )
    assert cells == ["row", "all", "IPU 0 stage 0", "IPU 1 stage 1", "IPU 2 stage 2", "IPU 3 stage 3"]
    assert "IPU-Links" in shown.run("document.getElementById('timeline-sums').textContent")
    shown.press("Shift+ArrowLeft", "Shift+ArrowUp")
    narrower = shown.run(said)
    assert int(narrower["to"]) < int(selected["to"])
    assert int(narrower["from"]) > int(selected["from"])
    shown.press("z")
    window = shown.run("({...document.getElementById('timeline-window').dataset})")
    assert [float(window["from"]), float(window["to"])] == [int(narrower["from"]), int(narrower["to"])]
    shown.press("Escape")
    assert shown.run(said)["from"] == ""
    assert shown.run("document.getElementById('timeline-selection').children.length") == 0
    shown.press("0")
    left, top, width = shown.run(
        "(box => [box.left, box.top, box.width])(document.getElementById('timeline-canvas').getBoundingClientRect())"
    )
    mouse = shown.window.mouse
    shown.window.keyboard.down("Shift")
    mouse.move(left + 126 + (width - 126) * 0.25, top + 60)
    mouse.down()
    mouse.move(left + 126 + (width - 126) * 0.5, top + 60, steps=4)
    mouse.up()
    shown.window.keyboard.up("Shift")
    begin, end = shown.run("[facts.timeline.rows[0].start[0], 0]")[0], trace.summary()["total_cycles"]
    chosen = shown.run(said)
    assert int(chosen["from"]) == pytest.approx(begin + 0.25 * (end - begin), rel=0.01)
    assert int(chosen["to"]) == pytest.approx(begin + 0.5 * (end - begin), rel=0.01)


def test_rows_fold_into_one_by_keyboard_and_by_mouse(shown):
    state = "[...document.querySelectorAll('#timeline-folds button')].map(b => [b.ariaLabel, b.ariaExpanded])"
    assert shown.run(state) == [["all: 4 IPUs", "true"]]
    shown.press("f")
    assert shown.run(state) == [["all: 4 IPUs", "false"]]
    assert shown.run("document.getElementById('timeline-window').dataset.flows") == "0"
    box = shown.run("(b => [b.left, b.top])(document.getElementById('timeline-canvas').getBoundingClientRect())")
    shown.click(box[0] + 400, box[1] + 60)
    assert "all: 4 IPUs at cycle" in shown.run("document.getElementById('timeline-facts').textContent")
    shown.run("document.querySelector('#timeline-folds button').focus()")
    shown.press("Enter")
    assert shown.run(state) == [["all: 4 IPUs", "true"]]
    assert shown.run("document.activeElement.dataset.fold") == "r0"


def replicated(synthetic: ModuleType, replicas: int) -> Trace:
    """So many replicas of two IPUs with a lane of I/O tiles on each."""
    build = synthetic.Builder()
    build.add("ops", 0, "main/Add.1", "Add", "main", "fwd", 5, "model.py:12", "float16")
    for lane in (0, 1):
        build.add("steps", 0, lane, -1, 0, "compute", 10 * lane, 20, 5.0, 1472, 3, 0, 0, 7, lane, -1)
    for replica in range(replicas):
        for ipu in (2 * replica, 2 * replica + 1):
            build.add("instances", ipu, 0, ipu, replica, -1, -1, 100, 30, 0)
    build.add("runs", 0, "run", 100, 30)
    return build.trace(num_ipus=2 * replicas, replicas=replicas)


def test_many_rows_begin_folded_and_open_one_by_one(browser: Browser, synthetic: ModuleType, tmp_path: Path):
    page = browser.open(written(replicated(synthetic, 8), tmp_path), "timeline")
    state = "[...document.querySelectorAll('#timeline-folds button')].map(b => [b.ariaLabel, b.ariaExpanded])"
    others = [[f"replica {replica}: 2 IPUs", "false"] for replica in range(1, 8)]
    first = [["replica 0: 2 IPUs", "true"], ["IPU 0: 2 lanes", "true"], ["IPU 1: 2 lanes", "true"]]
    assert page.run(state) == [*first, *others]
    page.run("document.querySelector('[data-fold=i1]').click()")
    page.run("document.querySelector('[data-fold=r3]').click()")
    assert page.run(state) == [
        *first[:2],
        ["IPU 1: 2 lanes", "false"],
        *others[:2],
        ["replica 3: 2 IPUs", "true"],
        ["IPU 6: 2 lanes", "true"],
        ["IPU 7: 2 lanes", "true"],
        *others[3:],
    ]
    page.press("f")
    assert all(opened == "true" for _, opened in page.run(state))
    assert page.problems == []
    page.close()


def test_further_replicas_begin_as_one_row(browser: Browser, synthetic: ModuleType, tmp_path: Path):
    page = browser.open(written(replicated(synthetic, 12), tmp_path), "timeline")
    rows = "[...document.querySelectorAll('#timeline-folds button')].map(b => [b.ariaLabel, b.ariaExpanded])"
    first = [["replica 0: 2 IPUs", "true"], ["IPU 0: 2 lanes", "true"], ["IPU 1: 2 lanes", "true"]]
    assert page.run(rows) == [*first, ["11 further replicas", "false"]]
    page.run("document.querySelector('[data-fold=others]').click()")
    others = [[f"replica {replica}: 2 IPUs", "false"] for replica in range(1, 12)]
    assert page.run(rows) == [*first, ["11 further replicas", "true"], *others]
    page.press("f", "f")
    assert page.run(rows) == [["replica 0: 2 IPUs", "false"], ["11 further replicas", "false"]]
    assert page.problems == []
    page.close()


@pytest.mark.parametrize("run", [0, 1])
def test_a_waiting_slice_names_the_ipu_of_the_table_of_waits(run, shown, trace):
    table = waits(trace, run).table()
    begin, length = trace.table("runs").loc[run, ["start", "dur"]]
    # At the edges of a run the page looks into the runs beside it.
    table = table[(table["start"] > begin) & (table["start"] + table["dur"] < begin + length)]
    assert len(table)
    places = table[["ipu", "start"]].to_numpy().tolist()
    found = shown.run(
        f"{places}.map(([ipu, start]) => waitedFor(facts.timeline.rows.find(row => row.ipu === ipu), start))"
    )
    assert found == table["blamed_ipu"].tolist()


def test_a_waiting_slice_says_for_whom(shown):
    """The slices of waits in the midst of the run, by a click on each."""
    said = shown.run(
        """facts.timeline.rows.flatMap(row => {
          const texts = [], waiting = waitingCodes(), kind = facts.timeline.segments.kind;
          const tell = (i, j, start) => { if (waiting.has(kind[j])) texts.push(aboutSlice(row, i, j, start)); };
          walk(row, 0, tell);
          return texts;
        })"""
    )
    assert len(said) == 8
    assert all(text.startswith("(no op) - external sync, idle") for text in said)
    assert any("waits for IPU " in text for text in said)
