"""Operands of pooling: how many input elements arrive for each result (``Vertices.operands``)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT32, TensorSpec, Variable
from ipuperf.lowering import Phase, lower
from ipuperf.machine import load_machine

GC200 = load_machine("gc200-1")


def arriving(shape, op_class=ops.MaxPool, inputs=None, **attributes):
    """Bytes that the tiles receive before the vertices run."""
    program = ir.Ir()
    graph = program.main_graph
    tensors = []
    for number, own in enumerate(inputs or [shape]):
        data = np.zeros(own, np.float32)
        tensors.append(graph.add(Variable(f"x{number}", TensorSpec(own, FLOAT32), graph, data, program.grouping())))
    op = graph.create(op_class, tensors, ["y"], **attributes)
    steps = [s for s in lower(program, GC200).walk() if isinstance(s, Phase) and s.kind == "exchange"]
    return sum(s.bytes_in for s in steps), op


@pytest.mark.parametrize("op_class", [ops.MaxPool, ops.AveragePool])
def test_windows_that_do_not_overlap_read_every_element_once(op_class):
    received, op = arriving((2, 8, 16, 16), op_class, kernel_size=2)
    (work,) = op.work()
    assert work.operands == (2 * 8 * 16 * 16,)
    assert received == 2 * 8 * 16 * 16 * 4


def test_overlapping_rows_are_read_by_each_row_of_results():
    _, op = arriving((1, 1, 9, 9), kernel_size=3, strides=2)
    (work,) = op.work()
    assert op.outputs[0].shape == (1, 1, 4, 4)
    assert work.operands == ((4 * 3) * 9,)  # three rows of nine elements for each of four rows of results


def test_gradients_read_each_window_of_their_row():
    grad, y, x = (1, 4, 8, 8), (1, 4, 8, 8), (1, 4, 16, 16)
    received, op = arriving(x, ops.MaxPoolGrad, [grad, y, x], kernel_size=2)
    (work,) = op.work()
    windows = 4 * 16 * 8  # each of 16 rows reads the 8 windows of one row
    assert work.operands == (windows, windows, math.prod(x))
    assert received >= 2 * windows * 4  # rounded up on each tile; x lies where the result lies
    assert received < 2 * math.prod(x) * 4


def test_average_gradient_reads_the_windows_of_its_row():
    _, op = arriving((1, 4, 8, 8), ops.AveragePoolGrad, kernel_size=2, input_size=(16, 16))
    assert op.work()[0].operands == (4 * 16 * 8,)


def test_a_tile_reads_at_most_the_whole_input():
    received, op = arriving((1, 1, 1, 64), kernel_size=(1, 2), strides=(1, 1))
    assert op.work()[0].operands == (64,)
    tiles = math.ceil(63 / 32)
    assert received <= tiles * 64 * 4
