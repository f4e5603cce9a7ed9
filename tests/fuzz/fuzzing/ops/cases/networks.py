"""Products, convolutions, poolings, norms, losses, interpolation; products of 8-bit floats."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ipuperf.popxl as popxl
from ipuperf.popxl import ops

from .base import Case, Drawn, shape_of

F = torch.nn.functional
HALF = ("float16",)
PRODUCTS = ("float32", "float32", "float16")
SINGLE = ("float32", "float32", "float64")


def _matrices(r: random.Random) -> Drawn:
    n, k, m = (r.randint(1, 6) for _ in range(3))
    lead = shape_of(r, 0, 2, 3)
    other = lead[r.randint(0, len(lead)) :]
    first, second = [*lead, n, k], [*other, k, m]
    if r.random() < 0.2:
        first, second = r.choice([([k], [k, m]), ([n, k], [k]), ([k], [k])])
    return [["normal", first, "any"], ["normal", second, "any"]], {}


# -- convolutions and poolings -----------------------------------------------------------------------------------------


def _image(r: random.Random, channels: int, low: int = 4) -> list[int]:
    return [r.choice([1, 2]), channels, r.randint(low, 8), r.randint(low, 8)]


def _pair(r: random.Random, high: int, low: int = 1) -> list[int]:
    return [r.randint(low, high), r.randint(low, high)]


def _padded(x: Any, padding: list[int], value: float = 0.0) -> Any:
    """ONNX's padding: beginnings of all axes, then their ends."""
    top, left, bottom, right = padding
    return F.pad(x, (left, right, top, bottom), value=value)


def _conv_arguments(r: random.Random) -> Drawn | None:
    groups = r.choice([1, 1, 2, 3])
    inner, outer, kernel = r.randint(1, 2), groups * r.randint(1, 2), _pair(r, 3)
    x = _image(r, groups * inner)
    arguments: dict[str, Any] = {"stride": _pair(r, 3), "dilation": _pair(r, 2), "groups": groups}
    if r.random() < 0.3:
        arguments |= {"pad_type": r.choice(["same_upper", "same_lower"]), "dilation": [1, 1]}
    else:
        arguments["padding"] = [r.randint(0, 2) for _ in range(4)]
    fits = all(n >= d * (k - 1) + 1 for n, d, k in zip(x[2:], arguments["dilation"], kernel))
    return ([["normal", x, "any"], ["normal", [outer, inner, *kernel], "any"]], arguments) if fits else None


def _same(length: int, kernel: int, stride: int, upper: bool) -> tuple[int, int]:
    total = max(0, (-(-length // stride) - 1) * stride + kernel - length)
    return (total // 2, total - total // 2) if upper else (total - total // 2, total // 2)


def _conv(x: Any, w: Any, stride: Any, dilation: Any, groups: int, padding: Any = None, pad_type: str = "") -> Any:
    if pad_type:
        pairs = [_same(x.shape[2 + i], w.shape[2 + i], stride[i], pad_type == "same_upper") for i in (0, 1)]
        padding = [pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]]
    return F.conv2d(_padded(x, padding), w, stride=stride, dilation=dilation, groups=groups)


def _transposed_arguments(r: random.Random) -> Drawn | None:
    groups, inner, outer, kernel = r.choice([1, 1, 2]), r.randint(1, 2), r.randint(1, 2), _pair(r, 3)
    stride, dilation, padding = _pair(r, 3), _pair(r, 2), _pair(r, 1, 0)
    more = [r.randint(0, s - 1) for s in stride] if r.random() < 0.4 else [0, 0]
    x = _image(r, groups * inner, 2)
    length = [
        (n - 1) * s - 2 * p + d * (k - 1) + m + 1
        for n, s, p, d, k, m in zip(x[2:], stride, padding, dilation, kernel, more)
    ]
    if min(length) < 1:
        return None
    arguments = {
        "stride": stride,
        "padding": padding * 2,
        "dilation": dilation,
        "groups": groups,
        "output_padding": more,
    }
    return [["normal", x, "any"], ["normal", [groups * inner, outer, *kernel], "any"]], arguments


def _conv_transpose(x: Any, w: Any, padding: Any, **arguments: Any) -> Any:
    return F.conv_transpose2d(x, w, padding=padding[:2], **arguments)


def _pool_arguments(r: random.Random) -> Drawn:
    kernel = _pair(r, 3)
    padding = [r.randint(0, k // 2) for k in kernel]
    x = _image(r, r.randint(1, 3))
    return [["distinct", x, "any"]], {"kernel_size": kernel, "stride": _pair(r, 3), "padding": padding * 2}


def _max_pool(x: Any, kernel_size: Any, stride: Any, padding: Any) -> Any:
    return F.max_pool2d(x, kernel_size, stride, padding[:2])


def _average_pool(x: Any, kernel_size: Any, stride: Any, padding: Any) -> Any:
    return F.avg_pool2d(x, kernel_size, stride, padding[:2], count_include_pad=False)


# -- norms, losses, interpolation --------------------------------------------------------------------------------------


def _group_norm(r: random.Random) -> Drawn | None:
    groups = r.choice([1, 2, 3])
    channels, rest = groups * r.randint(1, 3), shape_of(r, 0, 2, 4)
    count = channels // groups
    for n in rest:
        count *= n
    shapes = ([r.randint(1, 4), channels, *rest], [channels], [channels])
    return (
        ([["normal", s, "any"] for s in shapes], {"num_groups": groups, "eps": r.choice([1e-5, 1e-3])})
        if count > 2
        else None
    )


def _layer_norm(r: random.Random) -> Drawn:
    width = r.randint(3, 9)
    shapes = ([r.randint(1, 5), width, *shape_of(r, 0, 2)], [width], [width])
    return [["normal", s, "any"] for s in shapes], {"eps": r.choice([1e-5, 1e-3])}


def _batch_norm(r: random.Random) -> Drawn:
    x = _image(r, r.randint(1, 4), 1)
    shapes = [["normal", x, "any"], *([role, [x[1]], "any"] for role in ("normal", "normal", "normal", "positive"))]
    return shapes, {"epsilon": r.choice([1e-5, 1e-2])}


def _labelled(r: random.Random) -> Drawn:
    shape, classes = shape_of(r, 1, 2), r.randint(2, 6)
    labels = ["index", shape, r.choice(["int32", "uint32"]), classes]
    reduction = r.choice(["mean", "sum", "none"])
    ignored = None if reduction == "mean" else r.choice([None, 0, 1])
    return [["normal", [*shape, classes], "any"], labels], {"ignore_index": ignored, "reduction": reduction}


def _nll(x: Any, labels: Any, ignore_index: Any, reduction: str, **more: Any) -> Any:
    ignored = -100 if ignore_index is None else ignore_index
    loss = F.cross_entropy(
        x.reshape(-1, x.shape[-1]), labels.reshape(-1).long(), ignore_index=ignored, reduction=reduction
    )
    return loss.reshape(labels.shape) if reduction == "none" else loss


def _nll_loss(f: Any, x: Any, labels: Any, log_prob: bool, **arguments: Any) -> Any:
    probabilities = ops.softmax(x, -1)
    return f(ops.log(probabilities) if log_prob else probabilities, labels, log_prob=log_prob, **arguments)


def _nll_and_gradient(x: Any, labels: Any, **arguments: Any) -> Any:
    x = x.detach().requires_grad_()
    loss = _nll(x, labels, **arguments)
    return loss, torch.autograd.grad(loss.sum(), x)[0]


def _with_softmax(f: Any, x: Any, labels: Any, **arguments: Any) -> Any:
    shape = labels.shape if arguments["reduction"] == "none" else ()
    return f(ops.softmax(x, -1), labels, popxl.constant(torch.ones(shape).numpy(), x.dtype), **arguments)


MODES = {
    "nearest": {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
    "bilinear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
}


def _scaled(r: random.Random) -> Drawn:
    """Any scale that leaves an element."""
    lengths = [r.randint(1, 6), r.randint(1, 5)]
    scale = [1.0, 1.0, *(round(r.uniform(1.01 / n, 3.0), 2) for n in lengths)]
    return [["normal", [1, 2, *lengths], "any"]], {"scale_factor": scale, "kind": r.choice(list(MODES))}


def _interpolated(x: Any, scale_factor: list[float], kind: str) -> Any:
    """Axis by axis: PyTorch's own leaves the scale out where a length stays or doubles."""
    for axis, scale in enumerate(scale_factor):
        length, centre = x.shape[axis], np.float32(0 if kind == "nearest" else 0.5)
        at = (np.arange(int(length * scale), dtype=np.float32) + centre) / np.float32(scale) - centre
        low = np.floor(at)
        a, b = (x.index_select(axis, torch.tensor(low + i).long().clamp(0, length - 1)) for i in (0, 1))
        part = torch.tensor(at - low if kind == "bilinear" else 0 * at)
        x = a + (b - a) * part.reshape([-1 if i == axis else 1 for i in range(x.dim())])
    return x


def _regions(r: random.Random) -> Drawn:
    x, count = _image(r, 2, 3), r.randint(1, 3)
    corners = [[r.randint(0, 4) / 2, r.randint(0, 4) / 2] for _ in range(count)]
    boxes = [[a, b, a + r.randint(0, 8) / 2, b + r.randint(0, 8) / 2] for a, b in corners]
    operands = [["normal", x, "any"], ["fixed", [count, 4], "any", boxes], ["index", [count], "int32", x[0]]]
    more = {"output_size": _pair(r, 3), "spatial_scale": r.choice([0.5, 1.0]), "sampling_ratio": r.randint(1, 2)}
    return operands, more


def _roi_align(x: Any, boxes: Any, images: Any, output_size: Any, spatial_scale: float, sampling_ratio: int) -> Any:
    """Averages of bilinear samples, sample by sample (torchvision: ``roi_align``, not aligned)."""
    pooled = []
    for box, image in zip((boxes.detach() * spatial_scale).tolist(), images.tolist(), strict=True):
        size = [max(box[3] - box[1], 1.0) / output_size[0], max(box[2] - box[0], 1.0) / output_size[1]]
        for i in range(output_size[0] * output_size[1]):
            first = [
                corner + part * length for corner, part, length in zip(box[1::-1], divmod(i, output_size[1]), size)
            ]
            parts = [(k + 0.5) / sampling_ratio for k in range(sampling_ratio)]
            samples = [_sample(x[image], first[0] + a * size[0], first[1] + b * size[1]) for a in parts for b in parts]
            pooled.append(sum(samples) / len(samples))
    return torch.stack(pooled).reshape(len(images), *output_size, x.shape[1]).permute(0, 3, 1, 2)


def _sample(image: Any, y: float, x: float) -> Any:
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return torch.zeros(image.shape[0], dtype=image.dtype)
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right, a, b = min(top + 1, height - 1), min(left + 1, width - 1), y - top, x - left
    upper = image[:, top, left] * (1 - b) + image[:, top, right] * b
    return upper * (1 - a) + (image[:, bottom, left] * (1 - b) + image[:, bottom, right] * b) * a


# -- 8-bit floats ------------------------------------------------------------------------------------------------------

FORMATS = {"float8_143": torch.float8_e4m3fnuz, "float8_152": torch.float8_e5m2fnuz}


def rounded8(x: Any, dtype: str, log2_scale: int = 0) -> Any:
    """The value of the nearest number of 8 bits to the scaled one."""
    return (x * 2.0**log2_scale).float().to(FORMATS[dtype]).to(torch.float64)


def _eighth(draw: Callable[[random.Random], Drawn | None]) -> Callable[[random.Random], Drawn | None]:
    """The operands of a call as 8-bit floats, and the scale of its result."""

    def drawn(r: random.Random) -> Drawn | None:
        found = draw(r)
        if found is None:
            return None
        operands, arguments = found
        formats = [r.choice(list(FORMATS)) for _ in operands]
        return [*operands, ["fixed", [], "int32", r.randint(-3, 3)]], {**arguments, "formats": formats}

    return drawn


def _scaled_by_power(f: Any, x: Any, y: Any, scale: Any, formats: list[str], **arguments: Any) -> Any:
    zero = popxl.constant(0, popxl.int32)
    x, y = (ops.pow2scale_cast_to_fp8(t, zero, getattr(popxl, d)) for t, d in zip((x, y), formats, strict=True))
    return f(x, y, scale, **arguments)


def _of_eighths(oracle: Callable[..., Any]) -> Callable[..., Any]:
    def value(x: Any, y: Any, scale: Any, formats: list[str], **arguments: Any) -> Any:
        x, y = (rounded8(t, d) for t, d in zip((x, y), formats, strict=True))
        return oracle(x, y, **arguments) * 2.0 ** int(scale)

    return value


def _to_eighth(r: random.Random) -> Drawn:
    operands = [["normal", shape_of(r), "any"], ["fixed", [], "int32", r.randint(-3, 3)]]
    return operands, {"data_type": r.choice(list(FORMATS))}


def _from_eighth(f: Any, x: Any, scale: Any, data_type: str) -> Any:
    eighth = ops.pow2scale_cast_to_fp8(x, popxl.constant(0, popxl.int32), getattr(popxl, data_type))
    return f(eighth, scale, popxl.float16)


def _fully_connected(r: random.Random) -> Drawn:
    n, k, m = (r.randint(1, 6) for _ in range(3))
    return [["normal", [n, k], "any"], ["normal", [k, m], "any"]], {}


EIGHTH = {
    "pow2scale_cast_to_fp8": Case(
        _to_eighth, lambda x, scale, data_type: rounded8(x, data_type, int(scale)),
        lambda f, x, scale, data_type: f(x, scale, getattr(popxl, data_type)), gradient=False, dtypes=HALF,
    ),
    "pow2scale_cast_from_fp8": Case(
        _to_eighth, lambda x, scale, data_type: rounded8(x, data_type) * 2.0 ** int(scale), _from_eighth,
        gradient=False, dtypes=HALF,
    ),
    "matmul_pow2scaled": Case(
        _eighth(_fully_connected), _of_eighths(torch.matmul), _scaled_by_power, gradient=False, dtypes=HALF
    ),
    "conv_pow2scaled": Case(
        _eighth(_conv_arguments), _of_eighths(_conv), _scaled_by_power, gradient=False, dtypes=HALF
    ),
    "conv_transpose_pow2scaled": Case(
        _eighth(_transposed_arguments), _of_eighths(_conv_transpose), _scaled_by_power, gradient=False, dtypes=HALF
    ),
}  # fmt: skip

CASES = {
    "matmul": Case(_matrices, torch.matmul, dtypes=PRODUCTS, hostable=(0, 1)),
    "conv": Case(_conv_arguments, _conv, dtypes=PRODUCTS),
    "conv_transpose": Case(_transposed_arguments, _conv_transpose, dtypes=PRODUCTS),
    "max_pool": Case(_pool_arguments, _max_pool, dtypes=SINGLE),
    "average_pool": Case(_pool_arguments, _average_pool),
    "group_norm": Case(
        _group_norm, lambda x, w, b, num_groups, eps: F.group_norm(x, num_groups, w, b, eps), dtypes=SINGLE, rounding=20
    ),
    "layer_norm": Case(
        _layer_norm, lambda x, w, b, eps: F.group_norm(x, 1, w, b, eps), dtypes=SINGLE, rounding=20
    ),
    "batch_norm_inference": Case(
        _batch_norm, lambda x, w, b, m, v, epsilon: F.batch_norm(x, m, v, w, b, False, 0.1, epsilon), gradient=False
    ),
    "nll_loss": Case(
        lambda r: (_labelled(r)[0], {**_labelled(r)[1], "log_prob": r.random() < 0.5}), _nll, _nll_loss, dtypes=SINGLE
    ),
    "nll_loss_with_softmax_grad": Case(_labelled, _nll_and_gradient, _with_softmax, gradient=False, dtypes=SINGLE),
    "interpolate": Case(
        _scaled, _interpolated, lambda f, x, scale_factor, kind: f(x, scale_factor, **MODES[kind]), gradient=False
    ),
    "roi_align": Case(_regions, _roi_align, gradient=False, dtypes=("float32",)),
    **EIGHTH,
}  # fmt: skip
