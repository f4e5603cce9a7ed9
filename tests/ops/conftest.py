"""Fixtures of op tests: :class:`opbench.Bench`, random numbers, the figures of a chip."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from opbench import Bench, evaluate

from ipuperf import ir
from ipuperf.machine.model import RearrangementRates


@pytest.fixture
def bench() -> Bench:
    """Builder and evaluator of one-op graphs."""
    return Bench()


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded random numbers."""
    return np.random.default_rng(7)


@pytest.fixture
def mk2() -> Any:
    """The chip figures that vertex formulas use."""
    return SimpleNamespace(
        workers=6,
        vector_width=lambda size: max(1, 8 // size),
        memcpy_bytes_per_cycle=8,
        copy_setup_cycles=120,
        rearrangement=RearrangementRates(587, 0.44, 3.125, 5.15),
    )


@pytest.fixture
def run_graph() -> Callable[..., dict[ir.Tensor, np.ndarray]]:
    """The evaluator itself."""
    return evaluate
