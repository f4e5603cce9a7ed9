"""The function library against NumPy: compositions and indexing, over tensors of the IR."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipuperf.functions import arithmetic, networks, shapes
from ipuperf.ir import CONTEXT, FLOAT32, Ir, Stream, Tensor, TensorSpec, Variable, dtype_of
from ipuperf.numerics import Evaluator
from ipuperf.ops import HostStore

X = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
Y = np.random.default_rng(4).normal(size=(3, 4)).astype(np.float32)
K = np.array([[7, -7, 8, -8]], np.int32)
M = np.array([[3, 3, -3, -3]], np.int32)


def evaluated(function: Callable[..., Tensor], *arrays: np.ndarray) -> np.ndarray:
    """``function`` of variables with these values."""
    ir = Ir()
    main = ir.main_graph
    given = []
    for number, array in enumerate(arrays):
        spec = TensorSpec(array.shape, dtype_of(array))
        given.append(main.add(Variable(f"x{number}", spec, main, array, ir.grouping())))
    with CONTEXT.use_graph(main):
        result = function(*given)
        stream = Stream("result", result.spec, main, "d2h")
        main.add(stream)
        CONTEXT.builder.create(HostStore, [result], [], stream=stream)
    evaluator = Evaluator(ir)
    evaluator.load_variables()
    return np.asarray(evaluator.run({})[stream]).reshape(result.shape)


_softplus = np.vectorize(lambda x: math.log1p(math.exp(x)))

CASES: list[tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]] = [
    (arithmetic.mod, np.mod, (X, Y)),
    (arithmetic.mod, np.mod, (K, M)),
    (arithmetic.floor_div, np.floor_divide, (X, Y)),
    (arithmetic.floor_div, np.floor_divide, (K, M)),
    (arithmetic.true_div, np.true_divide, (X, Y)),
    (arithmetic.true_div, np.true_divide, (K, M)),
    (arithmetic.square, np.square, (X,)),
    (arithmetic.rsqrt, lambda x: 1 / np.sqrt(x), (np.abs(X) + 1,)),
    (arithmetic.softplus, _softplus, (X,)),
    (arithmetic.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x), (X,)),
    (
        lambda t: networks.log_softmax(t, 1),
        lambda x: x - np.log(np.exp(x.astype(float)).sum(1, keepdims=True)),
        (X,),
    ),
    (lambda t: shapes.expand_dims(t, -1), lambda x: x[..., None], (X,)),
    (lambda t: shapes.expand_dims(t, 1), lambda x: x[:, None], (X,)),
    (lambda t, u: shapes.stack([t, u], 1), lambda x, y: np.stack([x, y], 1), (X, Y)),
    (lambda t: shapes.unstack(t, 1)[2], lambda x: x[:, 2], (X,)),
    (lambda t: shapes.squeeze(shapes.expand_dims(t, 1), 1), lambda x: x, (X,)),
]


@pytest.mark.parametrize(("function", "reference", "arrays"), CASES)
def test_values_are_numpys(function: Any, reference: Any, arrays: tuple[np.ndarray, ...]) -> None:
    np.testing.assert_allclose(evaluated(function, *arrays), reference(*arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "key", [(None, 1), (slice(None), None), (..., None, 0), (1, None, slice(1, 3)), (None, ..., None), (-1, -1, None)]
)
def test_indexing_makes_new_axes_as_numpy_does(key: Any) -> None:
    np.testing.assert_array_equal(evaluated(lambda t: shapes.getitem(t, key), X), X[key])


def test_an_undefined_tensor_has_its_spec() -> None:
    ir = Ir()
    with CONTEXT.use_graph(ir.main_graph):
        tensor = shapes.undefined(TensorSpec((2, 3), FLOAT32), "room")
    assert (tensor.shape, tensor.dtype, tensor.name) == ((2, 3), FLOAT32, "room")
