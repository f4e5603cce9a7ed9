"""Errors, statistics by class, skipping, text and picture, on made-up figures."""

from pathlib import Path

import pytest

from ipuperf.validation import (
    Case,
    Choice,
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
    runs,
    summarise,
    why_none_ran,
)


def case(name: str, category: str, quantity: str, value: float, unit: str, **keys: object) -> Case:
    measured = Measured("m", quantity, value, unit)
    return Case(name, category, "s", "bow-1", "matmul", "kernel", measured, **keys)


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
        "calibrates": ["host.pcie_bandwidth"],
        "run": "M",
        "model": "matmul",
        "slower": pytest.approx(0.0),
        "fits": True,
        "low": pytest.approx(3.0),
        "high": pytest.approx(3.0),
        "choices": [],
        "roofline": {},
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
    assert total[3:6] == ["3", "3", "15.0%"]


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


@pytest.mark.heavy
def test_the_picture_is_written_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(rows(), tmp_path / "v.png")
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["v.png"]
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([], tmp_path / "w.png")


def test_the_values_of_a_run_count_once() -> None:
    """Two values of one run 50 % and 10 % off, another run 60 % off: (30 + 60) / 2."""
    made = [
        Row(case("STEP", "kernel", "time", 2.0, "ms", run="ONE"), 3.0, FIGURES),
        Row(case("RATE", "kernel", "rate", 10.0, "it/s", run="ONE"), 9.0, FIGURES),
        Row(case("ALONE", "kernel", "time", 1.0, "ms"), 0.4, FIGURES),
    ]
    one, alone = runs(made)
    assert (one.name, len(one.rows), one.miss) == ("ONE", 2, True)
    assert (one.error, one.slower) == pytest.approx((0.3, 0.3))
    assert (alone.error, alone.slower) == pytest.approx((0.6, -0.6))
    total = summarise("all", made)
    assert (total.count, total.figures, total.misses) == (2, 3, 2)
    assert (total.mean, total.largest, total.bias) == pytest.approx((0.45, 0.6, -0.15))


def test_other_choices_give_a_range() -> None:
    plain = case("C", "kernel", "time", 1.0, "ms", precision="f32")
    others = tuple(case("C", "kernel", "time", 1.0, "ms", precision=name) for name in ("f16.16", "f16.32"))
    chosen = case("C", "kernel", "time", 1.0, "ms", precision="f32",
                  choices=(Choice("precision", "not stated", ("f16.16", "f16.32"), others),))  # fmt: skip
    seconds = {"f32": 2e-3, "f16.16": 1e-3, "f16.32": 1.5e-3}

    def simulate(asked: Case) -> Figures:
        return Figures({"time": seconds[asked.precision]}, 1e9)

    (row,), _ = predict([chosen], simulate=simulate, choices=True)
    assert (row.predicted, row.low, row.high) == pytest.approx((2.0, 1.0, 2.0))
    assert "f (+0.0% to +100.0%)" in report([row], [], ())
    (entry,) = row.as_dict()["choices"]
    assert [other["predicted"] for other in entry["others"]] == pytest.approx([1.0, 1.5])
    (row,), _ = predict([chosen], simulate=simulate)
    assert (row.low, row.high) == pytest.approx((2.0, 2.0))
    assert (predict([plain], simulate=simulate, choices=True)[0][0].others) == ()


def test_a_difference_takes_the_other_program_off() -> None:
    smaller = case("D", "collective", "time", 1.0, "ms", replicas=2)
    larger = case("D", "collective", "time", 1.0, "ms", replicas=4, minus=smaller)
    seen = []
    (row,), _ = predict(
        [larger],
        simulate=lambda asked: Figures({"time": 1e-3 * asked.replicas}, 1e9),
        progress=lambda asked: seen.append(asked.id),
    )
    assert row.predicted == pytest.approx(2.0)
    assert seen == ["D"]


def test_memory_of_large_models_stands_once_for_each_program() -> None:
    cases = [
        case("BIG-STEP", "model training", "time", 1.6, "ms", slow=True),
        case("BIG-RATE", "model training", "rate", 625.0, "it/s", slow=True),
        case("SMALL", "kernel", "rate", 625.0, "it/s", micro_batch=2),
    ]
    over = Figures(dict(FIGURES.values), 1e9, demand=(500, 1040), bytes_per_tile=1000)
    found, _ = predict(cases, slow=True, simulate=lambda _: over)
    text = report(found, [], [])
    assert "  BIG-STEP: 1,040 of 1,000, DOES NOT FIT (50% 104%)" in text
    assert text.count("DOES NOT FIT") == 1
    assert "fits" not in report(rows(), [], [])
