"""Large float32 products and convolutions by PyTorch's libraries (MKL, oneDNN) where PyTorch is loaded already, else by
NumPy; nothing loads PyTorch for this.

This is the one place that decides. What is computed is the same sum in another order, so results agree within the
rounding of float32, and with PyTorch loaded or not a program gives the same numbers in each run. Subnormal numbers
(below 1.2e-38), which these loops take a hundred times longer for, count as zero in them. PyTorch works on one thread
(:class:`~ipuperf.ops.half.OneThread`).

Of the two libraries MKL does small and batched products, oneDNN large ones: it makes use of AVX-512 on every processor,
MKL on Intel's alone (1,024 x 256 x 1,024 on an AMD EPYC: 92 against 185 Gflop/s).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from . import half
from .base import Environment
from .half import Step
from .work import Convolution

WORTH = 1 << 18
"""Multiplications from which a call of PyTorch's pays."""
WORTH_ONEDNN = 1 << 22
"""Multiplications of one product from which oneDNN's pays, which needs a copy of the result."""
_SUBNORMAL = np.float32(1e-39)


def product(lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray) -> Step:
    """A step for ``np.matmul(lhs, rhs, out)``."""
    torch = _library(out.size * lhs.shape[-1], lhs, rhs, out)
    if torch is None:
        return partial(np.matmul, lhs, rhs, out)
    left, right, result = (torch.from_numpy(array) for array in (lhs, rhs, out))
    if not _large(torch, lhs.shape[-2] * lhs.shape[-1] * rhs.shape[-1]):
        return partial(_flushing, torch, partial(torch.matmul, left, right, out=result))
    matrices = [(left.expand(*out.shape[:-2], -1, -1), right.expand(*out.shape[:-2], -1, -1), result)]
    while matrices[0][2].dim() > 2:
        matrices = [(a[i], b[i], c[i]) for a, b, c in matrices for i in range(len(c))]
    return partial(_flushing, torch, partial(_products, torch, matrices))


def _large(torch: Any, multiplications: int) -> bool:
    """Whether a product of two matrices is one for oneDNN, where PyTorch has it."""
    return multiplications >= WORTH_ONEDNN and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _products(torch: Any, matrices: Sequence[tuple[Any, Any, Any]]) -> None:
    """Large products of matrices."""
    for lhs, rhs, out in matrices:
        out.copy_(_large_product(torch, lhs, rhs))


def _large_product(torch: Any, lhs: Any, rhs: Any) -> Any:
    """A product by oneDNN; its linear layer takes the transposed matrix."""
    return torch.ops.mkldnn._linear_pointwise(lhs, rhs.t(), None, "none", [], "")


def convolution(
    conv: Convolution, first: np.ndarray, second: np.ndarray, out: np.ndarray, env: Environment
) -> list[Step] | None:
    """Steps for a pass of a convolution of one replica, None where NumPy has to do it.

    Args:
        first, second: forward: input and weights; gradient of the input: gradient and weights; gradient of the
            weights: gradient and input.
    """
    torch = _library(conv.flops // 2, first, second, out)
    symmetric = all(before == after >= 0 for before, after in conv.padding)
    if torch is None or not symmetric or len(conv.input_size) > 3 or 0 in out.shape:
        return None
    steps: list[Step] = []
    wide = []
    for slot, array in enumerate((first, second)):
        if array.dtype == np.float16:
            copy = env.scratch(array.shape, np.float32, slot=slot)
            steps.append(half.copy(copy, array))
            array = copy
        wide.append(torch.from_numpy(array))
    steps.append(partial(_flushing, torch, partial(_PASSES[conv.pass_], torch, conv, *wide, torch.from_numpy(out))))
    return steps


def _forward(torch: Any, conv: Convolution, x: Any, w: Any, out: Any) -> None:
    padding = [before for before, _ in conv.padding]
    nothing = [0] * len(padding)
    out.copy_(torch.convolution(x, w, None, conv.strides, padding, conv.dilation, False, nothing, conv.groups))


def _backward(torch: Any, conv: Convolution, grad: Any, w: Any, out: Any) -> None:
    like = grad.new_empty(1).expand(conv.batch, conv.channels_in, *conv.input_size)
    out.copy_(_gradients(torch, conv, grad, like, w, (True, False, False))[0])


def _update(torch: Any, conv: Convolution, grad: Any, x: Any, out: Any) -> None:
    places = conv.batch * math.prod(conv.output_size)
    if len(conv.input_size) == 2 and conv.groups == 1 and conv.channels_out > places:
        _update_by_product(torch, conv, grad, x, out)
        return
    shape = (conv.channels_out, conv.channels_in // conv.groups, *conv.kernel_size)
    like = grad.new_empty(1).expand(shape)
    out.copy_(_gradients(torch, conv, grad, x, like, (False, True, False))[1])


def _update_by_product(torch: Any, conv: Convolution, grad: Any, x: Any, out: Any) -> None:
    """One matrix product, in a third of oneDNN's time where there are more channels than places."""
    padding = [before for before, _ in conv.padding]
    columns = torch.nn.functional.unfold(x, conv.kernel_size, conv.dilation, padding, conv.strides)
    rows = grad.reshape(conv.batch, conv.channels_out, -1).transpose(0, 1).reshape(conv.channels_out, -1)
    columns = columns.transpose(1, 2).reshape(rows.shape[1], -1)
    large = _large(torch, rows.numel() * columns.shape[1])
    found = _large_product(torch, rows, columns) if large else torch.matmul(rows, columns)
    out.copy_(found.view(out.shape))


def _gradients(torch: Any, conv: Convolution, grad: Any, x: Any, w: Any, wanted: tuple[bool, bool, bool]) -> Any:
    padding = [before for before, _ in conv.padding]
    return torch.ops.aten.convolution_backward(
        grad, x, w, None, conv.strides, padding, conv.dilation, False, [0] * len(padding), conv.groups, wanted
    )


_PASSES: dict[str, Callable[..., None]] = {"fwd": _forward, "bwd": _backward, "wu": _update}


def _library(multiplications: int, *arrays: np.ndarray) -> Any:
    """PyTorch where it is loaded, the work is worth a call of it, and it can see the arrays; else None."""
    torch = sys.modules.get("torch")
    if multiplications < WORTH or not hasattr(torch, "set_flush_denormal"):
        return None
    float32 = all(array.dtype in (np.float32, np.float16) and half.visible(array) for array in arrays)
    return torch if float32 else None


def _flushing(torch: Any, call: Step) -> None:
    """A call without gradients in which subnormal numbers are zero; the caller's setting comes back."""
    before = bool(_SUBNORMAL * np.float32(0.5) == 0)
    with torch.no_grad():
        if before or not torch.set_flush_denormal(True):
            call()
            return
        try:
            call()
        finally:
            torch.set_flush_denormal(False)
