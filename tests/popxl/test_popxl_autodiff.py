"""``popxl.transforms.autodiff``: connections and values, against PyTorch."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import IrError
from ipuperf.popxl import ops
from ipuperf.popxl.transforms import ExpectedConnectionType, GradGraphInfo, autodiff

RNG = np.random.default_rng(3)
X, W = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(3, 2)).astype(np.float32)


def layer(x: popxl.Tensor, w: popxl.Tensor) -> popxl.Tensor:
    return ops.gelu(x @ w) * 2


def info_of(ir: popxl.Ir, graph: popxl.Graph, **kwargs: Any) -> GradGraphInfo:
    info = autodiff(graph, **kwargs)
    assert isinstance(info, GradGraphInfo)
    return info


def test_connections() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, w = popxl.variable(X, name="x"), popxl.variable(W, name="w")
        graph = ir.create_graph(layer, x, w)
        info = info_of(ir, graph)
        assert info.graph.name == "layer_subgraph(0)_bwd"
        assert info.forward_graph == graph
        assert info.outputs == graph.inputs
        kinds = [c.connection_type for c in info.expected_inputs]
        assert kinds[0] is ExpectedConnectionType.FwdGrad
        assert set(kinds[1:]) == {ExpectedConnectionType.Fwd}
        ids = [c.fwd_tensor.id for c in info.expected_inputs[1:]]
        assert ids == sorted(ids)
        call = ops.call_with_info(graph, x, w)
        assert len(call.outputs) == len(graph.outputs) > 1
        assert x in info.inputs_dict(call).values()
        with pytest.raises(TypeError, match="is needed"):
            info.inputs_dict(ops.call_with_info(info.graph, call.outputs[0], inputs_dict=info.inputs_dict(call)))


def test_existing_calls_get_the_extra_outputs() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, w = popxl.variable(X), popxl.variable(W)
        graph = ir.create_graph(layer, x, w)
        call = ops.call_with_info(graph, x, w)
        assert len(call.outputs) == 1
        info = info_of(ir, graph)
        assert len(call.outputs) == len(graph.outputs)
        assert call.outputs[1].name.startswith("autodiff_output__t")
        assert set(info.inputs_dict(call).values()) <= {x, w, *call.outputs}


@pytest.mark.parametrize("outlined", [False, True])
def test_values(outlined: bool) -> None:
    torch = pytest.importorskip("torch")
    ir = popxl.Ir()
    grad = RNG.normal(size=(4, 2)).astype(np.float32)

    def outer(x: popxl.Tensor, w: popxl.Tensor) -> popxl.Tensor:
        inner = ir.create_graph(layer, x, w)
        return ops.call(inner, x, w)[0]

    with ir.main_graph:
        x, w = popxl.variable(X), popxl.variable(W)
        graph = ir.create_graph(outer if outlined else layer, x, w)
        info = info_of(ir, graph)
        fwd = ops.call_with_info(graph, x, w)
        bwd = ops.call_with_info(info.graph, popxl.constant(grad), inputs_dict=info.inputs_dict(fwd))
        grads = info.fwd_parent_ins_to_grad_parent_outs(fwd, bwd)
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in (x, w)]
        for stream, t in zip(streams, (x, w)):
            ops.host_store(stream, grads[t])
    with popxl.Session(ir, "ipu_model") as session:
        result = session.run()
    tx, tw = (torch.tensor(a, requires_grad=True) for a in (X, W))
    (torch.nn.functional.gelu(tx @ tw, approximate="tanh") * 2).backward(torch.tensor(grad))
    np.testing.assert_allclose(result[streams[0]], tx.grad.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result[streams[1]], tw.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_required_and_provided_gradients() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        spec = popxl.TensorSpec((2,), popxl.float32)
        graph = ir.create_graph(lambda a, b, n: (a * b, a + 1, n), spec, spec, popxl.TensorSpec((2,), popxl.int32))
        a, b, _ = graph.inputs
        info = info_of(ir, graph, grads_provided=[graph.outputs[0]], grads_required=[b])
        assert info.outputs == (b,)
        assert [c.connection_type.value for c in info.expected_inputs] == ["FwdGrad", "Fwd"]
        assert info.inputs == (graph.outputs[0], a)
        with pytest.raises(IrError, match="no gradient reaches"):
            autodiff(graph, grads_provided=[graph.outputs[1]], grads_required=[b])
        with pytest.raises(IrError, match="not an input"):
            autodiff(graph, grads_required=[graph.outputs[0]])


def test_each_gradient_of_an_output_given_twice_counts() -> None:
    a, b, *grads = RNG.normal(size=(5, 2)).astype(np.float32)
    ir = popxl.Ir()
    with ir.main_graph:
        operands = [popxl.variable(a), popxl.variable(b)]
        graph = ir.create_graph(lambda x, y: (x, x * y, x), *operands)
        info = info_of(ir, graph)
        call = ops.call_with_info(graph, *operands)
        dx, dy = ops.call(info.graph, *map(popxl.constant, grads), inputs_dict=info.inputs_dict(call))
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in (dx, dy)]
        for stream, t in zip(streams, (dx, dy)):
            ops.host_store(stream, t)
    with popxl.Session(ir, "ipu_model") as session:
        result = session.run()
    np.testing.assert_allclose(result[streams[0]], grads[0] + grads[1] * b + grads[2], rtol=1e-6)
    np.testing.assert_allclose(result[streams[1]], grads[1] * a, rtol=1e-6)


CALLS = {
    "other results": lambda call, a, b: call(a, b)[0] + call(b, a)[1],
    "a chain": lambda call, a, b: call(call(a, b)[0], b)[1] + call(a, b)[1],
    "all results": lambda call, a, b: call(a, b)[0] * call(a, a)[1] - call(b, b)[0],
}


@pytest.mark.parametrize("outer", CALLS.values(), ids=CALLS)
def test_calls_that_use_different_results_of_a_graph(outer: Any) -> None:
    torch = pytest.importorskip("torch")
    a, b, grad = RNG.normal(size=(3, 2, 2)).astype(np.float32)
    ir = popxl.Ir()
    with ir.main_graph:
        operands = [popxl.variable(a), popxl.variable(b)]
        inner = ir.create_graph(lambda x, y: (x * y, ops.exp(x)), *operands)
        graph = ir.create_graph(lambda x, y: outer(lambda *t: ops.call(inner, *t)[:2], x, y), *operands)
        info = info_of(ir, graph)
        call = ops.call_with_info(graph, *operands)
        grads = ops.call(info.graph, popxl.constant(grad), inputs_dict=info.inputs_dict(call))
        assert {t.ipu for t in grads} == {0}
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in grads]
        for stream, t in zip(streams, grads):
            ops.host_store(stream, t)
    with popxl.Session(ir, "ipu_model") as session:
        result = session.run()
    wanted = [torch.tensor(t, requires_grad=True) for t in (a, b)]
    outer(lambda x, y: (x * y, torch.exp(x)), *wanted).backward(torch.tensor(grad))
    for stream, t in zip(streams, wanted):
        np.testing.assert_allclose(result[stream], t.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_made_beforehand_have_to_fit_the_calls() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        spec = popxl.TensorSpec((2,), popxl.float32)
        inner = ir.create_graph(lambda x: (x * x, ops.exp(x)), spec)
        known = {inner: info_of(ir, inner, grads_provided=inner.outputs[:1])}
        for index, fits in ((0, True), (1, False)):
            graph = ir.create_graph(lambda x, index=index: ops.call(inner, x)[index], spec)
            with nullcontext() if fits else pytest.raises(IrError, match="called in ways that need different"):
                autodiff(graph, called_graphs_grad_info=known)


def test_modifying_ops_and_loops_cannot_be_differentiated() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        spec = popxl.TensorSpec((2,), popxl.float32)
        changing = ir.create_graph(lambda a: ops.add_(a, 1), spec)
        with pytest.raises(IrError, match="contains a modifying op"):
            autodiff(changing)
        body = ir.create_graph(lambda a: a * a, spec)
        loop = ir.create_graph(lambda a: ops.repeat(body, 2, a), spec)
        with pytest.raises(IrError, match="no gradient"):
            autodiff(loop)


def test_gradient_graphs_of_called_graphs() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, w = popxl.variable(X), popxl.variable(W)
        inner = ir.create_graph(layer, x, w)
        outer = ir.create_graph(lambda a, b: ops.call(inner, a, b), x, w)
        found = autodiff(outer, return_all_grad_graphs=True)
        assert isinstance(found, dict)
        assert set(found) == {inner, outer}
        again = ir.create_graph(lambda a, b: ops.call_with_info(inner, a, b).outputs[0], x, w)
        info = info_of(ir, again, called_graphs_grad_info={inner: found[inner]})
        assert info.graph.called_graphs == (found[inner].graph,)
