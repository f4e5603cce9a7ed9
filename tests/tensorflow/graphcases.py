"""What the tests of the import share: a place of their own, and functions that run an imported function."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.numerics import Evaluator
from ipuperf.tensorflow.importer import Place, Resource, captured_values, import_graph, tensor_of


class GraphPlace(Place):
    """The main graph of a program, or a graph that it executes."""

    def __init__(self, graph: _ir.Graph, outer: GraphPlace | None = None, executions: int = 1) -> None:
        super().__init__(graph)
        self.outer, self.executions = outer, executions
        self.captured: list[_ir.Tensor] = []
        self.images: dict[_ir.Tensor, _ir.Tensor] = {}
        self.root: GraphPlace = outer.root if outer is not None else self
        self.variables: dict[Resource, _ir.Variable] = {}
        self.last: _ir.Op | None = None
        self.keys = 0
        self.own_seed: _ir.Tensor | None = None

    def data(self, name: str, value: np.ndarray) -> _ir.Variable:
        graph = self.root.graph
        spec = _ir.TensorSpec(tuple(value.shape), _ir.dtype_of(value))
        with _ir.CONTEXT.detached():
            name = graph.tensor_id(name)
        variable = _ir.Variable(name, spec, graph, value.copy(), graph.ir.grouping())
        graph.add(variable)
        return variable

    def get(self, tensor: _ir.Tensor) -> _ir.Tensor:
        if tensor.graph is self.graph:
            return tensor
        if tensor not in self.images:
            self.images[tensor] = self.capture(tensor)
        return self.images[tensor]

    def capture(self, tensor: _ir.Tensor) -> _ir.Tensor:
        name = tensor.name.rsplit("/", 1)[-1]
        if isinstance(tensor, _ir.Constant):
            return self.graph.constant(tensor.data, tensor.dtype, name)
        assert self.outer is not None
        self.captured.append(self.outer.get(tensor))
        return self.graph.add_input(tensor.spec, name, by_ref=isinstance(tensor, _ir.Variable) or tensor.by_ref)

    def made(self, op: _ir.Op) -> None:
        if self.last is not None:
            self.graph.constrain(self.last, op)
        self.last = op

    def read(self, resource: Resource) -> _ir.Tensor:
        variables = self.root.variables
        if resource not in variables:
            variables[resource] = self.data("v", narrowed(value_of(resource)))
        return self.get(variables[resource])

    def assign(self, resource: Resource, value: _ir.Tensor) -> None:
        self.create(_k.CopyVarUpdate, [self.read(resource), value], ["assigned"])

    def in_place(self, resource: Resource) -> _ir.Tensor:
        return self.read(resource)

    def seed(self) -> _ir.Tensor:
        if self.own_seed is None:
            variable = self.data("seed", np.zeros(2, np.uint32))
            self.own_seed = self.create(
                _k.IncrementModInplace, [self.get(variable)], ["seed"], increment=1, modulus=(1 << 32) - 1
            ).outputs[0]
        return self.own_seed

    def random_key(self) -> int:
        self.root.keys += 1
        return self.root.keys

    def inner(self, stem: str, executions: int) -> GraphPlace:
        return GraphPlace(self.graph.ir.create_graph(stem), self, executions)


def traced(function, *arguments, grad: bool = False) -> FuncGraph:
    """The graph of a function of arguments like these arrays."""
    specs = [tf.TensorSpec(np.shape(a), np.asarray(a).dtype) for a in arguments]
    return func_graph_from_py_func("program", function, specs, {})


class Program:
    """A function that is imported, with the variables that it uses; arrays given as arguments are the program's inputs.

    Args:
        function: of tensors of TensorFlow.
        arguments: arrays.
        static: arguments are known when the program is compiled.
    """

    def __init__(self, function, arguments, static: bool = False) -> None:
        self.ir = _ir.Ir()
        self.place = GraphPlace(self.ir.main_graph)
        self.graph = traced(function, *arguments)
        arrays = [np.asarray(a) for a in arguments]
        with _ir.CONTEXT.building(self.place):
            given = arrays if static else [self.place.data("x", narrowed(a)) for a in arrays]
            self.values = import_graph(self.graph, [*given, *captured_values(self.graph)], self.place)
            tensors = [tensor_of(v, self.place) for v in self.values]
            self.streams = [self._store(t) for t in tensors]
        self.evaluator = Evaluator(self.ir)
        self.evaluator.load_variables()

    def _store(self, tensor: _ir.Tensor) -> _ir.Stream:
        graph = self.ir.main_graph
        stream = _ir.Stream(graph.tensor_id("result"), tensor.spec, graph, "d2h")
        stream.transfers = 1
        graph.add(stream)
        self.place.create(_k.HostStore, [tensor], [], stream=stream)
        return stream

    def run(self) -> list[np.ndarray]:
        """The values that the function returns."""
        outputs = self.evaluator.run({})
        return [np.asarray(outputs[s][0, 0]) for s in self.streams]

    def state(self) -> dict[Resource, np.ndarray]:
        """The values of the variables on the device."""
        self.evaluator.store_variables(self.place.variables.values())
        return {resource: v.data for resource, v in self.place.variables.items()}


def value_of(resource: Resource) -> np.ndarray:
    """What TensorFlow's variable holds."""
    kind = resource.handle._handle_data.shape_and_type[0].dtype
    return tf.raw_ops.ReadVariableOp(resource=resource.handle, dtype=kind).numpy()


def narrowed(array: np.ndarray) -> np.ndarray:
    """An array in a type of the IPU."""
    array = np.asarray(array)
    return array.astype({"int64": "int32", "float64": "float32"}.get(array.dtype.name, array.dtype))


def check(function, *arguments, static: bool = False, rtol: float = 1e-5, atol: float = 1e-6) -> Program:
    """Compare a function on the IPU with TensorFlow on the CPU: results, then values of variables."""
    program = Program(function, arguments, static)
    found = program.run()
    expected = tf.nest.flatten(function(*(tf.constant(a) for a in arguments)))
    expected = [e for e in expected if e is not None]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == tuple(other.shape)
        compare(one, narrowed(other.numpy()), rtol, atol)
    for resource, one in program.state().items():
        compare(one, narrowed(value_of(resource)), rtol, atol)
    return program


def compare(found: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> None:
    """Equal up to ``rtol`` of each element, or ``atol`` of the largest one (sums of large terms may cancel)."""
    finite = expected[np.isfinite(expected)] if expected.dtype.kind == "f" else expected
    largest = max(1.0, float(np.abs(finite).max())) if finite.size and expected.dtype.kind != "b" else 1.0
    np.testing.assert_allclose(found, expected, rtol, atol * largest)
