"""Logarithms of sums, LAMB's sum of squares, medians and histograms against NumPy and PyTorch."""

import numpy as np
import pytest

from ipuperf import ops

LOGS = {
    ops.ReduceLogSum: lambda torch, x, **k: x.sum(**k).log(),
    ops.ReduceLogSumExp: lambda torch, x, **k: x.logsumexp(**k),
}
AXES = [None, (0,), (-1,), (0, 2), (2, 0, 1)]


def dims(axes, rank):
    return tuple(range(rank)) if axes is None else axes


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("op_class", LOGS)
def test_logarithms_and_gradients(bench, rng, op_class, axes, keepdims):
    torch = pytest.importorskip("torch")
    x = rng.random((2, 3, 4, 5)) + 0.5
    bench.check(
        lambda graph, t: graph.create(op_class, [t], ["y"], axes=axes, keepdims=keepdims).outputs[0],
        lambda t: LOGS[op_class](torch, t, dim=dims(axes, 3), keepdim=keepdims),
        [x],
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3)])
@pytest.mark.parametrize("op_class", LOGS)
def test_logarithms_of_shapes_and_types(bench, rng, op_class, shape, dtype):
    x = (rng.random((2, *shape)) + 0.5).astype(dtype)
    wide = x.astype(np.float64)
    total = wide if op_class is ops.ReduceLogSum else np.exp(wide)
    expected = np.log(total.reshape(2, -1).sum(1))
    found = bench.run(op_class, x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=2e-3 if dtype == np.float16 else 1e-6, atol=1e-3)


def test_no_exponential_overflows(bench):
    x = np.array([[1e4, 1e4], [-1e4, -1e4], [np.inf, 0], [-np.inf, -np.inf]], np.float32)
    found = bench.run(ops.ReduceLogSumExp, x)
    np.testing.assert_allclose(found, [1e4 + np.log(2), -1e4 + np.log(2), np.inf, -np.inf])


@pytest.mark.parametrize("op_class", LOGS)
def test_of_nothing(bench, op_class):
    assert (bench.run(op_class, np.zeros((2, 0), np.float32)) == -np.inf).all()
    assert bench.run(op_class, np.zeros((2, 0, 3), np.float32), axes=(1,)).shape == (2, 0)


# -- LAMB --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5)])
def test_lamb_square(bench, rng, shape, dtype):
    x = (rng.standard_normal((2, *shape)) * 100).astype(dtype)
    found = bench.run(ops.LambSquare, x)
    assert found.dtype == np.float32  # the squares of halves would overflow
    np.testing.assert_allclose(found, (x.astype(np.float64) ** 2).reshape(2, -1).sum(1), rtol=1e-6)


# -- median ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axes", AXES)
def test_median(bench, rng, axes, keepdims):
    x = rng.permutation(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(np.float32)
    values, positions = bench.run(ops.ReduceMedian, x, outputs=2, axes=axes, keepdims=keepdims)
    where = tuple(a % 3 + 1 for a in dims(axes, 3))
    expected = np.quantile(x, 0.5, axis=where, method="lower", keepdims=keepdims)
    np.testing.assert_array_equal(values, expected)
    flat = np.moveaxis(x, sorted(where), range(-len(where), 0)).reshape(
        *(n for i, n in enumerate(x.shape) if i not in where), -1
    )
    np.testing.assert_array_equal(
        np.take_along_axis(flat, positions.reshape(*flat.shape[:-1], 1), -1).reshape(values.shape), values
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
@pytest.mark.parametrize("shape", [(), (1,), (4,)])
def test_median_of_shapes_and_types(bench, rng, shape, dtype):
    x = rng.permutation(2 * int(np.prod(shape))).reshape(2, *shape).astype(dtype)
    values, positions = bench.run(ops.ReduceMedian, x, outputs=2)
    np.testing.assert_array_equal(values, np.sort(x.reshape(2, -1), 1)[:, (max(x[0].size, 1) - 1) // 2])
    assert (values.dtype, positions.dtype) == (dtype, np.int32)


@pytest.mark.parametrize("axes", [None, (1,), (0, -1)])
def test_median_gradient(bench, rng, axes):
    x = rng.permutation(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(np.float64)
    _, grad, (found,) = bench.gradients(
        lambda graph, t: graph.create(ops.ReduceMedian, [t], ["y", "i"], axes=axes, keepdims=True).outputs[0], [x]
    )
    where = tuple(a % 3 + 1 for a in dims(axes, 3))
    middle = np.quantile(x, 0.5, axis=where, method="lower", keepdims=True)
    np.testing.assert_allclose(found, np.where(x == middle, grad, 0))


# -- histogram ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (50, 4)])
def test_histogram(bench, rng, shape, dtype, absolute):
    x = (rng.integers(-8, 8, (2, *shape)) / 4).astype(dtype)  # many lie on a level
    levels = (-1.5, 0.25, 1.0)
    found = bench.run(ops.Histogram, x, levels=levels, absolute_of_input=absolute)
    wide = np.abs(x) if absolute else x
    edges = (-np.inf, *levels, np.inf)
    expected = [
        [np.sum((low <= row) & (row < high)) for low, high in zip(edges, edges[1:], strict=False)] for row in wide
    ]
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, expected)


# -- cost --------------------------------------------------------------------------------------------------------------
