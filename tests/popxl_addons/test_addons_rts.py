"""Reducing to shards and gathering them, in one IPU-Link domain and over several, against plain NumPy."""

import json
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops

DATA = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)


def reduced(op: str, **groups: Any) -> tuple[np.ndarray, list[str]]:
    """The tensors of four replicas reduced, as shards, by replica; and the collectives in their order.

    Groups are given by stride and size.
    """
    ir = popxl.Ir(4)
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.h2d_stream((6,), popxl.float32)
        made = {name: ir.replica_grouping(*group) for name, group in groups.items()}
        shard = addons.reduce_replica_sharded_tensor(ops.host_load(stream), op, **made)
        out = popxl.d2h_stream(shard.shape, shard.dtype)
        ops.host_store(out, shard)
    kinds = [o.type for o in ir._ir.main_graph.ops if o.type.startswith("Repl")]
    with popxl.Session(ir, "ipu_model") as session:
        return session.run({stream: DATA})[out], kinds


@pytest.fixture
def two_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas are in each IPU-Link domain."""
    monkeypatch.setenv("POPLAR_TARGET_OPTIONS", json.dumps({"ipuLinkDomainSize": 2}))


@pytest.mark.parametrize("op", ["add", "mean"])
def test_one_domain_is_one_reduce_scatter_per_group(op: str) -> None:
    found, kinds = reduced(op, replica_group=(1, 2))
    pairs = DATA.reshape(2, 2, 6).sum(1) / (2 if op == "mean" else 1)
    np.testing.assert_allclose(found, pairs.reshape(4, 3), rtol=1e-5, atol=1e-6)
    assert kinds == ["ReplicatedReduceScatter"]


@pytest.mark.usefixtures("two_domains")
@pytest.mark.parametrize("op", ["add", "mean"])
def test_several_domains_reduce_shards_between_them(op: str) -> None:
    found, kinds = reduced(op)
    whole = DATA.sum(0) / (4 if op == "mean" else 1)
    np.testing.assert_allclose(found, np.tile(whole.reshape(2, 3), (2, 1)), rtol=1e-5, atol=1e-6)
    assert kinds == ["ReplicatedReduceScatter", "ReplicatedAllReduce"]


@pytest.mark.usefixtures("two_domains")
def test_shards_of_one_replica_or_over_all_domains() -> None:
    whole = DATA.sum(0)
    found, _ = reduced("add", shard_group=(1, 1))
    np.testing.assert_allclose(found, np.tile(whole, (4, 1)), rtol=1e-5, atol=1e-6)
    ir = popxl.Ir(4)
    with ir.main_graph, popxl.in_sequence():
        tensors = addons.NamedTensors(a=popxl.variable(np.arange(8, dtype=np.float32)))
        graph, names = addons.reduce_replica_sharded_graph(tensors)
        shards = addons.NamedTensors.pack(names, graph.bind(tensors).call())
        assert (shards.a.shape, shards.a.meta_shape) == ((4,), (8,))
        graph, names = addons.all_gather_replica_sharded_graph(shards)
        (whole_again,) = graph.bind(shards).call()
        out = popxl.d2h_stream((8,), popxl.float32)
        ops.host_store(out, whole_again)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], np.tile(4 * np.arange(8), (4, 1)))


def test_graphs_over_factories() -> None:
    """Shapes and names come from factories as well as from tensors."""
    ir = popxl.Ir(2)
    with ir.main_graph, popxl.in_sequence():
        factories = addons.NamedVariableFactories(
            w=addons.VariableFactory(lambda: np.arange(4, dtype=np.float32), name="w")
        )
        graph, names = addons.reduce_replica_sharded_graph(factories, "mean")
        (shard,) = graph.bind(factories.init()).call()
        assert names == ["w"]
        out = popxl.d2h_stream(shard.shape, shard.dtype)
        ops.host_store(out, shard)
    with popxl.Session(ir, "ipu_model") as session:
        np.testing.assert_array_equal(session.run()[out], [[0, 1], [2, 3]])
