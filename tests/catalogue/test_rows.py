"""Each row of the catalogue in every vocabulary: value and gradients against its oracle."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from drawing import arguments, flat, replaced
from opbench import Bench, evaluate, tensor_for

from ipuperf import ir, popxl
from ipuperf.frontends.catalogue import ROWS, Row
from ipuperf.ir import CONTEXT, Builder

torch = pytest.importorskip("torch")

COMPARED = [row for row in ROWS if row.operands]
"""Rows with an oracle; the others have tests of their own (products, lookups, random numbers)."""


def first(result: Any) -> Any:
    """The first of several results."""
    return result[0] if isinstance(result, (tuple, list)) else result


def oracle(row: Row, values: list[Any], tensors: Any) -> Any:
    """What PyTorch's function gives of a row's arguments with these tensors."""
    return first(reduce(getattr, row.oracle.split(".")[1:], torch)(*replaced(values, tensors)))


def leaves(arrays: list[np.ndarray]) -> list[Any]:
    """Tensors of PyTorch, with gradients where they are of floating point."""
    return [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]


def differentiable(row: Row, values: list[Any]) -> bool:
    """Whether the result has a gradient that is not 0; functions in place are compared by their values."""
    if not row.oracle or row.function.endswith("_"):
        return False
    tensors = leaves(flat(values))
    result = oracle(row, values, tensors)
    if not result.requires_grad:
        return False
    result.sum().backward()
    return any(tensor.grad is not None and bool(tensor.grad.any()) for tensor in tensors)


def named(vocabulary: str) -> list[Any]:
    """The rows of a vocabulary, once for each name."""
    return [pytest.param(row, name, id=name) for row in COMPARED for name in getattr(row, vocabulary)]


@pytest.mark.parametrize("row", [row for row in COMPARED if row.oracle], ids=lambda row: row.function)
def test_of_the_library(row: Row) -> None:
    """Two replicas in float64, so that no wrong formula hides behind rounding; and what its ops ask of the tiles."""
    values = arguments(row)
    arrays = [np.stack([array, array[::-1]]) for array in flat(values)]
    work: set[str] = set()

    def build(graph: Any, *tensors: Any) -> Any:
        with CONTEXT.building(Builder(graph)):
            result = first(row.implementation(*replaced(values, tensors)))
        work.update(type(asked).__name__ for op in graph.ops for asked in op.work())
        return result

    if differentiable(row, values):
        Bench().check(build, lambda *tensors: oracle(row, values, tensors), arrays, rtol=1e-7)
    else:
        graph = ir.Ir().create_graph("row")
        inputs = [tensor_for(graph, a, f"x{i}") for i, a in enumerate(arrays)]
        result = build(graph, *inputs)
        found = evaluate(graph, dict(zip(inputs, (a.copy() for a in arrays))))[result]
        for replica, mine in enumerate(found):
            expected = oracle(row, values, [torch.tensor(a[replica]) for a in arrays])
            np.testing.assert_allclose(mine, expected.numpy(), rtol=1e-7, atol=1e-11)
    assert tuple(sorted(work)) == row.cost


@pytest.mark.parametrize(("row", "name"), named("popxl"))
def test_in_popxl(row: Row, name: str) -> None:
    """A program whose graph is called and differentiated."""
    values = arguments(row)
    arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in flat(values)]
    tensors = leaves(arrays)
    expected = oracle(row, values, tensors)
    results = [expected.detach()]
    program = popxl.Ir()
    with program.main_graph, popxl.in_sequence():
        variables = [popxl.variable(array) for array in arrays]
        graph = program.create_graph(lambda *ts: first(getattr(popxl.ops, name)(*replaced(values, ts))), *variables)
        called = popxl.ops.call_with_info(graph, *variables)
        found = list(called.outputs)
        if differentiable(row, values):
            slope = torch.linspace(0.5, 1.5, expected.numel()).reshape(expected.shape)
            expected.backward(slope)
            results += [tensor.grad for tensor in tensors if tensor.requires_grad]
            backward = popxl.transforms.autodiff(
                graph, grads_required=[t for t, a in zip(graph.inputs, arrays) if a.dtype.kind == "f"]
            )
            inputs = backward.inputs_dict(called)
            found += popxl.ops.call(backward.graph, popxl.constant(slope.numpy()), inputs_dict=inputs)
        streams = [popxl.d2h_stream(tensor.shape, tensor.dtype) for tensor in found]
        for stream, tensor in zip(streams, found):
            popxl.ops.host_store(stream, tensor)
    with popxl.Session(program, "ipu_hw") as session:
        outputs = session.run()
    for stream, result in zip(streams, results, strict=True):
        np.testing.assert_allclose(outputs[stream], result.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("row", [row for row in COMPARED if row.aten], ids=lambda row: row.function)
def test_in_poptorch(row: Row) -> None:
    """Every operation of PyTorch that the row names, in one exported module."""
    from stageruns import compare_with_torch

    values = arguments(row)

    def called(name: str) -> Any:
        packet, _, overload = name.partition(".")
        operation = getattr(torch.ops.aten, packet)
        operation = getattr(operation, overload) if overload in operation.overloads() else operation
        extra = [False] if packet.startswith("_") and "softmax" in packet else []
        return lambda *tensors: operation(*replaced(values, tensors), *extra)

    tensors = [torch.tensor(a, dtype=torch.float32 if a.dtype.kind == "f" else None) for a in flat(values)]
    compare_with_torch({name.replace(".", "_"): called(name) for name in row.aten if name != "max.default"}, *tensors)


def tensorflow_compared(function: Any, arrays: list[np.ndarray], has_gradient: bool) -> None:
    """A function and its gradients, imported, against TensorFlow."""
    tf = pytest.importorskip("tensorflow")
    from graphcases import check

    def gradients(*operands: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(operands)
            result = function(*operands)
            loss = tf.reduce_sum(result * tf.reshape(tf.linspace(0.5, 1.5, tf.size(result)), tf.shape(result)))
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, operands)]

    arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]
    check(function, *arrays)
    if has_gradient:
        check(gradients, *arrays)


@pytest.mark.parametrize(("row", "name"), named("tensorflow"))
def test_in_graphs_of_tensorflow(row: Row, name: str) -> None:
    """The op of this type."""
    tf = pytest.importorskip("tensorflow")
    from tensorflow.python.framework import op_def_registry

    values, operation = arguments(row), getattr(tf.raw_ops, name)
    operands = [argument.name for argument in op_def_registry.get(name).input_arg]
    has_gradient = differentiable(row, values) and name not in ("Mod", "TruncateMod")
    tensorflow_compared(lambda *ts: operation(**dict(zip(operands, ts, strict=True))), flat(values), has_gradient)


@pytest.mark.parametrize(("row", "name"), named("keras"))
def test_in_keras(row: Row, name: str) -> None:
    """The activation of this name."""
    tf = pytest.importorskip("tensorflow")
    tensorflow_compared(getattr(tf.keras.activations, name), flat(arguments(row)), True)


def test_rows_name_functions_once() -> None:
    for vocabulary in ("popxl", "aten", "tensorflow", "keras"):
        every = [name for row in ROWS for name in getattr(row, vocabulary)]
        assert len(every) == len(set(every)), vocabulary
    assert all(callable(row.implementation) for row in ROWS)
