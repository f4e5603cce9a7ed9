"""The page of a comparison in a browser, aligned timelines against the tables, and pages without JavaScript."""

import html
import json
import re
from pathlib import Path

import pytest
from chromium import Browser

import ipuperf.report.page.comparison as comparison_module
from ipuperf.report import (
    compare,
    compared,
    comparison_page,
    critical_path,
    path_cycles,
    pipeline_split,
    pipeline_timeline_figure,
    report_page,
    step_time,
    summary_text,
    timeline_figure,
    timelines_figure,
    to_chrome_json,
    to_perfetto,
)
from ipuperf.report.aligned import MOST_IPUS, aligned
from ipuperf.report.comparison_text import number
from ipuperf.report.palette import KIND_COLOURS


@pytest.fixture(scope="module")
def traces(trace, synthetic):
    """Three runs of one program, one of them slower and one of half the pipeline."""
    return {
        "before": trace,
        "slower": synthetic.pipeline_trace(speed=0.8, scale=1.1),
        "two IPUs": synthetic.pipeline_trace(ipus=2),
    }


@pytest.fixture(scope="module")
def page(traces) -> str:
    return comparison_page(compare(traces))


def seen(browser: Browser, document: str, folder: Path, script: str) -> dict:
    """What ``script`` puts into ``out`` in the browser; what the page says on the console fails, but that a frame may
    not run scripts."""
    file = folder / "page.html"
    file.write_text(document, encoding="utf-8")
    page = browser.open(file)
    found: dict = json.loads(page.run(f"(() => {{ const out = {{}}; {script} return JSON.stringify(out); }})()"))
    assert [said for said in page.problems if "allow-scripts" not in said] == []
    page.close()
    return found


def slices_of(trace, bar):
    """Slices of the compute tiles of a bar's IPU in the last run, from its start."""
    run = trace.table("runs").iloc[-1]
    slices = trace.expand((int(run.start), int(run.start + run.dur)), clip=True)
    own = slices.query(f"replica == {bar.replica} and ipu == {bar.ipu} and lane == 0 and dur > 0")
    return own.assign(start=own["start"] - run.start)


def cycles_by_kind(trace, bar) -> dict[str, int]:
    """Of the compute tiles of a bar's IPU in the last run."""
    return slices_of(trace, bar).groupby("kind", observed=True)["dur"].sum().to_dict()


def test_bars_of_one_ipu_stand_together_and_hold_the_cycles_of_the_tables(traces):
    found = aligned(traces)
    lengths = [one.seconds(step_time(one).total) for one in traces.values()]
    assert found.seconds == max(lengths)
    pace = step_time(traces["before"]).ipu
    assert (found.bars[0].ipu, found.bars[0].run) == (pace, 0)
    places = [bar.ipu for bar in found.bars]
    assert [ipu for n, ipu in enumerate(places) if n == 0 or places[n - 1] != ipu] == list(dict.fromkeys(places))
    for bar in found.bars:
        one = list(traces.values())[bar.run]
        assert bar.cycles == cycles_by_kind(one, bar)
        assert bar.seconds == lengths[bar.run]
        pixels = bar.cover.sum(axis=1) / bar.cover.shape[1] * found.seconds  # of a kind in seconds
        for kind, cycles in bar.cycles.items():
            assert pixels[list(KIND_COLOURS).index(kind)] == pytest.approx(one.seconds(cycles), rel=1e-3)


def test_more_ipus_than_are_shown_are_said(synthetic):
    many = synthetic.pipeline_trace(ipus=MOST_IPUS + 2, micro_batches=2, runs=1, layers=1, memory=False)
    found = aligned({"many": many})
    assert (len(found.bars), found.left_out) == (MOST_IPUS, (2,))
    assert "IPUs not shown: 2 of many" in timelines_figure({"many": many}).axes[0].get_title(loc="left")


def test_the_figure_has_a_bar_for_each(traces):
    axes = timelines_figure(traces).axes[0]
    assert len(axes.get_yticklabels()) == len(aligned(traces).bars) == 10
    assert axes.get_xlim() == (0, pytest.approx(1e3 * aligned(traces).seconds))


def test_nothing_to_align_is_an_error(synthetic):
    with pytest.raises(ValueError, match="no traces"):
        timelines_figure({})
    with pytest.raises(ValueError, match="nothing was executed"):
        timelines_figure({"a": synthetic.Builder().trace()})


def test_loops_in_a_run_count_every_trip(synthetic):
    build = synthetic.Builder()
    build.add("loops", 0, -1, 100, 10)
    build.add("steps", 0, 0, -1, -1, "compute", 0, 4, 4.0, 1, 0, 0, 0, 0, 0, 0)
    build.add("steps", 0, 1, -1, -1, "exchange", 4, 6, 6.0, 1, 0, 0, 0, 0, 0, 0)
    build.add("instances", 0, 0, 0, 0, -1, 0, 0, 1000, -1)
    (bar,) = aligned({"a": build.trace()}).bars
    assert bar.cycles == {"compute": 400, "exchange": 600}
    assert bar.cover.sum(axis=1)[0] == pytest.approx(0.4 * bar.cover.shape[1])


@pytest.mark.heavy
def test_the_browser_shows_the_figures_of_the_tables(page, traces, browser, tmp_path):
    script = """
    const box = (g) => { const all = [...g.querySelectorAll("path")].map((p) => p.getBBox());
      return [Math.min(...all.map((b) => b.x)), Math.max(...all.map((b) => b.x + b.width))]; };
    out.bars = [...document.querySelectorAll("g.timeline")].map((g) => [g.dataset, box(g)]);
    out.curves = [...document.querySelectorAll("#liveness path.curve")].map((p) => p.getBBox().y);
    out.parts = [...document.querySelectorAll(".bar[data-part]")].map((b) =>
      [b.dataset.run, b.dataset.part, b.dataset.cycles, b.querySelector("i").getBoundingClientRect().width]);
    for (const d of document.querySelectorAll("details")) d.open = true;
    out.rows = Object.fromEntries([...document.querySelectorAll("details")].filter((d) => d.id).map((d) => [d.id,
      [...d.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent))]));
    const theme = document.documentElement.dataset.theme;
    document.getElementById("theme").click(); out.turned = document.documentElement.dataset.theme !== theme;
    const filter = document.getElementById("filter"); filter.value = "fwd"; filter.dispatchEvent(new Event("input"));
    out.left = [...document.querySelectorAll("tbody tr")].filter((row) => row.offsetParent).map((r) => r.textContent);
    """
    out = seen(browser, page, tmp_path, script)
    comparison, found = compare(traces), aligned(traces)
    names = list(traces)
    assert len(out["bars"]) == len(found.bars)
    for (facts, (left, right)), bar in zip(out["bars"], found.bars, strict=True):
        one = traces[names[bar.run]]
        assert (int(facts["run"]), int(facts["ipu"])) == (bar.run, bar.ipu)
        shown = {kind: int(facts[key]) for kind in KIND_COLOURS if (key := camel(kind)) in facts}
        assert shown == cycles_by_kind(one, bar)
        slices = slices_of(one, bar)
        pixel = 1120 / found.seconds  # the picture is as wide as the longest run
        assert left - 70 == pytest.approx(pixel * one.seconds(slices["start"].min()), abs=1.5)
        assert right - 70 == pytest.approx(pixel * one.seconds((slices["start"] + slices["dur"]).max()), abs=1.5)
    for run, part, cycles, width in out["parts"]:
        assert int(cycles) == step_time(traces[names[int(run)]]).parts[part]
        assert (width > 0) == (int(cycles) > 0)
    assert len(out["curves"]) == 6
    assert min(out["curves"]) == pytest.approx(20.0, abs=0.2)
    for group, rows in (("group-phase", "phase"), ("group-op", "op"), ("group-memory", "memory")):
        table = comparison.changed(rows).to_dict("records")
        assert [row[0] for row in out["rows"][group]] == [row["key"] for row in table]
        assert [row[2:5] for row in out["rows"][group]] == [[number(row[name]) for name in names] for row in table]
    assert out["turned"]
    assert out["left"]
    assert all("fwd" in row for row in out["left"])


VIEWS = ("summary", "timeline", "liveness", "memory", "bsp", "modules", "operations", "links", "critical-path")


def test_every_view_of_a_page_is_there_of_all_runs(page, traces):
    """The pictures and bars of a view have as many parts as there are runs; the tables have a column for each."""
    names = re.findall(r'<section id="([^"]*)"', page)
    assert names == [*VIEWS, "machine"]
    sections = dict(zip(names, page.split("<section ")[1:], strict=True))
    for name in ("summary", "bsp", "modules", "operations", "links", "critical-path"):
        heads = re.findall(r"<thead><tr>(.*?)</tr>", sections[name])
        assert heads, name
        assert all(re.findall("<th class=n>([^<]*)</th>", head)[:3] == list(traces) for head in heads)
    for name, mark in (("timeline", "data-run="), ("liveness", 'class="curve"'), ("memory", 'class="curve"')):
        assert sections[name].count(mark) >= len(traces)


def test_every_picture_has_its_figures_in_a_table(page, traces):
    comparison = compare(traces)
    names = re.findall(r'<section id="([^"]*)"', page)
    sections = dict(zip(names, page.split("<section ")[1:], strict=True))
    for name, section in sections.items():
        assert "<table>" in section or "no difference" in section, name
        labels = re.findall(r'<svg [^>]*aria-label="([^"]*)"', section)
        assert all("the table below" in label for label in labels)
    figures = {figure.name: figure.values for figure in comparison_module._told(comparison)}
    bars = aligned(traces).bars
    assert sum(map(sum, figures.values())) == pytest.approx(
        1e6 * sum(list(traces.values())[bar.run].seconds(sum(bar.cycles.values())) for bar in bars)
    )
    live = [
        max(values) for values in zip(*(f.values for f in comparison_module._live_tenths(comparison)[:10]), strict=True)
    ]
    assert live == [int(trace.columns("liveness")["not_always_live"].max()) for trace in traces.values()]
    tiles = [max(values) for values in zip(*(f.values for f in comparison_module._stretches(comparison)), strict=True)]
    assert tiles == [run.peak for run in comparison.runs]


def test_every_view_of_the_comparison_is_reached_by_keyboard(page, browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    shown = browser.open(file)
    names = [*VIEWS, "machine"]
    for place, name in enumerate(names, start=1):
        shown.press(str(place % 10))
        shown.wait(f"location.hash === '#{name}'")
        assert shown.run("document.activeElement.textContent.toLowerCase().replace(' ', '-')") == name
    shown.run("document.querySelector('nav a').focus()")
    for name in names:
        shown.press("Enter")
        shown.wait(f"location.hash === '#{name}'")
        shown.run(f"document.querySelectorAll('nav a')[{names.index(name)}].focus()")
        shown.press("Tab")
    theme = shown.run("document.documentElement.dataset.theme")
    shown.press("t")
    assert shown.run("document.documentElement.dataset.theme") != theme
    focused = "every(one => { one.focus(); return one === document.activeElement; })"
    assert shown.run(f"[...document.querySelectorAll('details > summary')].{focused}")
    assert shown.run(f"[...document.querySelectorAll('details[open] .scroll')].{focused}")
    assert (shown.problems, shown.requests) == ([], [])
    shown.close()


def test_figures_of_views_add_up_to_those_of_the_runs(traces):
    comparison = compare(traces)
    top = [figure for figure in compared.modules(comparison) if not figure.level]
    path = {(figure.name, figure.unit): figure.values for figure in compared.path_parts(comparison)}
    waits = compared.waiting(comparison)
    links = [figure for figure in compared.links(comparison) if figure.unit == "bytes"]
    for place, run in enumerate(comparison.runs):
        assert sum(figure.values[place] for figure in top) == run.operations["cycles"].sum()
        moved = {link["name"]: link["bytes"] for link in run.trace.summary()["links"] if link["bytes"]}
        assert {figure.name: figure.values[place] for figure in links if figure.values[place]} == {
            name: count for name, count in moved.items() if any(figure.name == name for figure in links)
        }
        waited = run.time.waits.by_ipu()
        for figure in waits:
            ipu, owner = figure.name.removeprefix("IPU ").split(", ")
            assert figure.values[place] == waited.get(int(ipu), {}).get(owner, 0)
        own = path_cycles(run.trace, critical_path(run.trace))["cycles"].sum()
        # Parts of the path that are alike in all runs are no difference.
        assert sum(values[place] for values in path.values()) <= own == run.time.total
    assert all(figure.spread > 0 for figure in (*waits, *links))
    shares = compared.used_limits(comparison)
    assert all(0 <= share <= 1 for figure in shares for share in figure.values)


def test_a_figure_of_one_run_counts_as_zero_in_the_other(synthetic):
    build = synthetic.Builder()
    build.add("steps", 0, 0, -1, -1, "compute", 0, 4, 3.0, 1, 0, 0, 0, 0, 0, -1)
    build.add("instances", 0, 0, 0, 0, -1, 0, 0, 1000, -1)
    comparison = compare({"all": synthetic.pipeline_trace(memory=False), "none": build.trace()})
    assert all(figure.values[1] == 0 for figure in compared.links(comparison))
    assert "Bytes of every tile" not in comparison_page(comparison)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_comparison_is_no_wider_than_the_window(width, page, browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    shown = browser.open(file)
    shown.window.set_viewport_size({"width": width, "height": 800})
    assert shown.until(lambda: shown.run("document.documentElement.scrollWidth") <= width)
    assert (shown.problems, shown.requests) == ([], [])
    shown.close()


def camel(kind: str) -> str:
    """The name of a data attribute in a browser."""
    first, *rest = kind.split("_")
    return first + "".join(word.capitalize() for word in rest)


@pytest.mark.heavy
@pytest.mark.parametrize("which", ["report", "comparison"])
def test_a_browser_without_javascript_shows_the_figures(which, page, trace, traces, browser, tmp_path):
    """The page in a frame that may not run scripts, as in a browser where they are turned off."""
    document = report_page(trace) if which == "report" else page
    frame = f'<iframe sandbox="allow-same-origin" srcdoc="{html.escape(document)}"></iframe>'
    shell = f"<!DOCTYPE html><html data-ready=yes><head><title>x</title></head><body>{frame}</body></html>"
    script = """const frame = document.querySelector("iframe").contentDocument;
    for (const folded of frame.querySelectorAll("details")) folded.open = true;  // as a click does without a script
    out.text = frame.body.innerText;
    out.ready = frame.documentElement.dataset.ready || "";"""
    out = seen(browser, shell, tmp_path, script)
    assert out["ready"] == ""
    text = " ".join(out["text"].split())
    if which == "report":
        for line in summary_text(trace).splitlines():
            assert " ".join(line.split()) in text
    else:
        assert " ".join(compare(traces).sentences()[0].split()) in text
        assert f"{step_time(trace).total:,} cycles" in text


def test_a_window_outside_of_the_run_is_an_error(trace, tmp_path):
    end = int(trace.summary()["total_cycles"])
    outside = (10 * end, 11 * end)
    assert len(trace.expand(outside)) == 0
    for draw in (timeline_figure, pipeline_timeline_figure, pipeline_split):
        with pytest.raises(ValueError, match=rf"lies outside of the trace, cycles [\d,]+ to {end:,}"):
            draw(trace, outside)
    for write in (to_perfetto, to_chrome_json):
        with pytest.raises(ValueError, match=rf"lies outside of the trace, cycles [\d,]+ to {end:,}"):
            write(trace, tmp_path / "x", outside)
        assert not (tmp_path / "x").exists()
