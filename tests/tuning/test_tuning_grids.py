"""At least as fast as the published configuration of BERT on Pods, and as the best of a grid, with a tenth of it."""

from pathlib import Path

import pytest

from ipuperf.tuning import tune

from .grids import OTHERS, PUBLISHED, Grid

pytest.importorskip("optuna")
pytest.importorskip("torch")
pytest.importorskip("pandas")

_NEAR = 1.02
"""On grids that nothing was chosen on: how many times the best time the choice may take."""


def found_of(grid: Grid, folder: Path) -> tuple[float, float]:
    """Seconds of the choice, not told where to begin, and of the best; the choice is a row of the brute force."""
    space, count = grid.space, len(grid.space.configurations)
    answer = tune(space, folder / "tuned", trials=count // 10)
    rows = grid.brute_force(folder)
    assert answer.simulated <= answer.lowered <= count // 10
    chosen = rows[space.configurations.index(answer.choice[0])]
    assert answer.choice[1].seconds == chosen["seconds"]
    return float(chosen["seconds"]), min(float(row["seconds"]) for row in rows if row.get("fits") is True)


@pytest.mark.slow(minutes=25)
@pytest.mark.parametrize("grid", PUBLISHED, ids=lambda grid: grid.name)
def test_as_fast_as_published_and_as_a_grid(grid: Grid, tmp_path: Path) -> None:
    found, best = found_of(grid, tmp_path)
    assert found == best
    space, start = grid.make()
    published = start and space.place({name: start[name] for name in space.names})
    assert published is not None
    assert found <= grid.brute_force(tmp_path)[published]["seconds"]


@pytest.mark.slow(minutes=15)
@pytest.mark.parametrize("grid", OTHERS, ids=lambda grid: grid.name)
def test_near_the_best_of_a_grid(grid: Grid, tmp_path: Path) -> None:
    found, best = found_of(grid, tmp_path)
    assert found <= _NEAR * best
