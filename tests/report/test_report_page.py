"""The page: what it holds against the tables of the trace, and what a browser shows of it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

import ipuperf.report.page as module
from ipuperf.report import critical_path, path_cycles, report_page, step_time, summary_text, why_text
from ipuperf.trace import KINDS

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
VIEWS = ("summary", "timeline", "liveness", "memory", "bsp", "operations", "links", "critical-path")


def facts_of(page: str) -> dict:
    (packed,) = re.findall(r'<script type="application/octet-stream" id="facts">([^<]*)</script>', page)
    return json.loads(zlib.decompress(base64.b64decode(packed)))


@pytest.fixture(scope="module")
def page(trace) -> str:
    return report_page(trace)


def test_the_page_asks_nobody_and_says_the_summary_without_javascript(page, trace):
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)|https?://|url\(|@import|fetch\(|XMLHttpRequest""", page)
    assert "<noscript>" in page
    assert summary_text(trace).splitlines()[1].strip() in page
    assert not re.search(r"{{(title|style|script|facts|summary)}}", page)
    assert len(page) < 1_000_000


def test_titles_are_text(trace):
    page = report_page(trace, title="<b>&")
    assert "<title>&lt;b&gt;&amp; - ipuperf</title>" in page


def test_facts_of_time_are_those_of_the_tables(page, trace):
    time, facts = step_time(trace), facts_of(page)
    assert {part["name"]: part["cycles"] for part in facts["time"]["parts"]} == time.parts
    assert facts["time"]["waiting"] == {str(ipu): owners for ipu, owners in time.waits.by_ipu().items()}
    operations = trace.operations_by_ipu()
    assert facts["operations"]["cycles"] == operations["cycles"].tolist()
    assert facts["operations"]["waiting_cycles"] == operations["waiting_cycles"].tolist()
    assert sum(facts["time"]["path_cycles"]["cycles"]) == time.total


def test_every_slice_of_the_time_line_is_there(page, trace):
    line = facts_of(page)["timeline"]
    slices = trace.expand()
    slices = slices[slices["dur"] > 0]
    assert sum(len(row["start"]) for row in line["rows"]) == len(slices)
    for row in line["rows"]:
        own = slices[
            (slices["ipu"] == row["ipu"]) & (slices["replica"] == row["replica"]) & (slices["lane"] == row["lane"])
        ]
        assert np.cumsum(row["start"]).tolist() == own["start"].tolist()
        assert row["dur"] == own["dur"].tolist()
        assert [KINDS[line["steps"]["kind"][step]] for step in row["step"]] == own["kind"].tolist()
        assert [line["ops"][line["steps"]["op"][step]] for step in row["step"]] == own["op"].tolist()


def test_facts_of_memory_are_those_of_the_tables(page, trace):
    facts = facts_of(page)
    memory = trace.table("tile_memory")
    for ipu, tiles in facts["memory"].items():
        found = {name: sum(value * count for value, count in runs) for name, runs in tiles["categories"].items()}
        own = memory[memory["ipu"] == int(ipu)].groupby("category")["bytes"].sum()
        assert found == own[own > 0].to_dict()
    live = trace.table("liveness")
    assert facts["liveness"]["2"]["other"] == live[live["ipu"] == 2]["not_always_live"].tolist()
    assert facts["variables"]["listed"][0]["bytes"] == trace.table("variables")["bytes"].max()


def test_a_long_trace_is_shown_in_part_and_too_much_is_an_error(trace, monkeypatch):
    whole = len(report_page(trace))
    monkeypatch.setattr(module, "_MOST_SLICES", 500)
    facts = facts_of(report_page(trace))
    begin, end = facts["timeline"]["window"]
    assert 0 <= begin < end < facts["total_cycles"]
    assert facts["operations"]["cycles"] == trace.operations_by_ipu()["cycles"].tolist()
    monkeypatch.setattr(module, "MOST_BYTES", whole // 10)
    with pytest.raises(ValueError, match="at most"):
        report_page(trace)


def test_the_verdict_on_memory_is_on_the_page(synthetic):
    build = synthetic.Builder()
    build.add("tile_memory", 0, 3, "stack", 700_000)
    verdict = "does not fit: IPU 0 tile 3 (x of y at m.py:7); would help: z"
    facts = facts_of(report_page(build.trace(warnings=["low confidence", verdict])))
    assert (facts["meta"]["oom"], facts["verdicts"]) == (True, [verdict])


def test_a_trace_of_nothing_has_a_page(synthetic):
    facts = facts_of(report_page(synthetic.Builder().trace()))
    assert facts["time"] is None
    assert facts["timeline"] is None


def test_the_critical_path_covers_the_run_and_follows_the_blame(trace, synthetic):
    for run in (0, 1):
        path = critical_path(trace, run)
        table = path.table()
        assert (table["start"] + table["dur"]).tolist()[:-1] == table["start"].tolist()[1:]
        assert table["dur"].sum() == trace.table("runs")["dur"][run]
        assert path_cycles(trace, path)["cycles"].sum() == table["dur"].sum()


def test_why_names_the_bound_and_the_waits(trace):
    text = why_text(trace)
    time = step_time(trace)
    assert text.startswith(f"The last run ({trace.seconds(time.total) * 1e6:.4g} us)")
    assert time.sentence() in text
    assert "Its critical path" in text
    assert "Who waits longest, and for whom:" in text


# -- in a browser --------------------------------------------------------------------------------------------------


def browse(page: str, folder: Path, view: str, script: str = "") -> str:
    """The page's document after ``script`` ran in a headless browser; errors on its console fail."""
    run = """<script>
    const waited = setInterval(() => {
      if (document.documentElement.dataset.ready !== "yes") return;
      clearInterval(waited);
      try { %s } catch (error) { document.documentElement.dataset.failed = error.message; }
    }, 5);
    </script></body>"""
    file = folder / "page.html"
    file.write_text(page.replace("</body>", run % script), encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    options += [
        "--window-size=1300,850",
        "--virtual-time-budget=5000",
        f"--user-data-dir={folder / 'browser'}",
        "--dump-dom",
    ]
    done = subprocess.run(
        [str(BROWSER), *options, f"{file.as_uri()}#{view}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    assert 'data-ready="yes"' in done.stdout
    assert "data-failed" not in done.stdout, done.stdout[:300]
    return done.stdout


def data(document: str, element: str) -> dict[str, str]:
    """The data attributes of an element by its id."""
    (tag,) = re.findall(rf'<[^>]*id="{element}"[^>]*>', document)
    return dict(re.findall(r'data-([a-z]+)="([^"]*)"', tag))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
class TestBrowser:
    """Clicks through the views; the figures that are shown are those of the tables."""

    def test_the_summary_shows_the_parts_of_the_run(self, page, trace, tmp_path):
        document = browse(page, tmp_path, "summary", "document.getElementById('theme').click()")
        shown = dict(re.findall(r'data-part="([^"]*)" data-cycles="(\d+)"', document))
        assert {name: int(cycles) for name, cycles in shown.items()} == {
            k: v for k, v in step_time(trace).parts.items() if v
        }
        assert 'data-theme="dark"' in document

    def test_the_time_line_zooms_moves_and_finds(self, page, trace, tmp_path):
        script = """
        const key = (k) => document.dispatchEvent(new KeyboardEvent("keydown", {key: k}));
        const box = document.getElementById("timeline-window"), out = document.documentElement.dataset;
        out.all = box.dataset.from + " " + box.dataset.to;
        key("w"); key("w"); out.near = String(box.dataset.to - box.dataset.from);
        key("d"); key("0"); out.back = box.dataset.from + " " + box.dataset.to;
        const input = document.getElementById("timeline-search");
        input.value = "adam2/load"; input.dispatchEvent(new Event("input")); key("n");
        const begin = performance.now(); for (let i = 0; i < 20; i++) { key("s"); key("w"); }
        out.drawn = String((performance.now() - begin) / 40);
        """
        document = browse(page, tmp_path, "timeline", script)
        out = dict(re.findall(r'data-([a-z]+)="([^"]*)"', document[: document.index("<head>")]))
        slices = trace.expand()
        begin, end = slices["start"].min(), (slices["start"] + slices["dur"]).max()
        assert out["all"] == out["back"] == f"{begin} {end}"
        assert float(out["near"]) == pytest.approx(0.49 * (end - begin))
        found = re.search(r'id="timeline-facts">([^<]*)<', document).group(1)
        first = slices.query("op == 'adam2/Load'").iloc[0]
        assert found.startswith("adam2/Load - remote load")
        assert f"{first.start:,} to {first.start + first.dur:,}: {first.dur:,}" in found
        assert float(out["drawn"]) < 33, "milliseconds for a frame"

    def test_liveness_and_memory_show_the_tables(self, page, trace, tmp_path):
        script = "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
        shown = data(browse(page, tmp_path, "liveness", script), "liveness-facts")
        live = trace.table("liveness").query("ipu == 0").set_index("step")
        row = live.loc[int(shown["step"])]
        assert (int(shown["other"]), int(shown["always"])) == (row.not_always_live, row.always_live)
        assert int(shown["step"]) == (live.always_live + live.not_always_live).idxmax() + 1
        shown = data(browse(page, tmp_path, "memory"), "memory-facts")
        tiles = trace.table("tile_memory").query("ipu == 0").groupby("tile")["bytes"].sum()
        assert (int(shown["most"]), int(shown["tile"]), int(shown["total"])) == (
            tiles.max(),
            tiles.idxmax(),
            tiles.sum(),
        )

    def test_operations_are_filtered_and_grouped(self, page, trace, tmp_path):
        script = """const box = document.getElementById("operations-filter");
        box.value = "matmul"; box.dispatchEvent(new Event("input"));"""
        operations = trace.operations_by_ipu()
        shown = data(browse(page, tmp_path, "operations", script), "operations-note")
        assert int(shown["cycles"]) == operations[operations["type"] == "MatMul"]["cycles"].sum()

    @pytest.mark.parametrize("view", ["bsp", "links", "critical-path"])
    def test_every_other_view_opens(self, page, trace, tmp_path, view):
        document = browse(page, tmp_path, view, "document.getElementById('palette').click()")
        assert f'id="view-{VIEWS.index(view)}"' in document
        if view == "critical-path":
            assert int(data(document, "path-table")["cycles"]) == step_time(trace).total
