"""``addons.recompute_graph``: same gradients, asks for nothing but the inputs of the forward graph."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl.transforms import ExpectedConnectionType


class Two(addons.Module):
    """``tanh((x + 2) w1) w2``: the gradient needs ``x + 2``, not ``x``."""

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        rng = np.random.default_rng(3)
        w1 = self.add_variable_input("w1", partial(rng.normal, 0, 0.5, (3, 4)), x.dtype)
        w2 = self.add_variable_input("w2", partial(rng.normal, 0, 0.5, (4, 2)), x.dtype)
        return ops.tanh((x + 2) @ w1) @ w2


SPEC = popxl.TensorSpec((5, 3), popxl.float32)


def expected(x: np.ndarray, w1: np.ndarray, w2: np.ndarray, dy: np.ndarray) -> dict[str, np.ndarray]:
    """The gradients by hand."""
    h = np.tanh((x + 2) @ w1)
    dh = (dy @ w2.T) * (1 - h**2)
    return {"w1": (x + 2).T @ dh, "w2": h.T @ dy, "x": dh @ w1.T}


def gradients(recompute: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What the program gives, and what it should give."""
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)
    ir = popxl.Ir()
    with ir.main_graph:
        facts, graph = Two().create_graph(SPEC)
        wanted = [graph.graph.inputs[0], graph.args.w1, graph.args.w2]
        backward = addons.autodiff(graph, grads_required=wanted)
        if recompute:
            backward = addons.recompute_graph(backward)
        variables = facts.init()
        bound = graph.bind(variables)
        bound.call(popxl.constant(dy[:, :1] * np.ones(3, np.float32)))  # another call must not matter
        call = bound.call_with_info(popxl.constant(x))
        found = backward.call(popxl.constant(dy), args=backward.grad_graph_info.inputs_dict(call))
        streams = {name: addons.host_store(t) for name, t in zip(("x", "w1", "w2"), found, strict=True)}
    with popxl.Session(ir, "ipu_hw") as session:
        out = session.run()
        w1, w2 = (session.get_tensor_data(t) for t in (variables.w1, variables.w2))
    return {name: out[stream] for name, stream in streams.items()}, expected(x, w1, w2, dy)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients(recompute: bool) -> None:
    found, wanted = gradients(recompute)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def graphs() -> tuple[Any, addons.GraphWithNamedArgs, addons.GraphWithNamedArgs]:
    """Factories, a gradient graph with accumulators, and the same with recomputation."""
    with popxl.Ir().main_graph:
        _, graph = Two().create_graph(SPEC)
        facts, backward = addons.autodiff_with_accumulation(graph, graph.args.tensors, [graph.graph.inputs[0]])
        return facts, backward, addons.recompute_graph(backward)


def test_inputs_are_those_of_the_forward() -> None:
    _, backward, recomputing = graphs()
    forward = backward.grad_graph_info.forward_graph
    kept = [t for t in backward.grad_graph_info.inputs[1:] if t not in forward.inputs]
    assert kept  # without recomputation intermediates are needed
    info = recomputing.grad_graph_info
    assert info.graph == recomputing.graph
    assert info.forward_graph == forward
    assert info.expected_inputs[0].connection_type is ExpectedConnectionType.FwdGrad
    assert info.expected_inputs[0].fwd_tensor == forward.outputs[0]
    assert set(info.inputs[1:]) == set(forward.inputs)
    # those that the gradient graph reads itself keep their order, x comes after them
    direct = [t for t in backward.grad_graph_info.inputs[1:] if t in forward.inputs]
    assert list(info.inputs[1:]) == [*direct, forward.inputs[0]]
    assert info.outputs == backward.grad_graph_info.outputs


def test_named_inputs_and_references_are_kept() -> None:
    facts, backward, recomputing = graphs()
    assert list(recomputing.args.to_dict()) == list(backward.args.to_dict())
    assert set(recomputing.args.to_dict()) == set(facts.to_dict())
    for tensor in recomputing.args.tensors:
        assert tensor in recomputing.graph
        assert tensor in recomputing.graph._by_ref_inputs
    assert len(recomputing.graph.outputs) == len(backward.graph.outputs) == 1


def test_schedule_calls_forward_then_backward() -> None:
    _, backward, recomputing = graphs()
    first, second = recomputing.print_schedule().split("\n")[2:4]
    assert "(Two_subgraph(0))" in first
    assert f"({backward.graph.name})" in second
    assert recomputing.name.startswith("Two_bwd_recomp_subgraph(")


def test_accumulation_over_calls() -> None:
    ir = popxl.Ir()
    rng = np.random.default_rng(1)
    xs, dys = rng.normal(size=(3, 5, 3)).astype(np.float32), rng.normal(size=(3, 5, 2)).astype(np.float32)
    with ir.main_graph, popxl.in_sequence(True):
        facts, graph = Two().create_graph(SPEC)
        more, backward = addons.autodiff_with_accumulation(graph, graph.args.tensors)
        backward = addons.recompute_graph(backward)
        variables, state = facts.init(), more.init()
        for x, dy in zip(xs, dys):
            call = graph.bind(variables).call_with_info(popxl.constant(x))
            activations = backward.grad_graph_info.inputs_dict(call)
            assert backward.bind(state).call(popxl.constant(dy), args=activations) == ()
    with popxl.Session(ir, "ipu_hw") as session:
        session.run()
        found = {name: session.get_tensor_data(t) for name, t in state.accum.to_dict().items()}
        w1, w2 = (session.get_tensor_data(t) for t in (variables.w1, variables.w2))
    singles = [expected(x, w1, w2, dy) for x, dy in zip(xs, dys)]
    for name in ("w1", "w2"):
        np.testing.assert_allclose(found[name], np.mean([s[name] for s in singles], 0), rtol=1e-5, atol=1e-6)


def test_less_is_stashed() -> None:
    """With recomputation the stash holds the input of the stage only."""
    shapes = []
    for recompute in (False, True):
        ir = popxl.Ir()
        with ir.main_graph, popxl.ipu(0):
            facts, graph = Two().create_graph(SPEC)
            backward = addons.autodiff(graph, grads_required=[graph.args.w1])
            if recompute:
                backward = addons.recompute_graph(backward)
            stream = popxl.h2d_stream(SPEC.shape, SPEC.dtype)
            variables = facts.init()
            with addons.pipelined_execution(6) as pipeline:
                with pipeline.stage(0):
                    call = graph.bind(variables).call_with_info(ops.host_load(stream))
                    y = call.outputs[0].copy_to_ipu(1)
                with pipeline.stage(1), popxl.ipu(1):
                    dy = (y * 2).copy_to_ipu(0)
                with pipeline.stage(2):
                    kept = pipeline.stash_and_restore_activations(call, backward.grad_graph_info)
                    addons.host_store(backward.call(dy, args=kept)[0])
        shapes.append(sorted(v.shape for v in ir.main_graph.variables if v.name.startswith("stash")))
        popxl.Session(ir, "ipu_hw")
    assert shapes == [[(3, 5, 3), (3, 5, 4)], [(3, 5, 3)]]


class Dropping(addons.Module):
    """``dropout(tanh(x w))``."""

    def build(self, x: popxl.Tensor, seed: popxl.Tensor) -> popxl.Tensor:
        weight = self.add_variable_input("w", partial(np.ones, (3, 3)), x.dtype)
        return ops.dropout(ops.tanh(x @ weight), seed, 0.5)


def dropped_gradients(recompute: bool) -> tuple[np.ndarray, np.ndarray]:
    """Results of the forward stage per micro-batch, and the mean gradient of w; the seed comes from the host."""
    ir = popxl.Ir()
    ir.num_host_transfers = steps = 6
    with ir.main_graph, popxl.ipu(0):
        facts, graph = Dropping().create_graph(SPEC, popxl.TensorSpec((2,), popxl.uint32))
        more, backward = addons.autodiff_with_accumulation(graph, graph.args.tensors)
        if recompute:
            backward = addons.recompute_graph(backward)
        variables, state = facts.init(), more.init()
        xs, seeds = popxl.h2d_stream(SPEC.shape, SPEC.dtype), popxl.h2d_stream((2,), popxl.uint32)
        ys = popxl.d2h_stream(SPEC.shape, SPEC.dtype)
        with addons.pipelined_execution(steps) as pipeline:
            with pipeline.stage(0):
                call = graph.bind(variables).call_with_info(ops.host_load(xs), ops.host_load(seeds))
                ops.host_store(ys, call.outputs[0])
                y = call.outputs[0].copy_to_ipu(1)
            with pipeline.stage(1), popxl.ipu(1):
                dy = (y * 2).copy_to_ipu(0)
            with pipeline.stage(2):
                kept = pipeline.stash_and_restore_activations(call, backward.grad_graph_info)
                backward.bind(state).call(dy, args=kept)
    x = np.random.default_rng(4).normal(size=(steps, *SPEC.shape)).astype(np.float32)
    with popxl.Session(ir, "ipu_hw") as session:
        y = session.run({xs: x, seeds: popxl.create_seeds(3, gradient_accumulation_factor=steps)})[ys]
        gradient = session.get_tensor_data(state.accum.w).copy()
    # by hand, with the masks that the forward used: y = mask tanh(x w)
    h = np.tanh(x @ np.ones((3, 3)))
    mask = (y != 0) / 0.5
    expected = np.mean([a.T @ (2 * b * m * (1 - c**2)) for a, b, m, c in zip(x, y, mask, h)], 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    return y, gradient


def test_dropout_is_replayed() -> None:
    """Each micro-batch has its own mask, the same in forward, recomputation and backward."""
    plain, recomputed = dropped_gradients(False), dropped_gradients(True)
    for one, other in zip(plain, recomputed):
        np.testing.assert_array_equal(one, other)
    assert len({(y == 0).tobytes() for y in plain[0]}) == 6


def test_only_gradient_graphs() -> None:
    with popxl.Ir().main_graph:
        _, graph = Two().create_graph(SPEC)
        with pytest.raises(AttributeError, match="was not made by autodiff"):
            addons.recompute_graph(graph)
