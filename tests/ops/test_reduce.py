"""Reductions against NumPy and PyTorch."""

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import INT32, DTypeError, ShapeError

NUMPY = {
    ops.ReduceSum: np.sum,
    ops.ReduceMean: np.mean,
    ops.ReduceMax: np.max,
    ops.ReduceMin: np.min,
    ops.ReduceProd: np.prod,
    ops.ReduceSumSquare: lambda x, **k: np.sum(x * x, **k),
    ops.ReduceL1: lambda x, **k: np.sum(np.abs(x), **k),
    ops.ReduceL2: lambda x, **k: np.sqrt(np.sum(x * x, **k)),
}
AXES = [None, (0,), (1,), (-1,), (0, 2), (2, 0, 1), (), 1]


def expected(op_class, x, axes, keepdims):
    axes = tuple(range(x.ndim - 1)) if axes is None else axes
    axes = (axes,) if isinstance(axes, int) else axes
    return np.stack([NUMPY[op_class](row, axis=axes, keepdims=keepdims) for row in x])


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("op_class", NUMPY)
def test_values(bench, rng, op_class, axes, keepdims):
    x = rng.standard_normal((2, 3, 4, 5))
    found = bench.run(op_class, x, axes=axes, keepdims=keepdims)
    np.testing.assert_allclose(found, expected(op_class, x, axes, keepdims), rtol=1e-12)


@pytest.mark.parametrize("op_class", NUMPY)
def test_half_accumulates_in_float32(bench, rng, op_class):
    x = (rng.random((2, 5, 300)) * 2).astype(np.float16)
    if op_class is ops.ReduceProd:
        x = x[:, :, :10]
    wide = expected(op_class, x.astype(np.float32), (1,), False).astype(np.float16)
    np.testing.assert_array_max_ulp(bench.run(op_class, x, axes=(1,)), wide, maxulp=1)


def test_half_sum_beyond_the_resolution_of_half(bench):
    x = np.ones((1, 4096), np.float16)
    assert bench.run(ops.ReduceSum, x) == np.float16(4096)  # adding ones in half would stop at 2048


def test_operand_that_is_not_contiguous(bench, rng):
    x = rng.standard_normal((2, 4, 6)).swapaxes(1, 2)
    np.testing.assert_allclose(bench.run(ops.ReduceL2, x), expected(ops.ReduceL2, x, None, False))
    np.testing.assert_allclose(bench.run(ops.ReduceSum, x), expected(ops.ReduceSum, x, None, False))


def test_integer_sum_keeps_its_type(bench):
    x = np.array([[2, 3, 4]], np.int32)
    found = bench.run(ops.ReduceSum, x)
    assert found.dtype == np.int32
    assert found == 9


def torch_reference(torch, op_class, axes):
    dims = tuple(range(3)) if axes is None else (axes,) if isinstance(axes, int) else axes

    def product(x):
        for axis in sorted((d % 3 for d in dims), reverse=True):
            x = x.prod(dim=axis)
        return x

    def plain(function):
        return lambda x: function(x, dim=dims) if dims else function(x.unsqueeze(0), dim=0)

    return {
        ops.ReduceSum: plain(torch.sum),
        ops.ReduceMean: plain(torch.mean),
        ops.ReduceMax: plain(torch.amax),
        ops.ReduceMin: plain(torch.amin),
        ops.ReduceProd: product,
        ops.ReduceSumSquare: plain(lambda x, dim: (x * x).sum(dim=dim)),
        ops.ReduceL1: plain(lambda x, dim: x.abs().sum(dim=dim)),
        ops.ReduceL2: plain(lambda x, dim: (x * x).sum(dim=dim).sqrt()),
    }[op_class]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("op_class", NUMPY)
def test_gradients(bench, rng, op_class, axes):
    torch = pytest.importorskip("torch")
    bench.check(
        lambda g, t: g.create(op_class, [t], ["y"], axes=axes, keepdims=False).outputs[0],
        torch_reference(torch, op_class, axes),
        [rng.standard_normal((2, 3, 4, 5))],
    )


def test_product_gradient_with_zeros(bench):
    torch = pytest.importorskip("torch")
    x = np.array([[[0.0, 2, 3], [0, 0, 5]], [[1, 2, 3], [4, 0, 6]]])
    bench.check(
        lambda g, t: g.create(ops.ReduceProd, [t], ["y"], axes=(1,)).outputs[0], lambda t: torch.prod(t, dim=1), [x]
    )


@pytest.mark.parametrize(("op_class", "function"), [(ops.ArgMax, np.argmax), (ops.ArgMin, np.argmin)])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdim", [True, False])
def test_positions(bench, rng, op_class, function, axis, keepdim):
    x = rng.integers(0, 4, (2, 3, 5)).astype(np.float16)
    op = bench.op(op_class, x, axis=axis, keepdim=keepdim)
    assert op.outputs[0].dtype == INT32
    found = bench.run(op_class, x, axis=axis, keepdim=keepdim)
    np.testing.assert_array_equal(found, np.stack([function(row, axis=axis, keepdims=keepdim) for row in x]))


def test_errors(bench):
    x = np.ones((1, 3, 4), np.float32)
    with pytest.raises(ShapeError, match="axis 2 is out of range for rank 2"):
        bench.op(ops.ReduceSum, x, axes=(2,))
    with pytest.raises(ShapeError, match="name an axis twice"):
        bench.op(ops.ReduceSum, x, axes=(0, -2))
    with pytest.raises(DTypeError, match="floating-point type is needed"):
        bench.op(ops.ReduceMean, x.astype(np.int32))
    with pytest.raises(DTypeError, match="bool"):
        bench.op(ops.ReduceSum, x.astype(bool))
    with pytest.raises(ShapeError, match="no extreme of no elements"):
        bench.op(ops.ReduceMax, x[:, :0])
    with pytest.raises(ShapeError, match="axis 5 is out of range"):
        bench.op(ops.ArgMax, x, axis=5)
