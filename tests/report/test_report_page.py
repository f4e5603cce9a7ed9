"""The page: what it holds against the tables of the trace, and what a browser shows of it."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from chromium import Page
from pagefacts import facts_of, slices_of

import ipuperf.report.page as module
from ipuperf.report import critical_path, path_cycles, report_page, step_time, summary_text, why_text
from ipuperf.report.critical_path import path_stretches
from ipuperf.report.page.op_facts import bounds

VIEWS = ("summary", "timeline", "liveness", "memory", "bsp", "modules", "operations", "links", "critical-path")


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


def check_slices(page: str, trace) -> None:
    line = facts_of(page)["timeline"]
    slices = trace.expand()
    slices = slices[slices["dur"] > 0]
    counted = 0
    for row, (replica, ipu, lane) in enumerate(
        zip(*(line["rows"][name] for name in ("replica", "ipu", "lane")), strict=True)
    ):
        of_row = slices[(slices["ipu"] == ipu) & (slices["replica"] == replica) & (slices["lane"] == lane)]
        expected = of_row[["start", "dur", "kind", "op"]].astype({"kind": str, "op": str})
        assert slices_of(line, row) == sorted(expected.itertuples(index=False, name=None))
        counted += len(of_row)
    assert counted == len(slices)


def test_every_slice_of_the_time_line_is_there(page, trace):
    check_slices(page, trace)


def looped(synthetic):
    """Two loops, one in the other, on two lanes: 3 x (a step, 4 x (two steps)), and a step of 10^12 trips after."""
    build = synthetic.Builder()
    build.add("ops", 0, "main/Add.1", "Add", "main", "fwd", 5, "model.py:12", "float16")
    build.add("loops", 0, -1, 3, 100)
    build.add("loops", 1, 0, 4, 20)
    step = ("compute", 10, 5.0, 1472, 3, 0, 0, 7)
    for seq, (begin, loop) in enumerate([(5, -1), (20, 0), (35, 1), (46, 1), (400, -1)]):
        build.add("steps", 0, seq, -1, 0 if seq else -1, step[0], begin, *step[1:], 0, loop)
    build.add("instances", 0, 0, 0, 0, -1, -1, 1000, 500, 0)
    build.add("instances", 1, 0, 0, 0, -1, -1, 2000, 500, 0)
    build.add("runs", 0, "run", 1000, 1600)
    return build


def test_loops_stay_loops(synthetic):
    trace = looped(synthetic).trace()
    page = report_page(trace)
    check_slices(page, trace)
    templates = facts_of(page)["timeline"]["segments"]
    assert len(templates["dur"]) == 5
    assert templates["loops"] == {"parent": [-1, 0], "count": [3, 4], "period": [100, 20]}


def test_operations_say_what_bounds_them_and_their_share_of_the_peak(synthetic):
    trace = looped(synthetic).trace(peak_flops_per_cycle={"float16": 2})
    facts = facts_of(report_page(trace))["operations"]
    row = facts["op"].index("main/Add.1")
    executions = 2 * (3 + 3 * 4 * 2 + 1)
    assert facts["cycles"][row] == 10 * executions
    assert facts["imbalance_cycles"][row] == 5 * executions
    assert facts["flops"][row] == 7 * executions
    assert facts["able"][row] == 2 * 10 * executions
    assert facts["bound"][row] == "compute"  # of two equal parts the first


def test_what_bounds_an_op_is_its_largest_part(trace):
    table = trace.operations_by_ipu()
    found = bounds(table)
    for row, bound in zip(table.to_dict("records"), found, strict=True):
        parts = {
            "compute": row["compute"] - row["imbalance_cycles"],
            "slowest tile": row["imbalance_cycles"],
            "exchange": row["exchange"],
            "sync": row["sync"],
            "IPU-Links": row["link"],
            "Streaming Memory": row["remote_load"] + row["remote_store"],
            "host exchange": row["host_mid"],
        }
        assert sum(parts.values()) == row["cycles"]
        assert bound == (max(parts, key=parts.get) if row["cycles"] else "waiting")


def test_a_page_has_the_plans(synthetic):
    build = looped(synthetic)
    build.add("plans", 0, 0, 0, 100, 7, 64, "Amp", "the plan")
    build.add("plans", 0, 0, 1, 120, 8, 65, "Slic", "the other")
    plans = facts_of(report_page(build.trace()))["operations"]["plans"]
    assert plans["by_op"] == {"main/Add.1": [[0, 0, 0], [0, 1, 1]]}
    assert plans["distinct"] == [[100, 7, 64, "Amp", "the plan"], [120, 8, 65, "Slic", "the other"]]


def test_facts_of_memory_are_those_of_the_tables(page, trace):
    facts = facts_of(page)
    memory = trace.table("tile_memory")
    for ipu, tiles in facts["memory"].items():
        found = {name: sum(value * count for value, count in runs) for name, runs in tiles["categories"].items()}
        own = memory[memory["ipu"] == int(ipu)].groupby("category")["bytes"].sum()
        assert found == own[own > 0].to_dict()
    live = trace.table("liveness")
    assert facts["liveness"]["2"]["other"] == live[live["ipu"] == 2]["not_always_live"].tolist()
    for row in facts["links"]["used"]:
        assert 0 <= row["shared"] <= row["busy_cycles"]
    assert facts["variables"]["listed"]["bytes"][0] == trace.table("variables")["bytes"].max()


@pytest.mark.heavy
def test_a_long_trace_is_shown_in_part_and_too_much_is_an_error(trace, monkeypatch):
    whole = len(report_page(trace))
    monkeypatch.setattr(module, "_MOST_SLICES", 50)
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
        cycles = path_cycles(trace, path)
        assert cycles["cycles"].sum() == table["dur"].sum()
        stretches = path_stretches(path).table
        assert (stretches["start"] + stretches["dur"]).tolist()[:-1] == stretches["start"].tolist()[1:]
        assert stretches["dur"].sum() == table["dur"].sum()
        place = {"link": "links", "sync_external": "sync", "idle": "sync"}
        named = [
            place.get(kind, {"remote": "ddr", "host": "host"}.get(kind.split("_")[0], "tiles"))
            for kind in cycles["kind"]
        ]
        by_place = cycles["cycles"].groupby([cycles["ipu"], np.array(named)]).sum()
        assert stretches.groupby(["ipu", "place"])["dur"].sum().to_dict() == by_place.to_dict()


def test_why_names_the_bound_and_the_waits(trace):
    text = why_text(trace)
    time = step_time(trace)
    assert text.startswith(f"The last run ({trace.seconds(time.total) * 1e6:.4g} us)")
    assert time.sentence() in text
    assert "Its critical path" in text
    assert "Who waits longest, and for whom:" in text


# -- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(page, tmp_path_factory):
    target = tmp_path_factory.mktemp("page") / "page.html"
    target.write_text(page, encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def shown(browser, file) -> Iterator[Page]:
    """The page, once; no test may leave an error on its console or a request."""
    found = browser.open(file)
    yield found
    assert found.problems == []
    assert found.requests == []


def view(shown: Page, name: str) -> None:
    shown.run(f"document.querySelectorAll('#tabs button')[{VIEWS.index(name)}].click()")
    assert shown.run(f"!document.getElementById('view-{VIEWS.index(name)}').hidden")
    assert shown.run("location.hash.split('?')[0]") == f"#{name}"


def data(shown: Page, element: str) -> dict[str, str]:
    """The data attributes of an element by its id."""
    found: dict[str, str] = shown.run(f"({{...document.getElementById('{element}').dataset}})")
    return found


class TestBrowser:
    """Clicks through the views; the figures that are shown are those of the tables."""

    def test_the_summary_shows_the_parts_of_the_run(self, shown, trace):
        view(shown, "summary")
        parts = shown.run("[...document.querySelectorAll('[data-part]')].map(e => [e.dataset.part, +e.dataset.cycles])")
        assert dict(parts) == {name: cycles for name, cycles in step_time(trace).parts.items() if cycles}
        before = shown.run("document.documentElement.dataset.theme")
        shown.press("t")
        assert shown.run("document.documentElement.dataset.theme") != before
        shown.press("t", "c", "c")

    def test_the_time_line_zooms_moves_and_finds(self, shown, trace):
        view(shown, "timeline")
        slices = trace.expand()
        begin, end = slices["start"].min(), (slices["start"] + slices["dur"]).max()
        window = data(shown, "timeline-window")
        assert (float(window["from"]), float(window["to"])) == (begin, end)
        shown.press("w", "w")
        window = data(shown, "timeline-window")
        assert float(window["to"]) - float(window["from"]) == pytest.approx(0.49 * (end - begin), abs=2)
        shown.press("d", "0")
        shown.wheel(600, 200, -120)
        shown.wait(f"+document.getElementById('timeline-window').dataset.from > {begin}")
        shown.press("0", "/")
        shown.run("document.getElementById('timeline-search').value = 'adam2/load'")
        shown.run("document.getElementById('timeline-search').dispatchEvent(new Event('input'))")
        shown.press("Escape", "n")
        found = shown.run("document.getElementById('timeline-facts').textContent")
        first = slices.query("op == 'adam2/Load'").iloc[0]
        assert found.startswith("adam2/Load - remote load")
        assert f"{first.start:,} to {first.start + first.dur:,}: {first.dur:,}" in found
        shown.run("document.getElementById('timeline-search').value = ''")
        shown.run("document.getElementById('timeline-search').dispatchEvent(new Event('input'))")
        shown.press("0")

    def test_a_click_says_what_a_slice_is(self, shown, trace):
        view(shown, "timeline")
        slices = trace.expand()
        box = shown.run(
            "(b => [b.left, b.top, b.width])(document.getElementById('timeline-canvas').getBoundingClientRect())"
        )
        shown.click(box[0] + 126 + (box[2] - 126) * 0.3, box[1] + 30)
        found = shown.run("document.getElementById('timeline-facts').textContent")
        begin, end = slices["start"].min(), (slices["start"] + slices["dur"]).max()
        cycle = begin + 0.3 * (end - begin)
        mine = slices[slices["ipu"] == 0]
        near = mine[(mine["start"] <= cycle + 400) & (mine["start"] + mine["dur"] >= cycle - 400)]
        told = [f"{row.start:,} to {row.start + row.dur:,}: {row.dur:,}" for row in near.itertuples()]
        assert any(text in found for text in told)

    def test_flows_and_passes_are_there(self, shown, trace):
        view(shown, "timeline")
        shown.press("0", "p")
        shown.wait("document.getElementById('timeline-grid').getAttribute('aria-pressed') === 'true'")
        copies = trace.table("transfers").query("kind == 'p2p'")["transfer"].nunique()
        assert int(data(shown, "timeline-window")["flows"]) == copies > 0
        rows = shown.run(
            "facts.timeline.rows.map(r => [r.ipu, r.stage ?? -1, r.passes.code.filter(c => c === 0).length])"
        )
        assert [ipu for ipu, *_ in rows] == [0, 1, 2, 3]
        assert {passes for *_, passes in rows} == {16}  # 8 micro-batches, 2 runs
        shown.press("p")

    def test_many_turns_of_the_wheel_are_one_frame(self, shown):
        view(shown, "timeline")
        assert [shown.run(ASKED) for _ in range(3)] == [1, 1, 1]

    def test_liveness_and_memory_show_the_tables(self, shown, trace):
        view(shown, "liveness")
        shown.press("ArrowRight")
        found = data(shown, "liveness-facts")
        live = trace.table("liveness").query("ipu == 0").set_index("step")
        row = live.loc[int(found["step"])]
        assert (int(found["other"]), int(found["always"])) == (row.not_always_live, row.always_live)
        assert int(found["step"]) == (live.always_live + live.not_always_live).idxmax() + 1
        view(shown, "memory")
        found = data(shown, "memory-facts")
        tiles = trace.table("tile_memory").query("ipu == 0").groupby("tile")["bytes"].sum()
        assert (int(found["most"]), int(found["tile"]), int(found["total"])) == (
            tiles.max(),
            tiles.idxmax(),
            tiles.sum(),
        )
        shown.run("document.querySelector('#memory-variables tbody tr').click()")
        variables = trace.table("variables").query("ipu == 0 and location == 'tile'").groupby("name")["bytes"].sum()
        found = data(shown, "memory-facts")
        assert variables[found["variable"]] == int(found["bytes"]) == variables.max()

    def test_operations_are_filtered_grouped_and_sorted(self, shown, trace):
        view(shown, "operations")
        operations = trace.operations_by_ipu()
        typed = """(box => { box.value = 'matmul'; box.dispatchEvent(new Event('input')); })
        (document.getElementById('operations-filter'))"""
        shown.run(typed)
        mine = operations[operations["type"] == "MatMul"]
        assert int(data(shown, "operations-note")["cycles"]) == mine["cycles"].sum()
        assert int(data(shown, "operations-note")["rows"]) == len(mine)
        for column in ("module", "type", "line", "phase", "ipu"):
            shown.run(
                f"(s => {{ s.value = '{column}'; s.dispatchEvent(new Event('change')); }})"
                "(document.getElementById('operations-group'))"
            )
            cells = shown.run(
                "[...document.querySelectorAll('#operations-table tbody tr')].map(r => r.cells[2].textContent)"
            )
            expected = mine.groupby(column)["cycles"].sum().sort_values(ascending=False)
            assert [int(cell.replace(",", "")) for cell in cells] == expected.tolist()
        shown.run("document.querySelector('#operations-table th').click()")
        names = shown.run(
            "[...document.querySelectorAll('#operations-table tbody tr')].map(r => r.cells[0].textContent)"
        )
        assert names == sorted(names)

    def test_modules_open_and_stand_alone_by_keyboard(self, shown, trace):
        view(shown, "modules")
        tree = trace.modules()
        rows = "[...document.querySelectorAll('#modules-tree tbody tr')]"
        cells = shown.run(f"{rows}.map(r => [r.dataset.module, r.cells[1].textContent])")
        first_levels = tree[tree.level <= 1]
        assert cells == [[row.module, f"{row.cycles:,}"] for row in first_levels.itertuples()]
        blocks = shown.run("[...document.querySelectorAll('#modules-flame button')].map(b => b.dataset.module)")
        assert set(blocks) == set(tree[tree.cycles > 0.001 * tree[tree.level == 0].cycles.sum()].module)
        chosen = tree.module[0]
        shown.run(f"document.querySelector('#modules-flame button[data-module=\"{chosen}\"]').focus()")
        shown.press("Enter")
        blocks = shown.run("[...document.querySelectorAll('#modules-flame button')].map(b => b.dataset.module)")
        assert all(block == chosen or block.startswith(f"{chosen}.") for block in blocks)

    def test_tables_are_sorted_and_chosen_by_keyboard(self, shown):
        view(shown, "operations")
        shown.run("document.querySelector('#operations-group').value = ''")
        shown.run("document.querySelector('#operations-group').dispatchEvent(new Event('change'))")
        shown.run("document.querySelectorAll('#operations-table th')[3].focus()")
        shown.press("Enter")
        heads = "[...document.querySelectorAll('#operations-table th')].map(head => head.ariaSort)"
        assert shown.run(heads)[3] == "descending"
        shown.run("document.querySelector('#operations-table tbody tr').focus()")
        shown.press("Enter")
        chosen = shown.run("document.querySelector('#operations-table .chosen td').textContent")
        assert data(shown, "operations-plan")["op"] == chosen

    def test_no_view_is_wider_than_the_window(self, shown):
        for width in (390, 1920, 1280):
            shown.window.set_viewport_size({"width": width, "height": 800})
            for name in VIEWS:
                view(shown, name)
                # The pictures follow the window when the browser tells of its size.
                assert shown.until(lambda: shown.run("document.body.scrollWidth") <= width), name  # noqa: B023

    def test_every_view_is_reached_by_keyboard_and_has_a_text_alternative(self, shown):
        shown.run("document.querySelector('#tabs button').focus()")
        for name in VIEWS:
            shown.press("Enter")
            assert shown.run("location.hash.split('?')[0]") == f"#{name}"
            number = VIEWS.index(name)
            labels = shown.run(f"[...document.querySelectorAll('#view-{number} canvas')].map(c => c.ariaLabel)")
            assert all(labels)
            texts = shown.run(f"document.querySelectorAll('#view-{number} :is(table, .facts, [role=status])').length")
            assert texts
            shown.press("Tab")

    def test_bsp_shows_the_spread_of_phases(self, shown, trace):
        view(shown, "bsp")
        shown.run("document.getElementById('bsp-worst').click()")
        found = data(shown, "bsp-facts")
        slices = trace.expand().query("ipu == 0")
        slices = slices[(slices["start"] >= int(found["from"])) & (slices["dur"] > 0)].head(40)
        assert int(found["cycles"]) == slices[slices["kind"] == "compute"]["dur"].sum()
        assert float(found["mean"]) == pytest.approx(0.75 * int(found["cycles"]))

    def test_links_and_critical_path_open(self, shown, trace):
        view(shown, "links")
        carried = shown.run("[...document.querySelectorAll('#view-7 table')][0].rows.length - 1")
        used = trace.table("transfers")["link_id"].nunique()
        assert carried == used
        view(shown, "critical-path")
        assert int(data(shown, "path-table")["cycles"]) == step_time(trace).total

    @pytest.mark.heavy
    def test_without_javascript_the_summary_is_there(self, browser, file, trace):
        bare = browser.open(file, scripts=False)
        html = bare.window.content()
        assert summary_text(trace).splitlines()[1].strip() in html
        assert "Without JavaScript only the summary is here" in html
        assert re.search(r'<details id="text"[^>]* open', html)
        assert bare.problems == []
        bare.close()


ASKED = """(() => {
  const canvas = document.getElementById("timeline-canvas"), ask = window.requestAnimationFrame;
  let asked = 0;
  window.requestAnimationFrame = (draw) => ++asked && ask(draw);
  for (let turn = 0; turn < 50; turn++)
    canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: turn % 2 ? 1 : -1, clientX: 600, cancelable: true}));
  window.requestAnimationFrame = ask;
  return asked;
})()"""
"""How many frames 50 turns of the wheel ask for."""
