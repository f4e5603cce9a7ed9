"""The pages of real programs in a browser: every view opens, nothing is asked for, figures are those of the tables.

The programs are those of ``benchmarks/pages.py``, which measures frames and first paint; one runs here, three are slow.
"""

from typing import Any

import pytest
from chromium import Page

from ipuperf.report import report_page, step_time
from ipuperf.report.page import MOST_BYTES

SLOW = ("pipeline", "overlapped", "bert-large")


def opened(page: Page) -> list[str]:
    """Names of the views, each opened in both themes."""
    names: list[str] = page.run("[...document.querySelectorAll('#tabs button')].map(tab => tab.textContent)")
    for number in range(len(names)):
        page.press(str(number + 1), "t", "t", "c", "c")
    return names


@pytest.mark.parametrize("name", ["remote-variables", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_view_of_a_program_opens(name, programs, browser, tmp_path):
    if name != "remote-variables":
        pytest.importorskip("torch")
    trace = programs.PROGRAMS[name]()
    file = tmp_path / "page.html"
    file.write_text(report_page(trace), encoding="utf-8")
    assert file.stat().st_size < MOST_BYTES
    page = browser.open(file)
    assert len(opened(page)) == 9
    executions = page.run("facts.timeline.rows.reduce((sum, row) => sum + row.start.length, 0)")
    assert executions == len(trace.table("instances"))
    assert page.run("facts.timeline.window") is None
    plans = trace.table("plans")
    shown = page.run("Object.values(facts.operations.plans.by_op).reduce((sum, rows) => sum + rows.length, 0)")
    assert shown == len(plans) > 0
    if name == "remote-variables":
        parts = page.run("[...document.querySelectorAll('[data-part]')].map(e => [e.dataset.part, +e.dataset.cycles])")
        assert dict(parts) == {part: cycles for part, cycles in step_time(trace).parts.items() if cycles}
        check_liveness(page, trace)
    assert page.problems == []
    assert page.requests == []
    page.close()


def check_liveness(page: Page, trace: Any) -> None:
    """Live bytes by what they are for add up; the variables at a step, and at a moment, are those of the tables."""
    page.press("3")
    told = page.run("({...document.getElementById('liveness-facts').dataset})")
    assert told["parts"] == told["other"]
    variables = trace.table("variables").query("ipu == 0 and location == 'tile'")
    intervals, step = trace.table("live_intervals"), int(told["step"])
    live = intervals[(intervals["step_from"] <= step) & (step < intervals["step_to"])]["class_id"]
    held = variables[variables["always_live"] | variables["class_id"].isin(live)]
    listed = page.run("+document.getElementById('liveness-variables').dataset.bytes")
    assert listed <= held["bytes"].sum()
    assert int(told["other"]) == held[~held["always_live"]]["bytes"].sum()
    page.run("document.getElementById('liveness-time').click()")
    box = page.run(
        "(b => [b.left, b.top, b.width])(document.getElementById('liveness-canvas').getBoundingClientRect())"
    )
    page.click(box[0] + box[2] * 0.7, box[1] + 60)
    assert "chosen: cycle" in page.run("document.getElementById('liveness-facts').textContent")
