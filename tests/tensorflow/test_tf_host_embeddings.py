"""Embeddings in the host's memory against gradient descent in NumPy."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from sessions import Compiled

from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import embedding_ops, pipelining_ops

tf1 = tf.compat.v1
RNG = np.random.default_rng(0)
TABLE, WEIGHT = RNG.normal(size=(10, 4)).astype(np.float32), RNG.normal(size=(4, 1)).astype(np.float32)
INDICES = np.array([[1, 2, 1], [9, 0, 2], [3, 3, 3], [1, 9, 5]], np.int32)
RATE = 0.1


def wanted(factor: int = 1, batches=INDICES, per: int = 1) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Table, weight and losses ``sum((rows @ weight) ** 2)``; the weight is updated once for ``per`` batches."""
    table, weight, losses = TABLE.astype(float), WEIGHT.astype(float), []
    waiting, grad = [], np.zeros_like(weight)
    for number, indices in enumerate(batches, 1):
        rows = table[indices]
        scores = rows @ weight
        losses.append(float((scores**2).sum()))
        waiting.append((indices, 2 * scores @ weight.T))
        grad += rows.T @ (2 * scores)
        if len(waiting) == factor:
            for where, what in waiting:
                np.subtract.at(table, where, RATE * what)
            waiting = []
        if number % per == 0:
            weight, grad = weight - RATE * grad, np.zeros_like(weight)
    return table, weight, losses


def embedding(spec):
    return embedding_ops.create_host_embedding(
        "table", TABLE.shape, tf.float32, optimizer_spec=spec, initializer=tf1.constant_initializer(TABLE)
    )


def weight():
    return tf1.get_variable("w", initializer=WEIGHT, use_resource=True)


@pytest.mark.parametrize("factor", [1, 2])
def test_training_in_a_loop(graph, factor: int) -> None:
    spec = embedding_ops.HostEmbeddingOptimizerSpec(RATE)
    if factor > 1:
        spec = embedding_ops.HostEmbeddingSGDGAOptimizerSpec(RATE, factor)
    table = embedding(spec)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(INDICES).repeat())
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def body(indices):
        loss = tf.reduce_sum((table.lookup(indices) @ weight()) ** 2)
        with tf.control_dependencies([tf1.train.GradientDescentOptimizer(RATE).minimize(loss)]):
            return outfeed.enqueue(tf.identity(loss))

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        run = Compiled(lambda: ipu.loops.repeat(4, body, [], infeed), [], [infeed])
    graph.session.run(tf1.global_variables_initializer())
    with table.register(graph.session):
        run()
    rows, end, losses = wanted(factor)
    np.testing.assert_allclose(graph.session.run(outfeed.dequeue()), losses, rtol=1e-5)
    np.testing.assert_allclose(graph.session.run(table.get_embedding_tensor()), rows, rtol=1e-5)
    np.testing.assert_allclose(graph.session.run(weight_of(graph)), end, rtol=1e-5)
    loop = next(g for g in run.program.ir.all_graphs() if any(op.type == "HostLookup" for op in g.ops))
    assert [op.type for op in loop.ops].count("HostUpdate") == 1
    sent = run.program.executable.trace.table("transfers").drop_duplicates("transfer")["bytes"]
    assert list(sent[1:5]) == [12, 48, 12, 48], "indices, rows; indices, gradients"


def weight_of(graph):
    return next(v for v in tf1.global_variables() if v.name == "w:0")


def test_training_in_a_pipeline(graph) -> None:
    table = embedding(embedding_ops.HostEmbeddingSGDGAOptimizerSpec(RATE, 4))
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(INDICES).repeat())
    stages = [table.lookup, lambda rows: tf.reduce_sum((rows @ weight()) ** 2)]

    def optimizer_function(loss):
        return pipelining_ops.OptimizerFunctionOutput(tf1.train.GradientDescentOptimizer(RATE), loss)

    def net():
        return pipelining_ops.pipeline(
            stages,
            4,
            infeed_queue=infeed,
            outfeed_queue=ipu.ipu_outfeed_queue.IPUOutfeedQueue(),
            optimizer_function=optimizer_function,
            outfeed_loss=True,
        )

    run = Compiled(net, [], [infeed])
    graph.session.run(tf1.global_variables_initializer())
    with table.register(graph.session):
        run()
    rows, end, _ = wanted(4, per=4)
    np.testing.assert_allclose(graph.session.run(table.get_embedding_tensor()), rows, rtol=1e-5)
    np.testing.assert_allclose(graph.session.run(weight_of(graph)), end, rtol=1e-5)


def test_a_table_that_is_not_trained_in_version_2() -> None:
    table = embedding_ops.HostEmbedding("fixed", tf.Variable(TABLE))

    @tf.function(jit_compile=True)
    def rows(indices):
        return table.lookup(indices)

    with ipu.ipu_strategy.IPUStrategy().scope():
        with table.register():
            np.testing.assert_array_equal(rows(tf.constant([[1, 99], [-3, 2]])), TABLE[[[1, 9], [0, 2]]])
        with pytest.raises(RuntimeError, match="'fixed' is not registered"):
            rows(tf.constant([[1, 99], [-3, 2]]))
