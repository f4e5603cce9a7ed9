"""Training loops, queues, sessions: the guide's examples and plain NumPy."""

import threading
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
from sessions import Compiled, configure, dequeued

from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue, loops

tf = tf2.compat.v1
Dataset = tf2.data.Dataset


def pair_feed():
    dataset = Dataset.from_tensors(tf.constant([1.0, 2.0])).map(lambda x: [x, 10 * x]).repeat()
    return ipu_infeed_queue.IPUInfeedQueue(dataset)


def test_loop_carried_values_arguments_and_strategy():
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices(np.arange(6, dtype=np.float32)))

    @tf2.function(jit_compile=True)
    def net(scale):
        total, count = loops.repeat(6, lambda t, n, x: (t + scale * x, n + 1), [0.0, 0], infeed)
        return {"total": total, "count": count}

    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        result = strategy.run(net, [tf2.constant(2.0)])
        assert (result["total"].numpy(), result["count"].numpy()) == (30, 6)
        infeed.initializer  # noqa: B018
        assert net(tf2.constant(3.0))["total"].numpy() == 45
        with pytest.raises(ValueError, match="does not support eager execution"):
            strategy.run(lambda: 1)


def training(weight, steps, optimizer):
    def train(iterator):
        loss = tf2.constant(0.0)
        for _ in tf2.range(4):
            x = next(iterator)
            with tf2.GradientTape() as tape:
                loss = tf2.reduce_mean(tf2.square(tf2.matmul(x, weight)))
            optimizer.apply_gradients(zip(tape.gradient(loss, [weight]), [weight]))
            steps.assign_add(1)
        return loss

    return train


@pytest.mark.parametrize("own", [False, True])
def test_variables_tapes_and_data_in_a_function(own):
    """What TensorFlow 2 programs do in a function, against TensorFlow on the CPU, with either iterator."""
    data = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
    results = []
    for on_ipu in (True, False):
        weight, steps = tf2.Variable(np.ones((3, 2), np.float32)), tf2.Variable(0, dtype=tf2.int64)
        optimizer = tf2.keras.optimizers.SGD(0.1, momentum=0.9)
        iterator = iter(Dataset.from_tensor_slices(data).batch(2, drop_remainder=True).repeat())
        if on_ipu and own:
            iterator = ipu_infeed_queue.IPUIterator(
                Dataset.from_tensor_slices(data).batch(2, drop_remainder=True).repeat()
            )

        train = tf2.function(training(weight, steps, optimizer), jit_compile=on_ipu)
        if on_ipu:
            strategy = ipu.ipu_strategy.IPUStrategy()
            with strategy.scope():
                losses = [strategy.run(train, args=[iterator]) for _ in range(2)]
        else:
            losses = [train(iterator) for _ in range(2)]
        results.append([*(float(v) for v in losses), weight.numpy(), steps.numpy(), optimizer.iterations.numpy()])
    for found, wanted in zip(*results):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_program_without_a_strategy_is_refused():
    function = tf2.function(lambda: loops.repeat(2, lambda x: x + 1.0, [0.0]), jit_compile=True)
    with pytest.raises(RuntimeError, match="uses what only an IPU has: call it in the scope of an IPUStrategy"):
        function()


def test_a_variable_as_an_argument_and_an_iterator_that_ends():
    weight = tf2.Variable([1.0, 2.0])
    iterator = iter(Dataset.from_tensor_slices(np.ones((3, 2), np.float32)))

    @tf2.function(jit_compile=True)
    def add(variable, iterator):
        variable.assign_add(next(iterator) + next(iterator))

    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        strategy.run(add, args=(weight, iterator))
        np.testing.assert_array_equal(weight, [3, 4])
        with pytest.raises(tf.errors.OutOfRangeError):
            strategy.run(add, args=(weight, iterator))


def test_nested_loops_and_no_iterations(graph):
    net = Compiled(
        lambda x: (loops.repeat(3, lambda v: loops.repeat(2, lambda u: u + x, [v]), [x]), loops.repeat(0, abs, [x])),
        [np.float32(2)],
    )
    assert net.run() == [14, 2]
    assert net(np.float32(-1)) == [-7, -1]


def test_a_dictionary_becomes_named_arguments(graph):
    element = {"a": np.float32(1), "b": np.array([2, 3], np.float32)}
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensors(element).repeat())
    net = Compiled(lambda: loops.repeat(2, lambda t, b, a: t + a * b, [np.zeros(2, np.float32)], infeed), [], [infeed])
    np.testing.assert_array_equal(net.run(), [[4, 6]])


def test_outfeed_modes_structures_and_empty_results():
    everything = ipu_outfeed_queue.IPUOutfeedQueue()
    last = ipu_outfeed_queue.IPUOutfeedQueue(ipu_outfeed_queue.IPUOutfeedMode.LAST)

    def body(v):
        everything.enqueue((v, v * 2))
        last.enqueue(v)
        return v + 1

    @tf2.function(jit_compile=True)
    def net():
        return loops.repeat(4, body, [np.zeros(3, np.float32)])

    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        net()
        one, two = everything.dequeue()
        np.testing.assert_array_equal(one[:, 0], [0, 1, 2, 3])
        np.testing.assert_array_equal(two[:, 0], [0, 2, 4, 6])
        assert everything.dequeue()[0].shape == (0, 3)
        assert last.dequeue().numpy().tolist() == [3, 3, 3]
        net()
        assert [float(element[0][0]) for element in everything] == [0, 1, 2, 3]


def test_dequeue_during_execution_by_callback_and_thread(graph):
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
    seen, arrived = [], threading.Event()

    def body(v):
        with tf.control_dependencies([outfeed.enqueue(v)]):
            return v + 1

    net = Compiled(lambda: loops.repeat(5, body, [0.0]))

    def watch():
        arrived.wait(10)
        seen.append(outfeed.take()[0].tolist())

    thread = threading.Thread(target=watch)
    thread.start()

    def callback(queue):
        if not arrived.is_set() and not seen:
            arrived.set()
            thread.join(10)  # the program stands still here: its first element is what there is
        else:
            seen.append(queue.take()[0].tolist())

    outfeed.on_enqueue(callback)
    net.run()
    assert seen == [[0], [1], [2], [3], [4]]


def test_replicas_each_take_elements_of_the_feed(graph):
    configure(auto_select_ipus=4)
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.range(8))
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
    net = Compiled(lambda: loops.repeat(2, lambda x: outfeed.enqueue(x * 10), [], infeed), [], [infeed])
    net.run()
    assert net.program.ir.replication_factor == 4
    np.testing.assert_array_equal(dequeued(outfeed), [[0, 10, 20, 30], [40, 50, 60, 70]])


def test_shards_divide_the_ipus_into_replicas_and_copy_between_ipus(graph):
    configure(auto_select_ipus=8)

    def net(x):
        for shard in range(3):
            with ipu.scopes.ipu_shard(shard):
                x = x * 2.0
        return x

    compiled = Compiled(net, [np.ones(64, np.float32)])
    np.testing.assert_array_equal(compiled.run(), [np.full(64, 8)])
    assert compiled.program.ir.replication_factor == 2  # 3 shards count as 4
    copies = [op for op in compiled.program.ir.main_graph.ops if op.type == "IpuCopy"]
    assert [(op.source, op.destination) for op in copies] == [(0, 1), (1, 2), (2, 0)]


def test_shards_that_do_not_divide_the_ipus_are_refused(graph):
    configure(auto_select_ipus=2)

    def net(x):
        with ipu.scopes.ipu_shard(3):
            return x + 1.0

    with pytest.raises(ValueError, match="with 2 IPUs and 4 shards. The number of shards needs to divide"):
        Compiled(net, [np.float32(1)]).run()


def test_a_queue_that_two_loops_read_is_refused(graph):
    infeed = pair_feed()

    def net():
        body = lambda t, a, b: t + a[0]  # noqa: E731
        return loops.repeat(2, body, [0.0], infeed), loops.repeat(2, body, [0.0], infeed)

    with pytest.raises(ValueError, match="can be dequeued only once in a program"):
        Compiled(net, [], [infeed]).run()


def test_a_queue_without_its_initializer(graph):
    infeed = pair_feed()
    net = Compiled(lambda: loops.repeat(2, lambda t, a, b: t + a[0], [0.0], infeed))
    with pytest.raises(tf.errors.FailedPreconditionError, match="run its `initializer` first"):
        net.run()


def test_data_are_taken_as_the_program_reads_them(graph):
    data = Dataset.range(64).map(lambda n: (tf.fill([1 << 16], tf.cast(n, tf.float32)), n, tf.constant(1.0)))
    infeed = ipu_infeed_queue.IPUInfeedQueue(data)
    net = Compiled(lambda: loops.repeat(32, lambda t, x, _, one: t + x[0] * one, [0.0], infeed))
    graph.session.run(infeed.initializer)
    assert net.run() == [sum(range(32))]
    tracemalloc.start()
    assert net.run() == [sum(range(32, 64))]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # all 32 are 8 MiB
    with pytest.raises(tf.errors.OutOfRangeError):
        net.run()


def test_a_dataset_that_ends(graph):
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices([1.0, 2.0]))
    net = Compiled(lambda: loops.repeat(2, lambda t, x: t + x, [0.0], infeed))
    start = infeed.initializer
    graph.session.run(start)
    assert net.run() == [3]
    with pytest.raises(tf.errors.OutOfRangeError, match="the infeed's dataset has 2 elements"):
        net.run()
    graph.session.run(start)
    assert net.run() == [3]


def test_a_dataset_that_is_fed(graph):
    """The initializer takes the feeds of what the dataset is made of."""
    numbers = tf.placeholder(tf.float32, [4])
    infeed = ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices(numbers))
    net = Compiled(lambda: loops.repeat(4, lambda t, x: t + x, [0.0], infeed))
    graph.session.run(infeed.initializer, {numbers: [1, 2, 3, 4]})
    assert net.run() == [10]


def test_while_loop_needs_a_constant_condition(graph):
    with pytest.raises(NotImplementedError, match="depend on data"):
        Compiled(lambda: loops.while_loop(lambda v: v < 3.0, lambda v: v + 1, [0.0]))
    net = Compiled(lambda: loops.while_loop(lambda v: True, lambda v: v + 1, [0.0], maximum_iterations=4))
    assert net.run() == [4]


def test_structures_that_compile_returns(graph):
    """As ``xla.compile`` documents."""
    one = ipu.ipu_compiler.compile(lambda x: x + 1.0, [tf.constant(1.0)])
    nested = ipu.ipu_compiler.compile(lambda x: {"a": x, "b": [x * 2.0, x * 3.0]}, [tf.constant(1.0)])
    nothing = ipu.ipu_compiler.compile(lambda: None)
    assert graph.session.run(one) == [2]
    assert graph.session.run(nested) == {"a": 1, "b": [2, 3]}
    assert graph.session.run(nothing) is None
    with pytest.raises(TypeError, match="is not a function"):
        ipu.ipu_compiler.compile(3)
    with pytest.raises(TypeError, match="inputs must be a list"):
        ipu.ipu_compiler.compile(lambda x: x, tf.constant(1.0))


def test_placeholders_and_tensors_of_the_graph_around(graph):
    rate, outer = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [2])
    net = ipu.ipu_compiler.compile(lambda r: r * outer + tf.constant(1.0), inputs=[rate])
    found = graph.session.run({"a": net}, {rate: 3, outer: [1, 2]})["a"]
    np.testing.assert_array_equal(found, [[4, 7]])
    open_ended = tf.placeholder(tf.float32, [None])
    late = ipu.ipu_compiler.compile(lambda x: x * 2.0, [open_ended])
    with pytest.raises(ValueError, match="an IPU program needs a fixed shape"):
        graph.session.run(late, {open_ended: [1.0]})


def test_checkpoints_and_initialisers_are_tensorflows(graph, tmp_path):
    def net(x):
        w = tf.get_variable("w", (3,), initializer=tf.ones_initializer(), use_resource=True)
        return tf.assign_add(w, x)

    compiled = Compiled(net, [np.arange(3, dtype=np.float32)])
    saver = tf.train.Saver()
    compiled.run()
    path = saver.save(graph.session, str(tmp_path / "model"))
    compiled.run()
    (weight,) = tf.global_variables()
    np.testing.assert_array_equal(graph.session.run(weight), [1, 3, 5])
    saver.restore(graph.session, path)
    np.testing.assert_array_equal(compiled.run(), [[1, 3, 5]])


def test_a_callback_of_the_host_in_a_program_is_refused(graph):
    net = Compiled(lambda x: tf.numpy_function(np.sin, [x], tf.float32), [np.float32(1)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"loops.py:\d+: op .* a Python function of the host"):
        net.run()


def test_dropout_differs_by_iteration_replica_and_run_and_has_the_gradient_of_its_mask(graph):
    configure(auto_select_ipus=2)

    def build():
        outfeed = ipu_outfeed_queue.IPUOutfeedQueue()

        def body(x):
            dropped = tf.nn.dropout(x, rate=0.25)
            other = tf.nn.dropout(x, rate=0.25)
            slope = tf.gradients(tf.reduce_sum(dropped), [x])[0]
            return x, outfeed.enqueue((dropped, other, slope, tf.random.uniform([3])))

        net = Compiled(lambda x: loops.repeat(3, body, [x]), [np.ones(400, np.float32)])
        net.run()
        first = dequeued(outfeed)
        net.run()
        return first, dequeued(outfeed)

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


def test_the_prefetch_depth_of_a_queue_counts(graph):
    data = Dataset.from_tensor_slices(np.ones((8, 4), np.float32)).repeat()
    depths = {}
    for depth in (None, 4):
        feed = ipu_infeed_queue.IPUInfeedQueue(data, feed_name="images", prefetch_depth=depth)
        out = ipu_outfeed_queue.IPUOutfeedQueue()
        compiled = Compiled(
            lambda feed=feed, out=out: loops.repeat(4, lambda x: out.enqueue(x * 2.0), infeed_queue=feed), [], [feed]
        )
        compiled.run()
        depths[depth] = compiled.program.executable.host.prefetch_depth
        assert [s.name for s in compiled.program.ir.streams("h2d")] == ["images_0"]
    assert depths == {None: 1, 4: 4}
