"""MultiConv: one op in the place of several convolutions, with their values and gradients."""

import pytest

from ipuperf import ir, ops
from ipuperf.ops.products.multi_conv import multi_conv_of

torch = pytest.importorskip("torch")
conv2d, conv_transpose2d = torch.nn.functional.conv2d, torch.nn.functional.conv_transpose2d


@pytest.fixture
def operands(rng):
    shapes = [(3, 4, 7, 6), (6, 2, 3, 2), (2, 5, 5, 5), (5, 3, 3, 3)]
    return [rng.normal(size=(2, *shape)) for shape in shapes]


def built(graph: ir.Graph, x0: ir.Tensor, w0: ir.Tensor, x1: ir.Tensor, w1: ir.Tensor) -> list[ir.Op]:
    first = graph.create(ops.Conv, [x0, w0], ["y0"], groups=2, padding=1, strides=(2, 1))
    between = graph.create(ops.Relu, first.outputs, ["r"])
    second = graph.create(ops.ConvTranspose, [x1, w1], ["y1"], strides=2)
    return [first, between, second]


def joined(graph: ir.Graph, *tensors: ir.Tensor) -> ir.Tensor:
    first, between, second = built(graph, *tensors)
    op = multi_conv_of([first, second], plan_type="serial")
    assert graph.ops == [op, between], "what needs a result comes after"
    assert [t.producer for t in (*first.outputs, *second.outputs)] == [op, op]
    total = [graph.create(ops.ReduceSum, [t], ["s"], axes=None, keepdims=False).outputs[0] for t in
             (between.outputs[0], second.outputs[0])]  # fmt: skip
    return graph.create(ops.Add, total, ["loss"]).outputs[0]


def theirs(x0, w0, x1, w1):
    y0 = conv2d(x0, w0, stride=(2, 1), padding=1, groups=2)
    return torch.relu(y0).sum() + conv_transpose2d(x1, w1, stride=2).sum()


def test_values_and_gradients(bench, operands):
    bench.check(joined, theirs, operands)


def test_gradients_are_one_op_for_each_operand(operands):
    graph = ir.Ir().create_graph("g")
    tensors = [graph.add_input(ir.TensorSpec(a.shape[1:], ir.FLOAT64), "t") for a in operands]
    graph.add_output(joined(graph, *tensors))
    types = [op.type for op in ir.differentiate(graph, add_class=ops.Add).graph.ops if "Conv" in op.type]
    assert sorted(types) == ["MultiConv", "MultiConvWeightsGrad"], "that of a transposed convolution's input is a Conv"
    (op,) = [op for op in ir.differentiate(graph, add_class=ops.Add).graph.ops if "Weights" in op.type]
    assert op.plan_type == "serial"


def test_only_independent_ops_are_joined():
    graph = ir.Ir().main_graph
    x = graph.add_input(ir.TensorSpec((1, 2, 4, 4), ir.FLOAT32), "x")
    w = graph.add_input(ir.TensorSpec((2, 2, 1, 1), ir.FLOAT32), "w")
    first = graph.create(ops.Conv, [x, w], ["a"])
    second = graph.create(ops.Conv, [graph.create(ops.Relu, first.outputs, ["r"]).outputs[0], w], ["b"])
    with pytest.raises(ir.IrError, match="needs the result of another op of Conv"):
        multi_conv_of([first, second])
    assert graph.ops[0] is first
    assert x.consumers == [first]


def test_order_constraints_hold_for_the_joined_op():
    graph = ir.Ir().main_graph
    x = graph.add_input(ir.TensorSpec((1, 2, 4, 4), ir.FLOAT32), "x")
    w = graph.add_input(ir.TensorSpec((2, 2, 1, 1), ir.FLOAT32), "w")
    early, *convs = (graph.create(kind, given, ["t"]) for kind, given in
                     [(ops.Relu, [x]), (ops.Conv, [x, w]), (ops.Conv, [x, w])])  # fmt: skip
    late = graph.create(ops.Relu, [w], ["t"])
    graph.constrain(early, convs[1])
    graph.constrain(convs[0], late)
    op = multi_conv_of(convs)
    assert graph.constraints == {op: {early}, late: {op}}
    assert x.consumers == [early, op, op]
