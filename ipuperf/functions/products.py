"""Matrix products, convolutions and pooling over ``(N, C, *spatial)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ipuperf import ops as _k
from ipuperf.base.near_names import instead_of
from ipuperf.ir import FLOAT8_143, FLOAT16, FLOAT32, INT32, DType, Operand, OptionError, ShapeError, Tensor
from ipuperf.ops.pooling import resize

from .arranging import padded
from .making import make

PadType = Literal["not_set", "same_upper", "same_lower", "valid"]
_PARTIALS = {"half": FLOAT16, "float": FLOAT32}


def matmul(
    lhs: Operand,
    rhs: Operand,
    available_memory_proportion: float | None = None,
    output_type: DType | None = None,
    partials_type: DType | None = None,
) -> Tensor:
    """``lhs @ rhs`` with NumPy's rules for vectors and batches.

    Args:
        available_memory_proportion: share of tile memory for temporaries, in [0, 1] (default 0.6).
        output_type: dtype of the result (default: that of the operands).
        partials_type: dtype of partial sums (default float32).

    Raises:
        ValueError: shapes or dtypes do not fit, or a proportion outside [0, 1].
    """
    if available_memory_proportion is not None and not 0 <= available_memory_proportion <= 1:
        raise OptionError(f"matmul: available_memory_proportion is {available_memory_proportion}; allowed: 0 to 1")
    # Options that are not given stay away, so that the defaults of the op hold.
    attributes: dict[str, Any] = {}
    if available_memory_proportion is not None:
        attributes["available_memory_proportion"] = float(available_memory_proportion)
    if output_type is not None:
        attributes["output_dtype"] = output_type
    if partials_type is not None:
        attributes["partials_dtype"] = partials_type
    return make(_k.MatMul, lhs, rhs, **attributes)


def _pairs(function_name: str, padding: Sequence[int] | None, axes: int) -> list[tuple[int, int]]:
    """``[begin 0, begin 1, ..., end 0, end 1, ...]`` as pairs; ValueError for another number of entries."""
    flat = [0] * (2 * axes) if padding is None else [int(entry) for entry in padding]
    if len(flat) != 2 * axes:
        raise ShapeError(
            f"{function_name}: padding {tuple(flat)}; {2 * axes} numbers are needed: all begins, then all ends"
        )
    return list(zip(flat[:axes], flat[axes:]))


def window_padding(
    function_name: str,
    pad_type: str,
    padding: Sequence[int] | None,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[int, int]]:
    """The padding per axis.

    ``same_*`` gives as many outputs as ``ceil(size / stride)``, with the odd element at the end (upper) or the begin
    (lower).
    """
    if pad_type == "not_set":
        return _pairs(function_name, padding, len(size))
    if pad_type == "valid":
        return [(0, 0)] * len(size)
    if pad_type not in ("same_upper", "same_lower"):
        raise ValueError(f"{function_name}: pad type {pad_type!r}; allowed: not_set, same_upper, same_lower, valid")
    pairs = []
    for length, window, step, spread in zip(size, kernel, stride, dilation, strict=True):
        # -(-a // b) rounds the number of outputs up.
        total = max(0, (-(-length // step) - 1) * step + spread * (window - 1) + 1 - length)
        # An odd total leaves one element more on one side, which the pad type chooses.
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if pad_type == "same_upper" else (large, small))
    return pairs


def _plan_options(function_name: str, memory: Sequence[float] | None, partials: Sequence[str] | None) -> dict[str, Any]:
    """Options of the convolution's plan. Upstream's lists are for several convolutions; here each has one entry.

    Raises:
        ValueError: more than one entry, or a type of partial sums that does not exist.
    """
    for name, entries in (("available_memory_proportions", memory), ("partials_types", partials)):
        if entries is not None and len(entries) > 1:
            raise OptionError(f"{function_name}: {name}={list(entries)}; one entry is needed, for one convolution")
    options: dict[str, Any] = {}
    if memory:
        options["available_memory_proportion"] = float(memory[0])
    if partials:
        if partials[0] not in _PARTIALS:
            raise OptionError(f"{function_name}: partials type {partials[0]!r}; allowed: half, float")
        options["partials_dtype"] = _PARTIALS[partials[0]]
    return options


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
) -> Tensor:
    """Convolution of ``t`` (N, C, *spatial) with ``weight`` (M, C / groups, *kernel).

    Args:
        stride, dilation: per spatial axis.
        padding: zeros, all begins and then all ends; counts only for ``pad_type="not_set"``.
        pad_type: ``not_set``, ``valid`` (none), ``same_upper`` or ``same_lower`` (output size ``ceil(size / stride)``).
        available_memory_proportions: share of tile memory for temporaries, one entry.
        partials_types: ``half`` or ``float``, one entry.

    Raises:
        ValueError: options that do not exist; IrError (``popart_exception``): shapes or dtypes do not fit.
    """
    options = _plan_options("conv", available_memory_proportions, partials_types)
    attributes = {"strides": tuple(stride), "dilation": tuple(dilation), "groups": groups, **options}
    return _convolved("conv", (_k.Conv, t, weight), pad_type, padding, attributes)


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
) -> Tensor:
    """Transposed convolution of ``t`` (N, C, *spatial) with ``weight`` (C, M / groups, *kernel); see :func:`conv`.

    Args:
        padding: elements cut from the output.
        pad_type: ``not_set`` or ``valid``.
        output_padding: added at the end of the output, per spatial axis.
        output_shape: ``(N, M, *spatial)``, or the spatial part. The padding then follows from it (ONNX, ConvTranspose):
            the larger half is cut at the begin, and missing elements are zeros at the end.
    """
    options = _plan_options("conv_transpose", available_memory_proportions, partials_types)
    attributes = {"strides": tuple(stride), "dilation": tuple(dilation), "groups": groups, **options}
    operands = (_k.ConvTranspose, t, weight)
    if output_shape:
        return _transposed_into(operands, tuple(output_shape), tuple(output_padding), attributes)
    attributes["output_padding"] = tuple(output_padding) or 0
    return _convolved("conv_transpose", operands, pad_type, padding, attributes)


def _convolved(
    function_name: str, operands: tuple[Any, ...], pad_type: PadType, padding: Sequence[int], attributes: dict[str, Any]
) -> Tensor:
    """A convolution of ``operands`` (its class, then its operands) with the padding that ``pad_type`` names."""
    size, kernel = (tensor.shape[2:] for tensor in operands[1:3])
    pads = window_padding(function_name, pad_type, padding, size, kernel, attributes["strides"], attributes["dilation"])
    return make(*operands, padding=pads, **attributes)


def _transposed_into(
    operands: tuple[Any, ...], output_shape: tuple[int, ...], extra: tuple[int, ...], attributes: dict[str, Any]
) -> Tensor:
    """A transposed convolution (its class, then its operands) whose result has the shape ``output_shape``.

    ValueError for another number of axes, or other sizes of batch and channels.
    """
    t, weight = operands[1:3]
    axes = len(t.shape) - 2
    full = (t.shape[0], weight.shape[1] * attributes["groups"])
    if output_shape[:-axes] not in ((), full) or len(output_shape) < axes:
        raise ShapeError(
            f"conv_transpose: output_shape={output_shape}; ({full[0]}, {full[1]}, and {axes} sizes) is needed"
        )
    pads: list[tuple[int, int]] = []
    missing: dict[int, tuple[int, int]] = {}
    options = (attributes["strides"], attributes["dilation"], extra or (0,) * axes)
    sizes = zip(output_shape[-axes:], t.shape[2:], weight.shape[2:], *options, strict=True)
    for axis, (size, length, window, stride, dilation, extra_end) in enumerate(sizes, 2):
        # The length of the whole transposed convolution, less the length that is wanted.
        surplus = (length - 1) * stride + dilation * (window - 1) + 1 + extra_end - size
        if surplus < 0:
            missing[axis] = (0, -surplus)
        # The larger half is cut at the begin, as in ONNX.
        pads.append((max(0, surplus) - max(0, surplus) // 2, max(0, surplus) // 2))
    convolved = make(*operands, padding=pads, output_padding=extra or 0, **attributes)
    return padded(convolved, missing) if missing else convolved


def _pool(
    op_class: type[_k.Op],
    function_name: str,
    t: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] | None,
    padding: Sequence[int] | None,
    dilation: Sequence[int] | None,
    auto_pad: str | None,
    ceil_mode: bool | None,
) -> Tensor:
    ones = (1,) * len(kernel_size)
    strides, spread = tuple(stride or ones), tuple(dilation or ones)
    pads = window_padding(function_name, auto_pad or "not_set", padding, t.shape[2:], kernel_size, strides, spread)
    return make(
        op_class, t, name=f"{function_name.replace('_', '')}_out",
        kernel_size=tuple(kernel_size), strides=strides, padding=pads, dilation=spread, ceil_mode=bool(ceil_mode),
    )  # fmt: skip


def average_pool(
    t: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    auto_pad: PadType | None = "not_set",
    ceil_mode: bool | None = None,
) -> Tensor:
    """Average of each window (padding is not counted).

    Args:
        stride: between windows (default 1, as upstream).
        padding, auto_pad: see :func:`conv`.
        dilation: 1.
        ceil_mode: whether windows that reach past the end count too.

    Raises:
        ValueError: an option that is not supported; IrError (``popart_exception``): windows that do not fit.
    """
    return _pool(
        _k.AveragePool, "average_pool", t, kernel_size, stride, padding, dilation, auto_pad, ceil_mode,
    )  # fmt: skip


def max_pool(
    t: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    auto_pad: PadType | None = "not_set",
    ceil_mode: bool | None = None,
) -> Tensor:
    """Largest element of each window; see :func:`average_pool`."""
    return _pool(_k.MaxPool, "max_pool", t, kernel_size, stride, padding, dilation, auto_pad, ceil_mode)


def interpolate(
    t: Tensor,
    scale_factor: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    coordinate_transformation_mode: str = "half_pixel",
) -> Tensor:
    """``t`` with each axis ``floor(length * scale)`` long.

    Args:
        scale_factor: one number per axis.
        mode: ``nearest``, ``linear`` or ``cubic``.
        nearest_mode: how ``nearest`` rounds: ``round_prefer_floor``, ``round_prefer_ceil``, ``floor`` or ``ceil``.
        coordinate_transformation_mode: where new elements lie: ``half_pixel``, ``pytorch_half_pixel``,
            ``align_corners`` or ``asymmetric``.

    Raises:
        ValueError: another mode.
    """
    _known("mode", mode, resize.MODES)
    _known("nearest_mode", nearest_mode, resize.NEAREST)
    _known("coordinate_transformation_mode", coordinate_transformation_mode, resize.COORDINATES)
    return make(
        _k.Resize,
        t,
        scales=tuple(scale_factor),
        mode=mode,
        nearest_mode=nearest_mode,
        coordinate_transformation_mode=coordinate_transformation_mode,
    )


def _known(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"interpolate: {name} {value!r}{instead_of(value, allowed)}")


def roi_align(
    t: Tensor,
    rois: Tensor,
    batch_index: Tensor,
    output_size: Sequence[int],
    spatial_scale: float,
    sampling_ratio: int,
) -> Tensor:
    """Averages of bilinear samples in regions of images: ``(regions, channels, *output_size)``.

    Args:
        t: images ``(batch, channels, rows, columns)``.
        rois: regions ``(regions, 4)`` as x1, y1, x2, y2.
        batch_index: the image of each region.
        output_size: rows and columns of bins.
        spatial_scale: elements of an image per unit of ``rois``.
        sampling_ratio: samples of a bin along each axis.
    """
    return make(
        _k.RoiAlign,
        t,
        rois,
        batch_index,
        output_size=tuple(output_size),
        spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio,
    )


# -- 8-bit floats ------------------------------------------------------------------------------------------------------


def pow2scale_cast_to_fp8(t: Tensor, log2_scale: Tensor, data_type: DType = FLOAT8_143) -> Tensor:
    """``t * 2**log2_scale`` as 8-bit floats; values that are too large become NaN.

    Args:
        t: float16 or float32.
        log2_scale: a scalar of int32; its value has to be from -32 to 31 when the program runs.
        data_type: ``float8_143`` or ``float8_152``.

    Raises:
        TypeError: other types; ValueError: ``log2_scale`` is no scalar.
    """
    _check_scale("pow2scale_cast_to_fp8", log2_scale)
    if not t.dtype.is_floating_point:
        raise TypeError(f"pow2scale_cast_to_fp8: {t.id!r} is {t.dtype.name}; allowed: float16, float32")
    if data_type.category != "float8":
        raise TypeError(f"pow2scale_cast_to_fp8: data_type {data_type.name}; allowed: float8_143, float8_152")
    return make(_k.Pow2ScaleThenCast, t, log2_scale, name=f"{t.name}_{data_type.name}", dtype=data_type)


def pow2scale_cast_from_fp8(t: Tensor, log2_scale: Tensor, data_type: DType = FLOAT16) -> Tensor:
    """``t * 2**log2_scale`` of 8-bit floats ``t`` as float16 or float32.

    ``log2_scale`` and errors are as for :func:`pow2scale_cast_to_fp8`.
    """
    _check_eight("pow2scale_cast_from_fp8", t)
    _check_scale("pow2scale_cast_from_fp8", log2_scale)
    if data_type not in (FLOAT16, FLOAT32):
        raise TypeError(f"pow2scale_cast_from_fp8: data_type {data_type.name}; allowed: float16, float32")
    return make(_k.CastThenPow2Scale, t, log2_scale, name=f"{t.name}_{data_type.name}", dtype=data_type)


def matmul_pow2scaled(
    lhs: Tensor, rhs: Tensor, log2_scale: Tensor, available_memory_proportion: float | None = None
) -> Tensor:
    """``(lhs @ rhs) * 2**log2_scale`` of 8-bit floats (either format), in float16; see :func:`matmul`.

    Raises:
        TypeError: other types; ValueError: ``log2_scale`` is no scalar, or shapes do not fit.
    """
    _check_eight("matmul_pow2scaled", lhs, rhs)
    _check_scale("matmul_pow2scaled", log2_scale)
    shares = None if available_memory_proportion is None else [available_memory_proportion]
    share = _plan_options("matmul_pow2scaled", shares, None)
    return make(_k.MatMulPow2Scaled, lhs, rhs, log2_scale, partials_dtype=FLOAT16, **share)


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
) -> Tensor:
    """A convolution of 8-bit floats times ``2**log2_scale``, in float16; see :func:`conv` and
    :func:`matmul_pow2scaled`."""
    _check_eight("conv_pow2scaled", t, weight)
    _check_scale("conv_pow2scaled", log2_scale)
    options = _plan_options("conv_pow2scaled", available_memory_proportions, ["half"])
    attributes = {"strides": tuple(stride), "dilation": tuple(dilation), "groups": groups, **options}
    return _convolved("conv_pow2scaled", (_k.ConvPow2Scaled, t, weight, log2_scale), pad_type, padding, attributes)


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
) -> Tensor:
    """A transposed convolution of 8-bit floats times ``2**log2_scale``, in float16; see :func:`conv_transpose` and
    :func:`matmul_pow2scaled`."""
    function_name = "conv_transpose_pow2scaled"
    _check_eight(function_name, t, weight)
    _check_scale(function_name, log2_scale)
    options = _plan_options(function_name, available_memory_proportions, ["half"])
    attributes = {"strides": tuple(stride), "dilation": tuple(dilation), "groups": groups, **options}
    operands = (_k.ConvTransposePow2Scaled, t, weight, log2_scale)
    if output_shape:
        return _transposed_into(operands, tuple(output_shape), tuple(output_padding), attributes)
    attributes["output_padding"] = tuple(output_padding) or 0
    return _convolved(function_name, operands, pad_type, padding, attributes)


def _check_eight(function_name: str, *tensors: Tensor) -> None:
    """TypeError unless all are 8-bit floats."""
    for tensor in tensors:
        if tensor.dtype.category != "float8":
            raise TypeError(f"{function_name}: {tensor.id!r} is {tensor.dtype.name}; allowed: float8_143, float8_152")


def _check_scale(function_name: str, log2_scale: Tensor) -> None:
    """ValueError unless it is a scalar, TypeError unless it is a tensor of int32."""
    if not isinstance(log2_scale, Tensor):
        raise TypeError(f"{function_name}: log2_scale is {log2_scale!r}; a tensor is needed (popxl.constant)")
    if log2_scale.shape != ():
        raise ValueError(
            f"{function_name}: log2_scale {log2_scale.id!r} has shape {log2_scale.shape}; it must be a scalar tensor"
        )
    if log2_scale.dtype != INT32:
        raise TypeError(f"{function_name}: log2_scale {log2_scale.id!r} is {log2_scale.dtype.name}; int32 is needed")
