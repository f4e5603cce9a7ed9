"""Aten ops that see the memory of a tensor in other strides: a diagonal, windows, any strides at all.

An IPU's tensor has no strides: the elements that PyTorch's view would show are gathered, and written back when a view
is changed in place. Which they are, PyTorch is asked with a tensor that holds positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ipuperf.functions.arranging import joined, reshaped
from ipuperf.functions.selection import gather as gathered
from ipuperf.ir import INT32, Tensor

from .lowering import Handler, Lowering, Value

View = Callable[..., torch.Tensor]


def _picked(view: View) -> Handler:
    def handler(low: Lowering, x: Tensor, *args: Any) -> Tensor:
        places = view(low, _positions(low, x), *args)
        return reshaped(_elements(low, x, places), low.shape)

    return handler


def _replaced(view: View) -> Handler:
    def handler(low: Lowering, x: Tensor, src: Value, *args: Any) -> Tensor:
        positions = _positions(low, x)
        places, order = view(low, positions, *args), np.arange(x.spec.elements)
        if places.unique().numel() < places.numel():
            raise low.unsupported("several elements of the view are one; change what it is a view of, or a clone()")
        # Positions behind the tensor's own elements stand for those of the new values.
        order[places.reshape(-1).numpy()] = x.spec.elements + np.arange(places.numel())
        flat = [reshaped(t, (t.spec.elements,)) for t in (x, low.tensor(src, x.dtype))]
        return reshaped(_elements(low, joined(flat, 0), torch.from_numpy(order)), low.shape)

    return handler


def _elements(low: Lowering, x: Tensor, places: torch.Tensor) -> Tensor:
    flat = places.reshape(-1).numpy()
    return gathered(reshaped(x, (x.spec.elements,)), low.constant(flat, INT32), 0)


def _positions(low: Lowering, x: Tensor) -> torch.Tensor:
    """The number of each element, laid out as PyTorch has the operand in memory; elsewhere -1."""
    strides, offset = low.layout
    size = offset + 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
    memory = torch.full((max(size, offset + 1),), -1)
    return memory.as_strided(x.shape, strides, offset).copy_(torch.arange(x.spec.elements).reshape(x.shape))


def _diagonal(low: Lowering, positions: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    return positions.diagonal(offset, dim1, dim2)


def _windows(low: Lowering, positions: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    return positions.unfold(dimension, size, step)


def _strided(
    low: Lowering, positions: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> torch.Tensor:
    own = positions.storage_offset()
    if own and storage_offset is not None:
        raise low.unsupported("storage_offset of a view that does not begin where its memory does; clone() it first")
    first = own if storage_offset is None else storage_offset
    last = first + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    held = positions.untyped_storage().nbytes() // positions.element_size()
    seen = positions.as_strided(size, stride, first) if last < held else torch.full((1,), -1)
    if bool((seen < 0).any()):
        view = f"size={list(size)}, stride={list(stride)}, storage_offset={first}"
        raise low.unsupported(f"a view ({view}) of memory beside the tensor; allowed: elements of the tensor itself")
    return seen


#: Handlers by aten name.
HANDLERS: Mapping[str, Handler] = {
    "as_strided": _picked(_strided),
    "as_strided_scatter": _replaced(_strided),
    "diagonal": _picked(_diagonal),
    "diagonal_scatter": _replaced(_diagonal),
    "unfold": _picked(_windows),
}
