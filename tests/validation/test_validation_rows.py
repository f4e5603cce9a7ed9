"""Errors, statistics by class, skipping, text and picture, on made-up figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipuperf.validation import (
    Case,
    Figures,
    Measured,
    NotAvailable,
    NotExpressed,
    Row,
    Skipped,
    by_class,
    draw,
    predict,
    report,
    summarise,
    why_none_ran,
)


def case(name: str, category: str, quantity: str, value: float, unit: str, **keys: object) -> Case:
    measured = Measured("m", quantity, value, unit)
    return Case(name, category, "s", "bow-1", "matmul", "kernel", measured, **keys)  # type: ignore[arg-type]


FIGURES = Figures({"time": 2e-3, "rate": 500.0, "memory: peak": 3e6}, 1e9)


def rows() -> list[Row]:
    cases = [
        case("T", "kernel", "time", 1.6, "ms", note="why it is off"),
        case("R", "kernel", "rate", 625.0, "it/s"),
        case("M", "memory", "memory: peak", 3.0, "MB", calibrates=("host.pcie_bandwidth",)),
    ]
    found, skipped = predict(cases, simulate=lambda _: FIGURES)
    assert skipped == []
    return found


def test_errors_are_relative_to_the_measurement() -> None:
    time, rate, memory = rows()
    assert (time.predicted, rate.predicted, memory.predicted) == pytest.approx((2.0, 500.0, 3.0))
    assert (time.error, rate.error, memory.error) == pytest.approx((0.25, -0.2, 0.0))
    assert [row.calibrated for row in (time, rate, memory)] == [False, False, True]


def test_bias_counts_rates_the_other_way_round() -> None:
    kernel, memory = by_class(rows())
    assert (kernel.name, kernel.count, memory.name, memory.calibrated) == ("kernel", 2, "memory", 1)
    assert kernel.mean == pytest.approx(0.225)
    assert kernel.bias == pytest.approx(0.225)  # both are too slow
    assert kernel.largest == pytest.approx(0.25)
    assert summarise("all", rows()).mean == pytest.approx(0.15)


def test_json_row_has_the_agreed_keys() -> None:
    assert rows()[2].as_dict() == {
        "id": "M",
        "category": "memory",
        "class": "memory",
        "metric": "m",
        "predicted": pytest.approx(3.0),
        "measured": 3.0,
        "unit": "MB",
        "error": pytest.approx(0.0),
        "confidence": "",
        "calibrated_on": True,
    }


def test_one_program_is_simulated_once() -> None:
    seen = []
    cases = [
        case("A", "kernel", "time", 1.0, "ms"),
        case("B", "kernel", "rate", 1.0, "it/s"),
        case("C", "kernel", "time", 1.0, "ms", replicas=2),
    ]

    def simulate(each: Case) -> Figures:
        seen.append(each.id)
        return FIGURES

    predict(cases, simulate=simulate)
    assert seen == ["A", "C"]


def test_what_is_not_installed_is_skipped_with_its_reason() -> None:
    def simulate(each: Case) -> Figures:
        raise NotAvailable("needs PyTorch")

    found, skipped = predict([case("A", "kernel", "time", 1.0, "ms")], simulate=simulate)
    assert found == []
    assert [(item.case.id, item.reason) for item in skipped] == [("A", "needs PyTorch")]
    text = report(found, skipped, ())
    assert "no case could run" in text
    assert "A: needs PyTorch" in text


def test_one_line_says_why_none_ran() -> None:
    names = {"A": "needs PyTorch", "B": "slow", "C": "needs PyTorch", "D": "needs PyTorch", "E": "needs PyTorch"}
    skipped = [Skipped(case(name, "kernel", "time", 1.0, "ms"), reason) for name, reason in names.items()]
    assert why_none_ran(skipped) == "no case could run: A, C, D and 1 more: needs PyTorch; B: slow"


def test_the_text_shows_misses_calibration_and_what_is_left_out() -> None:
    far = case("F", "kernel", "time", 1.0, "ms", note="why it is far off")
    found = [*rows(), Row(far, 2.0, FIGURES)]
    text = report(found, [], [NotExpressed(("X", "Y"), "no shapes", "bert"), NotExpressed(("Z",), "a data sheet")])
    assert "F: +100.0%; why it is far off" in text
    assert "host.pcie_bandwidth: M" in text
    assert "not used for calibration: the other 3 rows" in text
    assert "published rows that are no case: 3" in text
    assert "2 rows: model not written yet (bert): no shapes" in text
    assert "1 rows: a data sheet" in text


def test_rows_bound_by_the_host_are_a_class_of_their_own() -> None:
    waiting = Row(case("W", "kernel", "rate", 5.0, "it/s", host_bound=True), 500.0, FIGURES)
    kernel, *_, host = by_class([*rows(), waiting])
    assert (host.name, host.count, host.mean) == ("bound by the host", 1, pytest.approx(99.0))
    assert kernel.mean == pytest.approx(0.225)
    assert waiting.as_dict()["category"] == "kernel"
    text = report([*rows(), waiting], [], ())
    assert "W: +9900.0%" in text
    (total,) = [line.split() for line in text.splitlines() if line.startswith("all but host-bound")]
    assert total[3:5] == ["3", "15.0%"]


def test_labels_of_misses_do_not_lie_over_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (drawn.append(self), Path(path).touch()))
    draw(
        [Row(case(f"MISS-{n}", "kernel", "rate", 5.0 + n / 1e3, "it/s"), 10.0, FIGURES) for n in range(6)],
        tmp_path / "v.png",
    )
    (figure,) = drawn
    figure.draw_without_rendering()
    labels = list(figure.findobj(Annotation))
    boxes = [text.get_window_extent() for text in labels]
    assert len(boxes) == 6
    assert not any(one.overlaps(two) for n, one in enumerate(boxes) for two in boxes[:n])


def test_the_picture_is_written_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(rows(), tmp_path / "v.png")
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["v.png"]
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([], tmp_path / "w.png")
