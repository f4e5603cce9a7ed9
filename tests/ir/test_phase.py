"""What ops are for: said by who makes them, followed through the data where nobody says; names play no part."""

from typing import get_args

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.ir import CONTEXT, Phase, phases_of
from ipuperf.popxl import ops
from ipuperf.trace import PHASES


def phases(ir, *, graph: str | None = None) -> dict[str, set[str]]:
    """Phases by op type, in the graphs whose name begins with ``graph``."""
    found: dict[str, set[str]] = {}
    for op, phase in phases_of(ir._ir.main_graph).items():
        if graph is None or op.graph.name.startswith(graph):
            found.setdefault(op.type, set()).add(phase)
    return found


@pytest.fixture
def ir():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        yield ir


def my_bwd_filter(x):
    return ops.relu(ops.add(x, x))


def data(shape=(4, 4)):
    return popxl.variable(np.ones(shape, np.float32))


def test_a_forward_graph_may_be_called_anything(ir):
    graph = ir.create_graph(my_bwd_filter, data())
    assert "_bwd" in graph.name
    ops.call(graph, data())
    assert phases(ir) == {"Call": {"fwd"}, "Add": {"fwd"}, "Relu": {"fwd"}}


class Linear(addons.Module):
    def build(self, x):
        self.w = self.add_variable_input("w", lambda: np.ones((4, 4), np.float32), popxl.float32)
        return ops.relu(x @ self.w)


def trained(ir, x):
    """A layer called and differentiated: its variables, the gradient of its weight."""
    facts, graph = Linear().create_graph(x)
    backward = addons.autodiff(graph, grads_required=[graph.args.w])
    held = facts.init()
    call = graph.bind(held).call_with_info(x)
    (seed,) = call.outputs
    (grad,) = backward.call(seed, args=backward.grad_graph_info.inputs_dict(call))
    return held, graph, grad


def test_gradients_are_backward_and_what_reads_them_too(ir):
    held, _, grad = trained(ir, data())
    scaled = ops.mul(grad, popxl.constant(0.5, popxl.float32))
    ops.scaled_add_(held.w, scaled, b=-0.1)
    ops.relu(held.w)
    found = phases(ir, graph="")
    assert found["Mul"] == {"bwd"}
    assert found["ScaledAddLhsInplace"] == {"update"}
    assert found["MatMul"] == {"fwd", "bwd"}
    assert found["Relu"] == {"fwd"}
    main = [phase for op, phase in phases_of(ir._ir.main_graph).items() if op.graph.is_main and op.type == "Call"]
    assert main == ["fwd", "bwd"]


def test_an_addition_to_a_weight_by_its_gradient_is_an_update_and_the_next_step_forward(ir):
    held, graph, grad = trained(ir, data())
    ops.add_(held.w, grad)
    graph.bind(held).call(data())
    found = phases_of(ir._ir.main_graph)
    assert [phase for op, phase in found.items() if op.type == "AddLhsInplace"] == ["update"]
    assert [phase for op, phase in found.items() if op.graph.is_main and op.type == "Call"] == ["fwd", "bwd", "fwd"]


def test_a_graph_repeated_on_gradients_is_backward(ir):
    *_, grad = trained(ir, data())
    halve = ir.create_graph(lambda x: ops.mul(x, popxl.constant(0.5, popxl.float32)), grad)
    ops.repeat(halve, 3, grad)
    found = phases(ir)
    assert found["Loop"] == found["Mul"] == {"bwd"}


def test_a_graph_that_serves_both_passes_is_what_its_ops_are(ir):
    *_, grad = trained(ir, data())
    twice = ir.create_graph(my_bwd_filter, data())
    ops.call(twice, grad)
    ops.call(twice, data())
    assert phases(ir, graph=twice.name) == {"Add": {"fwd"}, "Relu": {"fwd"}}


def test_an_optimisers_graph_is_an_update(ir):
    held, _, grad = trained(ir, data())

    def step(w: popxl.TensorByRef, g: popxl.Tensor):
        ops.add_(w, ops.sqrt(g))

    graph = ir.create_graph(step, held.w, grad)
    ops.call(graph, held.w, grad)
    found = phases(ir, graph=graph.name)
    assert found == {"Sqrt": {"update"}, "AddLhsInplace": {"update"}}


def test_a_loop_over_whole_steps_is_neither(ir):
    x = data()
    facts, graph = Linear().create_graph(x)
    backward = addons.autodiff(graph, grads_required=[graph.args.w])
    held = facts.init()

    def body(x: popxl.Tensor, w: popxl.TensorByRef):
        call = graph.bind(addons.NamedTensors.from_dict({"w": w})).call_with_info(x)
        (grad,) = backward.call(call.outputs[0], args=backward.grad_graph_info.inputs_dict(call))
        ops.scaled_add_(w, grad, b=-0.1)
        return x

    loop = ir.create_graph(body, x, held.w)
    ops.repeat(loop, 2, x, held.w)
    found = phases(ir)
    assert found["Loop"] == {"other"}
    assert found["MatMul"] == {"fwd", "bwd"}
    assert found["ScaledAddLhsInplace"] == {"update"}


def test_accumulation_in_a_gradient_graph_is_backward(ir):
    facts, graph = Linear().create_graph(data())
    more, backward = addons.autodiff_with_accumulation(graph, [graph.args.w])
    held, accumulators = facts.init(), more.init()
    call = graph.bind(held).call_with_info(data())
    backward.bind(accumulators).call(call.outputs[0], args=backward.grad_graph_info.inputs_dict(call))
    assert phases(ir)["Accumulate"] == {"bwd"}


def test_recomputation_says_so(ir):
    facts, graph = Linear().create_graph(data())
    backward = addons.recompute_graph(addons.autodiff(graph, grads_required=[graph.args.w]))
    held, x = facts.init(), data()
    call = graph.bind(held).call_with_info(x)
    backward.call(call.outputs[0], args=backward.grad_graph_info.inputs_dict(call))
    calls = [(op.graph.is_main, p) for op, p in phases_of(ir._ir.main_graph).items() if op.type == "Call"]
    assert sorted(calls) == [(False, "bwd"), (False, "recompute"), (True, "bwd"), (True, "fwd")]


def test_io_is_io_in_every_context(ir):
    stream = popxl.h2d_stream((2,), popxl.float32)
    with CONTEXT.phase("bwd"):
        ops.relu(ops.host_load(stream))
    assert phases(ir) == {"Init": {"io"}, "HostLoad": {"io"}, "Relu": {"bwd"}}


def test_the_words_are_those_of_traces():
    assert get_args(Phase) == PHASES
