"""``scenarios/stragglers.py``: what a slow IPU costs keeps to the laws that the scenario states."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.scenarios import stragglers

RATE = 0.8


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict]:
    """Rows on eight IPUs, by training and slow IPU."""
    file: Path = tmp_path_factory.mktemp("rows") / "rows.json"
    done = CliRunner().invoke(
        stragglers.main, ["--rate", str(RATE), "--ipus", "8", "--micro-batches", "8", "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    assert "lost IPUs" in done.output
    return {(row["training"], row["which"]): row for row in json.loads(file.read_text())}


@pytest.mark.heavy
def test_a_slow_ipu_costs_at_most_its_delay(rows: dict[tuple[str, str], dict]) -> None:
    assert len(rows) == 5
    for row in rows.values():
        delay = row["own_cycles"] * (1 / RATE - 1)
        # Each step that is slowed is rounded up to a whole cycle.
        assert 0 <= row["slow_cycles"] - row["plain_cycles"] <= 1.01 * delay


@pytest.mark.heavy
def test_the_busiest_ipu_costs_the_most(rows: dict[tuple[str, str], dict]) -> None:
    for way in ("grouped", "interleaved"):
        assert rows[way, "busiest"]["cost"] > rows[way, "idlest"]["cost"]
    assert rows["grouped", "busiest"]["cost"] > rows["interleaved", "busiest"]["cost"]
