"""The plain roofline: its bounds against figures of the machine, its fit against a search, its errors by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ipuperf.cli import cli
from ipuperf.machine import load_machine
from ipuperf.validation import Case, Figures, Measured, Row, baseline, baseline_text, figures, predict, read_cases, runs
from ipuperf.validation.roofline import at_efficiency, fitted_efficiency
from ipuperf.validation.rows import row_of

CASES = """
[defaults]
category = "kernel"
source = "made up"
machine = "bow-1"
mode = "kernel"

[[case]]
id = "PRODUCT"
model = "matmul"
precision = "f16.16"
config = { m = 512, k = 512, n = 512 }
measured = { metric = "m", quantity = "flop rate", value = 50.0, unit = "TFLOP/s" }

[[case]]
id = "COPY"
model = "host_to_device"
config = { bytes = 400000000 }
measured = { metric = "m", quantity = "device time", value = 30.0, unit = "ms" }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(CASES, encoding="utf-8")
    return path


def case(name: str, quantity: str, value: float, unit: str, group: str = "kernel", **keys: object) -> Case:
    return Case(name, group, "s", "bow-1", "matmul", "kernel", Measured("m", quantity, value, unit), **keys)


def row(name: str, predicted: float, value: float, bounds: dict[str, float], **keys: object) -> Row:
    made = case(name, "time", value, "s", **keys)
    return Row(made, predicted, Figures({}, 1.0), roofline=bounds)


def test_bounds_are_the_peaks_of_the_machine(file: Path) -> None:
    product, copy = predict(read_cases(file).cases)[0]
    machine = load_machine("bow-1")
    peak = machine.chip.peak_flops_per_cycle(2) * machine.chip.clock_hz / 1e12
    assert product.roofline["flops"] == pytest.approx(peak)
    assert at_efficiency(product.roofline, "flop rate", 0.25) == pytest.approx(peak / 4)
    assert product.predicted < peak
    assert set(copy.roofline) >= {"pcie"}
    assert copy.roofline["pcie"] == pytest.approx(4e8 / machine.host.pcie_bandwidth_bytes_per_s * 1e3, rel=1e-3)
    assert at_efficiency(copy.roofline, "device time", 0.25) == pytest.approx(copy.roofline["pcie"])
    assert copy.predicted > copy.roofline["pcie"]


def test_a_bound_has_the_unit_of_the_measurement() -> None:
    known = Figures({"time": 4e-3, "device time": 2e-3, "rate": 500.0, "flop rate": 1e12}, 1e9,
                    peak_seconds={"flops": 1e-3, "ddr": 5e-4})  # fmt: skip
    assert known.bounds(case("T", "time", 1, "ms")) == pytest.approx({"flops": 1.0, "ddr": 0.5})
    assert known.bounds(case("C", "cycles", 1, "cycles")) == pytest.approx({"flops": 1e6, "ddr": 5e5})
    assert known.bounds(case("R", "rate", 1, "it/s")) == pytest.approx({"flops": 2000.0, "ddr": 4000.0})
    assert known.bounds(case("F", "flop rate", 1, "TFLOP/s")) == pytest.approx({"flops": 2.0, "ddr": 4.0})
    assert known.bounds(case("M", "memory: peak", 1, "MB", "memory")) == {}


def test_a_difference_of_programs_has_no_roofline() -> None:
    other = case("O", "time", 1.0, "ms")
    one = case("D", "time", 1.0, "ms", minus=other)
    known = {made.program_key: Figures({"time": 1e-3}, 1e9, peak_seconds={"flops": 1e-4}) for made in (one, other)}
    assert row_of(one, known).roofline == {}
    assert row_of(other, known).roofline == pytest.approx({"flops": 0.1})


def test_the_efficiency_is_the_best_of_all() -> None:
    rng = np.random.default_rng(1)
    bounds = rng.lognormal(0, 0.5, (40, 2))
    rows = [row(f"R{n % 25}", 1.0, float(value), {"flops": float(flops), "ddr": float(ddr)}, run=f"R{n % 25}")
            for n, ((flops, ddr), value) in enumerate(zip(bounds, rng.lognormal(1.0, 0.4, 40)))]  # fmt: skip
    best = fitted_efficiency(runs(rows))

    def misfit(efficiency: float) -> float:
        errors: dict[str, list[float]] = {}
        for one in rows:
            predicted = max(one.roofline["flops"] / efficiency, one.roofline["ddr"])
            errors.setdefault(one.case.run, []).append(abs(np.log(predicted / one.case.measured.value)))
        return float(np.mean([np.mean(some) for some in errors.values()]))

    assert 0 < best < 1
    assert misfit(best) <= min(misfit(efficiency) for efficiency in np.geomspace(0.01, 1, 4000)) + 1e-12


def test_errors_by_class_by_hand() -> None:
    rows = [
        row("A", 1.1, 1.0, {"flops": 0.5}),
        row("B", 1.0, 2.0, {"flops": 1.0}),
        row("C", 3.0, 1.0, {"ddr": 0.25}, group="host-io"),
        row("D", 1.0, 1.0, {}),
        row("E", 1.0, 9.0, {"flops": 0.9}, host_bound=True),
    ]
    kernel, copies, bound, every = baseline(rows)
    assert kernel.efficiency == 0.5  # A and B are exact then; the row bound by the host has no say
    assert (kernel.runs, kernel.mean, kernel.roofline_mean) == pytest.approx((2, 0.3, 0.0))
    assert (copies.name, copies.mean, copies.roofline_mean) == ("host-io", 2.0, 0.75)
    assert (bound.name, bound.roofline_mean) == ("bound by the host", pytest.approx(0.8))
    assert (every.name, every.runs) == ("all but host-bound", 3)
    assert every.roofline_median == 0.0
    assert "50.0% of the peak FLOP/s" in baseline_text(rows)
    assert "1 values have no roofline" in baseline_text(rows)
    assert baseline_text(rows[3:4]) == "no row has a roofline"
    assert baseline(rows[2:3])[0].efficiency == 1.0


def test_the_command_prints_and_writes_it(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    arguments = ["validate", "--cases", str(file)]
    done = CliRunner().invoke(cli, [*arguments, "--baseline", "--json", str(target)])
    assert done.exit_code == 0, done.output
    assert "roofline: mean" in done.output
    product, copy, kernel, every = json.loads(target.read_text(encoding="utf-8"))
    assert set(product["roofline"]) >= {"flops"}
    assert set(copy["roofline"]) >= {"pcie"}
    assert (kernel["class"], kernel["runs"], every["class"]) == ("kernel", 2, "all but host-bound")
    assert 0 < kernel["efficiency"] < 1
    assert "roofline" not in CliRunner().invoke(cli, arguments).output


@pytest.mark.parametrize("analysis", ["--sensitivity", "--leave-one-out"])
def test_it_goes_with_predictions_alone(file: Path, analysis: str) -> None:
    done = CliRunner().invoke(cli, ["validate", "--cases", str(file), "--baseline", analysis])
    assert done.exit_code == 2
    assert f"--baseline means nothing with {analysis}, leave it out" in done.output


def test_figures_of_changed_machines_need_no_peaks(file: Path) -> None:
    from ipuperf.validation.programs import prepared

    (product, _) = read_cases(file).cases
    machine = load_machine("bow-1")
    assert prepared(product)(machine, True).peak_seconds == {}
    assert prepared(product)(machine, True).values == figures(product).values
