"""Pieces of the interface that programs seldom use, one at a time."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus  # noqa: E402

from ipuperf.tensorflow.facade.embeddings import HostTable  # noqa: E402
from ipuperf.tensorflow.keras import attach, detach  # noqa: E402
from ipuperf.tensorflow.python import ipu  # noqa: E402
from ipuperf.tensorflow.python.ipu import ipu_infeed_queue, sharding  # noqa: E402

tf1 = tf.compat.v1


def test_shards_follow_operands_and_colocation() -> None:
    with tf.Graph().as_default() as graph:
        first = tf.constant(1.0, name="first")
        sharding.set_shard(first.op, 2)
        alone, following = tf.constant(5.0), first * 2
        after = alone + following
        with tf1.colocate_with(first.op):
            beside = tf.constant(3.0)
        sharding.propagate_sharding(graph)
        assert [sharding.get_shard(t.op) for t in (first, alone, following, after)] == [2, None, 2, 2]
        assert [sharding.get_shard_from_colocation(t.op) for t in (beside, alone, first)] == [2, None, None]
        assert sharding.dependencies([after.op])[0] is after.op
        assert set(sharding.dependencies([after.op])) >= {first.op, alone.op, following.op}
        assert beside.op not in sharding.dependencies([after.op])
        assert sharding.has_attr(first.op, "_ipu_shard")
        assert not sharding.has_attr(alone.op, "_ipu_shard")


def test_an_infeed_begins_anew_after_its_deleter() -> None:
    queue = ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.range(4, output_type=tf.int32))
    assert list(queue.take(2)) == [[0], [1]]
    assert queue.deleter is None
    assert list(queue.take(2)) == [[0], [1]]
    assert list(queue.take(1)) == [[2]]
    assert queue.number_of_tuple_elements == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_table_of_the_host_changes_after_so_many_updates(count: int) -> None:
    table, rows = HostTable("t", 0.5, count), np.arange(12, dtype=np.float32).reshape(6, 2)
    with pytest.raises(RuntimeError):
        table.look_up(np.array([0]))
    table.rows = rows.copy()
    expected = rows.copy()
    for _ in range(count):
        np.testing.assert_array_equal(table.rows, rows)
        assert table.update(np.array([1, 4, 1]), np.ones((3, 2), np.float32)) == [0]
        np.subtract.at(expected, [1, 4, 1], np.full((3, 2), 0.5, np.float32))
    np.testing.assert_array_equal(table.rows, expected)
    np.testing.assert_array_equal(table.look_up(np.array([4]))[0], expected[[4]])


def test_keras_is_as_before_without_extensions() -> None:
    names = ("fit", "__call__", "get_config", "set_pipelining_options", "print_pipeline_stage_assignment_summary")
    detach()
    before = [getattr(tf.keras.Model, name, None) for name in names]
    assert before[3:] == [None, None]
    assert not hasattr(tf.keras, "ipu")
    attach()
    assert hasattr(tf.keras, "ipu")
    assert hasattr(tf.keras.Model, "set_pipelining_options")
    detach()
    assert [getattr(tf.keras.Model, name, None) for name in names] == before
    attach()


@pytest.mark.parametrize(("how", "expected"), [("SUM", 6.0), ("MEAN", 3.0)])
def test_a_strategy_reduces_structures(how: str, expected: float) -> None:
    def reduced(x):
        context = tf.distribute.get_replica_context()
        assert tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group)) == 0
        return context.all_reduce(getattr(tf.distribute.ReduceOp, how), {"a": x, "b": [x * 2]})["b"][0]

    with ipus(2):
        strategy = tf.distribute.get_strategy()
        found = strategy.run(tf.function(reduced, jit_compile=True), args=(tf.constant(1.5),))
    assert float(found) == expected


def test_a_benchmark_prints_a_line_per_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    data = tf.data.Dataset.from_tensors(np.ones(4, np.float32)).repeat()
    ipu.dataset_benchmark.dataset_benchmark(data, 2, 5)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" elements in")[0] for line in lines] == ["epoch 0: 5", "epoch 1: 5"]
    ipu.dataset_benchmark.dataset_benchmark(data, 2, 5, print_stats=False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "exchange", "expected"),
    [
        ("sum", ipu.cross_replica_ops.cross_replica_sum, lambda c: 2 * c),
        ("mean", ipu.cross_replica_ops.cross_replica_mean, lambda c: c),
        ("scatter add", lambda x: scattered(x, "COLLECTIVE_OP_ADD"), lambda c: c[[0, 1, 2, 0, 1]]),
        (
            "scatter mean",
            lambda x: scattered(x, "COLLECTIVE_OP_MEAN"),
            lambda c: np.concatenate([c[:3], c[:3]])[:5] / 2,
        ),
    ],
)
def test_the_gradient_of_an_exchange(name, exchange, expected) -> None:
    weights = np.arange(1, 6, dtype=np.float32)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = exchange(x)
            loss = tf.reduce_sum(found * weights[: found.shape[0]])
        return tape.gradient(loss, x)

    with ipus(2):
        found = tf.distribute.get_strategy().run(tf.function(gradient, jit_compile=True), args=(tf.ones(5),))
    np.testing.assert_allclose(found, expected(weights))


def scattered(x, how: str):
    return ipu.reduce_scatter_op.reduce_scatter(x, 2, op=how)
