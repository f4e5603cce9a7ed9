"""What the tests of exported modules share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def noise(*shape: int) -> Any:
    """Normal numbers that depend on the shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def check_against_torch(
    stages: Any, module: Any, exported: Any, tensors: list[Any], loss: Any, rtol: float = 2e-3
) -> Any:
    """Loss and gradients of all parameters against autograd."""
    outcome = stages(exported, tensors)
    position = next(i for i, s in enumerate(exported.outputs) if (s.part, s.output) == exported.loss)
    np.testing.assert_allclose(outcome.outputs[position], loss.item(), rtol=1e-4)
    module.zero_grad()
    loss.backward()
    grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    assert sorted(outcome.gradients) == sorted(grads) == sorted(exported.parameters)
    for name, grad in grads.items():
        np.testing.assert_allclose(outcome.gradients[name], grad.numpy(), rtol=rtol, atol=2e-5, err_msg=name)
    return outcome
