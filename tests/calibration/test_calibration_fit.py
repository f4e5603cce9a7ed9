"""Figures changed on purpose come back from noisy measurements; what cannot be told apart is named."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ipuperf.calibration import PRIORS, calibrate, calibration_text, write_machine
from ipuperf.calibration.measurements import read_measurements
from ipuperf.calibration.programs import NamedPrograms, predicted
from ipuperf.cli import cli
from ipuperf.machine import load_machine, load_scaled
from ipuperf.runtime.reaching import executable_of
from ipuperf.runtime.settings import RunSettings
from ipuperf.validation.units import UNITS

pytest.importorskip("scipy")

SCRIPT = """
import sys
import numpy as np
import popxl
from popxl import ops

ir = popxl.Ir()
with ir.main_graph, popxl.in_sequence():
    buffer = popxl.RemoteBuffer((int(sys.argv[1]),), popxl.float32, 1)
    variable = popxl.remote_variable(np.zeros(int(sys.argv[1]), np.float32), buffer)
    ops.remote_store(buffer, 0, ops.remote_load(buffer, 0) * 2.0)
with popxl.Session(ir, "ipu_hw") as session:
    session.run()
"""
COPY, BEGIN = "host_to_device mode=kernel config.bytes={}", "stream_copy_begin mode=kernel config.bytes={}"
REDUCE = "all_reduce mode=kernel replicas=4 config.bytes={}"
PROGRAMS = [
    (COPY.format(50_000_000), "time", "ms"),
    ("device_to_host mode=kernel config.bytes=20000000", "bandwidth", "GB/s"),
    (BEGIN.format(400), "cycles", "cycles"),
    (BEGIN.format(4000), "cycles", "cycles"),
    ("stream_copy_end mode=kernel config.bytes=400", "cycles", "cycles"),
    (REDUCE.format(40_000_000), "device time", "ms"),
    (REDUCE.format(10_000_000), "device time", "us"),
    (REDUCE.format(4000), "device time", "us"),
    ("remote.py 4000000", "device time", "ms"),
    ("remote.py 1000000", "device time", "ms"),
]
CHANGED = {
    "host.pcie_bandwidth": 0.8,
    "host.sync_overhead": 1.3,
    "chip.external_sync": 1.5,
    "ipu_machine.link_efficiency": 0.7,
    "ipu_machine.ddr_bandwidth": 1.25,
}


def measured(folder: Path, rows: Sequence[tuple[str, str, str]], machine: str, changed: dict[str, float], noise: float):
    """Write a file of what a machine with changed figures takes, with noise, and return it."""
    (folder / "remote.py").write_text(SCRIPT, encoding="utf-8")
    file = folder / "measurements.csv"
    head = "program,quantity,unit,measured\n"
    file.write_text(head + "".join(f"{','.join(row)},1\n" for row in rows), encoding="utf-8")
    named, truth = NamedPrograms(file, []), load_scaled(machine, changed)
    factors = np.exp(noise * np.random.default_rng(35).standard_normal(len(rows)))
    lines = []
    for row, factor in zip(read_measurements(file), factors):
        value = predicted(row, named.on_machines(row, machine)(truth)) / UNITS[row.unit][1]
        lines.append(f"{row.program},{row.quantity},{row.unit},{value * factor}\n")
    file.write_text(head + "".join(lines), encoding="utf-8")
    return file


@pytest.mark.heavy
def test_figures_changed_on_purpose_come_back(tmp_path: Path) -> None:
    """Five figures, ten programs, two percent of noise: each within five percent."""
    file = measured(tmp_path, PROGRAMS, "pod4", CHANGED, 0.02)
    before = load_machine("pod4")
    outcome = calibrate(file, machine="pod4", figures=list(CHANGED))
    moved = {known.figure: known.after / (known.before * CHANGED[known.figure]) - 1 for known in outcome.figures}
    assert len(moved) == 5
    assert all(abs(off) < 0.05 for off in moved.values()), moved
    assert outcome.pairs == ()
    assert all(known.told and known.deviation < 0.05 for known in outcome.figures)
    assert max(abs(row.errors[0]) for row in outcome.rows) > 0.2
    assert max(abs(row.errors[1]) for row in outcome.rows) < 0.06
    assert load_machine("pod4") == before
    target = tmp_path / "mine.toml"
    write_machine(outcome, target)
    written = load_machine(target)
    assert written.name == "mine"
    for known in outcome.figures:
        figure = written.figures[known.figure]
        assert (figure.value, figure.unit, figure.kind) == (known.after, known.unit, "calibrated")
        assert "measurements.csv" in figure.source
    assert written.chip.launch_cycles == before.chip.launch_cycles


@pytest.mark.parametrize("factors", [{"host.call_overhead": 2.0}, {"chip.exchange_setup": 3.0, "chip.sync": 2.0}])
def test_a_program_takes_on_a_changed_machine_what_it_takes_there(tmp_path: Path, factors: dict[str, float]) -> None:
    """Built for one machine and moved, whether lowering reads the figures or not, and built for the other."""
    file = measured(tmp_path, PROGRAMS[8:9], "pod4", {}, 0.0)
    (row,) = read_measurements(file)
    changed = load_scaled("pod4", factors)
    on = NamedPrograms(file, []).on_machines(row, "pod4")
    plain = on(load_machine("pod4"))
    fresh = executable_of(tmp_path / "remote.py", ["4000000"], RunSettings(changed), 0)
    assert on(changed)["time"] == pytest.approx(fresh.simulated_run_seconds, rel=1e-12)
    assert on(changed)["time"] != plain["time"]
    assert on(load_machine("pod4")) == plain


def _own_machine(folder: Path, kind: str = "assumed") -> Path:
    path = folder / "own.toml"
    path.write_text(
        'extends = "pod4"\n[ipu_machine]\n'
        f'link_bandwidth = {{ value = 16, unit = "GB/s", source = "a guess", kind = "{kind}" }}\n',
        encoding="utf-8",
    )
    return path


@pytest.mark.heavy
def test_a_pair_that_cannot_be_told_apart_is_named(tmp_path: Path) -> None:
    """Bandwidth and efficiency of the links count as their product alone."""
    machine = _own_machine(tmp_path)
    keys = ["ipu_machine.link_bandwidth", "ipu_machine.link_efficiency", "host.pcie_bandwidth"]
    rows = [PROGRAMS[0], *PROGRAMS[5:7]]
    file = measured(tmp_path, rows, str(machine), {"ipu_machine.link_efficiency": 0.8}, 0.0)
    outcome = calibrate(file, machine=str(machine), figures=keys)
    (pair,) = outcome.pairs
    assert {pair.first, pair.second} == set(keys[:2])
    assert pair.correlation < -0.9
    product = np.prod([1 + known.moved for known in outcome.figures[:2]])
    assert product == pytest.approx(0.8, rel=0.01)
    target = tmp_path / "mine.toml"
    write_machine(outcome, target)
    assert load_machine(target).ipu_machine.link_efficiency == pytest.approx(outcome.figures[1].after)
    text = calibration_text(outcome)
    assert f"{keys[0]} and {keys[1]}: correlation -" in text
    assert "is as it was; --out FILE.toml writes the fitted figures" in text


def test_a_figure_that_nothing_depends_on_stays_and_is_named(tmp_path: Path) -> None:
    file = measured(tmp_path, PROGRAMS[:1], "pod4", {"host.pcie_bandwidth": 0.9}, 0.0)
    outcome = calibrate(file, machine="pod4", figures=["chip.copy_setup", "host.pcie_bandwidth"])
    setup, bandwidth = outcome.figures
    assert (setup.moved, setup.deviation, setup.told) == (0, pytest.approx(PRIORS["assumed"]), False)
    assert bandwidth.moved == pytest.approx(-0.1, abs=0.003)
    write_machine(outcome, tmp_path / "mine.toml")
    assert "chip.copy_setup" not in (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert load_machine(tmp_path / "mine.toml").figures["chip.copy_setup"].kind == "assumed"
    assert "chip.copy_setup: known to 40.0%, hardly better than before" in calibration_text(outcome)


@pytest.mark.heavy
def test_the_prior_of_a_kind_holds_a_figure(tmp_path: Path) -> None:
    """One measurement 20 % off: a measured figure hardly moves, an assumed one goes all the way."""
    moved = {}
    for kind in ("measured", "assumed"):
        machine = _own_machine(tmp_path, kind)
        file = measured(tmp_path, PROGRAMS[5:6], str(machine), {"ipu_machine.link_bandwidth": 0.8}, 0.0)
        outcome = calibrate(file, machine=str(machine), figures=["ipu_machine.link_bandwidth"], noise=0.05)
        moved[kind] = outcome.figures[0].moved
        # By hand: the least of (s x - m)^2 / n^2 + x^2 / p^2 for a slope s of nearly 1.
        expected = np.log(0.8) / (1 + (0.05 / PRIORS[kind]) ** 2)
        assert np.log(1 + moved[kind]) == pytest.approx(expected, rel=0.05)
    assert abs(moved["measured"]) < 0.07 < 0.19 < abs(moved["assumed"])
    assert outcome.spread == 1.0


def test_deviations_allow_for_errors_beyond_the_noise(tmp_path: Path) -> None:
    file = measured(tmp_path, PROGRAMS[:1], "pod4", {}, 0.0)
    head, row = file.read_text(encoding="utf-8").splitlines()
    start, _, value = row.rpartition(",")
    # The same program, measured once 20 % faster and once 20 % slower.
    file.write_text("\n".join([head, *(f"{start},{float(value) * off}" for off in (0.8, 1.2))]), encoding="utf-8")
    outcome = calibrate(file, machine="pod4", figures=["host.pcie_bandwidth"])
    assert outcome.spread == pytest.approx(10, rel=0.1)
    assert outcome.figures[0].deviation == pytest.approx(1 / np.hypot(np.sqrt(2) / 0.2, 1 / 0.15), rel=0.1)
    assert "times the noise of 2.0%" in calibration_text(outcome)
    # Nine of ten lie within 1.645 deviations, of which the noise is the larger part.
    for row in outcome.rows:
        widths = [abs(math.log(bound / row.after)) for bound in row.interval]
        assert widths == pytest.approx([1.645 * 0.2] * 2, rel=0.3)
        assert row.interval[0] < row.after < row.interval[1]


def test_intervals_after_the_fit_follow_from_figures_and_noise(tmp_path: Path) -> None:
    """By hand: a copy whose time is nearly one over the bandwidth, measured once with 5 % noise."""
    file = measured(tmp_path, PROGRAMS[:1], "pod4", {}, 0.0)
    outcome = calibrate(file, machine="pod4", figures=["host.pcie_bandwidth"], noise=0.05)
    (row,), (figure,) = outcome.rows, outcome.figures
    expected = 1.645 * math.hypot(figure.deviation, 0.05)
    assert math.log(row.interval[1] / row.after) == pytest.approx(expected, rel=0.05)
    assert outcome.as_dict()["rows"][0]["interval"] == list(row.interval)


@pytest.mark.heavy
def test_by_default_all_figures_that_matter_are_fitted(tmp_path: Path) -> None:
    file = measured(tmp_path, [PROGRAMS[2], PROGRAMS[4]], "pod4", {}, 0.0)
    outcome = calibrate(file, machine="pod4")
    keys = [known.figure for known in outcome.figures]
    assert {"chip.external_sync", "host.sync_overhead", "host.callback_overhead"} <= set(keys)
    assert "ipu_machine.ddr_bandwidth" not in keys
    assert all(known.kind in ("assumed", "calibrated") for known in outcome.figures)
    assert [known.moved for known in outcome.figures] == [0.0] * len(keys)


@pytest.mark.heavy
def test_the_command_writes_what_it_prints(tmp_path: Path) -> None:
    file = measured(tmp_path, [*PROGRAMS[:1], *PROGRAMS[8:9]], "pod4", CHANGED, 0.0)
    target = tmp_path / "mine.toml"
    arguments = ["calibrate", str(file), str(tmp_path / "remote.py"), "--machine", "pod4"]
    arguments += ["--figure", "host.pcie_bandwidth", "--figure", "ipu_machine.ddr_bandwidth", "--out", str(target)]
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert [known["figure"] for known in said["figures"]] == ["host.pcie_bandwidth", "ipu_machine.ddr_bandwidth"]
    assert said["figures"][0]["moved"] == pytest.approx(-0.2, abs=0.01)
    assert load_machine(target).figures["host.pcie_bandwidth"].value == said["figures"][0]["after"]
    text = CliRunner().invoke(cli, arguments)
    assert "these measurements tell all of these figures apart" in text.output
    assert f"pod4 is as it was; the fitted figures are in {target}" in text.output
    # A machine file that is fitted again is extended by the new one.
    again = CliRunner().invoke(
        cli, ["calibrate", str(file), "--machine", str(target), "--out", str(tmp_path / "b.toml")]
    )
    assert again.exit_code == 0, again.output
    assert 'extends = "mine.toml"' in (tmp_path / "b.toml").read_text(encoding="utf-8")
    assert load_machine(tmp_path / "b.toml").name == "b"
