"""``ipuperf validate`` on files of cases."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli

CASES = """
[[case]]
id = "MINE"
category = "kernel"
source = "my own run"
machine = "bow-1"
model = "matmul"
mode = "kernel"
precision = "f16.16"
config = { m = 64, k = 64, n = 64 }
measured = { metric = "throughput", quantity = "flop rate", value = 1.0, unit = "TFLOP/s" }
"""


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(CASES, encoding="utf-8")
    return file


def test_own_cases_are_printed_and_written(cases: Path, tmp_path: Path) -> None:
    target, picture = tmp_path / "rows.json", tmp_path / "rows.svg"
    arguments = ["validate", "--cases", str(cases), "--json", str(target), "--plot", str(picture)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "MINE" in done.output
    assert "no figure was calibrated on any of these rows" in done.output
    (row,) = json.loads(target.read_text(encoding="utf-8"))
    keys = [
        "id",
        "category",
        "class",
        "metric",
        "predicted",
        "measured",
        "unit",
        "error",
        "confidence",
        "calibrated_on",
        "calibrates",
        "run",
        "model",
        "slower",
        "fits",
        "low",
        "high",
        "choices",
        "roofline",
        "interval",
    ]
    assert list(row) == keys
    low, high = row["interval"]
    assert low < row["predicted"] < high
    assert row["error"] == pytest.approx(row["predicted"] / 1.0 - 1)
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_a_wrong_file_is_one_line(cases: Path) -> None:
    cases.write_text(CASES.replace(', unit = "TFLOP/s"', ""), encoding="utf-8")
    done = CliRunner().invoke(cli, ["validate", "--cases", str(cases)])
    assert done.exit_code == 2
    assert done.output.startswith("ipuperf: ")
    assert "case 'MINE': measured: key 'unit' is missing" in done.output


def test_targets_are_checked_before_the_work(cases: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["validate", "--cases", str(cases), "--json", str(tmp_path / "gone" / "r.json")])
    assert done.exit_code == 2
    assert "does not exist" in done.output
    done = CliRunner().invoke(cli, ["validate", "--cases", str(cases), "--plot", str(tmp_path / "r.xyz")])
    assert done.exit_code == 2
    assert "--plot" in done.output


@pytest.mark.heavy
def test_single_cases_run_slow_or_not_and_in_processes(
    cases: Path, tmp_path: Path, run_ipuperf: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    other = CASES.replace("MINE", "OTHER").replace("m = 64", "m = 32").replace("mode =", "slow = true\nmode =")
    cases.write_text(CASES + other, encoding="utf-8")
    target = tmp_path / "rows.json"
    arguments = ["validate", "--cases", str(cases), "--json", str(target)]
    done = CliRunner().invoke(cli, [*arguments, "-k", "oth"])
    assert done.exit_code == 0, done.output
    assert [row["id"] for row in json.loads(target.read_text(encoding="utf-8"))] == ["OTHER"]
    in_processes = run_ipuperf(*arguments, "-k", "oth", "-k", "MIN", "--jobs", "2", cwd=tmp_path)
    assert in_processes.returncode == 0, in_processes.stderr
    assert in_processes.stdout == CliRunner().invoke(cli, [*arguments, "--all"]).output
    assert "skipped:\n  OTHER: slow, runs with --all" in CliRunner().invoke(cli, arguments).output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MIME", "no case has 'MIME' in its id (did you mean MINE?)"),
        ("GONE", "no case has 'GONE' in its id; GONE-1: why not"),
        ("", "-k '': allowed: a part of an id"),
    ],
)
def test_a_name_that_no_case_has(cases: Path, name: str, message: str) -> None:
    cases.write_text(CASES + '[[not_expressed]]\nids = ["GONE-1"]\nreason = "why not"\n', encoding="utf-8")
    done = CliRunner().invoke(cli, ["validate", "--cases", str(cases), "-k", name])
    assert (done.exit_code, done.output) == (2, f"ipuperf: {message}\n")
