"""``Module.build_grad``: a gradient that the module defines, against closed forms."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons

RNG = np.random.default_rng(3)
X, W, DY = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 3), (3, 2), (4, 2)))


class Scaled(addons.Module):
    """``x @ w``, with gradients a thousand times (of x) and seven times (of w) too large."""

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        w = self.add_variable_input("w", lambda: W, popxl.float32)
        self.aux["x"], self.aux["w"], self.aux["factor"] = x, w, 7.0
        return x @ w

    def build_grad(self, dy: popxl.Tensor) -> Any:
        self.var_grad["w"] = (self.aux["x"].T @ dy) * self.aux["factor"]
        return (dy @ self.aux["w"].T) * 1000.0


class Outer(addons.Module):
    """``2 * Scaled(x)``, calling a graph of it."""

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        (y,) = self.call_module(Scaled(), "inner")(x)
        return y * 2.0


class Outermost(addons.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer = Outer()

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        return self.outer(x)


Differentiate = Callable[[addons.GraphWithNamedArgs], addons.GraphWithNamedArgs]


@pytest.mark.parametrize("differentiate", [addons.autodiff, lambda graph: graph.autodiff()], ids=["function", "method"])
@pytest.mark.parametrize(("module", "scale"), [(Scaled, 1), (Outer, 2), (Outermost, 2)])
def test_the_modules_gradient_counts(module: type[addons.Module], scale: float, differentiate: Differentiate) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, dy = popxl.variable(X), popxl.variable(DY)
        factories, graph = module().create_graph(x)
        backward = differentiate(graph)
        call = graph.bind(factories.init()).call_with_info(x)
        grads = backward.call(dy, args=backward.grad_graph_info.inputs_dict(call))
        streams = [addons.host_store(t) for t in (call.outputs[0], *grads)]
    assert [t.shape for t in backward.grad_graph_info.outputs] == [X.shape, W.shape]
    with popxl.Session(ir, "ipu_model") as session:
        outputs = session.run()
    y, dx, dw = (outputs[s] for s in streams)
    np.testing.assert_allclose(y, scale * X @ W, rtol=1e-5)
    np.testing.assert_allclose(dx, scale * 1000 * DY @ W.T, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(dw, scale * 7 * X.T @ DY, rtol=1e-4, atol=1e-4)


def test_accumulation_uses_it_too() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x, dy = popxl.variable(X), popxl.variable(DY)
        factories, graph = Scaled().create_graph(x)
        more, backward = addons.autodiff_with_accumulation(graph, graph.args.tensors, [graph.graph.inputs[0]])
        call = graph.bind(factories.init()).call_with_info(x)
        state = more.init()
        backward.bind(state).call(dy, args=backward.grad_graph_info.inputs_dict(call))
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
    np.testing.assert_allclose(session.get_tensor_data(state.accum.w), 7 * X.T @ DY, rtol=1e-4, atol=1e-4)


def test_the_derivative_of_the_ops_on_demand() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, dy = popxl.variable(X), popxl.variable(DY)
        factories, graph = Scaled().create_graph(x)
        backward = graph.autodiff(method="autodiff")
        call = graph.bind(factories.init()).call_with_info(x)
        dx, _ = backward.call(dy, args=backward.grad_graph_info.inputs_dict(call))
        stream = addons.host_store(dx)
        with pytest.raises(RuntimeError, match="already been applied"):
            graph.autodiff()
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_allclose(session.run()[stream], DY @ W.T, rtol=1e-4, atol=1e-5)


def test_it_is_never_left_out_in_silence() -> None:
    class Inlined(addons.Module):
        def __init__(self, error: Any) -> None:
            super().__init__()
            self.inner = Scaled(grad_inlining_error=error)

        def build(self, x: popxl.Tensor) -> popxl.Tensor:
            return self.inner(x)

    with popxl.Ir().main_graph:
        x = popxl.variable(X)
        with pytest.raises(RuntimeError, match="build_grad.*would not be used"):
            Inlined("error").create_graph(x)
        with pytest.warns(UserWarning, match="build_grad"):
            Inlined("warning").create_graph(x)
        Inlined("none").create_graph(x)
        _, graph = Outer().create_graph(x)
        graph.called_graphs_grad_info = {}
        with pytest.raises(popxl.errors.popart_exception, match="unsafe to autodiff"):
            graph.autodiff()
        with pytest.raises(ValueError, match="grad_inlining_error should be one of"):
            Scaled(grad_inlining_error="perhaps")
        with pytest.raises(ValueError, match="cannot use graph caching"):
            Scaled(cache=True)
        with pytest.raises(RuntimeError, match="within the `build_graph` method"):
            Scaled().var_grad["w"] = x


def broken(**parts: Any) -> addons.Module:
    """Scaled with another ``build_grad``."""
    return type("Broken", (Scaled,), parts)()


@pytest.mark.parametrize(
    ("build_grad", "error", "message"),
    [
        (lambda self, dy: dy @ self.aux["w"].T, ValueError, r"Not all variable gradients .* \['w'\] have none"),
        (lambda self, dy: None, ValueError, "0 gradients for"),
        (lambda self, dy: (dy, dy), ValueError, "Too many outputs .* 2 gradients for"),
        (lambda self, dy: dy, ValueError, "output Tensor at position 0 .* has shape"),
        (lambda self, *dy: dy, TypeError, "each input by its position"),
        (lambda self: None, ValueError, "do not match the signature"),
        (lambda self, dy: self.var_grad.__setitem__("v", dy), KeyError, "Not a variable"),
        (lambda self, dy: self.var_grad.__setitem__("w", 1.0), TypeError, "Not a tensor"),
        (lambda self, dy: self.var_grad.__setitem__("w", dy), ValueError, "has shape"),
    ],
)
def test_gradients_that_do_not_fit(build_grad: Any, error: type[Exception], message: str) -> None:
    with popxl.Ir().main_graph:
        _, graph = broken(build_grad=build_grad).create_graph(popxl.variable(X))
        with pytest.raises(error, match=message):
            addons.autodiff(graph)


# -- order of names ----------------------------------------------------------------------------------------------------


def test_graphs_of_collections_sort_by_name() -> None:
    ir = popxl.Ir(2)
    names = ["z", "b.late", "a", "b.early"]
    with ir.main_graph, popxl.in_sequence():
        zeros = {name: addons.VariableFactory(partial(np.zeros, 4), popxl.float32, name) for name in names}
        tensors = addons.NamedVariableFactories.from_dict(zeros).init()
        tensors = addons.NamedTensors.from_dict({name: tensors[name] for name in names})
        buffers = addons.named_buffers(tensors)
        load, loaded = addons.load_remote_graph(buffers)
        reduce, reduced = addons.reduce_replica_sharded_graph(tensors, "mean")
        gather, gathered = addons.all_gather_replica_sharded_graph(tensors)
        store = addons.store_remote_graph(buffers)
    assert loaded == reduced == gathered == tensors.unpack()[0] == sorted(names)
    assert [t.name for t in store.graph.inputs] == ["store_index", *sorted(names)]
    assert [t.name for t in reduce.graph.inputs] == [t.name for t in gather.graph.inputs] == sorted(names)
    assert [t.name for t in load.graph.outputs] == [f"{name}_remote_loaded" for name in sorted(names)]
