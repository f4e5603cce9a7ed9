"""The native step, in PyTorch, of optimisers that PyTorch does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


class StepByParameter(torch.optim.Optimizer):
    """An optimiser that changes one parameter after the other, each by its own gradient and state alone."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One native step on the gradients that the parameters hold."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        return loss

    def _step(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        """Change ``parameter`` in place by the numbers of its ``group``."""
        raise NotImplementedError(f"{type(self).__name__} says no step")
