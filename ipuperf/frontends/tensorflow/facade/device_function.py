"""Functions of the IR's tensors as ops of TensorFlow's graph, with a gradient where one is given.

In a program of the IPU the function makes its ops where it stands. The host computes the same ops with NumPy, where a
layer is called outside of a program (eagerly, or by a session).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ipuperf.functions import make_all
from ipuperf.functions.arranging import permuted
from ipuperf.ir import CONTEXT, Builder, Ir, Op, Stream, Tensor, TensorSpec, Variable, dtype_of
from ipuperf.numerics import Evaluator
from ipuperf.ops import HostStore

from ..importer import Importer, Value, marker, tensor_of
from ..importer.arranged import Arranged, plain
from ..importer.values import narrowed

#: From tensors of the IR to one of them, or a list.
Function = Callable[..., Any]
#: ``gradient(inputs, outputs, grads)``: a gradient for each input, None where none flows.
Gradient = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[Any]]


class DeviceFunction:
    """The ops of a function.

    Args:
        function: makes them in the active graph.
        order: axes in which operand 0 is taken and result 0 given, of TensorFlow's; None: as they are.
        absent: of so many last operands the function gets None for those that are known to be 0 everywhere, but not for
            all of them.

    Attributes:
        arranged: it takes values in an order of axes of their own.
    """

    def __init__(self, function: Function, order: tuple[int, ...] | None = None, absent: int = 0) -> None:
        self._function = function
        self._order = order
        self._absent = absent
        self.arranged = order is not None

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """Make them where the importer is."""
        order = self._order
        operands: list[Any] = []
        for value in self._present(inputs):
            if value is None:
                operands.append(None)
                continue
            placed = order is not None and len(value.shape) == len(order)
            if placed and isinstance(value, Arranged) and value.order == order:
                operands.append(value.inner)
                continue
            tensor = tensor_of(plain(value), importer.place)
            operands.append(permuted(tensor, order) if placed and order is not None else tensor)
        results = _listed(self._function(*operands))
        if order is None:
            return results
        return [Arranged(t, order) if len(t.shape) == len(order) else t for t in results]

    def _present(self, values: Sequence[Any]) -> list[Any]:
        """The operands, None for the absent ones."""
        start = len(values) - self._absent
        operands = [None if i >= start and _is_zero(value) else value for i, value in enumerate(values)]
        if self._absent and all(value is None for value in operands[start:]):
            operands[start] = values[start]
        return operands

    def on_host(self, *operands: Any) -> list[np.ndarray]:
        """What they give for arrays."""
        arrays = self._present([np.asarray(operand) for operand in operands])
        ir = Ir()
        graph = ir.main_graph
        builder = Builder(graph)
        with CONTEXT.building(builder):
            tensors = [None if array is None else _variable(ir, i, array) for i, array in enumerate(arrays)]
            results = _listed(self._function(*(None if t is None else self._turned(t) for t in tensors)))
            streams = [_stored(builder, self._turned(t, back=True)) for t in results]
        evaluator = Evaluator(ir)
        evaluator.load_variables()
        outputs = evaluator.run({})
        return [np.asarray(outputs[stream][0, 0]) for stream in streams]

    def _turned(self, tensor: Tensor, back: bool = False) -> Tensor:
        order = self._order
        if order is None or len(tensor.shape) != len(order):
            return tensor
        return permuted(tensor, [order.index(axis) for axis in range(len(order))] if back else order)


def _is_zero(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.any()


def _listed(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _variable(ir: Ir, number: int, array: np.ndarray) -> Tensor:
    graph = ir.main_graph
    array = narrowed(array, what=f"operand {number}")
    variable = Variable(f"operand_{number}", TensorSpec(array.shape, dtype_of(array)), graph, array, ir.grouping())
    graph.add(variable)
    return variable


def _stored(builder: Builder, tensor: Tensor) -> Stream:
    graph = builder.graph
    stream = Stream(graph.tensor_id("result"), tensor.spec, graph, "d2h")
    stream.transfers = 1
    graph.add(stream)
    builder.create(HostStore, [tensor], [], stream=stream)
    return stream


def device_function(
    name: str,
    function: Function,
    inputs: Sequence[Any],
    specs: Sequence[tf.TensorSpec],
    gradient: Gradient | None = None,
    order: tuple[int, ...] | None = None,
    absent: int = 0,
) -> list[tf.Tensor]:
    """What ``function`` gives for tensors of TensorFlow.

    Args:
        name: of the op, and in errors.
        function: see :data:`Function`.
        specs: shapes and types of the results.
        gradient: see :data:`Gradient`; None: no gradient flows through it in TensorFlow's graph.
        order: see :class:`DeviceFunction`: operands and results of as many axes are taken and given so.
        absent: see there.
    """
    tensors = [tf.convert_to_tensor(value) for value in inputs]
    meaning = DeviceFunction(function, order, absent)

    def made(*operands: tf.Tensor) -> list[tf.Tensor]:
        if not tf.executing_eagerly():
            return marker(name, meaning, list(operands), list(specs), effect=False)
        arrays = meaning.on_host(*(operand.numpy() for operand in operands))
        return [tf.constant(array, spec.dtype) for array, spec in zip(arrays, specs, strict=True)]

    if gradient is None:
        return made(*tensors)

    @tf.custom_gradient
    def whole(*operands: tf.Tensor) -> Any:
        results = made(*operands)

        def backward(*grads: tf.Tensor) -> list[Any]:
            return list(gradient(operands, results, grads))

        return results, backward

    return list(whole(*tensors))


def ir_op(op_class: type[Op], outputs: int = 1, **attributes: Any) -> Function:
    """One op as a function."""

    def function(*operands: Tensor) -> list[Tensor]:
        names = [op_class.type.lower() if outputs == 1 else f"{op_class.type.lower()}_{i}" for i in range(outputs)]
        return make_all(op_class, operands, names, **attributes)

    return function
