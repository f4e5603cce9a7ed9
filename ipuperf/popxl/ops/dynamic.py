"""Slices at a position that is known at run time, and counters that go round."""

from __future__ import annotations

from collections.abc import Iterable

from ipuperf import ops as _k

from ..arguments import whole_arguments
from ..handle import Tensor
from .operands import emit


@whole_arguments
def dynamic_slice(t: Tensor, index: Tensor, axes: Iterable[int], sizes: Iterable[int], no_overlap: bool) -> Tensor:
    """A copy of ``sizes`` elements along ``axes`` of ``t`` from position ``index`` on.

    Args:
        index: int32 or uint32, one element per axis.
        no_overlap: every element of ``t`` is written by one slice at most: upstream may then build cheaper gradients;
            no effect here.

    Raises:
        ValueError: operands on different IPUs; IrError (``popart_exception``): axes, sizes or index do not fit.
    """
    operands = [t, index]
    return emit(
        _k.DynamicSlice, operands, "dynamic_slice_out", axes=tuple(axes), sizes=tuple(sizes), no_overlap=no_overlap
    )


@whole_arguments
def dynamic_update(
    t: Tensor, index: Tensor, t_update: Tensor, axes: Iterable[int], sizes: Iterable[int], no_overlap: bool
) -> Tensor:
    """``t`` with the slice at ``index`` replaced by ``t_update``; see :func:`dynamic_slice`."""
    operands = [t, index, t_update]
    return emit(
        _k.DynamicUpdate, operands, "dynamic_update_out", axes=tuple(axes), sizes=tuple(sizes), no_overlap=no_overlap
    )


@whole_arguments
def dynamic_update_(
    t: Tensor, index: Tensor, t_update: Tensor, axes: Iterable[int], sizes: Iterable[int], no_overlap: bool
) -> Tensor:
    """As :func:`dynamic_update`, in place."""
    operands = [t, index, t_update]
    return emit(
        _k.DynamicUpdateInplace,
        operands,
        "dynamicupdateinplace_out",
        axes=tuple(axes),
        sizes=tuple(sizes),
        no_overlap=no_overlap,
    )


def increment_mod(t: Tensor, increment: float, modulus: float) -> Tensor:
    """``(t + increment) % modulus`` of an int32 or uint32 tensor; increment and modulus are whole numbers."""
    return emit(_k.IncrementMod, [t], "increment_mod_out", increment=increment, modulus=modulus)


def increment_mod_(t: Tensor, increment: float, modulus: float) -> Tensor:
    """As :func:`increment_mod`, in place."""
    return emit(_k.IncrementModInplace, [t], "increment_mod_inplace_out", increment=increment, modulus=modulus)
