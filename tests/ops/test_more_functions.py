"""Sigmoid family, piecewise activations, further functions, comparisons, minimum, log-softmax."""

import math

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.ops.elementwise.comparisons import GreaterEqual, Less, LessEqual, NotEqual
from ipuperf.ops.elementwise.extrema import Minimum
from ipuperf.ops.elementwise.functions import Erf, Expm1, Log1p, Reciprocal, Round
from ipuperf.ops.elementwise.piecewise import Elu, HardSigmoid, LeakyRelu
from ipuperf.ops.elementwise.sigmoid import Sigmoid, Softplus, Swish
from ipuperf.ops.losses.logsoftmax import LogSoftmax

FUNCTIONS = [
    (Softplus, {"beta": 2.0}, "lambda x: F.softplus(x, beta=2)"),
    (Elu, {"alpha": 1.5}, "lambda x: F.elu(x, 1.5)"),
    (LeakyRelu, {"alpha": 0.2}, "lambda x: F.leaky_relu(x, 0.2)"),
    (LogSoftmax, {"axis": 0}, "lambda x: F.log_softmax(x, 0)"),
]


@pytest.mark.parametrize(("op", "attributes", "reference"), FUNCTIONS)
def test_value_and_gradient_are_those_of_torch(bench, rng, op, attributes, reference) -> None:
    torch = pytest.importorskip("torch")
    function = eval(reference, {"torch": torch, "F": torch.nn.functional})
    x = rng.standard_normal((2, 7, 11)) * 3
    bench.check(lambda g, t: g.create(op, [t], ["y"], **attributes).outputs[0], function, [x], rtol=2e-8, atol=1e-8)


@pytest.mark.parametrize("op", [Sigmoid, Swish, Softplus, Elu, LeakyRelu, HardSigmoid, Erf, LogSoftmax])
def test_half_is_the_rounded_float_value(bench, rng, op) -> None:
    x = rng.standard_normal((2, 5, 8)).astype(np.float16)
    wide = bench.run(op, x.astype(np.float32))
    np.testing.assert_allclose(bench.run(op, x).astype(np.float32), wide, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("op", [Sigmoid, Swish, Softplus, Elu, LeakyRelu])
def test_extreme_operands_stay_finite(bench, op) -> None:
    x = np.array([[-200.0, -50.0, 0.0, 50.0, 200.0]], np.float32)
    assert np.isfinite(bench.run(op, x)).all()


def test_log_softmax_of_large_operands_does_not_overflow(bench) -> None:
    x = np.array([[[1000.0, 0.0]]], np.float32)
    np.testing.assert_allclose(bench.run(LogSoftmax, x), [[[0.0, -1000.0]]])


def test_round_to_even(bench) -> None:
    x = np.array([[0.5, 1.5, 2.5, -0.5, 1.2]], np.float32)
    np.testing.assert_array_equal(bench.run(Round, x), [[0, 2, 2, 0, 1]])


@pytest.mark.parametrize(
    ("op", "function"),
    [(Less, np.less), (LessEqual, np.less_equal), (GreaterEqual, np.greater_equal), (NotEqual, np.not_equal)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_comparisons(bench, rng, op, function, dtype) -> None:
    a = rng.integers(0, 3, (2, 4, 5)).astype(dtype)
    b = rng.integers(0, 3, (2, 5)).astype(dtype)
    np.testing.assert_array_equal(bench.run(op, a, b), function(a, b[:, None]))


def test_minimum_value_and_gradient(bench, rng) -> None:
    torch = pytest.importorskip("torch")
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4))
    bench.check(lambda g, x, y: g.create(Minimum, [x, y], ["z"]).outputs[0], torch.minimum, [a, b])


def test_comparison_cycles_are_those_of_the_table(bench, mk2) -> None:
    x = np.zeros((1, 1472 * 24), np.float32)
    (work,) = bench.op(Less, x, x).work()
    # 24 elements on a tile: 4 per worker, one step of 14 cycles
    assert work.cycles(np.array([24]), mk2)[0] == 6 * (29 + 14) + 11
    (scalar,) = bench.op(Less, x, np.zeros((1, 1), np.float32)).work()
    assert scalar.cycles(np.array([24]), mk2)[0] == 6 * (20 + 12) + 11


@pytest.mark.parametrize(
    ("op", "operands"),
    [(Sigmoid, 1), (Swish, 1), (Softplus, 1), (Elu, 1), (LeakyRelu, 1), (HardSigmoid, 1), (Erf, 1), (Log1p, 1),
     (Expm1, 1), (Round, 1), (Reciprocal, 1), (LogSoftmax, 1), (Minimum, 2), (NotEqual, 2)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_op_and_gradient_has_a_cost(bench, mk2, op, operands, dtype) -> None:
    graph = ir.Ir().create_graph("cost")
    spec = ir.TensorSpec((64, 96), ir.dtype_of(np.zeros(0, dtype)))
    tensors = [graph.add_input(spec, f"x{i}") for i in range(operands)]
    out = graph.create(op, tensors, ["y"]).outputs[0]
    graphs = [graph]
    if out.dtype.is_floating_point and op is not Round:
        from ipuperf import ops

        graph.add_output(out)
        graphs.append(ops.autodiff(graph, [out], tensors).graph)
    for part in graphs:
        for node in part.ops:
            works = node.work()
            assert works
            for work in works:
                if hasattr(work, "cycles") and hasattr(work, "elements"):
                    assert (work.cycles(np.array([0, 60]), mk2) >= 0).all()
                    assert work.cycles(np.array([60]), mk2)[0] > 0


def test_bad_operands_are_named(bench) -> None:
    with pytest.raises(ir.DTypeError, match="int32"):
        bench.run(Sigmoid, np.zeros((1, 2), np.int32))
    with pytest.raises(ir.ShapeError, match="axis 3 is out of range"):
        bench.run(LogSoftmax, np.zeros((1, 2, 3), np.float32), axis=3)
    with pytest.raises(ir.ShapeError, match="beta=-1.0"):
        bench.run(Softplus, np.zeros((1, 2), np.float32), beta=-1.0)


def test_erf_tail(bench) -> None:
    x = np.array([[3.0, -3.0, 0.1]])
    expected = [math.erf(v) for v in x[0]]
    np.testing.assert_allclose(bench.run(Erf, x)[0], expected, rtol=1e-10)
