"""The text, and the folder with everything."""

import csv
import json
import subprocess
import sys

import pytest

from ipuperf.report import folder as module
from ipuperf.report import summary_text, write_report
from ipuperf.report.folder import VIEWS, View
from ipuperf.report.text import duration, size
from ipuperf.trace import Trace


@pytest.fixture(scope="module")
def folder(trace, tmp_path_factory):
    place = tmp_path_factory.mktemp("report") / "deep" / "er"
    return place, write_report(trace, place)


def test_the_text_has_the_words_of_the_profile_summary(trace):
    text = summary_text(trace)
    for line in (
        "Target:",
        "  Number of IPUs:                                4",
        "  Memory Per-Tile:                               638,976 B (639.0 kB)",
        "  Number of compute sets:                        53",
        "  Total cycles:                                  3,032,540 (1.639 ms)",
        "  Tile average compute cycles:                   1,231,500 (40.6% of total)",
        "  Tile average IPU exchange cycles:              432,000 (14.2% of total)",
        "  Tile average global exchange cycles:           36,000 (1.2% of total)",
        "  Tile average host exchange cycles:             13,600 (0.4% of total)",
        "  Tile average sync cycles:                      12,320 (0.4% of total)",
        "  Tile balance (compute):                        75.0%",
        "    vertexCode:                                  141,312,000 B (141.3 MB)",
        "    IPU 0, always live:                          264,960,000 B (265.0 MB)",
        "    IPU 0, not always live (peak):               146,967,627 B (147.0 MB)",
        "  The program fits.",
        "  Streaming Memory, loaded:                      576,000 B (576.0 kB)",
        "  - made up for tests",
    ):
        assert f"{line}\n" in text


def test_the_text_says_what_does_not_fit(synthetic):
    text = summary_text(synthetic.pipeline_trace(scale=1.6, runs=10, ipus=12, micro_batches=1, layers=1))
    assert "OUT OF MEMORY: 17," in text
    assert "w11:" in text
    assert "... and 2 more runs" in text
    assert "... and 4 IPUs with a lower peak" in text
    assert "... and 14 less used links" in text


def test_the_verdict_on_memory_stands_where_it_says_that_it_does_not_fit(synthetic):
    verdict = "does not fit: IPU 0 tile 3 needs 9 bytes at step 2 (x of y at m.py:7); largest: w 9; would help: z"
    build = synthetic.Builder()
    build.add("tile_memory", 0, 3, "stack", 700_000)
    trace = build.trace(warnings=[verdict, "low confidence: v"])
    text = summary_text(trace)
    memory = text[text.index("Memory Usage:") : text.index("Execution:")]
    for part in verdict.split("; "):
        assert f"    {part}\n" in memory
    assert "low confidence" not in memory


@pytest.mark.heavy
def test_operations_are_counted_as_in_the_table(folder, trace):
    place, _ = folder
    with (place / "operations.csv").open() as file:
        named = {row["op"] for row in csv.DictReader(file)} - {"(no op)"}
    count = len(trace.columns("ops")["op_id"])
    assert (
        f"Number of operations:                          {count:,} in all graphs, {len(named):,} with a cost\n"
        in (place / "summary.txt").read_text()
    )


def test_what_is_not_always_live_adds_up_to_the_peaks_and_what_is_above_them(synthetic):
    build = synthetic.Builder()
    build.add("tile_memory", 0, 0, "variableNotAlwaysLive", 1_000)
    build.add("tile_memory", 0, 1, "variableNotAlwaysLive", 288)
    for step, live in ((0, 1_000), (1, 288)):
        build.add("liveness", 0, step, "p", 0, live, live, step)
    lines = [" ".join(line.split()) for line in summary_text(build.trace()).splitlines()]
    assert "variableNotAlwaysLive: 1,288 B (1.3 kB)" in lines
    assert "above the peak, on tiles fullest at other steps: 288 B" in lines
    assert "IPU 0, not always live (peak): 1,000 B (1.0 kB)" in lines


def test_the_text_of_a_trace_of_nothing(synthetic):
    text = summary_text(synthetic.Builder().trace(warnings=["low confidence"]))
    assert "nothing was executed" in text
    assert "not recorded in this trace" in text
    assert "Warnings:\n  - low confidence\n" in text


def test_units():
    assert size(999) == "999 B"
    assert size(1_234_567) == "1,234,567 B (1.2 MB)"
    assert size(None) == "unknown"
    assert [duration(s) for s in (2.5, 1.234e-3, 5e-6, 2e-9, 0)] == ["2.5 s", "1.234 ms", "5 us", "2 ns", "0 ns"]


def test_the_folder_holds_what_the_index_says(folder, trace):
    place, paths = folder
    names = [path.name for path in paths]
    views = [view for view in VIEWS if view.possible(trace)]
    assert [view.name for view in VIEWS if view not in views] == ["code.csv"]  # the made-up program has no code
    assert names == [*(view.name for view in views), "index.md"]
    assert sorted(path.name for path in place.iterdir()) == sorted(names)
    index = (place / "index.md").read_text()
    assert all(f"({view.name}) | {view.holds}" in index for view in views)


def test_the_files_of_the_folder_can_be_read(folder, trace):
    place, _ = folder
    assert Trace.load(place / "trace.ipt") == trace
    summary = json.loads((place / "summary.json").read_text())
    assert summary["total_cycles"] == 3_032_540
    assert sum(summary["breakdown_seconds"].values()) == pytest.approx(1_506_270 / 1.85e9)
    assert (place / "summary.txt").read_text() == summary_text(trace)
    with open(place / "operations.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0])[:8] == ["op", "type", "phase", "graph", "module", "line", "ipu", "kind"]
    assert len(rows) == len(trace.operations_by_ipu())
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1, abs=1e-4)


@pytest.mark.heavy
def test_a_long_trace_is_shown_in_part_and_it_is_said(synthetic, tmp_path, monkeypatch):
    monkeypatch.setattr("ipuperf.report.excerpt.MAX_SLICES", 500)
    small = synthetic.pipeline_trace(memory=False)
    names = [path.name for path in write_report(small, tmp_path)]
    assert "liveness.png" not in names
    index = (tmp_path / "index.md").read_text()
    assert "cycles 5,000 to" in index
    assert "no data for it: code.csv, liveness.png, tile_memory.png" in index


def test_one_ipu_has_no_picture_of_a_pipeline_and_nothing_is_said_to_be_missing(synthetic, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "VIEWS", [view for view in VIEWS if view.name in ("summary.txt", "pipeline.png")])
    names = [path.name for path in write_report(synthetic.pipeline_trace(ipus=1), tmp_path)]
    assert "pipeline.png" not in names
    assert "pipeline.png" not in (tmp_path / "index.md").read_text()


def test_a_row_of_the_table_is_all_that_a_view_needs(synthetic, tmp_path, monkeypatch):
    def write(trace, path):
        path.write_text("\n".join(trace.table("links")["name"].unique()), encoding="utf-8")

    monkeypatch.setattr(module, "VIEWS", (VIEWS[1], View("links.txt", "names of the links", write, "links")))
    small = synthetic.pipeline_trace(memory=False)
    assert "links.txt" in [path.name for path in write_report(small, tmp_path)]
    assert "| [links.txt](links.txt) | names of the links |" in (tmp_path / "index.md").read_text()
    write_report(synthetic.Builder().trace(), tmp_path)
    assert not (tmp_path / "links.txt").exists()
    assert "links.txt." in (tmp_path / "index.md").read_text().splitlines()[-1]


@pytest.mark.heavy
def test_a_second_report_replaces_the_first(synthetic, tmp_path):
    write_report(synthetic.pipeline_trace(ipus=1, runs=1), tmp_path)
    paths = write_report(synthetic.Builder().trace(), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in paths)
    assert not (tmp_path / "timeline.png").exists()


def test_importing_stays_light():
    code = (
        "import sys, ipuperf.trace, ipuperf.report\n"
        "heavy = {'pandas', 'matplotlib', 'google.protobuf', 'perfetto'} & set(sys.modules)\n"
        "rooms = {'trace', 'report', 'base'}\n"
        "others = {m for m in sys.modules if m.startswith('ipuperf.') and m.split('.')[1] not in rooms}\n"
        "others -= {'ipuperf.runtime', 'ipuperf.runtime.aliases'}\n"
        "assert not heavy, heavy\nassert not others, others\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
