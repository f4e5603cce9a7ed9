"""Calls and loops: rules, what they change, gradients through calls, work. Values by value and by reference are tested
with the evaluator."""

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.numerics.compiler import Compiler
from ipuperf.ops.control import Call, Loop, modified_graph_inputs
from ipuperf.ops.elementwise.activations import Relu
from ipuperf.ops.elementwise.arithmetic import Add, AddLhsInplace, Mul
from ipuperf.ops.elementwise.unary import Detach, Exp
from ipuperf.ops.gradients import autodiff
from ipuperf.ops.products.matmul import MatMul
from ipuperf.ops.reductions.axes_reduced import ReduceSum


def spec(*shape, dtype=ir.FLOAT32):
    return ir.TensorSpec(shape, dtype)


def op(graph, op_class, *inputs, **attributes):
    return graph.create(op_class, list(inputs), ["t"], **attributes).outputs[0]


def evaluate(graph, arrays):
    """Outputs of a graph for one replica."""
    kernel, outputs = Compiler(1, {}, {}).compile(graph, [np.asarray(a, np.float32)[None] for a in arrays])
    with np.errstate(all="ignore"):
        kernel()
    return [o[0].copy() for o in outputs]


# -- rules ---------------------------------------------------------------------------------------------------------


def test_an_error_about_a_call_of_many_operands_stays_short():
    main, callee = (program := ir.Ir()).main_graph, program.create_graph("f")
    for i in range(40):
        callee.add_input(spec(2), f"a{i}")
    operands = [main.add_input(spec(2 + i % 2), f"x{i}") for i in range(40)]
    with pytest.raises(ir.ShapeError, match=r"x3 \[\(3,\) float32\] and 36 more\): operand 'x1' .*; 19 more operands"):
        main.create(Call, operands, ["t"], callee=callee)
    with pytest.raises(ir.IrError, match="main graph cannot be called"):
        callee.create(Call, [], [], callee=main)


def test_loop_rules():
    program = ir.Ir()
    main, callee = program.main_graph, program.create_graph("f")
    a = callee.add_input(spec(2), "a")
    callee.add_output(op(callee, ReduceSum, a, axes=None, keepdims=False))
    x = main.add_input(spec(2), "x")
    with pytest.raises(ir.ShapeError, match=r"output .* is \(\) float32, the input .*/a' that it is carried to"):
        main.create(Loop, [x], ["t"], callee=callee, trip_count=2)
    other = program.create_graph("g")
    b = other.add_input(spec(2), "b")
    other.add_output(b)
    other.add_output(b)
    with pytest.raises(ir.ShapeError, match="2 outputs and only 1 inputs"):
        main.create(Loop, [x], ["t", "u"], callee=other, trip_count=2)
    for trips in (-1, 1.5):
        with pytest.raises(ir.IrError, match="trip_count"):
            main.create(Loop, [x], ["t"], callee=callee, trip_count=trips)


def changing(program, by_ref):
    """A graph that changes its first input through a view of a sum in place, and only reads the second."""
    graph = program.create_graph("f")
    a = graph.add_input(spec(2), "a", by_ref=by_ref)
    b = graph.add_input(spec(2), "b", by_ref=True)
    graph.add_output(op(graph, AddLhsInplace, op(graph, AddLhsInplace, a, b), b))
    return graph


@pytest.mark.parametrize("by_ref", [False, True])
def test_modified_inputs_follow_calls(by_ref):
    program = ir.Ir()
    inner = changing(program, by_ref)
    assert modified_graph_inputs(inner) == {0}
    outer = program.create_graph("g")
    p, q = outer.add_input(spec(2), "p", by_ref=True), outer.add_input(spec(2), "q", by_ref=True)
    call = outer.create(Call, [q, p], ["t"], callee=inner)
    expected = (0,) if by_ref else ()  # b is by reference, but nobody changes it
    assert call.modified_inputs() == expected
    assert modified_graph_inputs(outer) == ({1} if by_ref else set())
    main = program.main_graph
    x, y = main.add_input(spec(2), "x"), main.add_input(spec(2), "y")
    outside = main.create(Call, [x, y], [], callee=outer)
    assert outside.modified_inputs() == ((1,) if by_ref else ())
    assert outside.called_graphs() == (outer,)
    loop = main.create(Loop, [x, y], ["t"], callee=inner, trip_count=3)
    assert loop.modified_inputs() == ()  # the changed input is loop carried: by value
    implicit = main.create(Loop, [x, y], [], callee=outer, trip_count=3)
    assert implicit.modified_inputs() == ((1,) if by_ref else ())


# -- gradients -----------------------------------------------------------------------------------------------------


def layer(program):
    """``relu(x @ w)`` with a detached branch ``exp(x) * s`` that gives ``s`` no gradient."""
    graph = program.create_graph("layer")
    x, w, s = (graph.add_input(spec(*shape), n) for n, shape in (("x", (4, 3)), ("w", (3, 3)), ("s", (4, 3))))
    y = op(graph, Relu, op(graph, MatMul, x, w))
    graph.add_output(op(graph, Add, y, op(graph, Detach, op(graph, Mul, op(graph, Exp, x), s))))
    return graph


def network(program, calls):
    """``sum(layer(...layer(x)...)^2)``, each layer with its own weight."""
    body, graph = layer(program), program.create_graph("net")
    x = graph.add_input(spec(4, 3), "x")
    s = graph.add_input(spec(4, 3), "s")
    weights = [graph.add_input(spec(3, 3), f"w{i}") for i in range(calls)]
    for w in weights:
        (x,) = graph.create(Call, [x, w, s], ["y"], callee=body).outputs
    graph.add_output(op(graph, ReduceSum, op(graph, Mul, x, x), axes=None, keepdims=False))
    return graph, weights


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("nested", [False, True])
def test_gradient_through_calls_against_torch(calls, nested):
    torch = pytest.importorskip("torch")
    program = ir.Ir()
    graph, weights = network(program, calls)
    if nested:
        outer = program.create_graph("outer")
        inputs = [outer.add_input(t.spec, t.name) for t in graph.inputs]
        (loss,) = outer.create(Call, inputs, ["loss"], callee=graph).outputs
        outer.add_output(loss)
        graph, weights = outer, [inputs[graph.inputs.index(w)] for w in weights]
    plain = len(graph.inputs)
    derivative = autodiff(graph, required=[graph.inputs[0], *weights])
    rng = np.random.default_rng(7)
    arrays = [rng.normal(size=t.shape) * 0.5 for t in graph.inputs[:plain]]
    forward = evaluate(graph, arrays)
    values = dict(zip(graph.outputs, forward)) | dict(zip(graph.inputs, arrays))
    operands = [np.ones(()) if c.is_gradient else values[c.tensor] for c in derivative.inputs]
    found = evaluate(derivative.graph, operands)

    x, s, *ws = (torch.tensor(a.astype(np.float32), requires_grad=True) for a in arrays)
    y = x
    for w in ws:
        y = torch.relu(y @ w) + (torch.exp(y) * s).detach()
    loss = (y**2).sum()
    loss.backward()
    np.testing.assert_allclose(forward[0], loss.item(), rtol=1e-5)
    for mine, theirs in zip(found, [x, *ws], strict=True):
        np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_calls_share_one_gradient_graph():
    program = ir.Ir()
    graph, weights = network(program, 3)
    autodiff(graph, required=weights)
    assert [g.name for g in program.graphs.values() if g.name.startswith("layer")] == [
        "layer_subgraph(0)",
        "layer_subgraph(0)_bwd",
    ]


def test_unused_inputs_of_a_callee_get_no_gradient():
    program = ir.Ir()
    graph, _ = network(program, 1)
    with pytest.raises(ir.IrError, match=r"no gradient reaches required input '.*/s'"):
        autodiff(graph, required=[graph.inputs[1]])
