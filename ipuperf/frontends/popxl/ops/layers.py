"""Functions of the library that PopXL gives more arguments: those that do nothing here or are refused are said so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ipuperf.frontends.options import POPXL as EFFECTS
from ipuperf.functions import networks, products, selection
from ipuperf.functions.products import PadType

from ..arguments import checked_arguments
from ..handle import Constant, Tensor
from .lifting import lifted

_onehot = lifted(selection.onehot)
_topk = lifted(selection.topk)
_conv = lifted(products.conv)
_conv_transpose = lifted(products.conv_transpose)
_conv_pow2scaled = lifted(products.conv_pow2scaled)
_conv_transpose_pow2scaled = lifted(products.conv_transpose_pow2scaled)
_average_pool = lifted(products.average_pool)
_max_pool = lifted(products.max_pool)
_batch_norm_inference = lifted(networks.batch_norm_inference)
_dynamic_slice = lifted(selection.dynamic_slice)
_dynamic_update = lifted(selection.dynamic_update)
_dynamic_update_ = lifted(selection.dynamic_update_)


def _say(function: str, **arguments: Any) -> None:
    """What becomes of the arguments of ``function`` that are given."""
    for name, value in arguments.items():
        if value is not None:
            EFFECTS.given(f"ops.{function}({name})", value)


def _other_than(neutral: int, values: Sequence[int] | None) -> tuple[int, ...] | None:
    """``values`` when any of them is not ``neutral``."""
    return tuple(values) if values and any(n != neutral for n in values) else None


@checked_arguments
def conv(
    t: Tensor,
    weight: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    available_memory_proportions: Sequence[float] | None = None,
    partials_types: Sequence[str] | None = None,
    enable_conv_dithering: Sequence[int] | None = None,
) -> Tensor:
    """See :func:`ipuperf.functions.products.conv`; ``enable_conv_dithering`` is without effect."""
    _say("conv", enable_conv_dithering=_other_than(0, enable_conv_dithering))
    return _conv(t, weight, stride, padding, dilation, groups, pad_type, available_memory_proportions, partials_types)


@checked_arguments
def conv_transpose(
    t: Tensor,
    weight: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    available_memory_proportions: Sequence[float] | None = None,
    partials_types: Sequence[str] | None = None,
    enable_conv_dithering: Sequence[int] | None = None,
) -> Tensor:
    """See :func:`ipuperf.functions.products.conv_transpose`.

    Args:
        pad_type: ``not_set`` or ``valid``.
        output_shape: of the result; the padding then follows from it.
        enable_conv_dithering: without effect.
    """
    _say(
        "conv_transpose",
        pad_type=pad_type,
        enable_conv_dithering=_other_than(0, enable_conv_dithering),
    )
    return _conv_transpose(
        t, weight, stride, padding, dilation, groups, pad_type, output_padding, output_shape,
        available_memory_proportions, partials_types,
    )  # fmt: skip


@checked_arguments
def conv_pow2scaled(
    t: Tensor,
    weight: Tensor,
    log2_scale: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    available_memory_proportions: Sequence[float] | None = None,
    enable_conv_dithering: Sequence[int] | None = None,
) -> Tensor:
    """See :func:`ipuperf.functions.products.conv_pow2scaled`; ``enable_conv_dithering`` is without effect."""
    _say("conv_pow2scaled", enable_conv_dithering=_other_than(0, enable_conv_dithering))
    return _conv_pow2scaled(
        t, weight, log2_scale, stride, padding, dilation, groups, pad_type, available_memory_proportions
    )


@checked_arguments
def conv_transpose_pow2scaled(
    t: Tensor,
    weight: Tensor,
    log2_scale: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    available_memory_proportions: Sequence[float] | None = None,
    enable_conv_dithering: Sequence[int] | None = None,
) -> Tensor:
    """See :func:`ipuperf.functions.products.conv_transpose_pow2scaled` and :func:`conv_transpose`."""
    _say(
        "conv_transpose_pow2scaled",
        pad_type=pad_type,
        enable_conv_dithering=_other_than(0, enable_conv_dithering),
    )
    return _conv_transpose_pow2scaled(
        t, weight, log2_scale, stride, padding, dilation, groups, pad_type, output_padding, output_shape,
        available_memory_proportions,
    )  # fmt: skip


@checked_arguments
def average_pool(
    t: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    out_pads: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    in_dilations: Sequence[int] | None = None,
    auto_pad: PadType | None = "not_set",
    ceil_mode: bool | None = None,
) -> Tensor:
    """See :func:`ipuperf.functions.products.average_pool`; ``out_pads`` and ``in_dilations`` are not supported."""
    _say("average_pool", out_pads=_other_than(0, out_pads), in_dilations=_other_than(1, in_dilations))
    return _average_pool(t, kernel_size, stride, padding, dilation, auto_pad, ceil_mode)


@checked_arguments
def max_pool(
    t: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    out_pads: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    in_dilations: Sequence[int] | None = None,
    auto_pad: PadType | None = "not_set",
    ceil_mode: bool | None = None,
    storage_order: bool | None = None,
) -> Tensor:
    """See :func:`ipuperf.functions.products.max_pool`; ``out_pads`` and ``in_dilations`` are not supported, and
    ``storage_order`` only concerns positions of maxima, which are no result in PopXL."""
    _say(
        "max_pool",
        out_pads=_other_than(0, out_pads),
        in_dilations=_other_than(1, in_dilations),
        storage_order=storage_order,
    )
    return _max_pool(t, kernel_size, stride, padding, dilation, auto_pad, ceil_mode)


@checked_arguments
def batch_norm_inference(
    t: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> Tensor:
    """See :func:`ipuperf.functions.networks.batch_norm_inference`; ``momentum`` has no effect in inference."""
    _say("batch_norm_inference", momentum=momentum)
    return _batch_norm_inference(t, scale, bias, mean, var, epsilon)


@checked_arguments
def dynamic_slice(t: Tensor, index: Tensor, axes: Iterable[int], sizes: Iterable[int], no_overlap: bool) -> Tensor:
    """See :func:`ipuperf.functions.selection.dynamic_slice`.

    Args:
        no_overlap: every element of ``t`` is written by one slice at most: upstream may then build cheaper gradients;
            no effect here.
    """
    _say("dynamic_slice", no_overlap=no_overlap)
    return _dynamic_slice(t, index, axes, sizes)


@checked_arguments
def dynamic_update(
    t: Tensor, index: Tensor, t_update: Tensor, axes: Iterable[int], sizes: Iterable[int], no_overlap: bool
) -> Tensor:
    """``t`` with the slice at ``index`` replaced by ``t_update``; see :func:`dynamic_slice`."""
    _say("dynamic_update", no_overlap=no_overlap)
    return _dynamic_update(t, index, t_update, axes, sizes)


@checked_arguments
def dynamic_update_(
    t: Tensor, index: Tensor, t_update: Tensor, axes: Iterable[int], sizes: Iterable[int], no_overlap: bool
) -> Tensor:
    """As :func:`dynamic_update`, in place."""
    _say("dynamic_update_", no_overlap=no_overlap)
    return _dynamic_update_(t, index, t_update, axes, sizes)


@checked_arguments
def topk(
    t: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    available_memory_proportion: float | None = None,
) -> tuple[Tensor, Tensor]:
    """See :func:`ipuperf.functions.selection.topk`."""
    return _topk(t, k, axis, largest, sorted, available_memory_proportion)


@checked_arguments
def onehot(t: Tensor, num_classes: Tensor, values: Tensor, axis: int) -> Tensor:
    """See :func:`ipuperf.functions.selection.onehot`.

    Args:
        num_classes: a constant of one element, as upstream needs the length when it compiles.

    Raises:
        ValueError: ``num_classes`` is no constant of one element.
    """
    if not isinstance(num_classes, Constant) or num_classes.nelms != 1:
        raise ValueError(f"onehot: num_classes is {num_classes!r}; a constant of one element is needed")
    return _onehot(t, int(num_classes.data.reshape(())), values, axis)
