"""Formulas against plain NumPy: any expression, in place or not, and the passes and temporaries they come to."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf import ops
from ipuperf.ops import formula
from ipuperf.ops.base import Op
from ipuperf.ops.elementwise.activations import ActivationGrad, ActivationOp, Gelu, GeluGrad
from ipuperf.ops.elementwise.piecewise import Elu, LeakyRelu
from ipuperf.ops.elementwise.sigmoid import SwishGrad
from ipuperf.ops.formula import OUTPUT, Term, compile_formula

BINARY = {"+": np.add, "-": np.subtract, "*": np.multiply}
UNARY = {"tanh": np.tanh, "square": np.square}

#: An expression as nested tuples: ("x", index), ("c", value), (binary, left, right), (unary, operand).
leaves = st.one_of(
    st.tuples(st.just("x"), st.integers(0, 2)), st.tuples(st.just("c"), st.sampled_from([0.5, 1.0, -2.0]))
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(BINARY)), inner, inner), st.tuples(st.sampled_from(["tanh", "square"]), inner)
    ),
    max_leaves=12,
)


def term_of(tree: tuple, inputs: tuple[Term, ...]) -> Term:
    """The formula of an expression (a bare leaf is multiplied by 1)."""
    if tree[0] == "x":
        return inputs[tree[1]]
    if tree[0] == "c":
        return Term(("constant", tree[1]))
    operands = [term_of(t, inputs) for t in tree[1:]]
    return formula.apply(BINARY[tree[0]], *operands) if tree[0] in BINARY else formula.apply(UNARY[tree[0]], *operands)


def value_of(tree: tuple, arrays: list[np.ndarray]) -> np.ndarray:
    """Its value, computed without any sharing of memory."""
    if tree[0] == "x":
        return arrays[tree[1]]
    if tree[0] == "c":
        return np.asarray(tree[1], arrays[0].dtype)
    operands = [value_of(t, arrays) for t in tree[1:]]
    return BINARY[tree[0]](*operands) if tree[0] in BINARY else UNARY[tree[0]](*operands)


@settings(max_examples=150)
@given(tree=expressions, shape=st.sampled_from([(), (0,), (1,), (5,), (2, 3)]), in_place=st.booleans())
def test_random_formulas_equal_numpy(tree: tuple, shape: tuple[int, ...], in_place: bool) -> None:
    """Common subexpressions, reused registers and an output that is the first input do not change a value."""
    chain = compile_formula(lambda *inputs: term_of(tree, inputs) * 1.0, 3, in_place=in_place)
    rng = np.random.default_rng(7)
    arrays = [np.asarray(rng.uniform(-1, 1, shape)) for _ in range(3)]
    with np.errstate(all="ignore"):
        wanted = np.array(value_of(tree, arrays) * 1.0 + np.zeros(shape))
        out = arrays[0] if in_place else np.full(shape, np.nan)
        temporaries = [np.full(shape, np.nan) for _ in range(chain.temporaries)]
        for step in chain.bind(arrays, out, temporaries):
            step()
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    ("op", "inputs", "passes", "temporaries"),
    [(Gelu, 1, 8, 0), (GeluGrad, 2, 14, 2), (Elu, 1, 5, 1), (LeakyRelu, 1, 4, 1), (SwishGrad, 2, 9, 1)],
)
def test_passes_and_temporaries(op: type[Op], inputs: int, passes: int, temporaries: int) -> None:
    """The chains are as short as those that were written by hand."""
    made = op.__new__(op)
    made.attributes = {name: attribute.default for name, attribute in op.declared.items()}
    chain = compile_formula(made.value, inputs)
    assert (len(chain.instructions), chain.temporaries) == (passes, temporaries)


def test_in_place_output_is_written_after_its_last_reading() -> None:
    """``x`` is needed twice: the square goes to a temporary, the product of both to the output."""
    chain = compile_formula(lambda x: formula.tanh(formula.square(x)) * x, 1, in_place=True)
    targets = [i.target for i in chain.instructions]
    assert OUTPUT not in targets[:-1]
    assert targets[-1] == OUTPUT


def classes(base: type[Op]) -> list[type[Op]]:
    """The public ops below ``base``."""
    return sorted(
        {c for c in vars(ops).values() if isinstance(c, type) and issubclass(c, base) and c is not base},
        key=lambda c: c.__name__,
    )


def native(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """The plain NumPy form of an activation at its default attributes, in float64."""
    import math

    erf = np.vectorize(math.erf, otypes=[float])
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    return {
        "Gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "GeluErf": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
        "Erf": erf,
        "Erfc": lambda x: 1 - erf(x),
        "Sigmoid": sigmoid,
        "Swish": lambda x: x * sigmoid(x),
        "Softplus": lambda x: np.log1p(np.exp(x)),
        "Elu": lambda x: np.where(x > 0, x, np.expm1(x)),
        "LeakyRelu": lambda x: np.where(x > 0, x, 0.01 * x),
        "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    }[name.removesuffix("Inplace")]


@pytest.mark.parametrize("op", classes(ActivationOp), ids=lambda c: c.__name__)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 2)], ids=str)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_every_activation_equals_numpy(bench, op: type[Op], shape, replicas: int, dtype: type) -> None:
    """At every shape, one and two replicas, in place where the op is."""
    x = np.random.default_rng(3).uniform(-2, 2, (replicas, *shape)).astype(dtype)
    wanted = native(op.__name__)(x.astype(np.float64))
    tolerance = 1e-3 if dtype is np.float16 else 2e-6
    np.testing.assert_allclose(bench.run(op, x.copy()), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", classes(ActivationGrad), ids=lambda c: c.__name__)
def test_gradients_of_a_tensor_with_itself(bench, op: type[Op]) -> None:
    """Both operands one array: nothing is written before it has been read."""
    attributes = {"alpha": 0.2, "beta": 0.5} if op.__name__ == "HardSigmoidGrad" else {}
    attributes |= {"min": -1.0, "max": 1.0} if op.__name__ == "ClipGrad" else {}
    x = np.random.default_rng(5).uniform(-2, 2, (1, 7)).astype(np.float32)
    np.testing.assert_array_equal(bench.run(op, x, x, **attributes), bench.run(op, x, x.copy(), **attributes))


def test_zero_and_minus_zero_are_two_constants() -> None:
    """They are equal and give different results: of copysign, of division."""
    chain = compile_formula(lambda x: formula.copysign(x, 0.0) - formula.copysign(x, -0.0), 1)
    x, out = np.array([3.0, -4.0], np.float32), np.empty(2, np.float32)
    for step in chain.bind([x], out, [np.empty_like(out) for _ in range(chain.temporaries)]):
        step()
    assert out.tolist() == [6.0, 8.0]
    assert len(compile_formula(lambda x: formula.exp(x * 0.0) + formula.exp(x * 0.0), 1).instructions) == 3
