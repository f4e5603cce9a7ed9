"""Operands of pooling: how many input elements arrive for each result (``Vertices.operands``)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT32, TensorSpec, Variable
from ipuperf.lowering import Phase, lower
from ipuperf.machine import load_machine
from ipuperf.ops.work import Reduction

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


@pytest.mark.parametrize(
    ("op_class", "attributes"),
    [
        (ops.AveragePool, {"kernel_size": 7}),
        (ops.MaxPool, {"kernel_size": 7, "strides": 1}),
        (ops.AdaptiveAveragePool, {"output_size": 1}),
        (ops.GlobalAveragePool, {}),
    ],
)
def test_one_window_of_everything_is_a_reduction(op_class, attributes):
    _, op = arriving((4, 512, 7, 7), op_class, **attributes)
    (work,) = op.work()
    assert isinstance(work, Reduction)
    assert (work.inputs, work.outputs, work.run, work.together) == (4 * 512 * 49, 4 * 512, 49, 8)


def test_padded_or_part_windows_are_no_reductions():
    for attributes in ({"kernel_size": 7, "padding": 1}, {"kernel_size": 6, "strides": 1}):
        _, op = arriving((4, 512, 7, 7), **attributes)
        assert not any(isinstance(work, Reduction) for work in op.work())


def test_the_gradient_of_one_window_is_scaled_and_copied():
    received, op = arriving((4, 512, 1, 1), ops.AveragePoolGrad, kernel_size=7, input_size=(7, 7))
    scaled, copied = op.work()
    assert (scaled.elements, copied.bytes) == (4 * 512, 4 * 512 * 49 * 4)
    assert received == copied.bytes
