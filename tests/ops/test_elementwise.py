"""Binary element-wise ops against NumPy and PyTorch."""

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import BOOL, DTypeError, ShapeError

SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (3, 4)), ((), (2, 3)), ((2, 1, 4), (3, 1)), ((1,), (5,))]
BINARY = [
    (ops.Add, np.add),
    (ops.Sub, np.subtract),
    (ops.Mul, np.multiply),
    (ops.Div, np.divide),
    (ops.Fmod, np.fmod),
    (ops.Pow, np.power),
    (ops.Maximum, np.maximum),
    (ops.Equal, np.equal),
    (ops.Greater, np.greater),
]


def pair(rng, shapes, dtype=np.float32, replicas=2):
    return [(rng.random((replicas, *s)) * 3 + 0.5).astype(dtype) for s in shapes]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("op_class", "ufunc"), BINARY)
def test_values(bench, rng, op_class, ufunc, shapes, replicas):
    lhs, rhs = pair(rng, shapes, replicas=replicas)
    result = bench.run(op_class, lhs, rhs)
    for r in range(replicas):
        np.testing.assert_array_equal(result[r], ufunc(lhs[r], rhs[r]))


@pytest.mark.parametrize(("op_class", "ufunc"), BINARY[:7])
def test_fp16_is_float32_rounded_once(bench, rng, op_class, ufunc):
    lhs, rhs = pair(rng, ((40, 7), (7,)), np.float16)
    wide = ufunc(lhs.astype(np.float32), rhs.astype(np.float32)[:, None]).astype(np.float16)
    np.testing.assert_array_equal(bench.run(op_class, lhs, rhs), wide)


def test_integer_division_truncates(bench):
    lhs = np.array([[-7, 7, -7, 7, 2**31 - 1]], np.int32)
    rhs = np.array([[2, -2, -2, 2, 3]], np.int32)
    np.testing.assert_array_equal(bench.run(ops.Div, lhs, rhs), [[-3, -3, 3, 3, 715827882]])


def test_logical(bench):
    lhs, rhs = np.array([[True, True, False]]), np.array([[True, False, False]])
    np.testing.assert_array_equal(bench.run(ops.And, lhs, rhs), lhs & rhs)
    np.testing.assert_array_equal(bench.run(ops.Or, lhs, rhs), lhs | rhs)
    np.testing.assert_array_equal(bench.run(ops.Equal, lhs, rhs), lhs == rhs)


def test_maximum_of_three_and_of_one(bench, rng):
    a, b, c = (rng.standard_normal((2, *s)).astype(np.float32) for s in [(3, 4), (4,), ()])
    expected = np.maximum(np.maximum(a, b[:, None]), c[:, None, None])
    np.testing.assert_array_equal(bench.run(ops.Maximum, a, b, c), expected)
    np.testing.assert_array_equal(bench.run(ops.Maximum, a), a)
    assert ops.Maximum.type == "Max"


def test_where(bench, rng):
    cond = rng.random((2, 3, 1)) > 0.5
    lhs, rhs = (rng.standard_normal((2, *s)).astype(np.float32) for s in [(4,), (3, 4)])
    expected = np.where(cond, lhs[:, None], rhs)
    np.testing.assert_array_equal(bench.run(ops.Where, cond, lhs, rhs), expected)


@pytest.mark.parametrize("rhs_shape", [(3, 4), (4,), (), (3, 1)])
def test_add_in_place(bench, rng, rhs_shape):
    lhs, rhs = (rng.standard_normal((2, *s)).astype(np.float32) for s in [(3, 4), rhs_shape])
    expected = lhs + rhs.reshape(2, *(1,) * (2 - len(rhs_shape)), *rhs_shape)
    result = bench.run(ops.AddLhsInplace, lhs, rhs)
    assert result is lhs
    np.testing.assert_array_equal(lhs, expected)


GRADIENTS = [
    (ops.Add, lambda t: lambda a, b: a + b),
    (ops.Sub, lambda t: lambda a, b: a - b),
    (ops.Mul, lambda t: lambda a, b: a * b),
    (ops.Div, lambda t: lambda a, b: a / b),
    (ops.Pow, lambda t: lambda a, b: a**b),
    (ops.Fmod, lambda t: t.fmod),
    (ops.Maximum, lambda t: t.maximum),
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(("op_class", "reference"), GRADIENTS)
def test_gradients(bench, rng, op_class, reference, shapes):
    torch = pytest.importorskip("torch")
    arrays = pair(rng, shapes, np.float64)
    bench.check(lambda g, a, b: g.create(op_class, [a, b], ["y"]).outputs[0], reference(torch), arrays)


def test_where_gradient(bench, rng):
    torch = pytest.importorskip("torch")
    arrays = [rng.random((2, 3, 1)) > 0.5, *(rng.standard_normal((2, *s)) for s in [(4,), (3, 4)])]
    bench.check(lambda g, *t: g.create(ops.Where, list(t), ["y"]).outputs[0], torch.where, arrays)


def test_a_tensor_used_twice_gets_both_gradients(bench, rng):
    bench.check(
        lambda g, a: g.create(ops.Mul, [a, a], ["y"]).outputs[0], lambda a: a * a, [rng.standard_normal((2, 5))]
    )


def test_errors(bench):
    f32, f16, mask = np.ones((1, 3, 4), np.float32), np.ones((1, 4), np.float16), np.ones((1, 4), bool)
    with pytest.raises(DTypeError, match="float16, float32"):
        bench.op(ops.Add, f32, f16)
    with pytest.raises(ShapeError, match=r"\(3, 4\) and \(3,\) cannot be broadcast"):
        bench.op(ops.Add, f32, np.ones((1, 3), np.float32))
    with pytest.raises(DTypeError, match="bool; a number type is needed"):
        bench.op(ops.Add, mask, mask)
    with pytest.raises(DTypeError, match="bool is needed"):
        bench.op(ops.And, f16, f16)
    with pytest.raises(DTypeError, match="condition"):
        bench.op(ops.Where, f32, f32, f32)
    with pytest.raises(ShapeError, match="rhs must broadcast to lhs"):
        bench.op(ops.AddLhsInplace, np.ones((1, 4), np.float32), f32)


def test_comparison_dtype_and_meta_shape(bench):
    graph = ir.Ir().create_graph("g")
    a = graph.add_input(ir.TensorSpec((5,), ir.FLOAT32, (3, 3)), "a")
    assert graph.create(ops.Add, [a, a], ["y"]).outputs[0].meta_shape == (3, 3)
    assert graph.create(ops.Greater, [a, a], ["z"]).outputs[0].dtype == BOOL
