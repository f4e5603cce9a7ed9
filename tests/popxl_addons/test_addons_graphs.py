"""Routing, repeating and caching graphs of popxl.addons, and lists of modules, against plain NumPy."""

from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl_addons import GraphCache, Module, VariableFactory, function, is_subgraph, route_tensor_into_graph
from ipuperf.popxl_addons.transforms import repeat_graph


def outputs(ir: popxl.Ir, *streams: popxl.DeviceToHostStream) -> list[np.ndarray]:
    with popxl.Session(ir, "ipu_model") as session:
        found = session.run()
    return [found[stream] for stream in streams]


# -- routing -----------------------------------------------------------------------------------------------------------


def test_a_routed_tensor_has_its_value_on_every_way() -> None:
    """main calls one and two, one calls three twice, two calls three: three adds main's tensor."""
    ir = popxl.Ir()
    main = ir.main_graph
    spec = popxl.TensorSpec((2,), popxl.float32)
    three = ir.create_graph(lambda x: x * 2, spec)
    one = ir.create_graph(lambda x: ops.call(three, *ops.call(three, x)), spec)
    two = ir.create_graph(lambda x: ops.call(three, x), spec)
    with main:
        a = popxl.variable(np.array([10.0, 20.0], np.float32), name="a")
        x = popxl.variable(np.array([1.0, 2.0], np.float32), name="x")
        results = [ops.call(one, x)[0], ops.call(two, x)[0]]
        streams = [addons.host_store(t) for t in results]
    with three:
        inner = route_tensor_into_graph(a)
        assert route_tensor_into_graph(a) == inner
        doubled = three.outputs[0]
        three._base.outputs[0] = (doubled + inner)._ir_tensor
    assert [len(g.inputs) for g in (one, two, three)] == [2, 2, 2]
    assert is_subgraph(main, three)
    assert not is_subgraph(two, one)
    found = outputs(ir, *streams)
    np.testing.assert_array_equal(found[0], 2 * (2 * np.array([1.0, 2.0]) + [10, 20]) + [10, 20])
    np.testing.assert_array_equal(found[1], 2 * np.array([1.0, 2.0]) + [10, 20])


@pytest.mark.parametrize("modified", [True, False])
def test_changes_of_a_routed_tensor(modified: bool) -> None:
    ir = popxl.Ir()
    main = ir.main_graph
    inner, outer = ir.create_empty_graph("inner"), ir.create_empty_graph("outer")
    with outer, popxl.in_sequence():
        ops.call(inner)
    with main, popxl.in_sequence():
        counter = popxl.variable(np.float32(1), name="counter")
        ops.repeat(outer, 5)
    with inner, popxl.in_sequence():
        ops.var_updates.accumulate_(route_tensor_into_graph(counter, modified=modified), popxl.constant(2.0))
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
    assert session.get_tensor_data(counter) == (11 if modified else 1)


def test_tensors_of_the_same_graph_need_no_way() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1)
        assert route_tensor_into_graph(a) is a


def test_what_cannot_be_routed() -> None:
    ir = popxl.Ir()
    branch, other, shared = (ir.create_empty_graph(name) for name in ("branch", "other", "shared"))
    parent = ir.create_graph(lambda x: x + 1, popxl.TensorSpec((), popxl.float32))
    with ir.main_graph:
        a = popxl.variable(1.0)
        ops.conditional(popxl.variable(True), branch, other)
        ops.call(shared)
        ops.call(parent, a)
    with parent:
        ops.call(shared)
    with pytest.raises(RuntimeError, match=r"graph 'branch_.* is no call or loop"):
        route_tensor_into_graph(a, branch)
    with pytest.raises(ValueError, match=r"is not in the graph 'parent|is not in a known parent graph"):
        route_tensor_into_graph(parent.inputs[0], branch)
    with pytest.raises(ValueError, match=r"Call.* in main graph .*does not have it"):
        route_tensor_into_graph(parent.inputs[0], shared)


# -- repeating ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_repeated_main_graph_is_run_so_often(count: int) -> None:
    """A moving sum of the host's data, and the variable that holds it."""
    data = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.h2d_stream((3,), popxl.float32)
        total = popxl.variable(np.zeros(3, np.float32), name="total")
        ops.var_updates.accumulate_(total, ops.host_load(stream))
        out = addons.host_store(total * 2.0)
    repeated = repeat_graph(ir.main_graph, count)
    ir.num_host_transfers = count
    assert (repeated == ir.main_graph) == (count == 1)
    assert len(ir.main_graph._base.ops) == (1 if count > 1 else 5)
    with popxl.Session(ir, "ipu_model") as session:
        found = session.run({stream: data if count > 1 else data[0]})[out]
    np.testing.assert_allclose(found, np.squeeze(2 * data.cumsum(0)), rtol=1e-5)
    np.testing.assert_allclose(session.get_tensor_data(total), data.sum(0), rtol=1e-5)


def test_order_is_kept_in_each_trip() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        small, big = popxl.variable(1, name="small"), popxl.variable(np.ones((2, 2), np.float32), name="big")
        with popxl.in_sequence():
            big + 1
            small * 1
    repeated = repeat_graph(ir.main_graph, 5)
    text = repeated.print_schedule()
    assert text.index("Add") < text.index("Mul")
    assert {t.name for t in repeated.inputs} >= {"small", "big"}


def test_a_subgraph_can_be_repeated() -> None:
    ir = popxl.Ir()

    def grow(x: popxl.TensorByRef) -> None:
        ops.var_updates.accumulate_(x, popxl.constant(3.0))

    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.float32(1), name="x")
        graph = ir.create_graph(grow, x)
        ops.call(graph, x)
    repeat_graph(graph, 4)
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
    assert session.get_tensor_data(x) == 13


def test_what_cannot_be_repeated() -> None:
    ir = popxl.Ir()
    graph = ir.create_graph(lambda x: x + 1, popxl.TensorSpec((), popxl.float32))
    with pytest.raises(ValueError, match="its outputs"):
        repeat_graph(graph, 2)
    with pytest.raises(ValueError, match="repeat_count is 'twice'"):
        repeat_graph(graph, "twice")


# -- caching -----------------------------------------------------------------------------------------------------------


def test_a_function_has_one_graph_per_shape() -> None:
    calls: list[Any] = []

    @function
    def scaled(x: popxl.Tensor, factor: float = 2.0, others: Any = ()) -> popxl.Tensor:
        calls.append(x.shape)
        return sum(others, x * factor)

    ir = popxl.Ir()
    with ir.main_graph:
        x, y = (popxl.variable(np.full(2, value, np.float32)) for value in (1, 5))
        z = popxl.variable(np.ones(3, np.float32))
        results = [scaled(x), scaled(y), scaled(y, factor=3.0), scaled(z), scaled(x, others=[y, y])]
        streams = [addons.host_store(t) for (t,) in results]
    assert calls == [(2,), (2,), (3,), (2,)]
    assert [float(found[0]) for found in outputs(ir, *streams)] == [2, 10, 15, 2, 12]


def test_a_cache_tells_places_and_programs_apart() -> None:
    cache = GraphCache()

    def double(x: popxl.Tensor) -> popxl.Tensor:
        return x * 2

    made = []
    for ir in (popxl.Ir(), popxl.Ir()):
        with ir.main_graph:
            x = popxl.variable(1.0)
            made.append(cache.create_graph(double, x))
            assert cache.create_graph(double, x) == made[-1]
            with popxl.ipu(1):
                made.append(cache.create_graph(double, x))
            with popxl.io_tiles():
                made.append(cache.create_graph(double, x))
    assert len(set(made)) == 6


# -- lists of modules --------------------------------------------------------------------------------------------------


class Shift(Module):
    def __init__(self, amount: float) -> None:
        super().__init__()
        self.amount = amount

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        return x * 2.0 + self.add_variable_input("b", lambda: np.float32(self.amount), popxl.float32)


class Chain(Module):
    """Members of a list, by number and in a loop; and inputs of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.members = Module.from_list([Shift(1.0), Shift(10.0)])

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        x = self.members[0](x)
        for member in list(self.members)[1:]:
            x = member(x)
        factories = [VariableFactory(lambda v=v: np.float32(v), popxl.float32) for v in (3.0, 5.0)]
        self.factors = Module.from_variable_factories(factories)
        return x * self.factors[0] * self.factors.get("1")


def test_lists_of_modules_and_inputs() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.float32(7))
        factories, graph = Chain().create_graph(x)
        assert sorted(factories.to_dict()) == ["factors.0", "factors.1", "members.0.b", "members.1.b"]
        assert graph.args.members[1].b.name == "1/b"
        variables = factories.init()
        (y,) = graph.bind(variables).call(x)
        stream = addons.host_store(y)
    assert outputs(ir, stream) == [(2 * (2 * 7 + 1) + 10) * 15]


def test_only_lists_are_gone_through() -> None:
    with popxl.Ir().main_graph:
        with pytest.raises(AttributeError, match="no list of modules"):
            iter(Shift(1.0))
        with pytest.raises(AttributeError):
            Module.from_list([])[0]


def test_numbers_and_dotted_names_of_inputs() -> None:
    class Merged(Module):
        def build(self, x: popxl.Tensor) -> popxl.Tensor:
            factories, graph = Shift(1.0).create_graph(x)
            bound = [graph.bind(self.add_variable_inputs(name, factories)) for name in (0, 1)]
            bound.append(graph.bind(self.add_variable_inputs("fwd.shift", factories)))
            for one in bound:
                (x,) = one.call(x)
            with pytest.raises(ValueError, match="already exists"):
                self.add_variable_input("fwd.scale", lambda: np.float32(3), popxl.float32)
            return x * self.add_variable_input("fwd.scale", lambda: np.float32(3), popxl.float32, overwrite=True)

    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.float32(0))
        factories, graph = Merged().create_graph(x)
        assert sorted(factories.to_dict()) == ["0.b", "1.b", "fwd.scale", "fwd.shift.b"]
        with pytest.raises(ValueError, match="must not be negative"):
            Shift(1.0).add_variable_inputs(-1, factories)
        (y,) = graph.bind(factories.init()).call(x)
        stream = addons.host_store(y)
    assert outputs(ir, stream) == [21]
