"""What programs take from PopTorch's private module: a model's ties to its executors, loosened and tied again.

Upstream annotates the parameters and buffers of a wrapped model, so that a look at them fetches the weights from the
IPUs. Here nothing is annotated: after a training call the host's tensors hold the weights, so a model is as plain as
:func:`unwrapModelIfNecessary` leaves it there.

Source: poptorch: python/_impl.py.
"""

from __future__ import annotations

import torch

from .errors import Error


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Make ``model`` a plain module: it is one, its weights on the host. ``Error`` for what is no module."""
    _checked(model)


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Tie ``model`` to its executors again: they hold it all along. ``Error`` for what is no module."""
    _checked(model)


def _checked(model: torch.nn.Module) -> None:
    if not isinstance(model, torch.nn.Module):
        raise Error(f"model is a {type(model).__name__}, expected torch.nn.Module")


__all__ = ["rewrapModelIfNecessary", "unwrapModelIfNecessary"]
