"""Choosing elements by position: gather, the largest, one-hot lines, slices at a position known at run time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ipuperf import ops as _k
from ipuperf.base.near_names import instead_of
from ipuperf.ir import OptionError, Tensor
from ipuperf.ops.selection import scatter as scatter_ops

from .making import make, make_all


def _plan_share(function_name: str, share: float | None) -> float | None:
    """Check ``available_memory_proportion``, which is above 0 and at most 1, for a function."""
    if share is not None and not 0 < share <= 1:
        raise OptionError(f"{function_name}: available_memory_proportion is {share}; allowed: above 0, up to 1")
    return None if share is None else float(share)


def gather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    available_memory_proportion: float | None = None,
    zero_OOR: bool = False,
) -> Tensor:
    """Slices of ``t`` along ``axis`` at ``indices``, whose axes take the place of ``axis``.

    Args:
        available_memory_proportion: share of tile memory for temporary data of the plan, above 0 and at most 1 (default
            0.6), here and below.
        zero_OOR: whether indices out of range give zeros instead of an error.

    Raises:
        ValueError: a share outside of that range, here and below.
    """
    share = _plan_share("gather", available_memory_proportion)
    named: dict[str, Any] = {"axis": axis, "zero_out_of_range": zero_OOR, "available_memory_proportion": share}
    return make(_k.Gather, t, indices, **named)


def tied_gather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    available_memory_proportion: float | None = None,
    zero_OOR: bool = False,
) -> Tensor:
    """Like :func:`gather`, for data that a matrix product reads as well and lays out."""
    share = _plan_share("tied_gather", available_memory_proportion)
    named: dict[str, Any] = {"axis": axis, "zero_out_of_range": zero_OOR, "available_memory_proportion": share}
    return make(_k.TiedGather, t, indices, **named)


def groupedgather(
    t: Tensor,
    indices: Tensor,
    axis: int = 0,
    group_size: int = 1,
    available_memory_proportion: float | None = None,
    zero_OOR: bool = False,
) -> Tensor:
    """Like :func:`gather`, in groups with indices of their own.

    Args:
        group_size: number of groups. With more than one, the first axis of ``t`` and ``indices`` goes over the groups,
            and ``axis`` is another one.
    """
    share = _plan_share("groupedgather", available_memory_proportion)
    named: dict[str, Any] = {"axis": axis, "zero_out_of_range": zero_OOR, "available_memory_proportion": share}
    return make(_k.Gather, t, indices, group_size=group_size, **named)


def scatter(
    t: Tensor, indices: Tensor, values: Tensor, axis: int = 0, available_memory_proportion: float | None = None
) -> Tensor:
    """``t`` with ``values`` written along ``axis`` at ``indices``, which have the values' shape."""
    share = _plan_share("scatter", available_memory_proportion)
    return make(_k.Scatter, t, indices, values, axis=axis, available_memory_proportion=share)


def scatter_reduce(
    data: Tensor,
    indices: Tensor,
    reduction: str,
    initial_values: Tensor | None = None,
    axis: int = 0,
    axis_size: int | None = None,
    enable_index_broadcast: bool = True,
    available_memory_proportion: float | None = None,
) -> Tensor:
    """Elements of ``data`` combined along ``axis`` at ``indices``.

    Args:
        reduction: ``sum``, ``max``, ``min``, ``mul`` or ``none`` (written).
        initial_values: the values to combine with. The default, 0 (1 for ``mul``), stays only in elements that no index
            names.
        axis_size: length of the result's axis; by default that of ``initial_values``.
        enable_index_broadcast: whether indices are broadcast to the data's shape; otherwise they determine how much of
            it is used.

    Raises:
        ValueError: neither ``initial_values`` nor ``axis_size``, or another reduction.
    """
    if reduction not in scatter_ops.REDUCTIONS:
        raise ValueError(f"scatter_reduce: reduction {reduction!r}{instead_of(reduction, scatter_ops.REDUCTIONS)}")
    if axis_size is None:
        if initial_values is None:
            raise ValueError("scatter_reduce: one of initial_values and axis_size is needed")
        axis_size = initial_values.shape[axis]
    operands = [data, indices] if initial_values is None else [data, indices, initial_values]
    return make(
        _k.ScatterReduce,
        *operands,
        axis=axis,
        axis_size=axis_size,
        reduction=reduction,
        index_broadcast=enable_index_broadcast,
        available_memory_proportion=_plan_share("scatter_reduce", available_memory_proportion),
    )


def scatter_extreme(data: Tensor, indices: Tensor, reduction: str, initial_values: Tensor) -> Tensor:
    """Like :func:`scatter_reduce` for ``max`` and ``min`` along axis 0; equal ones get equal parts of the gradient."""
    operands, size = (data, indices, initial_values), initial_values.shape[0]
    return make(_k.ScatterReduce, *operands, axis=0, axis_size=size, reduction=reduction, share_ties=True)


def onehot(t: Tensor, num_classes: int, values: Tensor, axis: int = -1) -> Tensor:
    """``values[1]`` where the position on the new axis ``axis`` of length ``num_classes`` is the index, ``values[0]``
    elsewhere."""
    return make(_k.OneHot, t, values, depth=num_classes, axis=axis)


def topk(
    t: Tensor,
    k: int,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    available_memory_proportion: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Values and positions (int32) of the ``k`` largest (or smallest) elements along ``axis``.

    Args:
        available_memory_proportion: for the update that computes the gradient.
    """
    names, share = ["topk_values", "topk_indices"], _plan_share("topk", available_memory_proportion)
    named: dict[str, Any] = {
        "k": k,
        "axis": axis,
        "largest": largest,
        "sorted": sorted,
        "available_memory_proportion": share,
    }
    values, indices = make_all(_k.TopK, [t], names, **named)
    return values, indices


def dynamic_slice(t: Tensor, index: Tensor, axes: Iterable[int], sizes: Iterable[int]) -> Tensor:
    """A copy of ``sizes`` elements along ``axes`` of ``t`` from position ``index`` on.

    Args:
        index: int32 or uint32, one element per axis.

    Raises:
        ValueError: operands on different IPUs; IrError (``popart_exception``): axes, sizes or index do not fit.
    """
    return make(_k.DynamicSlice, t, index, axes=tuple(axes), sizes=tuple(sizes))


def dynamic_update(t: Tensor, index: Tensor, t_update: Tensor, axes: Iterable[int], sizes: Iterable[int]) -> Tensor:
    """``t`` with the slice at ``index`` replaced by ``t_update``; see :func:`dynamic_slice`."""
    return make(_k.DynamicUpdate, t, index, t_update, axes=tuple(axes), sizes=tuple(sizes))


def dynamic_update_(t: Tensor, index: Tensor, t_update: Tensor, axes: Iterable[int], sizes: Iterable[int]) -> Tensor:
    """Like :func:`dynamic_update`, in place."""
    return make(
        _k.DynamicUpdateInplace,
        t,
        index,
        t_update,
        name="dynamicupdateinplace_out",
        axes=tuple(axes),
        sizes=tuple(sizes),
    )


def increment_mod(t: Tensor, increment: float, modulus: float) -> Tensor:
    """``(t + increment) % modulus`` of a tensor of numbers; for integers increment and modulus are whole numbers."""
    return make(_k.IncrementMod, t, increment=increment, modulus=modulus)


def increment_mod_(t: Tensor, increment: float, modulus: float) -> Tensor:
    """Like :func:`increment_mod`, in place."""
    return make(_k.IncrementModInplace, t, name="increment_mod_inplace_out", increment=increment, modulus=modulus)
