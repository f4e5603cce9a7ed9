"""What is broadcast: no steps, no memory, and what a reader brings over the exchange."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT32, TensorSpec, Variable
from ipuperf.lowering import Phase, lower
from ipuperf.machine import load_machine

GC200 = load_machine("gc200-1")


class Program:
    """Variables and ops on one IPU."""

    def __init__(self) -> None:
        self.ir = ir.Ir()
        self.graph = self.ir.main_graph

    def variable(self, *shape: int) -> ir.Tensor:
        data = np.zeros(shape, np.float32)
        name = self.graph.tensor_id("v")
        return self.graph.add(Variable(name, TensorSpec(shape, FLOAT32), self.graph, data, self.ir.grouping()))

    def op(self, op_class: type[ops.Op], *inputs: ir.Tensor, outputs: int = 1, **attributes: object) -> list[ir.Tensor]:
        names = [f"y{number}" for number in range(outputs)]
        return self.graph.create(op_class, inputs, names, **attributes).outputs

    def exchanged(self) -> dict[str, int]:
        """Bytes that arrive on tiles, by step."""
        found: dict[str, int] = {}
        for step in lower(self.ir, GC200).walk():
            if isinstance(step, Phase) and step.kind == "exchange":
                found[step.name] = found.get(step.name, 0) + step.bytes_in
        return found


def test_a_value_for_each_row_is_read_once_by_each_tile():
    program = Program()
    program.op(ops.Sub, program.variable(4096, 1024), program.variable(4096, 1))
    arriving = program.exchanged()["Sub/operands"]
    assert 4096 * 4 <= arriving <= 1472 * 4 * 4  # 2,850 elements of a tile lie in up to 4 rows


def test_a_vector_for_all_rows_is_read_whole():
    program = Program()
    program.op(ops.Add, program.variable(4096, 1024), program.variable(1024))
    assert program.exchanged()["Add/operands"] == 1472 * 1024 * 4


def test_what_is_expanded_is_there_once():
    program = Program()
    (wide,) = program.op(ops.Expand, program.variable(4096, 1), shape=(4096, 1024))
    program.op(ops.Mul, wide, program.variable(4096, 1024))
    assert program.exchanged()["Mul/operands"] <= 1472 * 4 * 4
    large = [each.name for each in lower(program.ir, GC200).memory.variables if each.bytes.total > 2**23]
    assert len(large) == 2  # the other factor and the product


def test_the_reader_of_an_expanded_tensor_alone_lies_as_its_result():
    program = Program()
    (wide,) = program.op(ops.Expand, program.variable(4096, 1), shape=(4096, 1024))
    program.op(ops.Exp, wide)
    (vertices,) = [s for s in lower(program.ir, GC200).walk() if isinstance(s, Phase) and s.kind == "compute"]
    assert vertices.cycles.active == 1472


def copied(pass_: str, *, first: bool = True, reader: bool = False, leaves: bool = False) -> bool:
    """Whether a transposed operand, the first or second of a product in ``pass_``, is copied."""
    program = Program()
    plain, other = program.variable(64, 64), program.variable(64, 64)
    (turned,) = program.op(ops.Transpose, program.op(ops.Neg, plain)[0], permutation=(1, 0))
    operands = (turned, other) if first else (other, turned)
    program.op(ops.MatMul, *operands, pass_=pass_, partials_dtype=FLOAT32)
    if reader:
        program.op(ops.Neg, turned)
    if leaves:
        program.graph.add_output(turned)
    return "Transpose/copy" in program.exchanged()


@pytest.mark.parametrize(
    ("pass_", "first", "copy"),
    [
        ("fcwu", True, False),
        ("fcwu", False, False),
        ("fcbwd", True, True),  # the gradient of the result
        ("fcbwd", False, False),  # the weights
        ("fcfwd", False, True),
        ("nonemm", True, True),
    ],
)
def test_a_transposed_operand_is_a_view_where_the_product_rearranges_it(pass_, first, copy):
    assert copied(pass_, first=first) == copy


def test_a_transposed_operand_with_another_reader_is_a_copy():
    assert copied("fcwu", reader=True)
    assert copied("fcwu", leaves=True)
