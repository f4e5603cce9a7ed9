"""PopTorch's own ops as they stand in an exported program: marks that survive ``torch.export``.

Each is an op of the library ``ipuperf`` with a value and a gradient in PyTorch, so that a marked model also runs
natively.
"""

from __future__ import annotations

from typing import Any

import torch

from ipuperf.base.near_names import instead_of

from ..errors import UnsupportedError, require


@torch.library.custom_op("ipuperf::identity_loss", mutates_args=())
def _identity_loss(value: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "sum":
        return value.sum()
    return value.mean() if reduction == "mean" else value.clone()


@_identity_loss.register_fake
def _(value: torch.Tensor, reduction: str) -> torch.Tensor:
    return torch.empty_like(value) if reduction == "none" else value.new_empty(())


def _keep_for_loss(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    value, ctx.reduction = inputs
    ctx.shape, ctx.count = value.shape, max(value.numel(), 1)


def _loss_gradient(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    scale = 1 / ctx.count if ctx.reduction == "mean" else 1
    return (grad * scale).expand(ctx.shape), None


_identity_loss.register_autograd(_loss_gradient, setup_context=_keep_for_loss)


@torch.library.custom_op("ipuperf::recomputation_checkpoint", mutates_args=())
def _recomputation_checkpoint(value: torch.Tensor) -> torch.Tensor:
    return value.clone()


@_recomputation_checkpoint.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


_recomputation_checkpoint.register_autograd(lambda ctx, grad: grad)


def identity_loss(value: torch.Tensor, reduction: str) -> torch.Tensor:
    """``value`` reduced (``sum``, ``mean`` or ``none``) and marked as a loss.

    Raises:
        AssertionError: another reduction.
    """
    allowed = ("sum", "mean", "none")
    require(reduction in allowed, f"identity_loss: reduction {reduction!r}{instead_of(reduction, allowed)}")
    marked: torch.Tensor = torch.ops.ipuperf.identity_loss(value, reduction)
    return marked


def recomputation_checkpoint(value: torch.Tensor) -> torch.Tensor:
    """``value``, marked to be stashed instead of recomputed."""
    marked: torch.Tensor = torch.ops.ipuperf.recomputation_checkpoint(value)
    return marked


@torch.library.custom_op("ipuperf::ctc_loss", mutates_args=())
def ctc_losses(
    logs: torch.Tensor, labels: torch.Tensor, times: torch.Tensor, lengths: torch.Tensor, blank: int, zero: bool
) -> torch.Tensor:
    """``torch.nn.functional.ctc_loss`` of each sequence; the length of no result depends on data."""
    found = torch.nn.functional.ctc_loss(logs, labels, times, lengths, blank, "none", zero)
    return found.to(torch.float32)


@ctc_losses.register_fake
def _(logs: torch.Tensor, *_: Any) -> torch.Tensor:
    return logs.new_empty(logs.shape[1], dtype=torch.float32)


def _keep_for_ctc(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.inputs = inputs


def _ctc_gradient(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    with torch.enable_grad():
        logs = ctx.inputs[0].detach().requires_grad_()
        _, labels, times, lengths, blank, zero = ctx.inputs
        losses = torch.nn.functional.ctc_loss(logs, labels, times, lengths, blank, "none", zero)
        (found,) = torch.autograd.grad(losses, logs, grad.to(losses.dtype))
    return found, None, None, None, None, None


ctc_losses.register_autograd(_ctc_gradient, setup_context=_keep_for_ctc)


@torch.library.custom_op("ipuperf::ctc_beam_search_decoder", mutates_args=())
def beam_search(
    logs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The likeliest labels of sequences; in a program only, as upstream."""
    raise UnsupportedError("poptorch.ctc_beam_search_decoder runs in a program only: wrap the model")


@beam_search.register_fake
def _(
    logs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    time, count, _ = logs.shape
    whole = torch.int32
    paths = logs.new_empty((count, top_paths, time), dtype=whole)
    return logs.new_empty((count, top_paths), dtype=torch.float32), paths[..., 0].clone(), paths
