"""Figures moved up and down, and fits that leave a program out, on small programs with answers known beforehand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli
from ipuperf.machine import MachineError, load_machine, load_scaled
from ipuperf.validation import (
    CaseError,
    by_class_left_out,
    leave_one_out,
    left_out_text,
    predict,
    problem,
    read_cases,
    runs,
    sensitivity,
    sensitivity_text,
)
from ipuperf.validation.programs import prepared
from ipuperf.validation.sensitivity import (
    FACTORS,
    changed_figures,
    movable_figures,
    moves_bytes_only,
    only_simulated,
)

COPY = """
[defaults]
category = "host-io"
source = "made up"
machine = "bow-1"
model = "host_to_device"
mode = "kernel"
"""


def row(name: str, size: int, seconds: float, more: str = "") -> str:
    measured = f'{{ metric = "m", quantity = "device time", value = {seconds}, unit = "s" }}'
    return f'[[case]]\nid = "{name}"\nconfig = {{ bytes = {size} }}\nmeasured = {measured}\n{more}\n'


def cases(tmp_path: Path, text: str):
    file = tmp_path / "mine.toml"
    file.write_text(COPY + text, encoding="utf-8")
    return read_cases(file, known=problem).cases


def test_a_scaled_machine_says_what_came_of_it() -> None:
    pod = load_machine("pod4")
    changed = load_scaled("pod4", {"chip.sync": 1.3, "ipu_machine.link_efficiency": 2.0, "host.pcie_bandwidth": 0.5})
    assert changed.chip.sync_cycles == round(pod.chip.sync_cycles * 1.3)
    assert changed.ipu_machine.link_efficiency == 1.0
    assert changed.host.pcie_bandwidth_bytes_per_s == pytest.approx(pod.host.pcie_bandwidth_bytes_per_s / 2)
    assert changed.figures["chip.sync"].value == changed.chip.sync_cycles
    assert changed.chip.launch_cycles == pod.chip.launch_cycles
    assert load_scaled("pod4", {}) == pod


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"chip.synk": 1.3}, r"chip\.synk: the machine has no such figure to multiply \(did you mean chip\.sync"),
        ({"chip.sync": 0.0}, r"chip\.sync: multiplied by 0\.0, allowed: a factor above 0"),
        ({"chip.sync": float("nan")}, r"multiplied by nan"),
    ],
)
def test_what_cannot_be_scaled(factors: dict[str, float], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        load_scaled("pod4", factors)
    with pytest.raises(MachineError, match="no such figure"):
        load_scaled("c600", {"ipu_machine.ddr_bandwidth": 1.3})


def test_a_copy_follows_the_bandwidth(tmp_path: Path) -> None:
    """A large copy is its bytes: 30 % less bandwidth makes it 1 / 0.7 as long."""
    given = cases(tmp_path, row("A", 400_000_000, 0.07))
    effects = sensitivity(given, figures=["host.pcie_bandwidth"])
    assert [(effect.figure, effect.factor, effect.name) for effect in effects] == [
        ("host.pcie_bandwidth", 0.7, "host-io"),
        ("host.pcie_bandwidth", 1.3, "host-io"),
    ]
    assert [effect.largest for effect in effects] == pytest.approx([1 / 0.7 - 1, 1 / 1.3 - 1], rel=0.01)
    (plain,), _ = predict(given)
    assert effects[0].mean == pytest.approx(abs(plain.error))
    assert effects[0].changed_mean == pytest.approx(abs(plain.predicted / 0.7 / 0.07 - 1), rel=0.01)
    assert "host.pcie_bandwidth" in sensitivity_text(effects)
    assert "without effect on any of these rows: chip.launch" in sensitivity_text(
        sensitivity(given, figures=["chip.launch"])
    )


def test_figures_are_assumed_or_calibrated() -> None:
    kinds = movable_figures(["pod4", "c600"])
    assert kinds["chip.sync"] == "assumed"
    assert kinds["chip.launch"] == "calibrated"
    assert not [key for key in kinds if key.startswith("system.")]
    assert "chip.tiles" not in kinds


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["POPXL-MNIST-ALL", "PRT-RN1"])
def test_what_is_lowered_once_is_the_same_as_lowered_anew(name: str) -> None:
    """The shortcuts of the sensitivity: figures of hosts and links leave lowering alone, sizes of code leave time.

    Only the C600 of the second one has a clock that is assumed.
    """
    given = {case.id: case for case in read_cases().cases}[name]
    if name.startswith("PRT"):
        pytest.importorskip("torch")
    on = prepared(given)
    plain = on(load_machine(given.machine), True)
    for key in movable_figures((given.machine,)):
        changed = load_scaled(given.machine, {key: 1.3})
        if only_simulated(key):
            assert on(changed, True).values == on(changed, False).values, key
        elif moves_bytes_only(key):
            assert on(changed, False).values["time"] == plain.values["time"], key


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["POPXL-MNIST-ALL", "HYD-scatter_add-256x16->32768", "HYD-gather-256x128->32"])
def test_figures_that_are_tried_together_are_those_tried_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves nothing when all figures of its group move is left alone. Without groups each is moved by itself."""
    given = {case.id: case for case in read_cases().cases}[name]
    changes = [(key, factor) for key in movable_figures((given.machine,)) for factor in FACTORS]
    together = changed_figures([given], changes, 1)
    monkeypatch.setattr(sys.modules[changed_figures.__module__], "GROUPS", ())
    assert together == changed_figures([given], changes, 1)


@pytest.mark.heavy
def test_a_fit_without_a_row_that_agrees_finds_the_figure_again(tmp_path: Path) -> None:
    """Three copies measured as if the bandwidth were a quarter more: a fit to two of them predicts the third."""
    sizes = {"A": 100_000_000, "B": 200_000_000, "C": 400_000_000}
    fits = 'calibrates = ["host.pcie_bandwidth"]'
    plain, _ = predict(cases(tmp_path, "".join(row(name, size, 1.0) for name, size in sizes.items())))
    rows = "".join(row(r.case.id, sizes[r.case.id], r.predicted / 1.25, fits) for r in plain)
    given = cases(tmp_path, rows + row("D", 300_000_000, 0.06))
    left = leave_one_out(given)
    assert [item.run for item in left] == ["A", "B", "C"]
    for item in left:
        assert item.error == pytest.approx(0.25, rel=0.01)
        assert item.left_out == pytest.approx(0, abs=0.02)
        assert item.factors == pytest.approx((1.25,), rel=0.03)
    known, _ = predict(given)
    (summary,) = by_class_left_out(runs(known), left)
    errors = [abs(r.error) for r in known]
    assert (summary.runs, summary.seen, summary.impossible) == (4, 3, 0)
    assert summary.mean == pytest.approx(sum(errors) / 4)
    assert summary.left_out == pytest.approx((sum(item.left_out for item in left) + errors[3]) / 4)
    assert "host.pcie_bandwidth x 1.2" in left_out_text(left, [summary])


@pytest.mark.heavy
def test_a_difference_of_two_programs_is_left_out_as_one(tmp_path: Path) -> None:
    """The latency falls out of it, so that the bandwidth alone tells the time: a quarter more than is measured."""
    rate = load_machine("bow-1").host.pcie_bandwidth_bytes_per_s * 1.25
    more = 'calibrates = ["host.pcie_bandwidth"]\nminus = { config = { bytes = 100_000_000 } }'
    sizes = {"A": 300_000_000, "B": 500_000_000}
    left = leave_one_out(
        cases(tmp_path, "".join(row(name, size, (size - 100_000_000) / rate, more) for name, size in sizes.items()))
    )
    assert [item.error for item in left] == pytest.approx([0.25, 0.25], rel=0.01)
    assert [item.left_out for item in left] == pytest.approx([0, 0], abs=0.02)


def test_the_only_program_of_a_figure_cannot_be_left_out(tmp_path: Path) -> None:
    given = cases(tmp_path, row("A", 1_000_000, 1.0, 'calibrates = ["host.pcie_bandwidth"]') + row("B", 1_000_000, 2.0))
    (left,) = leave_one_out(given)
    assert left.left_out is None
    known, _ = predict(given)
    (summary,) = by_class_left_out(runs(known), [left])
    assert (summary.runs, summary.impossible, summary.ratio) == (2, 1, 1.0)
    assert "no other program tells" in left_out_text([left], [summary])


def test_a_figure_that_the_other_programs_do_not_depend_on_cannot_be_fitted_to_them(tmp_path: Path) -> None:
    """The first run after loading costs more; of the two programs only the one of a single call sees it."""
    fits = 'calibrates = ["host.first_run"]'
    once, later = row("ONCE", 1_000_000, 1.0, fits + "\ncalls = 1"), row("LATER", 1_000_000, 1.0, fits)
    left = leave_one_out(cases(tmp_path, (once + later).replace("device time", "time")))
    assert [(item.run, item.left_out is None) for item in left] == [("ONCE", True), ("LATER", False)]


def test_nothing_to_leave_out(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="no figure was fitted to any of these cases"):
        leave_one_out(cases(tmp_path, row("A", 1_000_000, 1.0)))
    with pytest.raises(
        CaseError, match=r"figure 'chip\.tiles': not assumed or calibrated on these machines.*; allowed:"
    ):
        sensitivity(cases(tmp_path, row("A", 1_000_000, 1.0)), figures=["chip.tiles"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sensitivity", "--leave-one-out"], "--sensitivity and --leave-one-out, allowed: one of them"),
        (["--sensitivity", "--choices"], "--choices means nothing with --sensitivity"),
        (["--leave-one-out", "--plot", "x.png"], "--plot means nothing with --leave-one-out"),
        (["--figure", "chip.sync"], "--figure means nothing without --sensitivity"),
        (["--jobs", "0"], "0 is not in the range"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["validate", *options])
    assert done.exit_code == 2
    assert message in done.output


def test_tables_of_the_command(tmp_path: Path) -> None:
    fits = 'calibrates = ["host.pcie_bandwidth"]'
    cases(tmp_path, row("A", 1_000_000, 1.0, fits) + row("B", 2_000_000, 2.0, fits))
    given, target = ["validate", "--cases", str(tmp_path / "mine.toml")], tmp_path / "t.json"
    done = CliRunner().invoke(cli, [*given, "--sensitivity", "--figure", "host.pcie_bandwidth", "--json", str(target)])
    assert done.exit_code == 0, done.output
    (less, _) = json.loads(target.read_text(encoding="utf-8"))
    assert (less["figure"], less["factor"], less["class"], less["kind"]) == (
        "host.pcie_bandwidth",
        0.7,
        "host-io",
        "calibrated",
    )
    done = CliRunner().invoke(cli, [*given, "--leave-one-out", "--json", str(target)])
    assert done.exit_code == 0, done.output
    first, _, summary = json.loads(target.read_text(encoding="utf-8"))
    assert (first["run"], first["figures"], summary["class"], summary["seen"]) == (
        "A",
        ["host.pcie_bandwidth"],
        "host-io",
        2,
    )
