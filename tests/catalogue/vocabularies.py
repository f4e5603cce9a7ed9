"""Comparisons of a row of the catalogue in each vocabulary: value and gradients."""

from functools import reduce
from typing import Any

import numpy as np
import torch
from drawing import SHAPE, arguments, flat, replaced
from opbench import Bench, evaluate, tensor_for

from ipuperf import ir, popxl
from ipuperf.frontends.catalogue import Row
from ipuperf.ir import CONTEXT, Builder


def first(result: Any) -> Any:
    """The first of several results."""
    return result[0] if isinstance(result, (tuple, list)) else result


def oracle(row: Row, values: list[Any], tensors: Any) -> Any:
    """What PyTorch's function gives of a row's arguments with these tensors."""
    return first(reduce(getattr, row.oracle.split(".")[1:], torch)(*replaced(values, tensors)))


def leaves(arrays: list[np.ndarray]) -> list[Any]:
    """Tensors of PyTorch, with gradients where they are of floating point."""
    return [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]


def narrowed(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays in float32 instead of float64."""
    return [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]


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


def compare_library(row: Row, shape: tuple[int, ...] = SHAPE) -> None:
    """Two replicas in float64, so that no wrong formula hides behind rounding; and what the ops ask of the tiles."""
    values = arguments(row, shape)
    arrays = [np.stack([array, array[::-1] if array.ndim else array]) for array in flat(values)]
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


def compare_half(row: Row) -> None:
    """Values in float16, rounded where an op ends."""
    values = arguments(row)
    arrays = [a.astype(np.float16) if a.dtype.kind == "f" else a for a in flat(values)]
    graph = ir.Ir().create_graph("row")
    inputs = [tensor_for(graph, a[None], f"x{i}") for i, a in enumerate(arrays)]
    with CONTEXT.building(Builder(graph)):
        result = first(row.implementation(*replaced(values, inputs)))
    found = evaluate(graph, {t: a[None].copy() for t, a in zip(inputs, arrays)})[result][0]
    wide = [torch.tensor(a.astype(np.float64) if a.dtype.kind == "f" else a) for a in arrays]
    expected = oracle(row, values, wide).numpy()
    assert (found.dtype == np.float16) == (expected.dtype == np.float64)
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=4e-3)


def compare_popxl(row: Row, name: str) -> None:
    """A program whose graph is called and differentiated."""
    values = arguments(row)
    arrays = narrowed(flat(values))
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
            required = [t for t, a in zip(graph.inputs, arrays) if a.dtype.kind == "f"]
            backward = popxl.transforms.autodiff(graph, grads_required=required)
            inputs = backward.inputs_dict(called)
            found += popxl.ops.call(backward.graph, popxl.constant(slope.numpy()), inputs_dict=inputs)
        streams = [popxl.d2h_stream(tensor.shape, tensor.dtype) for tensor in found]
        for stream, tensor in zip(streams, found):
            popxl.ops.host_store(stream, tensor)
    with popxl.Session(program, "ipu_hw") as session:
        outputs = session.run()
    for stream, result in zip(streams, results, strict=True):
        np.testing.assert_allclose(outputs[stream], result.numpy(), rtol=2e-5, atol=2e-6)


def compare_poptorch(row: Row) -> None:
    """Every operation of PyTorch that the row names, in one exported module."""
    from stageruns import compare_with_torch

    values = arguments(row)

    def called(name: str) -> Any:
        packet, _, overload = name.partition(".")
        operation = getattr(torch.ops.aten, packet)
        operation = getattr(operation, overload) if overload in operation.overloads() else operation
        extra = [False] if packet.startswith("_") and "softmax" in packet else []
        return lambda *tensors: operation(*replaced(values, tensors), *extra)

    tensors = [torch.tensor(a) for a in narrowed(flat(values))]
    # The whole maximum has no axes, which the row's arguments name.
    names = [name for name in row.aten if name not in ("max.default", "min.default")]
    compare_with_torch({name.replace(".", "_"): called(name) for name in names}, *tensors)


def compare_tensorflow(function: Any, arrays: list[np.ndarray], has_gradient: bool) -> None:
    """A function and its gradients, imported, against TensorFlow."""
    import tensorflow as tf
    from graphcases import check

    def gradients(*operands: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(operands)
            result = function(*operands)
            loss = tf.reduce_sum(result * tf.reshape(tf.linspace(0.5, 1.5, tf.size(result)), tf.shape(result)))
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, operands)]

    check(function, *narrowed(arrays))
    if has_gradient:
        check(gradients, *narrowed(arrays))


def compare_graph_op(row: Row, name: str) -> None:
    """The op of TensorFlow of this type."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    values, operation = arguments(row), getattr(tf.raw_ops, name)
    operands = [argument.name for argument in op_def_registry.get(name).input_arg]
    # TensorFlow has no gradient of these.
    has_gradient = differentiable(row, values) and name not in ("Mod", "TruncateMod")
    compare_tensorflow(lambda *ts: operation(**dict(zip(operands, ts, strict=True))), flat(values), has_gradient)


def compare_keras(row: Row, name: str) -> None:
    """The activation of Keras of this name."""
    import tensorflow as tf

    compare_tensorflow(getattr(tf.keras.activations, name), flat(arguments(row)), True)
