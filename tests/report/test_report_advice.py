"""What changes gain, as ``--why`` keeps it: read back, shown on the page, and gone with the next report."""

import json
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser, find_browser
from pagefacts import facts_of

from ipuperf.report import report_page, write_report
from ipuperf.report.advice import ADVICE, read_advice
from ipuperf.trace import Trace


def trial(what: str, gain: float, training: str = "") -> dict[str, Any]:
    diff = ["- options.deviceIterations(1)", "+ options.deviceIterations(8)"]
    return {"what": what, "together": False, "cycles": 7, "seconds": 7e-9, "gain": gain, "fullest": 300,
            "trades_memory": False, "training": training, "effect": "compute 1 us -> none", "diff": diff}  # fmt: skip


@pytest.fixture
def advice(trace: Trace) -> dict[str, Any]:
    trials = [trial("do <b>8</b> calls in one", 0.25), trial("a small thing", 0.004), trial("half", 0.5, "float16")]
    untried = [{"what": "sharding", "why": "there is one replica"}]
    cycles = int(trace.columns("runs")["dur"][-1])
    return {"cycles": cycles, "fullest": 100, "fits": True, "trials": trials, "untried": untried}


def test_only_whole_advice_on_the_run_is_read(trace: Trace, advice: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / ADVICE
    assert read_advice(tmp_path, trace) is None
    file.write_text(json.dumps(advice))
    assert read_advice(tmp_path, trace) == advice
    other_run = {**advice, "cycles": advice["cycles"] + 1}
    for damaged in (other_run, {**advice, "trials": [{}]}, {**advice, "trials": 3}, {}, [], "x", None):
        file.write_text(json.dumps(damaged))
        assert read_advice(tmp_path, trace) is None
    file.write_text("{")
    assert read_advice(tmp_path, trace) is None


def test_a_new_report_has_no_advice_on_the_run_before(synthetic: Any, tmp_path: Path) -> None:
    (tmp_path / ADVICE).write_text("{}")
    write_report(synthetic.Builder().trace(), tmp_path)
    assert not (tmp_path / ADVICE).exists()


def test_the_page_has_what_gains_and_what_changes_the_training_apart(trace: Trace, advice: dict[str, Any]) -> None:
    facts = facts_of(report_page(trace, advice=advice))["advice"]
    assert [one["what"] for one in facts["same"]] == ["do <b>8</b> calls in one"]
    assert [one["what"] for one in facts["training"]] == ["half"]
    assert facts_of(report_page(trace))["advice"] is None
    unfit = facts_of(report_page(trace, advice={**advice, "fits": False}))["advice"]
    assert [one["what"] for one in unfit["same"]] == ["do <b>8</b> calls in one", "a small thing"]


def test_the_summary_shows_the_advice(trace: Trace, advice: dict[str, Any], tmp_path: Path) -> None:
    if find_browser() is None:
        pytest.skip("no Chromium is installed, or no Playwright")
    file = tmp_path / "page.html"
    with Browser() as browser:
        for trials in (advice["trials"], advice["trials"][1:2]):
            file.write_text(report_page(trace, advice={**advice, "trials": trials}), encoding="utf-8")
            shown = browser.open(file, "summary")
            rows = shown.run(
                "[...document.querySelectorAll('#advice tbody tr')]"
                ".map(row => [...row.children].map(cell => cell.textContent))"
            )
            if len(trials) > 1:
                same, training = rows
                lines = "\n".join(advice["trials"][0]["diff"])
                assert same == ["-25.0 %", "do <b>8</b> calls in one", lines, "compute 1 us -> none", "+200 B"]
                assert training[:2] == ["-50.0 %", "half"]
                assert training[3] == "float16"
            else:
                assert "Nothing that was tried gains" in shown.run("document.getElementById('advice').textContent")
            assert shown.run("document.querySelectorAll('#advice li').length") == 1
            assert (shown.problems, shown.requests) == ([], [])
