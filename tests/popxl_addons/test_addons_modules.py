"""Modules, factories, bound graphs, accumulation, remote buffers and sharding of addons."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops


class Linear(addons.Module):
    def __init__(self, features: int, cache: bool = False) -> None:
        super().__init__(cache=cache)
        self.features = features

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        w = self.add_variable_input("weight", partial(np.ones, (x.shape[-1], self.features)), x.dtype)
        return x @ w


SPEC = popxl.TensorSpec((2, 3), popxl.float32)


def run(ir: popxl.Ir, *tensors: popxl.Tensor, inputs: Any = None) -> list[np.ndarray]:
    with ir.main_graph:
        streams = [addons.host_store(t) for t in tensors]
    with popxl.Session(ir, "ipu_model") as session:
        outputs = session.run(inputs)
    return [outputs[s] for s in streams]


# -- modules -----------------------------------------------------------------------------------------------------------


def test_children_are_named_and_scoped_by_their_attributes() -> None:
    class Net(addons.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [Linear(3), Linear(4)]
            self.last = Linear(2)

        def build(self, x: popxl.Tensor) -> popxl.Tensor:
            scale = self.add_variable_input("scale", lambda: np.float32(3.0))
            for layer in self.layers:
                x = layer(x)
            return self.last(x) * scale

    ir = popxl.Ir()
    with ir.main_graph:
        facts, graph = Net().create_graph(SPEC)
        assert list(facts.to_dict()) == ["layers.0.weight", "layers.1.weight", "last.weight", "scale"]
        assert [t.name for t in graph.graph.inputs] == [
            "x",
            "scale",
            "layers.0/weight",
            "layers.1/weight",
            "last/weight",
        ]
        variables = facts.init()
        assert [t.name for t in variables.tensors] == ["last.weight", "layers.0.weight", "layers.1.weight", "scale"]
        (out,) = graph.bind(variables).call(popxl.constant(np.ones((2, 3), np.float32)))
    np.testing.assert_array_equal(run(ir, out)[0], np.full((2, 2), 3 * 3 * 4 * 3))


def test_a_module_can_make_several_graphs() -> None:
    with popxl.Ir().main_graph:
        module = Linear(4)
        first, second = module.create_graph(SPEC), module.create_graph(SPEC)
        assert first[1].graph != second[1].graph
        assert list(first[0].to_dict()) == list(second[0].to_dict()) == ["weight"]
        assert first[1].args.weight in first[1].graph


def test_cache_reuses_graphs_of_equal_arguments() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        module = Linear(4, cache=True)
        (_, a), (facts, b) = module.create_graph(SPEC), module.create_graph(popxl.variable(np.ones((2, 3))))
        _, c = module.create_graph(popxl.TensorSpec((5, 3), popxl.float32))
        assert a.graph == b.graph != c.graph
        assert a.args.weight == b.args.weight
        (out,) = b.bind(facts.init()).call(popxl.constant(np.ones((2, 3), np.float32)))
        with popxl.ipu(1):
            assert module.create_graph(SPEC)[1].graph != a.graph
    np.testing.assert_array_equal(run(ir, out)[0], np.full((2, 4), 3))


def test_using_a_module_twice_in_one_graph_is_an_error() -> None:
    class Twice(addons.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Linear(3)

        def build(self, x: popxl.Tensor) -> popxl.Tensor:
            return self.layer(self.layer(x))

    with popxl.Ir().main_graph, pytest.raises(KeyError, match="one instance per use"):
        Twice().create_graph(SPEC)


def test_super_init_must_come_first() -> None:
    class Early(addons.Module):
        def __init__(self) -> None:
            self.layer = Linear(3)

    with pytest.raises(RuntimeError, match=r"super\(\).__init__\(\) before"):
        Early()


def test_print_schedule_and_call_without_binding() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        facts, graph = Linear(4).create_graph(SPEC)
        x = popxl.constant(np.ones((2, 3), np.float32))
        weight = facts.weight.create_tensor("mine")
        (by_position,) = graph.call(x, weight)
        (by_name,) = graph.call(x, args=addons.NamedTensors(weight=weight, other=x))
        info = graph.bind({graph.args.weight: weight}).call_with_info(x)
        assert info.inputs == (x, weight)
        with pytest.raises(ValueError, match="missing"):
            graph.bind().call(x)
        with pytest.raises(AttributeError, match="was not made by autodiff"):
            _ = graph.grad_graph_info
    assert "(%1, weight=%2) -> (%3) {" in graph.print_schedule()
    for value in run(ir, by_position, by_name):
        np.testing.assert_array_equal(value, np.full((2, 4), 3))


# -- factories ---------------------------------------------------------------------------------------------------------


def test_factories_draw_once_per_variable() -> None:
    numbers = iter(range(100))
    ir = popxl.Ir()
    with ir.main_graph:
        sources = {
            "function": lambda: np.float32(next(numbers)),
            "array": lambda: np.float32(7),
            "rows": np.array([3, 4], np.float32),
            "list": [np.float32(5), 6.0],
            "iterator": (np.float32(i) for i in range(2)),
        }
        facts = {k: addons.VariableFactory(v, name=k) for k, v in sources.items()}
        values = {k: [f.create_tensor()._ir_tensor.data.item() for _ in range(2)] for k, f in facts.items()}
        assert values == {
            "function": [0, 1], "array": [7, 7], "rows": [3, 4], "list": [5, 6], "iterator": [0, 1],
        }  # fmt: skip
        assert [t.id for t in ir.main_graph.variables[:2]] == ["function", "function__t0"]
        with pytest.raises(ValueError, match="exhausted"):
            facts["iterator"].create_tensor()


def test_factories_of_grouped_variables_draw_per_group() -> None:
    numbers = iter(range(100))
    ir = popxl.Ir(4)
    with ir.main_graph:
        group = ir.replica_grouping(group_size=2)
        factory = addons.VariableFactory(lambda: np.float32(next(numbers)), replica_grouping=group)
        variable = factory.create_tensor()
        assert variable._ir_tensor.data.tolist() == [0, 1]
        assert variable.shape == ()


# -- gradient accumulation ---------------------------------------------------------------------------------------------


class Scale(addons.Module):
    """The gradient of ``alpha`` is the sum of x."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        return ops.sum(x * self.add_variable_input("alpha", lambda: np.ones(self.shape), x.dtype))


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_training_of_variables_of_one_element(shape: tuple[int, ...], replicas: int) -> None:
    """Accumulate two gradients, then Adam as a program writes it: moments, updater, scaled addition."""
    ir = popxl.Ir(replicas)
    updates = ops.var_updates
    with ir.main_graph, popxl.in_sequence():
        facts, graph = Scale(shape).create_graph(popxl.TensorSpec((3,), popxl.float32))
        bwd_facts, bwd = addons.autodiff_with_accumulation(graph, graph.args.tensors)
        variables, state = facts.init(), bwd_facts.init()
        m, v = (popxl.variable(np.zeros(shape, np.float32)) for _ in range(2))
        step = popxl.variable(np.float32(0))
        xs = popxl.h2d_stream((3,), popxl.float32)
        for _ in range(2):
            info = graph.bind(variables).call_with_info(ops.host_load(xs))
            bwd.bind(state).call(popxl.constant(np.float32(1)), args=bwd.grad_graph_info.inputs_dict(info))
        grad = ops.collectives.replicated_all_reduce_(state.accum.alpha, "mean")
        updates.accumulate_moving_average_(m, grad, popxl.constant(np.float32(0.75)))
        updates.accumulate_moving_average_square_(v, grad, 0.5)
        delta = updates.adam_updater(m, v, time_step=step, beta1=0.75, beta2=0.5, epsilon=0.125)
        ops.scaled_add_(variables.alpha, delta, b=popxl.constant(np.float32(-0.25)))
        streams = [addons.host_store(t) for t in (variables.alpha, state.accum.alpha)]
    ir.num_host_transfers = 2
    data = np.random.default_rng(0).normal(size=(2, replicas, 3)).astype(np.float32)
    with popxl.Session(ir, "ipu_model") as session:
        outputs = session.run({xs: data if replicas > 1 else data[:, 0]})
    results = [outputs[s][0] for s in streams]  # stored once
    gradient = data.sum(axis=-1).mean()
    np.testing.assert_allclose(results[1], np.full(results[1].shape, gradient), rtol=1e-5)
    expected = 1 - 0.25 * gradient / (abs(gradient) + 0.125)
    np.testing.assert_allclose(results[0], np.full(results[0].shape, expected), rtol=1e-5)


def test_accumulation_is_a_running_mean_that_the_counter_restarts() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        facts, graph = Linear(2).create_graph(SPEC)
        bwd_facts, bwd = addons.autodiff_with_accumulation(graph, graph.args.tensors, graph.graph.inputs[:1])
        assert list(bwd_facts.to_dict()) == ["mean_accum_counter", "accum.weight"]
        assert len(bwd.graph.outputs) == 1
        variables, state = facts.init(), bwd_facts.init()
        assert [t.name for t in state.tensors] == ["accum.weight", "mean_accum_counter"]
        x_stream = popxl.h2d_stream((2, 3), popxl.float32)
        with popxl.in_sequence():
            values = []
            for step in range(4):
                if step == 3:
                    ops.var_updates.accumulator_zero_(state.mean_accum_counter)
                info = graph.bind(variables).call_with_info(ops.host_load(x_stream))
                grad = popxl.constant(np.ones((2, 2), np.float32))
                (dx,) = bwd.bind(state).call(grad, args=bwd.grad_graph_info.inputs_dict(info))
                values += [state.accum.weight + 0, dx, state.mean_accum_counter + 0]
            streams = [addons.host_store(t) for t in values]
    ir.num_host_transfers = 4
    data = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    with popxl.Session(ir, "ipu_model") as session:
        outputs = session.run({x_stream: data})
    gradients = [np.repeat(x.sum(axis=0)[:, None], 2, axis=1) for x in data]
    results = [outputs[s][0] for s in streams]
    for step in range(3):
        np.testing.assert_allclose(results[3 * step], np.mean(gradients[: step + 1], axis=0), rtol=1e-5)
        np.testing.assert_array_equal(results[3 * step + 1], np.full((2, 3), 2))
        assert results[3 * step + 2] == step + 1
    np.testing.assert_allclose(results[9], gradients[3], rtol=1e-5)


# -- remote buffers and sharding ---------------------------------------------------------------------------------------


def test_cached_optimiser_makes_one_graph_per_shape() -> None:
    class Sgd(addons.Module):
        def build(self, var: popxl.TensorByRef, grad: popxl.Tensor, *, lr: float) -> None:
            ops.scaled_add_(var, grad, b=-lr)

    ir = popxl.Ir()
    with ir.main_graph:
        optimiser = Sgd(cache=True)
        for shape in ((2,), (3,), (2,)):
            optimiser.create_graph(*[popxl.TensorSpec(shape, popxl.float32)] * 2, lr=0.1)
        optimiser.create_graph(*[popxl.TensorSpec((2,), popxl.float32)] * 2, lr=0.2)
    assert [n for n in ir._ir.graphs if n.startswith("Sgd")] == [f"Sgd_subgraph({i})" for i in range(3)]


@pytest.mark.parametrize("spelling", ["threshold", "shard_over"])
def test_reduce_and_gather_in_both_spellings(spelling: str) -> None:
    ir = popxl.Ir(4)
    values = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    with ir.main_graph:
        x, xs = popxl.h2d_stream((8,), popxl.float32, "x"), popxl.h2d_stream((3,), popxl.float32, "s")
        tensors = addons.NamedTensors(big=ops.host_load(x), small=ops.host_load(xs))
        group = ir.replica_grouping()
        kwargs: dict[str, Any] = {"threshold": 8}
        if spelling == "shard_over":
            names = list(tensors.to_dict())
            kwargs = {"shard_groups": addons.NamedReplicaGrouping.build_groups(names), "replica_group": group}
        graph, names = addons.reduce_replica_sharded_graph(tensors, "mean", **kwargs)
        reduced = addons.NamedTensors.pack(names, graph.bind(tensors).call())
        assert (reduced.big.shape, reduced.big.meta_shape) == ((2,), (8,))
        assert (reduced.small.shape, reduced.small.meta_shape) == ((3,), ())
        spec = (
            addons.replica_sharded_spec(tensors.big, threshold=8)
            if spelling == "threshold"
            else addons.replica_sharded_spec(tensors.big, shard_over=group)
        )
        assert spec == reduced.big.spec
        assert addons.replica_sharded_spec(reduced.big, 1) == reduced.big.spec
        assert addons.replica_sharded_spec(tensors.big, 9) == tensors.big.spec
        gather, names = addons.all_gather_replica_sharded_graph(reduced)
        gathered = addons.NamedTensors.pack(names, gather.bind(reduced).call())
    small = np.ones((4, 3), np.float32)
    big_out, small_out = run(ir, gathered.big, gathered.small, inputs={x: values, xs: small})
    np.testing.assert_allclose(big_out, np.tile(values.mean(axis=0), (4, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(small_out, small)


@pytest.mark.parametrize("spelling", ["threshold", "shard_over_dict", "factory"])
def test_buffers_load_and_store_graphs(spelling: str) -> None:
    ir = popxl.Ir(2)
    data = np.arange(8, dtype=np.float32)
    with ir.main_graph, popxl.in_sequence():
        graph = ir.create_empty_graph("holder")
        with graph:
            add = addons.add_variable_input
            if spelling == "factory":
                add = addons.add_replica_sharded_variable_input
            facts = addons.NamedVariableFactories(
                big=add("big", lambda: data)[1], small=addons.add_variable_input("small", lambda: np.float32(1.0))[1]
            )
        kwargs: dict[str, Any] = {
            "threshold": {"sharded_threshold": 8},
            "shard_over_dict": {"shard_over_dict": {"big": 2, "small": 1}},
            "factory": {"shard_over_dict": False},
        }[spelling]
        buffers = addons.named_variable_buffers(facts, 1, **kwargs)
        assert (buffers.big.tensor_shape, buffers.big.meta_shape) == ((4,), (8,))
        assert (buffers.small.tensor_shape, buffers.small.meta_shape) == ((), ())
        load, names = addons.load_remote_graph(buffers, entries=3)
        store = addons.store_remote_graph(buffers, entries=2)
        assert buffers.big.entries == 3
        variables = facts.init_remote(buffers, 1)
        loaded = addons.NamedTensors.pack(names, load.call(1))
        for t in loaded.tensors:
            t += 1
        store.bind(loaded).call(0)
        again = addons.load_remote(buffers, 0)
        addons.store_remote(buffers, again, 1)
        with pytest.raises(KeyError, match="no buffers for"):
            facts.init_remote(addons.NamedRemoteBuffers(), 0)
    session = popxl.Session(ir, "ipu_model")
    with session:
        session.run()
    np.testing.assert_array_equal(session.get_tensor_data(variables.big), data + 1)
    assert session.get_tensor_data(variables.small) == 2


def test_named_buffers_of_tensors() -> None:
    ir = popxl.Ir(2)
    with ir.main_graph:
        v = popxl.variable(np.ones(6, np.float32))
        tensors = addons.NamedTensors(whole=v, shard=ops.collectives.replica_sharded_slice(v))
        buffers = addons.named_buffers(tensors, entries=2)
        assert buffers.whole.meta_shape == ()
        assert (buffers.shard.tensor_shape, buffers.shard.meta_shape) == ((3,), (6,))
        assert addons.named_buffers(tensors, 1, 6).whole.meta_shape == (6,)


def test_cross_entropy_and_host_load() -> None:
    ir = popxl.Ir()
    logits = np.random.default_rng(0).normal(size=(4, 3))
    labels = np.array([0, 2, 1, 1])
    with ir.main_graph:
        data, stream, t = addons.host_load(logits, name="logits")
        assert (data.dtype, stream.shape) == (np.float32, (4, 3))
        target = popxl.constant(labels)
        assert t.dtype is popxl.float32
        loss, grad = addons.cross_entropy_with_grad(t, target, loss_scaling=8.0)
        alone = addons.cross_entropy(t, target)
    results = run(ir, loss, grad, alone, inputs={stream: data})
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(probs[np.arange(4), labels]).mean()
    np.testing.assert_allclose([results[0], results[2]], expected, rtol=1e-5)
    np.testing.assert_allclose(results[1], 8 * (probs - np.eye(3)[labels]) / 4, rtol=1e-4, atol=1e-6)


# -- import paths ------------------------------------------------------------------------------------------------------


def test_upstream_import_paths(front_ends: None) -> None:
    import importlib

    submodules = (
        "ops.call ops.repeat ops.var_updates ops.collectives.collectives transforms.autodiff tensor "
        "context streams session dtypes replica_grouping remote_buffer module graph ir utils errors"
    )
    addons_submodules = (
        "graph named_tensors variable_factory dot_tree module rts remote graph_cache transforms.autodiff "
        "ops.cross_entropy utils input_factory named_replica_grouping"
    )
    paths = [f"popxl.{n}" for n in submodules.split()]
    paths += [f"popxl_addons.{n}" for n in addons_submodules.split()]
    for path in paths:
        assert importlib.import_module(path) is importlib.import_module(f"ipuperf.{path}")
    import popxl as upstream
    import popxl_addons as upstream_addons

    assert upstream is popxl
    assert callable(upstream.ops.call)
    assert callable(upstream.transforms.autodiff)
    assert callable(upstream_addons.ops.cross_entropy)
    assert upstream_addons.autodiff is addons.autodiff
    from popxl.ops.call import CallSiteInfo
    from popxl.transforms.autodiff import GradGraphInfo

    assert CallSiteInfo is ops.CallSiteInfo
    assert GradGraphInfo is popxl.transforms.GradGraphInfo


@pytest.mark.parametrize("name", ["AdamOptimizerStep", "static_sparse_ops"])
def test_unsupported_names_say_what_there_is(name: str) -> None:
    with pytest.raises(AttributeError, match="is not supported by ipuperf yet.*(; supported: |has the .* that are)"):
        getattr(addons, name)
