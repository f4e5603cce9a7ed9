"""Extreme operands of every op that the import has a case for, against TensorFlow on the CPU."""

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from extremes import FLOAT, LIMITS, Difference, check, differ, filled

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import Program, narrowed

pytestmark = pytest.mark.heavy

TABLES = ("test_tf_graph_ops", "test_tf_added_ops")
FIXED = {
    "reductions-searchsorted left": {0},
    "reductions-searchsorted right": {0},
    "networks-batch norm True gradient": {0, 1, 2, 3, 4},
}
"""Operands that have to be as they are: rising rows; and those of a sine of large numbers, which is all rounding."""
NEEDS_MATRICES = ("cholesky", "triangular solve", "inverse ", "solve ")
WHOLE = "add subtract multiply floordiv floormod maximum minimum".split()


def cases() -> Iterator[tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]]:
    """The cases of the tests of the import."""
    for table in TABLES:
        place = Path(__file__).parents[1] / "tensorflow" / f"{table}.py"
        spec = importlib.util.spec_from_file_location(table, place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for case in module.CASES:
            yield case.id, *case.values


def references(function: Callable[..., Any], operands: list[np.ndarray]) -> list[np.ndarray]:
    results = tf.nest.flatten(function(*(tf.constant(operand) for operand in operands)))
    return [narrowed(result.numpy()) for result in results if result is not None]


def has_kernels(function: Callable[..., Any], operands: Iterable[np.ndarray]) -> bool:
    """Whether TensorFlow has the op on this processor: some gradients of convolutions need oneDNN's kernels."""
    try:
        references(function, list(operands))
    except tf.errors.InvalidArgumentError as error:
        return not ("CPU implementations" in str(error) or "grouped convolution" in str(error))
    return True


def exact(function: Callable[..., Any], operands: list[np.ndarray]) -> list[Any]:
    """With operands in float64; none where TensorFlow cannot."""
    try:
        double = [o.astype(np.float64) if o.dtype.kind == "f" else o for o in operands]
        results = tf.nest.flatten(function(*map(tf.constant, double)))
        return [result.numpy() for result in results if result is not None]
    except (TypeError, ValueError, tf.errors.OpError):
        return []


def differences(name: str, function: Callable[..., Any], given: tuple[np.ndarray, ...]) -> Iterator[Difference]:
    free = [a.dtype.kind == "f" and n not in FIXED.get(name, ()) for n, a in enumerate(given)]
    program = Program(function, given)
    data = [variable for variable in program.ir.variables() if variable.name.split("__")[0] == "x"]
    dtype = "float16" if any(a.dtype == np.float16 for a in given) else "float32"
    of = "gradients" if "gradient" in name else "values"
    for kind in FLOAT:
        operands = [filled(kind, a, n) if f else a for n, (a, f) in enumerate(zip(given, free, strict=True))]
        for variable, operand in zip(data, operands, strict=True):
            variable.data[...] = narrowed(operand)
        program.evaluator.load_variables()
        with np.errstate(all="ignore"):
            results = program.run()
        double = exact(function, operands)
        for number, (result, reference) in enumerate(zip(results, references(function, operands), strict=True)):
            rows = name.startswith(("unary", "binary"))
            if differ(result, reference, double[number] if double else None, rows=rows):
                yield name, kind, dtype, of


def test_extreme_operands_are_tensorflows() -> None:
    if not all(has_kernels(function, operands) for name, function, operands in cases() if "gradient" in name):
        pytest.skip("TensorFlow computes with other kernels on this processor: values at the limits differ")
    found = {
        difference
        for name, function, operands in cases()
        if any(a.dtype.kind == "f" and a.size for a in operands) and not name.startswith(NEEDS_MATRICES)
        for difference in differences(name, function, operands)
    }
    check("TensorFlow", ["float32", "float16"], found)


@pytest.mark.parametrize("name", [*WHOLE, "truncatediv", "truncatemod"])
def test_whole_numbers_at_their_limits_are_tensorflows(name: str) -> None:
    pairs = [(x, y) for x in LIMITS for y in LIMITS if y and (x, y) != (-(2**31), -1)]
    operands = [np.array(side, np.int32) for side in zip(*pairs, strict=True)]
    function = getattr(tf.math, name, None) or getattr(tf, name)
    np.testing.assert_array_equal(Program(function, operands).run()[0], function(*operands).numpy())
