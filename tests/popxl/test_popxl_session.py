"""Sessions: shapes of host data, weights between host and device, replicas, remote and sharded variables."""

import math
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.machine import MachineError
from ipuperf.popxl import ops


def counter_program(replicas: int = 1, transfers: int = 1) -> tuple[Any, Any, Any, Any]:
    """x is loaded ``transfers`` times, added to ``total`` and stored each time."""
    ir = popxl.Ir(replication=replicas)
    ir.num_host_transfers = transfers
    with ir.main_graph, popxl.in_sequence():
        total = popxl.variable(np.zeros(2, np.float32), name="total")
        x = popxl.h2d_stream((2,), popxl.float32, "x")
        out = popxl.d2h_stream((2,), popxl.float32, "out")
        popxl.h2d_stream((2,), popxl.float32, "unused")
        for _ in range(transfers):
            ops.add_(total, ops.host_load(x))
            ops.host_store(out, total)
    return popxl.Session(ir, "ipu_model"), total, x, out


@pytest.mark.parametrize(("replicas", "transfers"), [(1, 1), (4, 1), (1, 3), (2, 3)])
def test_shapes_have_axes_for_transfers_and_replicas_above_one(replicas: int, transfers: int) -> None:
    session, _, x, out = counter_program(replicas, transfers)
    axes = tuple(n for n in (transfers, replicas) if n > 1)
    assert session._full_input_shape((2,)) == (*axes, 2)
    data = np.random.default_rng(0).normal(size=(*axes, 2)).astype(np.float32)
    with session:
        result = session.run({x: data})[out]
    expected = np.cumsum(data.reshape(transfers, replicas, 2), axis=0).reshape(*axes, 2)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert session.expected_inputs() == [x]
    assert {s.tensor_id: a.shape for s, a in session.create_host_outputs().items()} == {"out": (*axes, 2)}


def test_more_transfers_than_needed_are_allowed() -> None:
    session, _, x, out = counter_program(2, 3)
    with session:
        assert session.run({x: np.ones((5, 2, 2), np.float32)})[out].shape == (3, 2, 2)


def test_64_bit_inputs_lists_and_torch_tensors() -> None:
    session, _, x, out = counter_program()
    with session:
        assert session.run({x: np.array([1.0, 2.0])})[out].tolist() == [1, 2]
        assert session.run({x: [1.0, 2.0]})[out].tolist() == [2, 4]
        torch = pytest.importorskip("torch")
        assert session.run({x: torch.tensor([1.0, 2.0])})[out].tolist() == [3, 6]


def test_scalars_may_come_with_an_axis_of_one() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, out = popxl.h2d_stream((), popxl.float32, "x"), popxl.d2h_stream((), popxl.float32, "y")
        ops.host_store(out, ops.host_load(x) * 2)
    with popxl.Session(ir, "ipu_model") as session:
        assert session.run({x: np.ones((1,), np.float32)})[out] == 2
        assert session.run({x: 3.0})[out].shape == ()


@pytest.mark.parametrize("shape", [(3, 2), (3, 2, 1), (4, 2, 1, 1)])
def test_scalars_of_several_transfers_and_replicas(shape: tuple[int, ...]) -> None:
    ir = popxl.Ir(2)
    ir.num_host_transfers = 3
    with ir.main_graph, popxl.in_sequence():
        h2d, d2h = popxl.h2d_stream((), popxl.float32, "lr"), popxl.d2h_stream((), popxl.float32)
        for _ in range(3):
            ops.host_store(d2h, ops.host_load(h2d) + 1)
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run({h2d: data})[d2h], data.reshape(-1, 2)[:3] + 1)
        for wrong in ((3, 1, 2), (2, 2, 1), (3, 2, 2), (3,)):
            with pytest.raises(ValueError, match=r"'lr': got shape"):
                session.run({h2d: np.zeros(wrong, np.float32)})


def test_outputs_are_new_in_each_run_unless_given() -> None:
    session, _, x, out = counter_program()
    with session:
        first = session.run({x: np.ones(2, np.float32)})
        second = session.run({x: np.ones(2, np.float32)})
        mine = session.create_host_outputs()
        session.run_with_outputs({x: np.ones(2, np.float32)}, mine)
        with pytest.raises(ValueError, match=r"'out'.*expected \(2,\)"):
            session.run_with_outputs({x: np.ones(2, np.float32)}, {out: np.ones(3, np.float32)})
    assert [o[out][0] for o in (first, second, mine)] == [1, 2, 3]


# -- weights ---------------------------------------------------------------------------------------------------------


def test_weights_come_back_on_exit_and_nested_contexts_change_nothing() -> None:
    session, total, x, _ = counter_program()
    with session:
        session.run({x: np.ones(2, np.float32)})
        with session:
            session.run({x: np.ones(2, np.float32)})
        assert session.is_attached
        assert total._variable.data.tolist() == [0, 0]
    assert not session.is_attached
    assert session.get_tensor_data(total).tolist() == [2, 2]
    with session:
        session.run({x: np.ones(2, np.float32)})
    assert session.get_tensor_data(total).tolist() == [3, 3]


def test_weights_stay_on_the_device_when_disabled_or_after_an_error() -> None:
    session, total, x, _ = counter_program()
    session.weights_to_host_on_exit = False
    with session:
        session.run({x: np.ones(2, np.float32)})
    assert session.get_tensor_data(total).tolist() == [0, 0]
    session.weights_to_host_on_exit = True

    def interrupted() -> None:
        with session:
            session.run({x: np.ones(2, np.float32)})
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert session.get_tensor_data(total).tolist() == [0, 0]


def test_tensor_data_is_a_view_that_later_runs_change() -> None:
    session, total, x, _ = counter_program()
    with session:
        session.run({x: np.ones(2, np.float32)})
        view = session.get_tensor_data(total)
        kept = view.copy()
        session.run({x: np.ones(2, np.float32)})
        assert view.tolist() == [1, 1]
        session.get_tensors_data([total])
    assert view.tolist() == [2, 2]
    assert kept.tolist() == [1, 1]


@pytest.mark.parametrize("attached", [False, True])
def test_writing_variables(attached: bool) -> None:
    session, total, x, out = counter_program()
    ones = {x: np.ones(2, np.float32)}
    if attached:
        with session:
            session.run(ones)
            session.write_variable_data(total, np.array([5, 6], np.float32))
            assert session.run(ones)[out].tolist() == [6, 7]
    else:
        session.write_variables_data({total: np.array([5, 6], np.float32)})
        with session:
            assert session.run(ones)[out].tolist() == [6, 7]
    assert session.get_tensor_data(total).tolist() == [6, 7]


def test_writing_one_variable_keeps_the_others() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a, b = (popxl.variable(np.float32(0.0), name=n) for n in "ab")
        ops.add_(a, 1)
        ops.add_(b, 1)
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
        session.write_variable_data(a, 10.0)
        session.run()
    assert (session.get_tensor_data(a), session.get_tensor_data(b)) == (11, 2)


def test_writing_errors() -> None:
    session, total, _, _ = counter_program()
    other, foreign, _, _ = counter_program()
    with pytest.raises(ValueError, match=r"'total': got shape \(3,\)"):
        session.write_variable_data(total, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="another Ir"):
        session.write_variable_data(foreign, np.ones(2))
    with pytest.raises(TypeError, match="x_init is not of type Variable"):
        session.write_variable_data(other.ir.main_graph.get_tensor("x_init"), np.ones(2))
    with pytest.raises(TypeError, match="is not of type Constant or Variable"):
        session.get_tensor_data(session.ir.main_graph.get_tensor("x_init"))


def test_constants_have_data() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        c = popxl.constant([1.0, 2.0])
    assert popxl.Session(ir, "ipu_model").get_tensor_data(c).tolist() == [1, 2]


# -- replicas ----------------------------------------------------------------------------------------------------------


def test_replication_factor_is_fixed_by_a_session() -> None:
    session, _, _, _ = counter_program()
    with pytest.raises(RuntimeError, match="Session was built"):
        session.ir.replication_factor = 2
    with pytest.raises(ValueError, match="at least 1"):
        popxl.Ir(0)


def test_too_many_replicas_for_any_machine() -> None:
    ir = popxl.Ir(512)
    with pytest.raises(MachineError, match="512"):
        popxl.Session(ir, "ipu_model")


def test_grouped_variables_have_a_group_axis_on_the_host() -> None:
    ir = popxl.Ir(4)
    with ir.main_graph, popxl.in_sequence():
        group = ir.replica_grouping(stride=1, group_size=2)
        data = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
        v = popxl.variable(data, replica_grouping=group)
        every = popxl.variable(np.float32(0.0), retrieval_mode="all_replicas")
        x, out = popxl.h2d_stream((), popxl.float32), popxl.d2h_stream((2,), popxl.float32)
        ops.add_(every, ops.host_load(x))
        ops.host_store(out, v + every)
        with pytest.raises(ValueError, match=r"\(2, \.\.\.\)"):
            popxl.variable(np.ones(3, np.float32), replica_grouping=group)
        assert (v.shape, v.shape_on_host) == ((2,), (2, 2))
        assert v.replica_grouping == group
    session = popxl.Session(ir, "ipu_model")
    with session:
        result = session.run({x: np.arange(4, dtype=np.float32)})[out]
    np.testing.assert_array_equal(result, data[[0, 0, 1, 1]] + np.arange(4)[:, None])
    np.testing.assert_array_equal(session.get_tensor_data(v), data)
    np.testing.assert_array_equal(session.get_tensor_data(every), np.arange(4))
    with pytest.raises(NotImplementedError):
        session.write_variable_data(every, 1.0)


def test_replica_groupings() -> None:
    ir = popxl.Ir(8)
    assert ir.replica_grouping().group_size == 8
    assert ir.replica_grouping(stride=2).assignment == [0, 1, 0, 1, 0, 1, 0, 1]
    assert ir.replica_grouping(group_size=2).transpose() == ir.replica_grouping(stride=2, group_size=4)
    assert ir.replica_grouping_from_assignments([0, 1, 0, 1, 2, 3, 2, 3]).stride == 2
    with pytest.raises(TypeError, match="cannot compare"):
        _ = ir.replica_grouping() == 3


@pytest.mark.parametrize("op", ["add", "mean", "max", "min"])
def test_collectives(op: Any) -> None:
    ir = popxl.Ir(4)
    values = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
    reduce = {"add": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[op]
    with ir.main_graph:
        x = popxl.h2d_stream((5,), popxl.float32)
        t = ops.host_load(x)
        full = ops.collectives.replicated_all_reduce(t, op)
        shard = ops.collectives.replicated_reduce_scatter(t, op, configure_output_for_replicated_tensor_sharding=True)
        assert (shard.shape, shard.meta_shape) == ((2,), (5,))
        gathered = ops.collectives.replicated_all_gather(shard)
        own = ops.collectives.replicated_all_gather(ops.collectives.replica_sharded_slice(full))
        assert gathered.shape == own.shape == (5,)
        outs = [popxl.d2h_stream((5,), popxl.float32) for _ in range(3)]
        for stream, value in zip(outs, (full, gathered, own)):
            ops.host_store(stream, value)
    with popxl.Session(ir, "ipu_model") as session:
        results = session.run({x: values})
    for stream in outs:
        np.testing.assert_allclose(results[stream], np.tile(reduce(values, axis=0), (4, 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("axis", "mode"), [(0, "concat"), (1, "concat"), (0, "new_axis")])
def test_all_gather_along_an_axis(axis: int, mode: str) -> None:
    ir = popxl.Ir(2)
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    expected = np.concatenate(list(values), axis) if mode == "concat" else np.stack(list(values), axis)
    with ir.main_graph:
        x = popxl.h2d_stream((2, 3), popxl.float32)
        t = ops.collectives.replicated_all_gather(ops.host_load(x), axis=axis, output_shape=mode)
        out = popxl.d2h_stream(t.shape, t.dtype)
        ops.host_store(out, t)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run({x: values})[out], np.stack([expected] * 2))


@pytest.mark.parametrize(("axis", "mode"), [(0, "concat"), (1, "concat"), (0, "new_axis"), (0, "auto")])
def test_gradient_of_an_all_gather_is_the_replicas_own_part(axis: int, mode: str) -> None:
    """Gather and differentiate with the gathered tensor as gradient: the operand comes back, not its multiple."""
    ir = popxl.Ir(4)
    values = np.random.default_rng(3).normal(size=(4, 2, 3)).astype(np.float32)
    with ir.main_graph, popxl.in_sequence():
        x = popxl.h2d_stream((2, 3), popxl.float32)
        loaded = ops.host_load(x)
        graph = ir.create_graph(lambda t: ops.collectives.replicated_all_gather(t, axis, output_shape=mode), loaded)
        back = popxl.transforms.autodiff(graph)
        gathered = ops.call_with_info(graph, loaded).outputs[0]
        gradient = ops.call_with_info(back.graph, gathered).outputs[0]
        out = popxl.d2h_stream(gradient.shape, gradient.dtype)
        ops.host_store(out, gradient)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run({x: values})[out], values)


# -- remote and sharded ------------------------------------------------------------------------------------------------


def test_remote_variables() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((2,), popxl.float32, entries=2)
        assert (buffer.remote_buffer_id, buffer.entries) == (1, 2)
        v = [popxl.remote_variable(np.full(2, i, np.float32), buffer, i, name="v") for i in range(2)]
        loaded = ops.remote_load(buffer, 1)
        loaded += 5
        ops.remote_store(buffer, 0, loaded)
        with pytest.raises(ValueError, match="entry 2"):
            popxl.remote_variable(np.ones(2, np.float32), buffer, 2)
        with pytest.raises(ValueError, match="holds"):
            ops.remote_store(buffer, 0, popxl.constant(1.0))
    session = popxl.Session(ir, "ipu_model")
    with session:
        session.run()
    assert [session.get_tensor_data(t).tolist() for t in v] == [[6, 6], [1, 1]]


@pytest.mark.parametrize("shard_over", [None, 2])
def test_sharded_variables_round_trip_and_update(shard_over: int | None) -> None:
    ir = popxl.Ir(4)
    data = np.arange(15, dtype=np.float32).reshape(3, 5)
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.replica_sharded_buffer((3, 5), popxl.float32, shard_over=shard_over)
        length = -(-15 // (shard_over or 4))
        assert (buffer.tensor_shape, buffer.meta_shape) == ((length,), (3, 5))
        remote = popxl.remote_replica_sharded_variable(data, buffer, 0, name="remote")
        shard = ops.remote_load(buffer, 0)
        assert shard.meta_shape == (3, 5)
        shard += 1
        ops.remote_store(buffer, 0, shard)
        _, chip = popxl.replica_sharded_variable(data, name="chip", shard_over=shard_over)
        assert chip.shape == (length,)
        chip += 2
    session = popxl.Session(ir, "ipu_model")
    with session:
        session.run()
    np.testing.assert_array_equal(session.get_tensor_data(remote), data + 1)
    np.testing.assert_array_equal(session.get_tensor_data(ir.main_graph.get_tensor("chip")), data + 2)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (3, 4)])
def test_the_shape_of_a_sharded_buffer_begins_with_the_groups(shape: tuple[int, ...]) -> None:
    """As that of the data does; also where a tensor has as many rows as there are groups."""
    ir = popxl.Ir(replication=4)
    pairs = ir.replica_grouping(group_size=2)
    data = np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape)
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.replica_sharded_buffer(data.shape, popxl.float32, pairs, 2)
        assert buffer.meta_shape == shape
        w = popxl.remote_replica_sharded_variable(data, buffer, name="w", replica_grouping=pairs)
        shard = ops.remote_load(buffer, 0)
        out = popxl.d2h_stream(shape, popxl.float32, "out")
        ops.host_store(out, ops.collectives.replicated_all_gather(shard, group=pairs))
        ops.remote_store(buffer, 0, shard + shard)
        other = popxl.replica_sharded_buffer((7, 2), popxl.float32, pairs)
        with pytest.raises(ValueError, match=r"is that of the data, \(2, "):
            popxl.remote_replica_sharded_variable(data, other, name="v", replica_grouping=pairs)
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run()[out], data[[0, 0, 1, 1]])
    np.testing.assert_array_equal(session.get_tensor_data(w), 2 * data)


@pytest.mark.parametrize("elements", [1, 2, 3, 8])
@pytest.mark.parametrize("over", [1, 2, 4])
def test_small_tensors_are_sharded_over_as_many_replicas_as_their_buffer_says(over: int, elements: int) -> None:
    """A shard of one element may be one of any number of them."""
    ir = popxl.Ir(replication=4)
    data = np.arange(elements, dtype=np.float32) + 1
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.replica_sharded_buffer(data.shape, popxl.float32, shard_over=over)
        w = popxl.remote_replica_sharded_variable(data, buffer, name="w")
        shard = ops.remote_load(buffer, 0)
        out = popxl.d2h_stream(data.shape, popxl.float32, "out")
        whole = ops.collectives.replicated_all_gather(shard, group=ir.replica_grouping(group_size=over))
        ops.host_store(out, whole.reshape(data.shape))
        ops.remote_store(buffer, 0, shard + shard)
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run()[out], np.stack([data] * 4))
    np.testing.assert_array_equal(session.get_tensor_data(w), 2 * data)


def test_sharding_needs_an_axis() -> None:
    with popxl.Ir(2).main_graph:
        with pytest.raises(ValueError, match="'x': data of shape \\(\\) cannot be sharded; give it an axis"):
            popxl.replica_sharded_variable(np.float32(1), name="x")
        buffer = popxl.replica_sharded_buffer((), popxl.float32)
        with pytest.raises(ValueError, match="cannot be sharded"):
            popxl.remote_replica_sharded_variable(np.float32(1), buffer)


def test_sharding_needs_replicas() -> None:
    with popxl.Ir().main_graph, pytest.raises(ValueError, match="replication factor above 1"):
        popxl.replica_sharded_variable(np.ones(4))
    ir = popxl.Ir(4)
    with ir.main_graph, pytest.raises(ValueError, match="shard_over=3"):
        popxl.replica_sharded_buffer((4,), popxl.float32, shard_over=3)


def test_in_sync_with_ipu() -> None:
    session, total, x, _ = counter_program()
    loaded = session.ir.main_graph.get_tensor("x_hostload")
    assert total.in_sync_with_ipu
    with session:
        session.run({x: np.ones(2, np.float32)})
        assert not total.in_sync_with_ipu
        session.weights_to_host()
        assert total.in_sync_with_ipu
        session.run({x: np.ones(2, np.float32)})
        assert not total.in_sync_with_ipu
    assert total.in_sync_with_ipu
    with pytest.raises(ValueError, match="has no host data"):
        _ = loaded.in_sync_with_ipu


IRREGULAR = [0, 0, 1, 1, 0, 0, 1, 1]


def test_variables_of_irregular_groups() -> None:
    ir = popxl.Ir(8)
    group = ir.replica_grouping(stride=2, group_size=2).transpose()
    assert (group.assignment, group.is_const, group.group_size, group.num_groups) == (IRREGULAR, False, 4, 2)
    assert group.const_rg.assignment == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (group.to_device_map, group.to_host_map) == ([0, 1, 0, 1], [0, 1])
    data = np.array([[1, 2], [30, 40]], np.float32)
    with ir.main_graph, popxl.in_sequence(True):
        v = popxl.variable(data, replica_grouping=group)
        out = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(out, v)
        ops.add_(v, 1.0)
        for refused in (
            lambda: ops.collectives.replicated_all_reduce(v, group=group),
            lambda: group.stride,
        ):
            with pytest.raises(NotImplementedError, match="no constant stride"):
                refused()
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], data[IRREGULAR])
    np.testing.assert_array_equal(session.get_tensor_data(v), data + 1)
    session.write_variable_data(v, data[::-1])
    np.testing.assert_array_equal(session.get_tensor_data(v), data[::-1])


def test_a_transpose_reduces_what_the_groups_hold() -> None:
    ir = popxl.Ir(8)
    group = ir.replica_grouping_from_assignments(IRREGULAR).transpose()
    assert (group.stride, group.group_size, group.is_const) == (2, 2, True)
    with ir.main_graph:
        x, out = popxl.h2d_stream((), popxl.float32), popxl.d2h_stream((), popxl.float32)
        ops.host_store(out, ops.collectives.replicated_all_reduce(ops.host_load(x), group=group))
    with popxl.Session(ir, "ipu_model") as session:
        result = session.run({x: np.arange(8, dtype=np.float32)})[out]
    np.testing.assert_array_equal(result, [2, 4, 2, 4, 10, 12, 10, 12])


def test_a_plain_buffer_learns_its_meta_shape_from_the_first_sharded_variable() -> None:
    ir = popxl.Ir(2)
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ir.main_graph, popxl.in_sequence(True):
        buffer = popxl.remote_buffer((3,), popxl.float32)
        popxl.remote_replica_sharded_variable(data, buffer)
        shard = ops.remote_load(buffer, 0)
        whole = ops.collectives.replicated_all_gather(shard)
        assert (shard.meta_shape, whole.shape) == ((2, 3), (2, 3))
        out = popxl.d2h_stream((2, 3), popxl.float32)
        ops.host_store(out, whole)
        with pytest.raises(ValueError, match="holds shards of"):
            popxl.remote_replica_sharded_variable(data.reshape(3, 2), buffer)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], [data, data])


@pytest.mark.parametrize(("shape", "entry"), [((1, 1), (1,)), ((2, 3), (6,)), ((6,), (2, 3)), ((), (1,))])
def test_an_entry_of_another_shape_with_as_many_elements(shape: tuple[int, ...], entry: tuple[int, ...]) -> None:
    ir = popxl.Ir(2)
    data = np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer(entry, popxl.float32)
        variable = popxl.remote_variable(data, buffer)
        loaded = ops.remote_load(buffer, 0)
        assert loaded.shape == entry
        ops.remote_store(buffer, 0, loaded * 2)
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
        np.testing.assert_array_equal(session.get_tensor_data(variable), data * 2)


def test_a_sharded_variable_in_entries_of_its_own_size_is_whole_on_each_replica() -> None:
    ir = popxl.Ir(2)
    data = np.arange(4, dtype=np.float32)
    with ir.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((4,), popxl.float32)
        popxl.remote_replica_sharded_variable(data, buffer)
        whole = ops.collectives.replicated_all_gather(ops.remote_load(buffer, 0))
        out = popxl.d2h_stream(whole.shape, whole.dtype)
        ops.host_store(out, whole)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], [data, data])


@pytest.mark.parametrize("sharded", [False, True])
def test_a_remote_variable_that_is_no_entry_of_its_buffer_is_refused_by_the_session(sharded: bool) -> None:
    ir = popxl.Ir(replication=2)
    with ir.main_graph:
        buffer = popxl.remote_buffer((2,), popxl.float32, 2)
        make = popxl.remote_replica_sharded_variable if sharded else popxl.remote_variable
        make(np.ones(9, np.float32), buffer, 0, name="v")
    with pytest.raises(ValueError, match="'v'.*do not give shards of 2" if sharded else r"'v' is \(9,\).*holds \(2,\)"):
        popxl.Session(ir, "ipu_model")


def test_sharded_variables_have_the_shape_of_their_value_and_their_shards_have_their_own() -> None:
    ir = popxl.Ir(replication=2)
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ir.main_graph:
        whole, shard = popxl.replica_sharded_variable(data)
        assert (whole.shape, whole.meta_shape, whole.spec.shape) == ((2, 3), (), (2, 3))
        assert (shard.shape, shard.meta_shape) == ((3,), (2, 3))
        buffer = popxl.replica_sharded_buffer((2, 3), popxl.float32)
        remote = popxl.remote_replica_sharded_variable(data, buffer)
        assert (remote.shape, remote.meta_shape) == ((2, 3), ())
        loaded = ops.remote_load(buffer, 0)
        assert (loaded.shape, loaded.meta_shape) == ((3,), (2, 3))
    session = popxl.Session(ir, "ipu_model")
    for tensor in (whole, remote):
        np.testing.assert_array_equal(session.get_tensor_data(tensor), data)


def test_an_all_gather_takes_its_group_as_second_argument_as_before_popart_3_2() -> None:
    ir = popxl.Ir(4)
    with ir.main_graph:
        x = popxl.h2d_stream((1,), popxl.float32)
        pairs = ir.replica_grouping(group_size=2)
        t = ops.collectives.replicated_all_gather(ops.host_load(x), pairs)
        assert t.shape == (2,)
        out = popxl.d2h_stream(t.shape, t.dtype)
        ops.host_store(out, t)
        with pytest.raises(ValueError, match="two groups"):
            ops.collectives.replicated_all_gather(t, pairs, group=pairs)
    with popxl.Session(ir, "ipu_model") as session:
        results = session.run({x: np.arange(4, dtype=np.float32).reshape(4, 1)})
    np.testing.assert_array_equal(results[out], [[0, 1], [0, 1], [2, 3], [2, 3]])
