"""What programs take from PopTorch's private module: a model's ties to its executor, loosened and tied again.

Source: poptorch: python/_impl.py.
"""

from __future__ import annotations

import torch

from .errors import Error
from .executor.wrapping import rewrap, unwrap


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Make ``model`` a plain module, the newest weights on the host. ``Error`` for what is no module."""
    unwrap(_checked(model))


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Tie ``model`` again to the executor that trains it. ``Error`` for what is no module."""
    rewrap(_checked(model))


def _checked(model: torch.nn.Module) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        raise Error(f"model is a {type(model).__name__}, expected torch.nn.Module")
    return model


__all__ = ["rewrapModelIfNecessary", "unwrapModelIfNecessary"]
