"""Fixtures of the tests of PopTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stageruns import Outcome, compare_with_torch, run_stages


@pytest.fixture
def stages() -> Callable[..., Outcome]:
    """Runs exported stages."""
    return run_stages


@pytest.fixture
def check_all() -> Callable[..., Any]:
    """Compares functions with PyTorch, see :func:`compare_with_torch`."""
    return compare_with_torch
