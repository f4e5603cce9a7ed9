"""Exchanges between replicas, and between the IPUs of one, against NumPy."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from sessions import Compiled, configure, dequeued

from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import ipu_outfeed_queue

tf1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def on_replicas(function, replicas: int = 4) -> np.ndarray:
    """What ``function`` of the replica's row of :data:`X` gives on each replica."""
    configure(auto_select_ipus=replicas)
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()

    def net(x):
        return outfeed.enqueue(function(tf.gather(x, ipu.replication_ops.replication_index())))

    compiled = Compiled(net, [X])
    compiled.run()
    assert compiled.program.ir.replication_factor == replicas
    return np.asarray(dequeued(outfeed))[0]


def test_all_gather_and_its_gradient(graph) -> None:
    found = on_replicas(lambda x: ipu.all_to_all_op.all_gather(x, 4, "gathered"))
    np.testing.assert_array_equal(found, np.broadcast_to(X, (4, 4, 6)))
    graph.fresh()
    weights = np.arange(24, dtype=np.float32).reshape(4, 6)

    def gradient(x):
        number = tf.cast(ipu.replication_ops.replication_index() + 1, tf.float32)
        return tf.gradients(tf.reduce_sum(ipu.all_to_all_op.all_gather(x, 4) * weights) * number, x)[0]

    np.testing.assert_allclose(on_replicas(gradient), 10 * weights)


@pytest.mark.parametrize("op", ["ADD", "MEAN", "MAX", "SQUARE_ADD", "LOCAL"])
def test_reduce_scatter(graph, op: str) -> None:
    found = on_replicas(lambda x: ipu.reduce_scatter_op.reduce_scatter(x[:5], 4, f"COLLECTIVE_OP_{op}"))
    kinds = {"ADD": np.sum, "MEAN": np.mean, "MAX": np.max, "SQUARE_ADD": lambda v, axis: np.sum(v * v, axis)}
    padded = np.pad(X[:, :5], [(0, 0), (0, 3)])
    parts = padded.reshape(4, 4, 2)
    wanted = parts[np.arange(4), np.arange(4)] if op == "LOCAL" else kinds[op](parts, axis=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_all_to_all_and_its_gradient(graph) -> None:
    def rows(x):
        return tf.reshape(x[:4], [4, 1])

    found = on_replicas(lambda x: ipu.all_to_all_op.all_to_all(rows(x), 0, 1, 4))
    np.testing.assert_array_equal(found, X[:, :4].T[:, np.newaxis])
    graph.fresh()

    def gradient(x):
        number = tf.cast(ipu.replication_ops.replication_index(), tf.float32)
        return tf.gradients(tf.reduce_sum(ipu.all_to_all_op.all_to_all(rows(x), 0, 1, 4)) * number, x)[0]

    np.testing.assert_array_equal(on_replicas(gradient), np.broadcast_to([0, 1, 2, 3, 0, 0], (4, 6)))


def test_groups_of_replicas(graph) -> None:
    def function(x):
        sums = ipu.cross_replica_ops.cross_replica_sum(x, replica_group_size=2)
        return tf.stack([sums, ipu.cross_replica_ops.cross_replica_mean(x)])

    found = on_replicas(function)
    pairs = np.repeat([X[0] + X[1], X[2] + X[3]], 2, axis=0)
    np.testing.assert_allclose(found[:, 0], pairs, rtol=1e-5)
    np.testing.assert_allclose(found[:, 1], np.broadcast_to(X.mean(0), (4, 6)), rtol=1e-5, atol=1e-6)


def test_groups_that_do_not_fit_the_replicas(graph) -> None:
    with pytest.raises(ValueError, match="groups are of 3 replicas.*divide the program's 4"):
        on_replicas(lambda x: ipu.all_to_all_op.all_gather(x, 3))
    with pytest.raises(ValueError, match="cannot be split along axis 0 into 4 equal parts"):
        on_replicas(lambda x: ipu.all_to_all_op.all_to_all(x, 0, 0, 4))
    with pytest.raises(ValueError, match="op='ADD'; allowed: COLLECTIVE_OP_ADD"):
        ipu.reduce_scatter_op.reduce_scatter(X[0], 4, "ADD")
    with pytest.raises(ValueError, match="a group has 0 replicas"):
        ipu.cross_replica_ops.cross_replica_sum(X, 0)


def within(function) -> list[np.ndarray]:
    configure(auto_select_ipus=4)

    def net(x):
        shards = []
        for number in range(4):
            with ipu.scopes.ipu_shard(number):
                shards.append(x[number, : 5 if number else 3] * 1.0)
        return function(shards)

    compiled = Compiled(net, [X])
    found = compiled.run()
    copies = {(op.source, op.destination) for op in compiled.program.ir.main_graph.ops if op.type == "IpuCopy"}
    assert {(a, b) for a in range(4) for b in range(4) if a != b} <= copies
    return found


def test_collectives_within_a_replica(graph) -> None:
    ops = ipu.within_replica_ops
    padded = [np.pad(X[i, : 5 if i else 3], (0, 0 if i else 2)) for i in range(4)]
    for found in within(lambda shards: ops.all_reduce(shards, "COLLECTIVE_OP_ADD")):
        np.testing.assert_allclose(found, sum(padded), rtol=1e-5)
    graph.fresh()
    for number, found in enumerate(within(lambda shards: ops.reduce_scatter(shards, "COLLECTIVE_OP_MAX"))):
        wanted = np.pad(np.max(padded, axis=0), (0, 3))[2 * number : 2 * number + 2]
        np.testing.assert_array_equal(found, wanted)
    graph.fresh()
    for found in within(lambda shards: ops.all_gather(shards)):
        np.testing.assert_array_equal(found, np.concatenate([X[0, :3], *X[1:, :5]]))
    with pytest.raises(ValueError, match="same type"):
        ops.all_gather([tf.constant(1.0), tf.constant(1)])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_sum_over_one_replica_is_no_op(graph, replicas: int) -> None:
    configure(auto_select_ipus=replicas)

    def net(x):
        return tf.exp(ipu.cross_replica_ops.cross_replica_sum(tf.sin(x)))

    compiled = Compiled(net, [X])
    (found,) = compiled.run()
    np.testing.assert_allclose(found, np.exp(replicas * np.sin(X)), rtol=1e-5)
    types = [op.type for op in compiled.program.ir.main_graph.ops]
    assert types.count("ReplicatedAllReduce") == replicas - 1


def test_a_sum_over_one_replica_keeps_the_value_of_a_variable(graph) -> None:
    configure(auto_select_ipus=1)
    variable = tf1.get_variable("v", initializer=tf.constant(X), use_resource=True)

    def net(x):
        before = ipu.cross_replica_ops.cross_replica_sum(variable.read_value())
        with tf.control_dependencies([before]):
            changed = variable.assign_add(x)
        with tf.control_dependencies([changed]):
            return before * 2.0

    compiled = Compiled(net, [X])
    graph.session.run(tf1.global_variables_initializer())
    (found,) = compiled.run()
    np.testing.assert_allclose(found, 2 * X, rtol=1e-6)


def test_collectives_in_branches(graph) -> None:
    """Of an update every so many steps, whose optimizer reduces over the replicas."""

    def reduced(x):
        number = tf.cast(ipu.replication_ops.replication_index(), tf.float32)
        return ipu.cross_replica_ops.cross_replica_sum(number * x) + number

    def step(x):
        largest = tf.reduce_max(ipu.all_to_all_op.all_gather(x, 4))
        taken = tf.cond(largest > 0, lambda: reduced(x), lambda: x)
        return taken + tf.cond(largest < 0, lambda: reduced(x), lambda: x)

    numbers = np.arange(4, dtype=np.float32)[:, None]
    np.testing.assert_allclose(on_replicas(step), (numbers * X).sum(0) + numbers + X, rtol=1e-6, atol=1e-6)
    graph.fresh()

    def sent(x):
        with tf.control_dependencies([ipu_outfeed_queue.IPUOutfeedQueue().enqueue(x)]):
            return tf.identity(x)

    with pytest.raises(Exception, match="enqueue in a branch of a tf.cond"):
        on_replicas(lambda x: tf.cond(x[0] > 0, lambda: sent(x), lambda: x))
