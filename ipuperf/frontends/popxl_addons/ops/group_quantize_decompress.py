"""Weights in groups of 4-bit numbers. Semantics of popxl-addons: popxl_addons/ops/group_quantize_decompress."""

from __future__ import annotations

import numpy as np

from ipuperf import ops as _k
from ipuperf.frontends.popxl import Tensor
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.custom_ops import custom_op
from ipuperf.ops.products.group_quantize import PACKED, SHIFTS, unpacked

__all__ = ["group_quantize_compress_numpy", "group_quantize_decompress", "group_quantize_decompress_numpy"]


@checked_arguments
def group_quantize_decompress(t: Tensor, group_scale: Tensor, group_bias: Tensor, dim: int = -1) -> Tensor:
    """``(rows, groups * 4 words)``: each 4-bit number of ``t`` times its group's scale plus its group's bias.

    Args:
        t: ``(rows, groups, words)``, uint16, four numbers in a word, the first in the highest bits.
        group_scale, group_bias: ``(rows, groups, 1)`` or ``(rows, groups)``, of the result's type.
        dim: the axis of the result that the groups' numbers become, 0 for ``(groups * 4 words, rows)``.

    Raises:
        NotImplementedError: ``t`` has another rank; ValueError: scale or bias have another shape, or no such axis.
    """
    if t.rank != 3:
        raise NotImplementedError(f"4-bit decompression of t {t.shape}: only packed tensors of rank 3 are supported")
    tables = []
    for name, table in (("group_scale", group_scale), ("group_bias", group_bias)):
        if table.rank not in (t.rank - 1, t.rank):
            raise ValueError(f"{name}.rank is {table.rank}; it must be equal to or one less than t.rank")
        if table.shape[:2] != t.shape[:2]:
            raise ValueError(f"The first two dimensions of t {t.shape} and {name} {table.shape} must be the same")
        tables.append(table.reshape((*table.shape, 1)) if table.rank == t.rank - 1 else table)
    order = _placed(2, dim)
    whole: Tensor = custom_op(_k.GroupQuantizeDecompress, t, *tables, names=["t_decompressed"])
    return whole if order == [0, 1] else whole.transpose(order)


def _placed(rank: int, dim: int) -> list[int]:
    """The order of axes in which the last one stands at ``dim``, as ``list.insert`` counts it."""
    if not -rank <= dim < rank:
        raise ValueError(f"dim is {dim}; allowed: {-rank} to {rank - 1} for {rank} axes")
    order = list(range(rank))
    group_axis = order.pop()
    order.insert(rank if dim == -1 else dim, group_axis)
    return order


@checked_arguments
def group_quantize_decompress_numpy(
    t: np.ndarray, group_scale: np.ndarray, group_bias: np.ndarray, dim: int = -1
) -> np.ndarray:
    """:func:`group_quantize_decompress` of arrays, in float16; of any number of rows' axes."""
    numbers: np.ndarray = unpacked(t).astype(np.float16) * group_scale + group_bias
    whole: np.ndarray = numbers.reshape((*t.shape[:-2], -1)).transpose(_placed(t.ndim - 1, dim))
    return whole


@checked_arguments
def group_quantize_compress_numpy(
    t: np.ndarray, group_size: int, dim: int = -1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``t`` ``(rows, columns)`` as 4-bit numbers between the least and the largest value of each group.

    Args:
        group_size: elements of a group, a multiple of 4 that divides the columns.
        dim: which axis of ``t``, of any number, holds the columns.

    Returns:
        Words ``(rows, groups, group_size / 4)``, scale and bias ``(rows, groups, 1)``.

    Raises:
        ValueError: ``t`` holds values that are not finite.
    """
    if not np.isfinite(t).all():
        raise ValueError("Cannot compress t which contains non-finite values")
    t = np.moveaxis(t, dim, -1)
    grouped = t.reshape(*t.shape[:-1], t.shape[-1] // group_size, group_size)
    least, most = (f(grouped, axis=-1, keepdims=True).astype(np.float16) for f in (np.min, np.max))
    scale = (most - least) / (2**4 - 1)
    numbers = np.round((grouped - least) / scale).astype(np.uint16).reshape(*grouped.shape[:-1], -1, PACKED)
    return np.bitwise_or.reduce(numbers << SHIFTS, axis=-1), scale, least
