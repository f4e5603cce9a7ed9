"""Copies between IPUs: place of the result, value, gradient, buffer, errors."""

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.ir import CONTEXT
from ipuperf.ops import Add, AddLhsInplace, autodiff
from ipuperf.ops.transfers.ipu_copy import IpuCopy
from ipuperf.ops.work import InterIpuTransfer

SPEC = ir.TensorSpec((3, 2), ir.FLOAT16)


@pytest.fixture
def graph():
    return ir.Ir(2).create_graph("f")


def tensor(graph, name="x", spec=SPEC, ipu=None):
    made = graph.add_input(spec, name)
    made.ipu = ipu
    return made


@pytest.mark.parametrize("active", [None, 0, 2])
def test_the_result_is_on_the_destination_whatever_the_context_says(graph, active):
    if active is None:
        op = graph.create(IpuCopy, [tensor(graph)], ["y"], source=0, destination=1)
    else:
        with CONTEXT.on_ipu(active):
            op = graph.create(IpuCopy, [tensor(graph)], ["y"], source=0, destination=1)
    assert (op.ipu, op.outputs[0].ipu, op.type) == (1, 1, "IpuCopy")
    assert op.outputs[0].spec == SPEC
    assert (op.modified_inputs(), op.aliases()) == ((), {})
    assert op.work() == [InterIpuTransfer(0, 1, 12)]


def test_empty_tensor_asks_for_nothing(graph):
    empty = tensor(graph, spec=ir.TensorSpec((0, 2), ir.FLOAT16))
    assert graph.create(IpuCopy, [empty], ["y"], source=0, destination=1).work() == []


@pytest.mark.parametrize("views", [True, False])
def test_value(bench, rng, views):
    x = rng.standard_normal((2, 3, 2)).astype(np.float16)
    np.testing.assert_array_equal(bench.run(IpuCopy, x, views=views, source=2, destination=0), x)


def test_a_later_change_of_the_source_is_not_seen(graph, rng, run_graph):
    x, one = tensor(graph), tensor(graph, "one")
    with CONTEXT.use_graph(graph), CONTEXT.sequence(True):
        copied = graph.create(IpuCopy, [x], ["y"], source=0, destination=1).outputs[0]
        graph.create(AddLhsInplace, [x, one], ["changed"])
    array = rng.standard_normal((1, 3, 2)).astype(np.float16)
    values = run_graph(graph, {x: array.copy(), one: np.ones((1, 3, 2), np.float16)})
    np.testing.assert_array_equal(values[copied], array)


def test_buffer_is_written_in_place(bench, rng):
    x, buffer = rng.standard_normal((2, 2, 3, 2)).astype(np.float16)
    op = bench.op(IpuCopy, x, buffer, source=0, destination=1)
    assert (op.modified_inputs(), op.aliases()) == ((1,), {0: 1})
    found = bench.run(IpuCopy, x, buffer, source=0, destination=1)
    assert found is buffer
    np.testing.assert_array_equal(buffer, x)


def test_gradient_is_copied_back(graph):
    x = tensor(graph)
    y = graph.create(IpuCopy, [x], ["y"], source=0, destination=3).outputs[0]
    graph.add_output(graph.create(Add, [y, y], ["z"]).outputs[0])
    back = autodiff(graph).graph
    copies = [op for op in back.ops if isinstance(op, IpuCopy)]
    assert [(op.source, op.destination, op.ipu) for op in copies] == [(3, 0, 0)]
    assert back.outputs[0] is copies[0].outputs[0]


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((0, 0), "source=0, destination=0; allowed are two different"),
        ((-1, 0), "source=-1, destination=0; allowed are two different"),
        ((0, None), "destination=None; a whole number is needed"),
        ((0, 1.0), "destination=1.0; a whole number is needed"),
        ((True, 2), "source=True; a whole number is needed"),
        (("0", 1), "source='0'; a whole number is needed"),
    ],
)
def test_ends_that_are_no_two_ipus(graph, ends, message):
    with pytest.raises(ir.IrError, match=message):
        graph.create(IpuCopy, [tensor(graph)], ["y"], source=ends[0], destination=ends[1])


def test_operands_that_are_elsewhere_or_do_not_fit(graph):
    x, far = tensor(graph, ipu=0), tensor(graph, "far", ipu=2)
    wide = tensor(graph, "wide", ir.TensorSpec((3, 2), ir.FLOAT32))
    long = tensor(graph, "long", ir.TensorSpec((4, 2), ir.FLOAT16))
    for operands, error, message in (
        ([far], ir.IrError, "far' is on IPU 2, the source is IPU 0"),
        ([x, far], ir.IrError, "far' is on IPU 2, the destination is IPU 1"),
        ([x, wide], ir.DTypeError, "different dtypes"),
        ([x, long], ir.ShapeError, r"buffer has shape \(4, 2\), the operand \(3, 2\)"),
        ([], ir.ShapeError, "takes 1 or 2 operands, not 0"),
    ):
        with pytest.raises(error, match=message):
            graph.create(IpuCopy, operands, ["y"], source=0, destination=1)
