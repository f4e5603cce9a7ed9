"""Unary ops, casts and copies against NumPy and PyTorch."""

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import FLOAT16, FLOAT32, INT32

FUNCTIONS = [
    (ops.Abs, np.abs),
    (ops.Neg, np.negative),
    (ops.Exp, np.exp),
    (ops.Log, np.log),
    (ops.Log2, np.log2),
    (ops.Sqrt, np.sqrt),
    (ops.Tanh, np.tanh),
    (ops.Sin, np.sin),
    (ops.Cos, np.cos),
    (ops.Sign, np.sign),
    (ops.Floor, np.floor),
    (ops.Ceil, np.ceil),
]


@pytest.mark.parametrize(("op_class", "function"), FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_values(bench, rng, op_class, function, dtype):
    x = (rng.random((2, 3, 5)) * 3 + 0.1).astype(dtype)
    expected = function(x.astype(np.float32)).astype(dtype)
    ulp = 2 if dtype == np.float32 else 1
    np.testing.assert_array_max_ulp(bench.run(op_class, x), expected, maxulp=ulp)


def test_predicates(bench):
    x = np.array([[1.0, np.nan, np.inf, -np.inf]], np.float16)
    np.testing.assert_array_equal(bench.run(ops.IsNaN, x), np.isnan(x))
    np.testing.assert_array_equal(bench.run(ops.IsInf, x), np.isinf(x))
    np.testing.assert_array_equal(bench.run(ops.IsFinite, x), np.isfinite(x))
    mask = np.array([[True, False]])
    np.testing.assert_array_equal(bench.run(ops.Not, mask), ~mask)


def test_integers(bench):
    x = np.array([[-3, 0, 4]], np.int32)
    np.testing.assert_array_equal(bench.run(ops.Abs, x), [[3, 0, 4]])
    np.testing.assert_array_equal(bench.run(ops.Neg, x), [[3, 0, -4]])
    np.testing.assert_array_equal(bench.run(ops.Sign, x), [[-1, 0, 1]])


def test_in_place(bench, rng):
    x = rng.standard_normal((2, 7)).astype(np.float32)
    before = x.copy()
    assert bench.run(ops.ExpInplace, x) is x
    np.testing.assert_allclose(x, np.exp(before), rtol=1e-6)
    assert bench.op(ops.ExpInplace, x).modified_inputs() == (0,)
    (work,) = bench.op(ops.ExpInplace, x).work()
    assert work.vertex == "popops::UnaryOp1DInPlace<EXPONENT,float>"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (np.float32, "float16"),
        (np.float16, "float32"),
        (np.float32, "int32"),
        (np.int32, "float32"),
        (np.float32, "bool"),
        (np.int32, "uint8"),
    ],
)
def test_cast(bench, rng, source, target):
    from ipuperf.ir import ALL_DTYPES

    x = (rng.standard_normal((2, 6)) * 40).astype(source)
    np.testing.assert_array_equal(bench.run(ops.Cast, x, dtype=ALL_DTYPES[target]), x.astype(target))


def test_cast_rounds_to_nearest_even_and_overflows(bench):
    x = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 1e6, -2.7]], np.float32)
    np.testing.assert_array_equal(
        bench.run(ops.Cast, x, dtype=FLOAT16), np.array([[1, 1 + 2**-9, np.inf, -2.7]], np.float16)
    )
    np.testing.assert_array_equal(bench.run(ops.Cast, x[:, 3:], dtype=INT32), [[-2]])


def test_cast_gradient_returns_to_the_source_type(bench, rng):
    x = rng.standard_normal((2, 4)).astype(np.float16)
    _, grad, (found,) = bench.gradients(lambda g, t: g.create(ops.Cast, [t], ["y"], dtype=FLOAT32).outputs[0], [x])
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, grad.astype(np.float16))


def test_detach_blocks_the_gradient(bench, rng):
    def build(g, t):
        held = g.create(ops.Detach, [t], ["d"]).outputs[0]
        return g.create(ops.Mul, [held, t], ["y"]).outputs[0]

    bench.check(build, lambda t: t.detach() * t, [rng.standard_normal((2, 4))])
