"""BERT on Pods: at least as fast as the published configuration, and as the best of a grid, with a tenth of it."""

from __future__ import annotations

from typing import Any

import pytest

from ipuperf.sweep.work import rows
from ipuperf.tuning import case_space, tune

pytest.importorskip("optuna")
pytest.importorskip("torch")

BASE = {"pipeline": ((0, 4, 4, 4), (1, 4, 4, 3), (2, 4, 3, 3), (3, 3, 3, 3), (0, 3, 4, 5), (5, 7)),
        "micro_batch": (8, 16, 32, 64), "replicas": (1, 2), "recompute": ("checkpoints",),
        "config.memory_proportions": ((0.15,), (0.25,), (0.4,), (0.6,))}  # fmt: skip
LARGE = {"pipeline": ((3, 7, 7, 7), (4, 7, 7, 6), (6, 6, 6, 6), (0, 3, 3, 3, 3, 4, 4, 4)), "micro_batch": (8, 16),
         "replicas": (2, 4), "recompute": ("checkpoints",),
         "config.memory_proportions": ((0.15, 0.25), (0.25,), (0.4,))}  # fmt: skip


@pytest.mark.slow(minutes=20)
@pytest.mark.parametrize(
    ("case", "ipus", "grid"), [("EIDF-BERTB-STEP", 4, BASE), ("GPP-BL1-A", 16, LARGE)], ids=["base", "large"]
)
def test_as_fast_as_published_and_as_a_grid(case: str, ipus: int, grid: dict[str, tuple[Any, ...]]) -> None:
    space, start = case_space(case, given=grid, constraints=(f"replicas * len(pipeline) == {ipus}",))
    answer = tune(space, trials=len(space.configurations) // 10, start=start)
    assert answer.start is not None
    published, best = answer.start[1].seconds, answer.choice[1].seconds
    assert best is not None
    assert published is not None
    assert best <= published
    every = list(rows(space.sweep, space.configurations))
    assert best <= min(row["seconds"] for row in every if row.get("fits")) * (1 + 1e-12)
    assert answer.lowered <= len(space.configurations) // 10
