"""The committed results: complete, said by the tables of the documents, and what a fresh run predicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipuperf.validation import Figures, markdown, predict, read_cases, select
from ipuperf.validation.results import LEFT_OUT, ROWS, SENSITIVITY, fingerprint, put_aside, read, read_rows

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "validation"
FOUND = read_cases()
FRESH = ("TES-", "WAV-STREAM", "PSP-DENSE-FP32-1024-n512", "HYD-gather-256x128->32", "HYD-scatter_add-16x16->1024")
FRESH += ("LIPU-RUN", "EFFDET-D2H", "POPXL-MNIST-ONCHIP", "POPXL5-MEM-ONCHIP", "POPXL1-TRAIN")
"""Cases that take no time and touch kernels, host, memory and a program of a front end."""


def test_results_are_those_of_a_fresh_run() -> None:
    fresh, _ = predict(select(FOUND, FRESH).cases, slow=False)
    known = {entry["id"]: entry for entry in read(FOLDER / ROWS)}
    assert len(fresh) >= 20
    old = {row.case.id: (known[row.case.id]["predicted"], row.predicted) for row in fresh}
    stale = {name: both for name, both in old.items() if both[0] != pytest.approx(both[1], rel=1e-9)}
    assert not stale, "python docs/tables.py --measure --jobs 2"


def test_results_are_complete() -> None:
    """All cases that are not slow, with today's measurements and settings; slow ones all or none of a class."""
    known = {entry["id"]: entry for entry in read(FOLDER / ROWS)}
    for case in FOUND.cases:
        assert case.slow or case.id in known, case.id
        if case.id in known:
            entry = known[case.id]
            assert (entry["measured"], entry["run"], entry["class"]) == (case.measured.value, case.run_name, case.group)
            assert entry["calibrates"] == list(case.calibrates), case.id
    assert len(read_rows(FOLDER, FOUND.cases)) == len(known)


def test_classes_of_the_table_follow_from_the_rows() -> None:
    """Means by hand: each run once, with the mean of its values."""
    by_run: dict[tuple[str, str], list[float]] = {}
    for entry in read(FOLDER / ROWS):
        by_run.setdefault((entry["class"], entry["run"]), []).append(abs(entry["predicted"] / entry["measured"] - 1))
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in markdown.classes(FOLDER).splitlines()}
    for name in {name for name, _ in by_run}:
        errors = [sum(found) / len(found) for (group, _), found in by_run.items() if group == name]
        mean = sum(errors) / len(errors)
        said = f"{mean:.1%}" if mean < 0.1 else f"{mean:,.0%}"
        assert lines[name].split(" | ")[1] == str(len(errors))
        assert lines[name].split(" | ")[3] == said.replace("%", " %")


def test_choices_have_an_effect_that_is_shown() -> None:
    known = {entry["id"]: entry for entry in read(FOLDER / ROWS)}
    chosen = [case for case in FOUND.cases if case.choices and case.id in known]
    assert len(chosen) > 20
    for case in chosen:
        shown = [other["predicted"] for choice in known[case.id]["choices"] for other in choice["others"]]
        assert None not in shown, case.id
        assert known[case.id]["low"] <= known[case.id]["predicted"] <= known[case.id]["high"]


def test_sensitivity_and_left_out_errors_are_there() -> None:
    figures = {entry["figure"] for entry in read(FOLDER / SENSITIVITY)}
    assert figures >= {"chip.sync", "chip.launch", "host.callback_overhead", "ipu_machine.ddr_bandwidth"}
    left = read(FOLDER / LEFT_OUT)
    assert {entry["run"] for entry in left if "run" in entry} >= {"POPXL-MNIST-ONCHIP", "POPXL-MNIST-ALL"}
    assert {entry["class"] for entry in left if "ratio" in entry} >= {"kernel", "model training", "memory"}


def test_sensitivity_is_of_todays_model() -> None:
    """It may be older than the rows, but not by a change of the model that a class shows."""
    changes = markdown.drift(FOLDER)
    assert {"kernel", "model training", "inference", "memory"} <= changes.keys()
    stale = {name: both for name, both in changes.items() if both[0] != pytest.approx(both[1], rel=0.02, abs=0.002)}
    assert not stale, "python docs/tables.py --measure --jobs 2"


def test_figures_are_put_aside_and_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = FOUND.cases[0]
    made = []

    def once(asked: object) -> Figures:
        made.append(asked)
        return Figures({"time": 0.25}, 1e9, ("vertex",), ("too large",))

    monkeypatch.setattr("ipuperf.validation.results.figures", once)
    assert (
        put_aside(tmp_path, case)
        == put_aside(tmp_path, case)
        == Figures({"time": 0.25}, 1e9, ("vertex",), ("too large",))
    )
    assert made == [case]
    assert len(fingerprint()) == 16


def test_results_of_a_case_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / ROWS).write_text(json.dumps([{"id": "GONE"}]), encoding="utf-8")
    with pytest.raises(KeyError, match="'GONE' is no case; measure anew"):
        read_rows(tmp_path, FOUND.cases)
