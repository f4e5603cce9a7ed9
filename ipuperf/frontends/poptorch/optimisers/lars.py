"""LARS, layer-wise adaptive rates of momentum SGD (You, Gitman, Ginsburg, arXiv 1708.03888, algorithm 1).

PopTorch has no such optimiser: it is here for programs of other front ends that are written down for PopTorch, and not
part of ``poptorch.optim``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .classes import OptimiserGroup, OptimiserSpec, dtype_of
from .native_step import StepByParameter

NUMBERS = ("lr", "momentum", "weight_decay", "trust_coefficient", "eps")


class LARS(StepByParameter):
    """``v = momentum v + lr r (g + weight_decay w)``, ``w = w - v`` with one rate for each parameter:
    ``r = trust_coefficient |w| / (|g| + weight_decay |w| + eps)``, and 1 where a norm is 0.

    Args:
        trust_coefficient: of a parameter group; 0 leaves its parameters without a rate of their own (as is usual for
            biases and norms), that is with plain momentum.
        accum_type, velocity_accum_type: types of the gradient accumulators and of ``v``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        eps: float = 0.0,
        accum_type: torch.dtype = torch.float32,
        velocity_accum_type: torch.dtype = torch.float32,
    ) -> None:
        values = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
        }
        for name, value in values.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value}; allowed: numbers from 0")
        super().__init__(params, values)
        self.accum_type = accum_type
        self.velocity_accum_type = velocity_accum_type

    def ipu_description(self) -> OptimiserSpec:
        """What the executor needs to know."""
        return OptimiserSpec(
            kind="lars",
            groups=tuple(
                OptimiserGroup({name: float(group[name]) for name in NUMBERS}, tuple(group["params"]))
                for group in self.param_groups
            ),
            accum_dtype=dtype_of(self.accum_type),
            first_order_dtype=dtype_of(self.velocity_accum_type),
        )

    def _step(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        state, decay = self.state[parameter], group["weight_decay"]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        rate, norms = group["lr"], (float(parameter.norm()), float(gradient.norm()))
        if group["trust_coefficient"] and all(norms):
            rate *= group["trust_coefficient"] * norms[0] / (norms[1] + decay * norms[0] + group["eps"])
        velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient + decay * parameter, alpha=rate)
        parameter.sub_(velocity)
