"""Variables of factories: whole, empty, zero, in files, remote, sharded by the rules of both ages; streams."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl_addons import NamedVariableFactories, VariableFactory, layers

DATA = np.arange(8, dtype=np.float32)


def data_of(session: popxl.Session, variable: popxl.Tensor) -> np.ndarray:
    return session.get_tensor_data(variable)


def test_what_a_session_writes_back_is_in_the_file(tmp_path: Path) -> None:
    folder = str(tmp_path / "weights")
    for run, mode in itertools.product(range(2), (False, True)):
        ir = popxl.Ir()
        with ir.main_graph, popxl.in_sequence():
            factories = NamedVariableFactories.from_dict({"fc.weight": VariableFactory(lambda: DATA, name="weight")})
            variables = factories.init("net", memmap_dir=folder, read_only_if_exists=mode)
            ops.var_updates.accumulate_(variables.fc.weight, popxl.constant(np.ones(8, np.float32)))
        with popxl.Session(ir, "ipu_model") as session:
            session.run()
        np.testing.assert_array_equal(data_of(session, variables.fc.weight), DATA + run + 1 + mode)
        np.testing.assert_array_equal(np.fromfile(Path(folder) / "net.fc.weight.npy", np.float32), DATA + run + 1)


@pytest.mark.parametrize("empty", [True, False])
def test_files_of_several_groups(tmp_path: Path, empty: bool) -> None:
    ir, numbers = popxl.Ir(4), itertools.count()
    with ir.main_graph:
        group = ir.replica_grouping(group_size=2)
        factory = VariableFactory(lambda: np.full(3, next(numbers), np.float16), name="w", replica_grouping=group)
        variable = factory.create_tensor(memmap_dir=str(tmp_path), empty=empty)
    assert variable.shape_on_host == (2, 3)
    found = np.fromfile(tmp_path / "w.npy", np.float16).reshape(2, 3)
    assert len(set(found[:, 0].tolist())) == (1 if empty else 2)


def test_empty_variables_draw_nothing() -> None:
    drawn = []
    ir = popxl.Ir()
    with ir.main_graph:
        factory = VariableFactory(lambda: drawn.append(0) or DATA, popxl.float16, "w")
        seen = len(drawn)
        buffer = popxl.remote_buffer((8,), popxl.float16, 2)
        variables = [factory.create_tensor(empty=True), factory.create_remote_tensor(buffer, 1, empty=True)]
    assert len(drawn) == seen
    assert [v.shape for v in variables] == [(8,), (8,)]
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(data_of(session, variables[0]), np.zeros(8))


def test_a_sharded_factory_makes_whole_variables_and_sharded_inputs() -> None:
    ir = popxl.Ir(4)
    with ir.main_graph, popxl.in_sequence():
        group = ir.replica_grouping(group_size=2)
        graph = ir.create_empty_graph("holder")
        with graph:
            shard, factory = addons.add_replica_sharded_variable_input("w", lambda: DATA, shard_over=group)
        assert (shard.shape, shard.meta_shape, factory.shard_over) == ((4,), (8,), 2)
        whole = factory.create_tensor()
        assert (whole.shape, whole.meta_shape) == ((8,), ())
        buffer = addons.create_remote_buffer(shard.spec)
        remote = factory.create_remote_tensor(buffer)
        assert (remote.shape, buffer.tensor_shape, buffer.meta_shape) == ((8,), (4,), (8,))
        gathered = ops.collectives.replicated_all_gather(ops.remote_load(buffer, 0), group=group)
        stream = addons.host_store(gathered)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[stream], np.tile(DATA, (4, 1)))


def test_one_replica_needs_no_shards() -> None:
    ir = popxl.Ir()
    with ir.create_empty_graph("holder"):
        shard, factory = addons.add_replica_sharded_variable_input("w", lambda: DATA)
    assert (shard.shape, shard.meta_shape, factory.replica_sharded) == ((8,), (), False)


@pytest.mark.parametrize(
    ("shards", "wanted"),
    [(True, [4, 4]), (False, [1, 1]), (2, [2, 2]), (1, [1, 1]), ({"a": 2}, [2, 4]), ({"a": 1, "b": 2}, [1, 2])],
)
def test_buffers_are_sharded_as_asked_for(shards: Any, wanted: list[int]) -> None:
    ir = popxl.Ir(4)
    with ir.main_graph:
        factories = NamedVariableFactories(a=VariableFactory(lambda: DATA), b=VariableFactory(lambda: DATA))
        buffers = addons.named_variable_buffers(factories, 3, shards)
        default = addons.named_variable_buffers(factories)
    assert [8 // b.tensor_shape[0] for b in (buffers.a, buffers.b)] == wanted
    assert [b.meta_shape for b in (buffers.a, buffers.b)] == [(8,) if n > 1 else () for n in wanted]
    assert (buffers.a.entries, default.a.tensor_shape) == (3, (2,))


@pytest.mark.parametrize(
    ("shards", "message"),
    [(5, "shard_over_dict is 5; allowed: 1 to the 4"), (0, "allowed: 1 to"), ("all", "a mapping, a whole number")],
)
def test_shards_that_cannot_be(shards: Any, message: str) -> None:
    ir = popxl.Ir(4)
    with ir.main_graph:
        factories = NamedVariableFactories(a=VariableFactory(lambda: DATA))
        with pytest.raises(ValueError, match=message):
            addons.named_variable_buffers(factories, 1, shards)
        odd = NamedVariableFactories(a=VariableFactory(lambda: DATA[:6]))
        with pytest.raises(ValueError, match="6 elements cannot be divided over 4 replicas"):
            addons.named_variable_buffers(odd)


def test_weights_are_checked_when_they_are_put_in() -> None:
    ir = popxl.Ir(2)
    with ir.main_graph:
        group = ir.replica_grouping(group_size=1)
        w = popxl.variable(np.zeros((2, 3), np.float16), replica_grouping=group, name="w")
        v = popxl.variable(np.zeros(2, np.float32), name="v")
    weights = addons.WeightsDict({w: np.ones((2, 3), np.float16)})
    weights[v] = np.full(2, 5, np.float32)
    with pytest.raises(ValueError, match=r"w.*shapes differ: \(2, 3\) and \(3,\)"):
        weights[w] = np.ones(3, np.float16)
    with pytest.raises(ValueError, match="dtypes differ: popxl.dtypes.float16"):
        weights[w] = np.ones((2, 3), np.float32)
    assert (len(weights), list(weights)) == (2, [w, v])
    with popxl.Session(ir, "ipu_model") as session:
        session.write_variables_data(weights)
        np.testing.assert_array_equal(data_of(session, w), np.ones((2, 3)))
        np.testing.assert_array_equal(data_of(session, v), [5, 5])
    del weights[v]
    assert v not in weights


@pytest.mark.parametrize("elements", [2, 4])
def test_small_remote_variables_are_sharded_as_their_factory_says(elements: int) -> None:
    """Two of four replicas hold a value, though shards of one element would do for all four."""
    ir, data = popxl.Ir(replication=4), np.arange(elements, dtype=np.float32) + 1
    with ir.main_graph, popxl.in_sequence():
        factory = addons.VariableFactory(lambda: data, popxl.float32, "w", shard_over=2)
        factories = addons.NamedVariableFactories(w=factory)
        buffers = addons.named_variable_buffers(factories, 1, 2)
        factories.init_remote(buffers)
        out = popxl.d2h_stream(data.shape, popxl.float32, "out")
        shard = popxl.ops.remote_load(buffers.w, 0)
        pairs = ir.replica_grouping(group_size=2)
        popxl.ops.host_store(out, popxl.ops.collectives.replicated_all_gather(shard, group=pairs))
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run()[out], np.stack([data] * 4))


def test_streams_keep_names_and_order() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        streams = addons.InputStreams(words=((2, 3), popxl.int32), mask=((2,), popxl.float32))
        results = addons.OutputStreams(loss=((), popxl.float32))
        assert [s.shape for s in streams.streams] == [(2, 3), (2,)]
        assert streams.words.dtype == popxl.int32
        assert results.loss.shape == ()


def test_factories_of_zeros() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        factories, _ = layers.Linear(3).create_graph(popxl.TensorSpec((2, 4), popxl.float32))
        zeros = factories.init_zero()
        (weight,) = (t for name, t in zeros.named_tensors.items() if name == "weight")
        out = popxl.d2h_stream(weight.shape, weight.dtype)
        ops.host_store(out, weight)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], np.zeros((4, 3), np.float32))
