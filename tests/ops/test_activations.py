"""Activations against PyTorch: values, fused gradients, blocks, fp16, in place."""

import math

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import ShapeError
from ipuperf.ops.binding import BLOCK
from ipuperf.ops.elementwise.activations import erfc_polynomial

CASES = {
    "relu": (ops.Relu, lambda t: t.relu),
    "tanh": (ops.Tanh, lambda t: t.tanh),
    "gelu": (ops.Gelu, lambda t: lambda x: t.nn.functional.gelu(x, approximate="tanh")),
    "geluerf": (ops.GeluErf, lambda t: t.nn.functional.gelu),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(2, 4, 33), (1, 3 * BLOCK + 17), (2, 1)])
def test_value_and_gradient(bench, rng, name, shape):
    torch = pytest.importorskip("torch")
    op_class, reference = CASES[name]
    x = rng.standard_normal(shape) * 3
    bench.check(lambda g, t: g.create(op_class, [t], ["y"]).outputs[0], reference(torch), [x], atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_float32_and_half(bench, rng, name):
    torch = pytest.importorskip("torch")
    op_class, reference = CASES[name]
    x = np.concatenate([rng.standard_normal((2, 500)) * 4, np.full((2, 2), 60), np.full((2, 2), -60)], axis=1)
    for dtype, tolerance in ((np.float32, 5e-7), (np.float16, 1e-3)):
        narrow = x.astype(dtype)
        expected = reference(torch)(torch.tensor(narrow.astype(np.float64))).numpy()
        found = bench.run(op_class, narrow)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op_class", [ops.ReluInplace, ops.GeluInplace, ops.GeluErfInplace])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_in_place_equals_out_of_place(bench, rng, op_class, dtype):
    plain = {ops.ReluInplace: ops.Relu, ops.GeluInplace: ops.Gelu, ops.GeluErfInplace: ops.GeluErf}[op_class]
    x = rng.standard_normal((2, 40)).astype(dtype)
    expected = bench.run(plain, x.copy())
    assert bench.run(op_class, x) is x
    np.testing.assert_array_equal(x, expected)


def test_half_gradient_is_rounded_once(bench, rng):
    x, grad = (rng.standard_normal((2, 300)).astype(np.float16) for _ in range(2))
    wide = bench.run(ops.GeluGrad, grad.astype(np.float32), x.astype(np.float32))
    np.testing.assert_array_equal(bench.run(ops.GeluGrad, grad, x), wide.astype(np.float16))


def test_relu_gradient_blocks_infinities(bench):
    grad, y = np.array([[np.inf, np.nan, 2.0]], np.float32), np.array([[0, 0, 1]], np.float32)
    np.testing.assert_array_equal(bench.run(ops.ReluGrad, grad, y), [[0, 0, 2]])


def test_clip(bench, rng):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 50))
    bench.check(
        lambda g, t: g.create(ops.Clip, [t], ["y"], min=-0.5, max=0.75).outputs[0],
        lambda t: torch.clamp(t, -0.5, 0.75),
        [x],
    )
    with pytest.raises(ShapeError, match=r"min=2\.0 exceeds max=1\.0"):
        bench.op(ops.Clip, x, min=2, max=1)


def test_a_clip_has_no_gradient_on_its_limits(bench):
    grad, x = np.ones((1, 5), np.float32), np.array([[-0.75, -0.5, 0, 0.75, 2]], np.float32)
    np.testing.assert_array_equal(bench.run(ops.ClipGrad, grad, x, min=-0.5, max=0.75), [[0, 0, 1, 0, 0]])


def test_operands_that_are_not_contiguous(bench, rng):
    x = rng.standard_normal((2, 6, 5)).astype(np.float32).swapaxes(1, 2)
    np.testing.assert_array_equal(bench.run(ops.Gelu, x), bench.run(ops.Gelu, np.ascontiguousarray(x)))


@pytest.mark.parametrize(("degree", "limit", "error"), [(10, 10.5, 3e-8), (22, 6, 1e-13)])
def test_erfc_fit(degree, limit, error):
    powers, a, b = erfc_polynomial(degree, limit)
    for z in np.linspace(0, limit, 301):
        t = 1 / (1 + z / 2)
        assert t * math.exp(np.polyval(powers, a * t + b) - z * z) == pytest.approx(math.erfc(z), rel=2 * error)


@pytest.mark.parametrize("op", [ops.Erfc, ops.GeluErf])
def test_small_values_are_as_exact_as_large_ones(bench, op):
    """What the error function leaves of 1 keeps its digits, far beyond the resolution of 1."""
    z = np.float32([[0.01, 0.5, 1, 2, 3, 4, 6, 9]])
    x = z if op is ops.Erfc else -z * math.sqrt(2)
    expected = [math.erfc(v) if op is ops.Erfc else -v * math.sqrt(2) * math.erfc(v) / 2 for v in z[0].tolist()]
    np.testing.assert_allclose(bench.run(op, x.astype(np.float32))[0], expected, rtol=3e-5)
    assert not bench.run(op, np.float32([[11 if op is ops.Erfc else -99]])).any()
