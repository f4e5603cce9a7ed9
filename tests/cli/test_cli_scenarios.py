"""``scenarios/rts_mnist.py`` and ``ipuperf demo`` as a user starts them."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

PLACEMENTS = {
    "no sharding": ("inf", 43418.9),
    "only state related to fc1.weight": (262145, 50909.2),
    "all state related to weights": (1024, 67403.4),
    "all state": (512, 72570.0),
    "on-chip optimizer": ("on chip", 107418.9),
}
PARTS = {"compute", "exchange", "sync", "links", "ddr", "host"}


@pytest.fixture(scope="module")
def scenario(
    repository: Path, child_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[dict]]:
    """What the scenario prints and the rows it writes."""
    folder = tmp_path_factory.mktemp("scenario")
    command = [sys.executable, str(repository / "scenarios" / "rts_mnist.py"), "--json", "rows.json"]
    done = subprocess.run(
        command, cwd=folder, env=child_environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [f.name for f in folder.iterdir()] == ["rows.json"]
    return done.stdout, json.loads((folder / "rows.json").read_text())


def test_rows_have_the_schema_of_the_issue(scenario: tuple[str, list[dict]]) -> None:
    _, rows = scenario
    assert [row["name"] for row in rows] == list(PLACEMENTS)
    for row in rows:
        assert set(row) == {"name", "threshold", "predicted", "measured", "unit", "step_seconds", "breakdown"}
        assert (row["threshold"], row["measured"]) == PLACEMENTS[row["name"]]
        assert row["unit"] == "samples/s"
        assert set(row["breakdown"]) == PARTS
        assert all(isinstance(v, float) and math.isfinite(v) and v >= 0 for v in row["breakdown"].values())


def test_the_printed_table_shows_the_rows(scenario: tuple[str, list[dict]]) -> None:
    text, rows = scenario
    for row in rows:
        line = next(line for line in text.splitlines() if re.match(rf"{re.escape(row['name'])}  ", line))
        for value in (f"{row['predicted']:.1f}", f"{row['measured']:.1f}", f"{row['step_seconds'] * 1e3:.3f}"):
            assert value in line.split() or value in line
        for value in row["breakdown"].values():
            assert f"{value * 1e3:.3f}" in line


def test_the_scenario_of_an_unknown_machine(
    repository: Path, child_environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, str(repository / "scenarios" / "rts_mnist.py"), "--machine", "nosuch"]
    done = subprocess.run(
        command, cwd=tmp_path, env=child_environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "unknown machine 'nosuch'" in done.stderr.splitlines()[-1]


# -- demo (leaves the front ends installed) ---------------------------------------------------------------------------


def _checked_demo(text: str) -> None:
    accuracy = re.search(r"accuracy on [\d,]+ test images: ([\d.]+)%", text)
    assert accuracy is not None
    assert 0 <= float(accuracy[1]) <= 100
    assert "final training loss" in text
    table, memory = text.split("memory per IPU in MB")
    for name, (_, measured) in PLACEMENTS.items():
        assert re.search(rf"^{re.escape(name)} +[\d.]+ +{measured:.1f} ", table, re.M), name
        assert re.search(rf"^{re.escape(name)} +[\d.]+ +[\d.]+ +[\d.]+$", memory, re.M), name


def test_demo_takes_embedded_digits_where_there_is_no_mnist(run_ipuperf: Callable, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    done = run_ipuperf("demo", "--steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("data: scikit-learn's digits scaled to 28x28 (MNIST was not found")
    assert done.stderr == "", "no bar goes into a file"
    _checked_demo(done.stdout)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("upstream_names")
def test_demo_does_not_take_other_data_than_those_asked_for(ipuperf_here: Callable, tmp_path: Path) -> None:
    done = ipuperf_here("demo", "--steps", "2", cwd=tmp_path, env={"IPUPERF_DATA": "gone"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ipuperf: IPUPERF_DATA=gone: no such folder; make it, or unset IPUPERF_DATA\n"


@pytest.mark.usefixtures("upstream_names")
def test_demo_takes_mnist_where_it_is(ipuperf_here: Callable, data_folder: Path, tmp_path: Path) -> None:
    done = ipuperf_here("demo", "--steps", "2", cwd=tmp_path, env={"IPUPERF_DATA": str(data_folder)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"data: MNIST from {data_folder}")
    assert "accuracy on 10000 test images" in done.stdout
    _checked_demo(done.stdout)


def test_demo_refuses_no_steps(ipuperf_here: Callable, tmp_path: Path) -> None:
    done = ipuperf_here("demo", "--steps", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--steps" in done.stderr


@pytest.mark.usefixtures("upstream_names")
def test_demo_of_an_unknown_machine_stops_before_training(ipuperf_here: Callable, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    done = ipuperf_here("demo", "--steps", "1", "--machine", "nosuch", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown machine 'nosuch'" in done.stderr
    assert "accuracy" not in done.stdout
