"""Training loops, queues, sessions: the guide's examples and plain NumPy."""

import threading

import numpy as np
import pytest

import ipuperf.tensorflow as tf
from ipuperf.tensorflow.errors import OutOfRangeError
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue, loops

Dataset = tf.data.Dataset


def pair_feed():
    dataset = Dataset.from_tensors(tf.constant([1.0, 2.0])).map(lambda x: [x, 10 * x]).repeat()
    return ipu_infeed_queue.IPUInfeedQueue(dataset)


def test_the_guides_example_with_a_session():
    infeed, outfeed = pair_feed(), ipu_outfeed_queue.IPUOutfeedQueue()

    def body(x1, x2):
        return outfeed.enqueue({"d1": x1 + x2, "d2": x1 - x2})

    def my_net():
        return loops.repeat(10, body, [], infeed)

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        run_loop = ipu.ipu_compiler.compile(my_net, inputs=[])
    dequeue = outfeed.dequeue()
    with tf.Session() as session:
        session.run(infeed.initializer)
        assert session.run(run_loop) is None
        result = session.run(dequeue)
    assert {name: value.shape for name, value in result.items()} == {"d1": (10, 2), "d2": (10, 2)}
    np.testing.assert_array_equal(result["d1"], np.tile([11, 22], (10, 1)))
    np.testing.assert_array_equal(result["d2"], np.tile([-9, -18], (10, 1)))
    assert run_loop.program.executable.simulated_run_cycles > 0


def test_loop_carried_values_arguments_and_strategy():
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices(np.arange(6, dtype=np.float32)))

    def net(scale):
        total, count = loops.repeat(6, lambda t, n, x: (t + scale * x, n + 1), [0.0, 0], infeed)
        return {"total": total, "count": count}

    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        result = strategy.run(net, [np.float32(2)])
        assert (result["total"], result["count"]) == (30, 6)
        infeed.initializer.run()
        assert strategy.run(net, [np.float32(3)])["total"] == 45


def test_nested_loops_and_no_iterations():
    net = ipu.ipu_compiler.compile(
        lambda x: (loops.repeat(3, lambda v: loops.repeat(2, lambda u: u + x, [v]), [x]), loops.repeat(0, abs, [x])),
        [np.float32(2)],
    )
    assert net.run() == (14, 2)
    assert net(np.float32(-1)) == (-7, -1)


def test_a_dictionary_becomes_named_arguments():
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensors({"a": 1.0, "b": [2.0, 3.0]}).repeat())
    net = ipu.ipu_compiler.compile(lambda: loops.repeat(2, lambda t, b, a: t + a * b, [np.zeros(2)], infeed))
    np.testing.assert_array_equal(net.run(), [4, 6])


def test_outfeed_modes_structures_and_empty_results():
    everything = ipu_outfeed_queue.IPUOutfeedQueue()
    last = ipu_outfeed_queue.IPUOutfeedQueue(ipu_outfeed_queue.IPUOutfeedMode.LAST)

    def body(v):
        everything.enqueue((v, v * 2))
        last.enqueue(v)
        return v + 1

    net = ipu.ipu_compiler.compile(lambda: loops.repeat(4, body, [np.zeros(3)]))
    net.run()
    one, two = everything.dequeue()
    np.testing.assert_array_equal(one[:, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(two[:, 0], [0, 2, 4, 6])
    assert everything.dequeue()[0].shape == (0, 3)
    assert last.dequeue().numpy().tolist() == [3, 3, 3]
    net.run()
    assert [element[0][0] for element in everything] == [0, 1, 2, 3]


def test_dequeue_during_execution_by_callback_and_thread():
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
    seen, arrived = [], threading.Event()

    def body(v):
        outfeed.enqueue(v)
        return v + 1

    net = ipu.ipu_compiler.compile(lambda: loops.repeat(5, body, [0.0]))

    def watch():
        arrived.wait(10)
        seen.append(outfeed.dequeue().tolist())

    thread = threading.Thread(target=watch)
    thread.start()

    def callback(queue):
        if not arrived.is_set() and not seen:
            arrived.set()
            thread.join(10)  # the program stands still here: its first element is what there is
        else:
            seen.append(queue.dequeue().tolist())

    outfeed.on_enqueue(callback)
    net.run()
    assert seen == [[0], [1], [2], [3], [4]]


def test_replicas_each_take_elements_of_the_feed():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 4
    config.configure_ipu_system()
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.range(8))
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
    net = ipu.ipu_compiler.compile(lambda: loops.repeat(2, lambda x: outfeed.enqueue(x * 10), [], infeed))
    net.run()
    assert net.program.ir.replication_factor == 4
    np.testing.assert_array_equal(outfeed.dequeue(), [[0, 10, 20, 30], [40, 50, 60, 70]])


def test_shards_divide_the_ipus_into_replicas_and_copy_between_ipus():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 8
    config.configure_ipu_system()

    def net(x):
        for shard in range(3):
            with ipu.scopes.ipu_shard(shard):
                x = x * 2.0
        return x

    compiled = ipu.ipu_compiler.compile(net, [np.ones(64, np.float32)])
    np.testing.assert_array_equal(compiled.run(), np.full(64, 8))
    assert compiled.program.ir.replication_factor == 2  # 3 shards count as 4
    copies = [op for op in compiled.program.ir.main_graph.ops if op.type == "IpuCopy"]
    assert [(op.source, op.destination) for op in copies] == [(0, 1), (1, 2), (2, 0)]


def test_shards_that_do_not_divide_the_ipus_are_refused():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()

    def net(x):
        with ipu.scopes.ipu_shard(3):
            return x + 1.0

    with pytest.raises(ValueError, match="with 2 IPUs and 4 shards. The number of shards needs to divide"):
        ipu.ipu_compiler.compile(net, [np.float32(1)]).run()


@pytest.mark.parametrize(
    ("body", "inputs", "error", "message"),
    [
        (lambda a: a, [1, 2], TypeError, "Supplied loop body function cannot be called"),
        (lambda a: a * 2.0, [1], TypeError, "a fraction|different types|Mismatch"),
        (lambda a: tf.cast(a, tf.float16), [1.0], TypeError, r"Mismatch between input types .* \['float32'\] vs"),
        (lambda a: tf.stack([a, a]), [1.0], ValueError, r"shape \(\) at the start .* \(2,\) at its end"),
        (lambda a: (tf.Operation("x"), a), [1.0], ValueError, "Tensor values followed by zero or more Operations"),
    ],
)
def test_loop_bodies_that_do_not_fit(body, inputs, error, message):
    if message.startswith("a fraction"):
        inputs = [np.float16(1)]
        body = lambda a: a * np.float32(2)  # noqa: E731
    with pytest.raises(error, match=message):
        ipu.ipu_compiler.compile(lambda: loops.repeat(2, body, inputs)).run()


def test_queue_errors():
    with pytest.raises(ValueError, match="no elements"):
        ipu_infeed_queue.IPUInfeedQueue([])
    with pytest.raises(TypeError, match="can be iterated only once"):
        ipu_infeed_queue.IPUInfeedQueue(iter([1]))
    with pytest.raises(ValueError, match="prefetch_depth must be between 1 and 255"):
        ipu_infeed_queue.IPUInfeedQueue([1.0], prefetch_depth=0)
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
    with pytest.raises(ValueError, match="has not been enqueued"):
        outfeed.dequeue()

    def twice(v):
        outfeed.enqueue(v)
        outfeed.enqueue(v)
        return v

    with pytest.raises(ValueError, match="An outfeed can only be enqueued once"):
        ipu.ipu_compiler.compile(lambda: loops.repeat(1, twice, [1.0]))
    with pytest.raises(ValueError, match="outfeed_mode"):
        ipu_outfeed_queue.IPUOutfeedQueue(outfeed_mode="all")


def test_shapes_must_not_change_between_elements():
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices(np.arange(5.0)).batch(2).repeat())
    net = ipu.ipu_compiler.compile(lambda: loops.repeat(3, lambda t, x: t + x.sum(), [0.0], infeed))
    with pytest.raises(ValueError, match=r"element 2, tensor 0: shape \(1,\) float32, but element 0 has \(2,\)"):
        net.run()


def test_a_dataset_that_ends():
    infeed = ipu_infeed_queue.IPUInfeedQueue([1.0, 2.0])
    net = ipu.ipu_compiler.compile(lambda: loops.repeat(2, lambda t, x: t + x, [0.0], infeed))
    assert net.run() == 3
    with pytest.raises(OutOfRangeError, match="the infeed's dataset has 2 elements"):
        net.run()
    infeed.initializer.run()
    assert net.run() == 3


def test_while_loop_needs_a_constant_condition():
    with pytest.raises(NotImplementedError, match="depend on data"):
        ipu.ipu_compiler.compile(lambda: loops.while_loop(lambda v: v < 3.0, lambda v: v + 1, [0.0]))
    net = ipu.ipu_compiler.compile(
        lambda: loops.while_loop(lambda v: True, lambda v: v + 1, [0.0], maximum_iterations=4)
    )
    assert net.run() == 4


def test_placeholders_are_fed():
    rate = tf.placeholder(tf.float32, [])
    net = ipu.ipu_compiler.compile(lambda r: r * 2.0, inputs=[rate])
    with tf.Session() as session:
        assert session.run(net, {rate: 0.25}) == 0.5
        assert session.run({"a": net}, feed_dict={rate: 3})["a"] == 6
        with pytest.raises(TypeError, match="cannot fetch"):
            session.run(object())


def test_dropout_differs_by_iteration_replica_and_run_and_has_the_gradient_of_its_mask():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()

    def build():
        outfeed = ipu_outfeed_queue.IPUOutfeedQueue()

        def body(x):
            dropped = tf.nn.dropout(x, rate=0.25)
            other = tf.nn.dropout(x, rate=0.25)
            slope = tf.gradients(tf.reduce_sum(dropped), [x])[0]
            outfeed.enqueue((dropped, other, slope, tf.random.uniform([3])))
            return x

        net = ipu.ipu_compiler.compile(lambda x: loops.repeat(3, body, [x]), [np.ones(400, np.float32)])
        net.run()
        first = outfeed.dequeue()
        net.run()
        return first, outfeed.dequeue()

    first, second = build()
    masks = [*first[0].reshape(6, 400), *second[0].reshape(6, 400), first[1][0, 0]]
    assert len({m.tobytes() for m in masks}) == 13
    for mask in masks:
        assert set(np.round(np.unique(mask), 5)) == {0, np.float32(1.33333)}
        assert 0.15 < (mask == 0).mean() < 0.35
    np.testing.assert_array_equal(first[2], first[0])
    assert len(np.unique(first[3])) == 18
    again, _ = build()
    np.testing.assert_array_equal(again[0], first[0])
