"""The values of every op, the ops of its gradient and their values, as they were when they were written.

References of their own have the tests of the single ops; here nothing moves unseen. Numbers are sums with weights, of
float64 wherever the op takes it.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from answers import together
from opcases import CASES, LETTERS, REPLICAS, Call, Place, digest, room, told
from rows import Golden

from ipuperf import ir, ops

WHOLE = {"Ctc": (2, 4), "Recurrent": (1, 5), "Gather": (0, 6), "Scatter": (0, 6), "OneHot": (0, 5), "Nll": (0, 6),
         "Dynamic": (0, 4), "CrossEntropyShardedGrad(f(5": (0, 2),
         "Cross": (0, 24), "Sparse": (0, 6), "Bitwise": (-9, 9), "Shift": (0, 9), "Div": (1, 9),
         "Fmod": (1, 9), "Floor": (1, 9), "Remain": (1, 9), "Group": (0, 9999), "Block": (0, 9999), "Increment": (0, 9),
         "Reduce": (0, 4), "Random": (0, 99), "Modify": (0, 99), "Drop": (0, 99)}  # fmt: skip
"""Whole numbers that operands hold, by the first letters of the op; others: 0 and 1."""
REAL = {"Acosh": (1, 2), "Adam": (0.1, 0.9), "Log": (0.1, 0.9), "Pow": (0.1, 0.9), "Sqrt": (0.1, 0.9),
        "ReduceLog": (0.1, 0.9), "Batch": (0.1, 0.9), "Nll": (0.1, 0.9),
        "Ctc": (-0.9, -0.1), "Roi": (0, 7), "Histogram": (-2, 2)}  # fmt: skip
"""Real numbers of operands likewise; others: -0.9 to 0.9."""


def _of(table: dict[str, Any], case: str, other: Any) -> Any:
    return next((value for letters, value in table.items() if case.startswith(letters)), other)


def numbers(case: str, spec: ir.TensorSpec, rng: np.random.Generator) -> np.ndarray:
    """What an operand of a case holds on each replica."""
    shape = (REPLICAS, *spec.shape)
    if spec.dtype.is_floating_point:
        array = rng.uniform(*_of(REAL, case, (-0.9, 0.9)), shape)
        square = case.startswith(("Cholesky", "Triangular")) and shape[-1] == shape[-2]
        return (array + 9 * np.eye(shape[-1]) if square else array).astype(spec.dtype.numpy)
    return rng.integers(*_of(WHOLE, case, (0, 2)), shape).astype(spec.dtype.numpy)


def written(place: Place, call: Call, wide: bool = True) -> ops.Op:
    """The op of a call in a graph of its own, if ``wide`` of float64 where it takes that."""
    ways = [[_wide(operand) for operand in call.operands], call.operands]
    for operands in ways if wide else ways[1:]:
        tensors = [
            place.graph.add_input(operand, f"x{n}")
            if isinstance(operand, ir.TensorSpec)
            else place.graph.constant(operand)
            for n, operand in enumerate(operands)
        ]
        try:
            number = len(call.op_class(place.graph, 100, tensors, call.attributes).infer())
        except ir.IrError:
            if operands is call.operands:
                raise
            place.graph = place.program.create_graph("narrow")
            continue
        return place.graph.create_at(call.op_class, tensors, [f"y{n}" for n in range(number)], call.attributes, "")
    raise AssertionError


def _wide(operand: Any) -> Any:
    if isinstance(operand, ir.TensorSpec):
        return replace(operand, dtype=LETTERS["d"]) if operand.dtype.is_floating_point else operand
    return operand.astype(np.float64) if operand.dtype.kind == "f" else operand


def derivative(op: ops.Op) -> Any:
    """Of all results for all operands, or else of the first for as many as have a gradient."""
    outputs, inputs = ([t for t in ts if t.dtype.is_floating_point] for ts in (op.graph.outputs, op.graph.inputs))
    for number in range(len(inputs), 0, -1):
        for provided in (outputs, outputs[:1]):
            with suppress(ir.IrError):
                return ops.autodiff(op.graph, provided, inputs[:number])
    return ops.autodiff(op.graph, outputs, inputs)


@together(CASES, room)
def test_every_value_and_gradient(
    cases: list[str], golden: Golden, run_graph: Callable[..., dict[ir.Tensor, np.ndarray]]
) -> None:
    golden([line for case in cases for line in (case, *values_and_gradient(case, run_graph))])


def values_and_gradient(case: str, run_graph: Callable[..., dict[ir.Tensor, np.ndarray]]) -> Iterator[str]:
    """A line for each result, op of the gradient, and gradient; an error's class ends them."""
    place, rng = Place(), np.random.default_rng(5)
    op = written(place, place.call(case))
    for output in op.outputs:
        op.graph.add_output(output)
    feeds = {tensor: numbers(case, tensor.spec, rng) for tensor in op.graph.inputs}
    try:
        values = run_graph(op.graph, {tensor: array.copy() for tensor, array in feeds.items()})
        yield from (f"    value {digest(values[tensor])}" for tensor in op.outputs)
        back = derivative(op)
    except (ir.IrError, AttributeError, TypeError) as error:
        yield f"    {type(error).__name__}"
        return
    provided = {
        tensor: numbers(case, tensor.spec, rng) if source.is_gradient else values[source.tensor]
        for tensor, source in zip(back.graph.inputs, back.inputs, strict=True)
    }
    for each in ir.schedule(back.graph):
        yield f"    {each.type} {sorted(each.attributes.items())} {each.outputs} {told(each.work())}"
    gradients = run_graph(back.graph, provided)
    yield from (f"    gradient {digest(gradients[tensor])}" for tensor in back.graph.outputs)


def _evaluated(case: str, run_graph: Callable[..., Any], wide: bool, **how: Any) -> list[np.ndarray]:
    """Results of a case for numbers that float16 has; nothing where there is no value."""
    place, rng = Place(), np.random.default_rng(6)
    op = written(place, place.call(case), wide)
    feeds = {tensor: numbers(case, tensor.spec, rng) for tensor in op.graph.inputs}
    arrays = {t: a.astype(np.float16).astype(a.dtype) if a.dtype.kind == "f" else a for t, a in feeds.items()}
    with suppress(ir.IrError, AttributeError, TypeError):
        order = how.get("order", "C")
        values = run_graph(op.graph, {t: np.array(a, order=order) for t, a in arrays.items()}, **how)
        return [values[tensor] for tensor in op.outputs]
    return []


IN_ORDER = ("Reshape(", "ReplicatedAllGather(")
"""Ops whose kernels count on results in C order, as the evaluator makes all that are no operand."""


@pytest.mark.parametrize("case", CASES, ids=[case[:100] for case in CASES])
def test_every_layout_and_type_gives_the_same(case: str, run_graph: Callable[..., Any]) -> None:
    """Copies for views, arrays the other way round in memory, and the types that the case names."""
    plain = _evaluated(case, run_graph, True)
    turned = {} if case.startswith(IN_ORDER) else {"order": "F"}
    for how in ({"views": False}, turned, {"views": False, **turned}):
        for array, expected in zip(_evaluated(case, run_graph, True, **how), plain, strict=True):
            np.testing.assert_allclose(*map(_codes, (array, expected)), rtol=1e-9, atol=1e-12)
    for array, expected in zip(_evaluated(case, run_graph, False), plain, strict=True):
        np.testing.assert_allclose(*map(_codes, (array, expected)), rtol=1e-2, atol=1e-2)


def _codes(array: np.ndarray) -> np.ndarray:
    """8-bit floats as whole numbers, others as they are."""
    return np.ascontiguousarray(array).view(np.uint8) if array.dtype.kind == "V" else array
