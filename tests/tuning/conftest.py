"""A small encoder and its brute force."""

from typing import Any

import pytest

from ipuperf.sweep.work import rows
from ipuperf.tuning import TuningSpace, model_space

SIZES: dict[str, tuple[Any, ...]] = {
    "config.layers": (4,),
    "config.hidden": (32,),
    "config.heads": (2,),
    "config.sequence": (16,),
    "config.feed_forward": (64,),
}
GLOBAL_BATCH = 64
SCHEDULES = ("popart_pipeline", "sequential")


def encoder_space(machine: str = "pod4", **given: tuple[Any, ...]) -> TuningSpace:
    """Stages, schedules, micro-batches, replicas and recomputation of the encoder."""
    factors = {**SIZES, "micro_batch": (1, 2, 4, 8), "config.stages": (1, 2, 4), "config.schedule": SCHEDULES, **given}
    return model_space("encoder", machine, GLOBAL_BATCH, factors)


@pytest.fixture(scope="session")
def space() -> TuningSpace:
    """What is tuned."""
    return encoder_space()


@pytest.fixture(scope="session")
def brute_force(space: TuningSpace) -> list[dict[str, Any]]:
    """Every configuration, simulated."""
    return list(rows(space.sweep, space.configurations))
