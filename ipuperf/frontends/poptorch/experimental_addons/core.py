"""Functions of tensors (``poptorch_experimental_addons: _impl/core.py``)."""

from __future__ import annotations

from typing import Any, cast

import torch

from ipuperf.frontends import poptorch


class _Proxy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fwd: torch.Tensor, proxy: torch.Tensor) -> torch.Tensor:
        return fwd

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, grad


def autograd_proxy(fwd: torch.Tensor, proxy: torch.Tensor) -> torch.Tensor:
    """``fwd``, whose gradient goes to ``proxy``.

    Raises:
        ValueError: they have different shapes.
    """
    if fwd.shape != proxy.shape:
        raise ValueError(f"autograd_proxy: fwd has shape {tuple(fwd.shape)}, proxy {tuple(proxy.shape)}")
    if not poptorch.isRunningOnIpu():
        result: torch.Tensor = cast(Any, _Proxy).apply(fwd, proxy)  # PyTorch's `apply` has no types
        return result
    return poptorch.custom_op([fwd, proxy], "AutogradProxy", "ai.graphcore", 1, example_outputs=[fwd])[0]


def distance_matrix(tensor1: torch.Tensor, tensor2: torch.Tensor, p: int) -> torch.Tensor:
    """The distance of each row of ``tensor1`` ``[M, K]`` from each of ``tensor2`` ``[N, K]``: ``[M, N]``.

    Args:
        p: 1 for the sum of differences, 2 for the Euclidean distance.

    Raises:
        NotImplementedError: another ``p``; ValueError: the shapes do not fit.
    """
    if p not in (1, 2):
        raise NotImplementedError(f"distance_matrix: p is {p}; 1 and 2 are there")
    if tensor1.dim() != 2 or tensor2.dim() != 2 or tensor1.shape[1] != tensor2.shape[1]:
        raise ValueError(
            f"distance_matrix needs tensors (M, K) and (N, K), not {tuple(tensor1.shape)} and {tuple(tensor2.shape)}"
        )
    return torch.cdist(tensor1, tensor2, p=p)


__all__ = ["autograd_proxy", "distance_matrix"]
