"""Operands of the tests of aten ops."""

from __future__ import annotations

from typing import Any

import torch


def noise(*shape: int) -> Any:
    """Normal numbers that depend on the shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 1))


def positive(*shape: int) -> Any:
    """Numbers above 0.5."""
    return noise(*shape).abs() + 0.5


def labels(high: int, *shape: int) -> Any:
    """Whole numbers below ``high``."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(3))
