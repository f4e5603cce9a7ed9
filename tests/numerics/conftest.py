"""A small program builder for tests of the evaluator: ops by class, values by name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.numerics import Evaluator
from ipuperf.ops.shape import Init
from ipuperf.ops.transfers.streams import HostLoad, HostStore


class Program:
    """An Ir under construction, with everything in creation order."""

    def __init__(self, replicas: int = 1, transfers: int = 1) -> None:
        self.ir = ir.Ir(replicas)
        self.ir.num_host_transfers = transfers
        self.main = self.ir.main_graph

    def variable(self, name: str, data: Any, grouping: ir.ReplicaGrouping | None = None, **kwargs: Any) -> ir.Variable:
        data = np.asarray(data)
        grouping = grouping or self.ir.grouping()
        shape = data.shape[1:] if grouping.num_groups > 1 else data.shape
        spec = kwargs.pop("spec", None) or ir.TensorSpec(shape, ir.dtype_of(data))
        variable = ir.Variable(self.main.tensor_id(name), spec, self.main, data, grouping, **kwargs)
        self.main.add(variable)
        return variable

    def stream(
        self, name: str, shape: Sequence[int], dtype: ir.DType = ir.FLOAT32, direction: str = "h2d"
    ) -> ir.Stream:
        stream = ir.Stream(self.main.tensor_id(name), ir.TensorSpec(tuple(shape), dtype), self.main, direction)
        self.main.add(stream)
        return stream

    def op(
        self, op_class: type[ir.Op], inputs: Sequence[ir.Tensor], graph: ir.Graph | None = None, **kwargs: Any
    ) -> Any:
        """Create an op; its output, or the list of outputs when there is not exactly one."""
        graph = graph or self.main
        names = kwargs.pop("names", None)
        if names is None:
            callee = kwargs.get("callee")
            names = [t.name for t in callee.outputs] if callee else ["t"]
        outputs = graph.create(op_class, inputs, names, **kwargs).outputs
        return outputs[0] if len(outputs) == 1 and "callee" not in kwargs else outputs

    def load(self, stream: ir.Stream, graph: ir.Graph | None = None) -> ir.Tensor:
        init = self.op(Init, [], graph, shape=stream.shape, dtype=stream.dtype, init="zero")
        return self.op(HostLoad, [init], graph, stream=stream)

    def store(self, tensor: ir.Tensor, name: str = "out", stream: ir.Stream | None = None) -> ir.Stream:
        stream = stream or self.stream(name, tensor.shape, tensor.dtype, "d2h")
        self.op(HostStore, [tensor], tensor.graph, stream=stream, names=[])
        return stream

    def evaluator(self) -> Evaluator:
        evaluator = Evaluator(self.ir)
        evaluator.load_variables()
        return evaluator


@pytest.fixture
def program():
    """Factory of programs whose ops are ordered as they are created."""
    stack: list[Any] = []

    def make(replicas: int = 1, transfers: int = 1) -> Program:
        made = Program(replicas, transfers)
        context = ir.CONTEXT.sequence(True)
        context.__enter__()
        stack.append(context)
        return made

    yield make
    for context in reversed(stack):
        context.__exit__(None, None, None)
