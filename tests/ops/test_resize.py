"""Interpolation against PyTorch, ONNX' definitions by hand, and regions of interest against plain loops."""

import itertools
import math

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import ShapeError
from ipuperf.ops.selection.dynamic import DynamicIndexError

TORCH = [
    ({"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}, {"mode": "nearest"}),
    ({"mode": "nearest", "nearest_mode": "round_prefer_ceil"}, {"mode": "nearest-exact"}),
    ({"mode": "linear"}, {"mode": "bilinear", "align_corners": False}),
    (
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "bilinear", "align_corners": True},
    ),
    ({"mode": "cubic"}, {"mode": "bicubic", "align_corners": False}),
    ({"mode": "cubic", "coordinate_transformation_mode": "align_corners"}, {"mode": "bicubic", "align_corners": True}),
]


@pytest.mark.parametrize("scales", [(2, 3), (1, 2), (0.5, 1.75), (1, 1), (1.3, 1.45), (0.8, 2.3), (1.55, 0.7)])
@pytest.mark.parametrize(("named", "torch_named"), TORCH, ids=lambda v: "-".join(map(str, v.values())))
def test_as_pytorch(bench, rng, named, torch_named, scales):
    torch = pytest.importorskip("torch")
    given = {"size": tuple(math.floor(n * s) for n, s in zip((4, 6), scales, strict=True))}
    if not torch_named.get("align_corners"):  # what PyTorch says of corners regards sizes alone
        given = {"scale_factor": tuple(map(float, scales))}
    elif any(n * s % 1 for n, s in zip((4, 6), scales, strict=True)):
        pytest.skip("PopART places corners by the scale, PyTorch by the sizes")
    bench.check(
        lambda graph, t: graph.create(ops.Resize, [t], ["y"], scales=(1, 1, *scales), **named).outputs[0],
        lambda t: torch.nn.functional.interpolate(t, **given, **torch_named),
        [rng.standard_normal((2, 2, 3, 4, 6))],
        rtol=1e-5,  # places in float32
        atol=1e-5,
    )


def test_corners_by_the_scale(bench):
    """``resizex.cpp``: the last element of three made 4.5 - 0.5 lies at 3 x 2 / 3.5, short of the corner."""
    x = np.arange(3.0)[np.newaxis]
    named = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    result = bench.run(ops.Resize, x, scales=(1.5,), **named)
    np.testing.assert_allclose(result, [[0, 2 / 3.5, 4 / 3.5, 6 / 3.5]], rtol=1e-6)


@pytest.mark.parametrize("scale", [1.2, 0.8])
def test_a_scale_acts_where_the_length_stays(bench, scale):
    x, length = np.arange(4.0)[np.newaxis], math.floor(4 * scale)
    result = bench.run(ops.Resize, x, scales=(scale,), mode="linear")
    np.testing.assert_allclose(result, [np.interp((np.arange(length) + 0.5) / scale - 0.5, range(4), x[0])], rtol=1e-6)


def test_lengths_are_cut_in_float32(bench):
    """100 x 0.29 is 28.999999999999996 in float64; ``resize.cpp`` has 29."""
    assert bench.op(ops.Resize, np.zeros((1, 100), np.float32), scales=(0.29,)).outputs[0].shape == (29,)


#: Of three elements made six (two for asymmetric): where each comes from, by rounding.
ROUNDED = {
    ("half_pixel", "round_prefer_floor"): [0, 0, 1, 1, 2, 2],
    ("half_pixel", "floor"): [0, 0, 0, 1, 1, 2],
    ("half_pixel", "ceil"): [0, 1, 1, 2, 2, 2],
    ("asymmetric", "round_prefer_floor"): [0, 0, 1, 1, 2, 2],
    ("asymmetric", "round_prefer_ceil"): [0, 1, 1, 2, 2, 2],
    ("pytorch_half_pixel", "round_prefer_ceil"): [0, 0, 1, 1, 2, 2],
    ("align_corners", "ceil"): [0, 1, 1, 2, 2, 2],
}


@pytest.mark.parametrize(("coordinates", "rounding"), ROUNDED)
def test_rounding(bench, coordinates, rounding):
    x = np.arange(3.0)[np.newaxis]
    named = {"nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
    np.testing.assert_array_equal(bench.run(ops.Resize, x, scales=(2,), **named)[0], ROUNDED[coordinates, rounding])


@pytest.mark.parametrize(("coordinates", "value"), [("half_pixel", 0.75), ("pytorch_half_pixel", 0.75)])
def test_one_element_left(bench, coordinates, value):
    x = np.arange(3.0)[np.newaxis]
    found = bench.run(ops.Resize, x, scales=(0.4,), mode="linear", coordinate_transformation_mode=coordinates)
    np.testing.assert_array_equal(found, [[value]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("shape", "scales"), [((), ()), ((0,), (2,)), ((1,), (3,)), ((2, 0), (2, 2))])
def test_of_little(bench, shape, scales, mode, dtype):
    found = bench.run(ops.Resize, np.full((2, *shape), 1.5, dtype), scales=scales, mode=mode)
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found, np.full((2, *(n * s for n, s in zip(shape, scales, strict=True))), 1.5), rtol=1e-6
    )


def test_half_is_rounded_once(bench, rng):
    x = rng.standard_normal((1, 9, 9)).astype(np.float16)
    named = {"scales": (2, 3), "mode": "cubic"}
    wide = bench.run(ops.Resize, x.astype(np.float32), **named).astype(np.float16)
    np.testing.assert_array_equal(bench.run(ops.Resize, x, **named), wide)


# -- regions of interest -----------------------------------------------------------------------------------------------


def sample(image, y, x):
    """One bilinear sample of ``image (C, H, W)``, by the definition of ONNX' RoiAlign."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0 * image[:, 0, 0]
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = int(y), int(x)
    below, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = y - top, x - left
    upper = image[:, top, left] * (1 - u) + image[:, top, right] * u
    return upper * (1 - v) + (image[:, below, left] * (1 - u) + image[:, below, right] * u) * v


def pooled(images, rois, batch, size, scale, ratio):
    import torch

    found = []
    for region, index in zip(rois.tolist(), batch.tolist(), strict=True):
        x1, y1, x2, y2 = (v * scale for v in region)
        high, wide = max(y2 - y1, 1) / size[0], max(x2 - x1, 1) / size[1]
        for i, j in np.ndindex(*size):
            points = itertools.product(range(ratio), range(ratio))
            found.append(
                sum(
                    sample(images[index], y1 + (i + (a + 0.5) / ratio) * high, x1 + (j + (b + 0.5) / ratio) * wide)
                    for a, b in points
                )
                / ratio**2
            )
    return torch.stack(found).reshape(len(rois), *size, -1).permute(0, 3, 1, 2)


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("size", [(2, 3), (1, 1)])
def test_roi_align(bench, rng, size, ratio):
    images, batch = rng.standard_normal((2, 2, 3, 5, 6)), np.array([[1, 0, 1], [0, 0, 1]], np.int32)
    rois = rng.uniform(-4, 14, (2, 3, 4))  # some lie outside, some are narrower than an element
    named = {"output_size": size, "spatial_scale": 0.5, "sampling_ratio": ratio}
    output, grad, (found,) = bench.gradients(
        lambda graph, *ts: graph.create(ops.RoiAlign, ts, ["y"], **named).outputs[0],
        [images, rois, batch],
        required=[0],
    )
    torch = pytest.importorskip("torch")
    for r in range(2):
        leaf = torch.tensor(images[r], requires_grad=True)
        expected = pooled(leaf, rois[r], batch[r], size, 0.5, ratio)
        np.testing.assert_allclose(output[r], expected.detach().numpy(), rtol=1e-9, atol=1e-12)
        expected.backward(torch.tensor(grad[r]))
        np.testing.assert_allclose(found[r], leaf.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("count", [0, 1])
def test_roi_align_of_a_constant(bench, dtype, count):
    images, rois = np.full((1, 1, 2, 4, 4), 1.5, dtype), np.tile(np.array([0, 0, 3, 3], dtype), (1, count, 1))
    named = {"output_size": (2, 2), "sampling_ratio": 2}
    found = bench.run(ops.RoiAlign, images, rois, np.zeros((1, count), np.int32), **named)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.full((1, count, 2, 2, 2), 1.5))


def test_roi_align_errors_and_cost(bench):
    images, rois, batch = (
        np.zeros((1, 1, 2, 4, 4), np.float32),
        np.zeros((1, 3, 4), np.float32),
        np.ones((1, 3), np.int32),
    )
    named = {"output_size": (2, 2), "sampling_ratio": 2}
    with pytest.raises(DynamicIndexError, match="image 1 is out of range; allowed: 0 to 0"):
        bench.run(ops.RoiAlign, images, rois, batch, **named)
    with pytest.raises(ShapeError, match=r"\(n, 4\) and \(n,\) are needed"):
        bench.op(ops.RoiAlign, images, rois[:, :2], batch, **named)
    with pytest.raises(ShapeError, match="a ratio from 1 on"):
        bench.op(ops.RoiAlign, images, rois, batch, output_size=(2, 2), sampling_ratio=0)
    with pytest.raises(ShapeError, match="batch, channels, rows, columns"):
        bench.op(ops.RoiAlign, images[:, 0], rois, batch, **named)
    (work,) = bench.op(ops.RoiAlign, images, rois, batch, **named).work()
    assert work.low_confidence
