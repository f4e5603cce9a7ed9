"""Ops whose result is their operand go, unless a value would change with them."""

import numpy as np
import pytest

from ipuperf.functions import arithmetic
from ipuperf.ir import CONTEXT, FLOAT32, Builder, Graph, Ir, Tensor, TensorSpec, Variable, elide
from ipuperf.ops import ReplicatedAllReduce


class Program:
    """A subgraph with an input ``x``, and a variable of the main graph."""

    def __init__(self, main: bool = False) -> None:
        self.ir = Ir()
        self.graph: Graph = self.ir.main_graph if main else self.ir.create_graph("body")
        self.builder = Builder(self.graph)

    def reduced(self, tensor: Tensor) -> Tensor:
        return self.builder.op(ReplicatedAllReduce, [tensor], op="add", group=self.ir.grouping())

    def elide(self) -> list[str]:
        """Types of the ops that are left."""
        elide(self.graph, [op for op in self.graph.ops if isinstance(op, ReplicatedAllReduce)])
        return [op.type for op in self.graph.ops]


def test_its_readers_read_the_operand_and_order_stays() -> None:
    program = Program()
    x = program.graph.add_input(TensorSpec((3,), FLOAT32), "x")
    with CONTEXT.building(program.builder):
        first = arithmetic.exp(x)
        twice = program.reduced(program.reduced(first))
        total = arithmetic.add(twice, twice)
        program.graph.add_output(total)
        other = arithmetic.sin(x)
    reduction = twice.producer
    program.graph.constrain(first.producer, reduction)
    program.graph.constrain(reduction, other.producer)
    assert program.elide() == ["Exp", "Add", "Sin"]
    assert total.producer.inputs == [first, first]
    assert first.consumers == [total.producer, total.producer]
    assert program.graph.constraints[other.producer] == {first.producer}
    assert twice.id not in program.graph.tensors


def test_a_result_of_the_graph() -> None:
    program = Program()
    x = program.graph.add_input(TensorSpec((3,), FLOAT32), "x")
    with CONTEXT.building(program.builder):
        value = arithmetic.exp(x)
        program.graph.add_output(program.reduced(value))
    assert program.elide() == ["Exp"]
    assert program.graph.outputs == [value]


@pytest.mark.parametrize("case", ["input", "variable", "operand changes", "result changes", "both are results"])
def test_what_would_change_a_value_stays(case: str) -> None:
    program = Program(main=case == "variable")
    spec = TensorSpec((3,), FLOAT32)
    if case == "variable":
        x: Tensor = Variable("x", spec, program.graph, np.ones(3, np.float32), program.ir.grouping())
        program.graph.add(x)
    else:
        x = program.graph.add_input(spec, "x")
    with CONTEXT.building(program.builder):
        value = x if case in ("input", "variable") else arithmetic.exp(x)
        result = program.reduced(value)
        if case == "operand changes":
            arithmetic.add_(value, x)
        if case == "result changes":
            arithmetic.add_(result, x)
        if case == "both are results":
            program.graph.add_output(value)
            program.graph.add_output(result)
    assert "ReplicatedAllReduce" in program.elide()
