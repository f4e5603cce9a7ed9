"""Growth of step times between systems and lines through them, on made-up rows; every pair is of cases that exist."""

import pytest

from ipuperf.validation import Case, Figures, Growth, Measured, Row, lines, read_cases, report, scaling
from ipuperf.validation.scaling import LINES, PAIRS, step_seconds


def row(name: str, quantity: str, measured: float, unit: str, predicted: float, **keys: object) -> Row:
    case = Case(
        name, "model training", "s", "pod16", "bert", "training", Measured("m", quantity, measured, unit), **keys
    )
    return Row(case, predicted, Figures({"time": 1.0, "rate": 1.0}, 1e9))


def pair() -> list[Row]:
    """6 micro-batches of 20 on 16 replicas in 60 ms (predicted 66), 2 on 64 replicas in 30 ms (predicted 22)."""
    return [
        row("small", "time", 60.0, "ms", 66.0, micro_batch=20, accumulation=6, replicas=16),
        row("large", "time", 30.0, "ms", 22.0, micro_batch=20, accumulation=2, replicas=64),
    ]


def test_growth_of_steps_and_micro_batches():
    (found,) = scaling(pair(), [("small", "large")])
    assert (found.step.measured, found.step.predicted) == (0.5, pytest.approx(1 / 3))
    assert (found.micro_batch.measured, found.micro_batch.predicted) == (1.5, pytest.approx(1.0))
    assert found.step.factor == pytest.approx(1.5) == found.micro_batch.factor
    assert found.step.right_sign
    assert not found.micro_batch.right_sign


def test_rates_become_step_times():
    """1920 images in 60 ms and 2560 in 30 ms."""
    rates = [
        row("small", "rate", 32_000.0, "img/s", 1920 / 0.066, micro_batch=20, accumulation=6, replicas=16),
        row("large", "rate", 2560 / 0.03, "img/s", 2560 / 0.022, micro_batch=20, accumulation=2, replicas=64),
    ]
    (found,) = scaling(rates, [("small", "large")])
    (times,) = scaling(pair(), [("small", "large")])
    assert found.step.measured == pytest.approx(times.step.measured)
    assert found.micro_batch.predicted == pytest.approx(times.micro_batch.predicted)


@pytest.mark.parametrize(
    ("measured", "predicted", "sign", "good"),
    [
        (1.3, 1.5, True, True), (0.5, 0.4, True, True), (1.3, 2.1, True, False), (1.3, 0.9, False, False),
        (1.02, 0.97, True, True), (1.03, 1.08, True, True), (1.0, 1.2, False, False), (0.5, 0.3, True, False),
    ],
)  # fmt: skip
def test_sign_and_factor(measured, predicted, sign, good):
    growth = Growth(measured, predicted)
    assert (growth.right_sign, growth.good) == (sign, good)


def test_pairs_without_both_rows_are_left_out():
    assert scaling(pair()[:1], [("small", "large")]) == []
    assert "data-parallel" not in report(pair(), [], [])


def test_the_report_says_how_many_pairs_are_right():
    one, other = PAIRS[0]
    named = [row(one, "time", 60.0, "ms", 66.0, accumulation=6), row(other, "time", 30.0, "ms", 28.0, accumulation=6)]
    text = report(named, [], [])
    line = next(line for line in text.splitlines() if line.startswith(f"{one} -> {other}"))
    assert line.split()[3:] == ["0.424", "0.500", "1.18", "0.424", "0.500", "1.18"]
    assert "right sign and within a factor of 1.5: 1 of 1 pairs" in text


def test_every_pair_names_cases():
    known = {case.id: case for case in read_cases().cases}
    for one, other in PAIRS:
        assert known[one].model == known[other].model
        ipus = [known[name].replicas * len(known[name].pipeline) for name in (one, other)]
        assert ipus[0] < ipus[1]


def test_memory_says_nothing_about_a_step():
    with pytest.raises(ValueError, match="quantity 'memory: peak' says nothing about a step, allowed: time, rate"):
        step_seconds(row("m", "memory: peak", 3.0, "MB", 3.0), 3.0)


def test_a_rate_of_packed_sequences_counts_sequences():
    """4 rows of 2 sequences, 10 sequences a second."""
    keys = {"micro_batch": 4, "config": {"sequences_in_pack": 2.0}}
    assert step_seconds(row("m", "rate", 10.0, "items/s", 10.0, **keys), 10.0) == pytest.approx(0.8)


# -- lines -------------------------------------------------------------------------------------------------------------


def test_a_line_takes_the_rest_of_a_step_apart():
    """60 = 15 + 6 x 7.5 and 30 = 15 + 2 x 7.5 measured, 66 = 0 + 6 x 11 and 22 = 0 + 2 x 11 predicted."""
    (found,) = lines(pair(), [("small", "large")])
    assert (found.measured.micro_batch, found.measured.rest) == (pytest.approx(0.0075), pytest.approx(0.015))
    assert (found.predicted.micro_batch, found.predicted.rest) == (pytest.approx(0.011), pytest.approx(0, abs=1e-12))
    assert lines(pair()[:1], [("small", "large")]) == []


def test_one_accumulation_makes_no_line():
    rows = [row(name, "time", 60.0, "ms", 66.0, accumulation=6) for name in ("small", "large")]
    with pytest.raises(ValueError, match="'small' and 'large' both accumulate 6 micro-batches; a line needs two"):
        lines(rows, [("small", "large")])


def test_the_report_says_the_lines():
    one, other = LINES[1]
    named = [row(one, "time", 60.0, "ms", 66.0, accumulation=6), row(other, "time", 30.0, "ms", 22.0, accumulation=2)]
    text = report(named, [], [])
    line = next(line for line in text.splitlines() if line.startswith(f"{one} and {other}"))
    assert line.split()[3:] == ["11.00", "7.50", "0.00", "15.00"]
    assert "lines through" not in report(named[:1], [], [])


def test_lines_are_of_one_program_with_two_accumulations():
    known = {case.id: case for case in read_cases().cases}
    for names in LINES:
        for one, other in [[known[name] for name in names]] if set(names) <= set(known) else []:
            same = [(case.model, case.pipeline, case.micro_batch, case.optimiser) for case in (one, other)]
            assert same[0] == same[1]
            assert one.accumulation != other.accumulation
