"""The operations of the page: the roofline, whose points stay below its lines and open their rows."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from chromium import Browser, Page

from ipuperf.report import report_page
from ipuperf.trace import Trace


def opened(browser: Browser, trace: Trace, folder: Path, address: str) -> Page:
    file = folder / "page.html"
    file.write_text(report_page(trace), encoding="utf-8")
    return browser.open(file, address)


def test_bytes_of_exchanges_are_those_that_tiles_receive_in_them(trace: Trace):
    operations = trace.operations_by_ipu().set_index(["op", "ipu"])
    received = trace.expand(kinds=["exchange"]).astype({"op": str}).groupby(["op", "ipu"])["bytes_in"].sum()
    assert received.sum() > 0
    assert operations["exchange_bytes"][operations["exchange_bytes"] > 0].to_dict() == received.to_dict()


def test_no_operation_is_above_the_roof(programs: ModuleType):
    """With two tiles that share a bus an exchange is at most twice as fast as with each on its own."""
    trace = programs.PROGRAMS["remote-variables"]()
    peaks = trace.meta["peak_flops_per_cycle"]
    exchange = trace.meta["peak_exchange_bytes_per_cycle"]
    assert exchange == 4 * trace.meta["tiles_per_ipu"]
    operations = trace.operations_by_ipu()
    assert (operations["flops"] <= max(peaks.values()) * operations["cycles"]).all()
    assert (operations["exchange_bytes"] <= 2 * exchange * operations["exchange"]).all()
    assert (operations["exchange_bytes"] > exchange * operations["exchange"] / 2).any()


def test_a_point_of_the_roofline_opens_its_row(
    browser: Browser, rich: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(rich.meta, "peak_exchange_bytes_per_cycle", 24)
    page = opened(browser, rich, tmp_path, "operations")
    assert page.run("document.getElementById('roofline').hidden")
    page.press("r")
    told: dict[str, Any] = page.run("({...document.getElementById('roofline-canvas').dataset})")
    operations = rich.operations_by_ipu(of_each_class=True)
    shown = operations[(operations["flops"] > 0) & (operations["cycles"] > 0)]
    assert told == {"points": str(len(shown)), "peaks": "2", "exchange": "24"}
    seen = set()
    for _ in range(len(shown)):
        page.press("ArrowRight")
        chosen = page.run("[...document.querySelector('#operations-table .chosen').cells].map(c => c.textContent)")
        seen.add((chosen[0], int(chosen[2])))
        row = operations[(operations["op"] == chosen[0]) & (operations["ipu"] == int(chosen[2]))].iloc[0]
        text = page.run("document.getElementById('roofline-told').textContent")
        assert text.startswith(f"{row.op}. On IPU {row.ipu}: {row.cycles:,} cycles, {row.flops:,} FLOP")
        assert f"{row.exchange_bytes:,} bytes received in exchanges" in text
        assert page.run("document.getElementById('operations-plan').dataset.op") == row.op
    assert seen == set(shown[["op", "ipu"]].itertuples(index=False, name=None))
    box = page.run(
        "(b => [b.left, b.top, b.width, b.height])(document.getElementById('roofline-canvas').getBoundingClientRect())"
    )
    page.click(box[0] + box[2] / 2, box[1] + box[3] / 2)
    assert page.run("document.querySelectorAll('#operations-table .chosen').length") == 1
    assert (page.problems, page.requests) == ([], [])
    page.close()


@pytest.mark.parametrize("keys", [["r"], ["r", "u", "c", "t"]])
def test_a_trace_without_peaks_or_flop_has_a_roofline_all_the_same(
    keys: list[str], browser: Browser, synthetic: ModuleType, tmp_path: Path
):
    build = synthetic.Builder()
    build.add("steps", 0, 0, -1, -1, "compute", 0, 20, 5.0, 1472, 3, 0, 0, 0, 0, -1)
    build.add("instances", 0, 0, 0, 0, -1, -1, 100, 30, 0)
    build.add("runs", 0, "run", 100, 30)
    page = opened(browser, build.trace(), tmp_path, "operations")
    page.press(*keys)
    assert page.run("document.getElementById('roofline-canvas').dataset.points") == "0"
    assert page.problems == []
    page.close()
