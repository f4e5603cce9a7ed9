"""Branches of whole programs that few programs take, beside TensorFlow or NumPy."""

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from graphcases import Program, check  # noqa: E402
from kerasruns import ipus  # noqa: E402
from sessions import Compiled, dequeued, graphs, value  # noqa: E402
from tensorflow.python.framework.function import Defun  # noqa: E402
from tensorflow.python.ops import functional_ops  # noqa: E402

from ipuperf.tensorflow.addons.keras.optimizers import SGDIpuOptimizer  # noqa: E402
from ipuperf.tensorflow.importer.collectives import all_reduce, reduces, reductions_of  # noqa: E402
from ipuperf.tensorflow.importer.tracer import changed_by, changed_captures, changed_handles, trace  # noqa: E402
from ipuperf.tensorflow.keras.optimizers import CrossReplicaOptimizer  # noqa: E402
from ipuperf.tensorflow.python import ipu  # noqa: E402
from ipuperf.tensorflow.python.ipu import (  # noqa: E402
    ipu_compiler,
    ipu_infeed_queue,
    ipu_outfeed_queue,
    loops,
    optimizers,
    pipelining_ops,
    within_replica_ops,
)
from ipuperf.tensorflow.python.ipu.optimizers import sharded_optimizer  # noqa: E402

tf1 = tf.compat.v1
X = np.arange(1, 5, dtype=np.float32)


def run(function: Any, *arguments: Any) -> Any:
    """A function on one IPU."""
    with ipus(1):
        return tf.distribute.get_strategy().run(tf.function(function, jit_compile=True), args=arguments)


def test_a_function_that_has_a_definition_only() -> None:
    @Defun(tf.float32)
    def doubled(x: Any) -> Any:
        return x * 2 + 1

    @Defun(tf.float32)
    def halved(x: Any) -> Any:
        return x / 2

    def chosen(x: Any) -> Any:
        once = functional_ops.If(x[0] > 0, [x], doubled, halved)[0]
        return once + functional_ops.If(x[0] < 0, [x], doubled, halved)[0]

    np.testing.assert_array_equal(Program(tf.function(chosen), [X]).run()[0], X * 2 + 1 + X / 2)


def test_a_range_of_computed_numbers_is_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="operand .* computed on the IPU"):
        Program(lambda x: tf.range(x[0], 9.0), [X])


def test_a_session_keeps_its_configuration() -> None:
    with tf.Graph().as_default():
        config = tf1.ConfigProto(device_count={"CPU": 1}, allow_soft_placement=False)
        with tf1.Session(config=config) as session:
            assert session._config.allow_soft_placement
            assert dict(session._config.device_count) == {"CPU": 1}
        with tf1.Session() as session:
            assert session._config.allow_soft_placement
        assert not config.allow_soft_placement


def test_queues_of_a_graph_begin_anew_after_their_deleters() -> None:
    with graphs() as made:
        infeed = ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.range(9, output_type=tf.int32))
        outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
        program = Compiled(lambda: loops.repeat(2, lambda i: outfeed.enqueue(i), [], infeed), queues=[infeed])
        deleter, forget = outfeed.deleter, infeed.deleter
        program.run()
        made.session.run(deleter)
        program.run()
        np.testing.assert_array_equal(dequeued(outfeed), [2, 3])
        made.session.run(forget)
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            program.run()


def test_a_program_is_compiled_at_once_or_in_another_one() -> None:
    weight = tf.Variable(2.0)
    found = ipu_compiler.compile(lambda x, y: {"sum": x + y * weight, "rest": (x - y,)}, [X, 2 * X])
    np.testing.assert_array_equal(found["sum"], 5 * X)
    np.testing.assert_array_equal(found["rest"][0], -X)
    assert ipu_compiler.compile(lambda: (weight.assign(3.0), None)[1]) is None
    assert float(weight) == 3
    np.testing.assert_array_equal(
        run(lambda x: ipu_compiler.compile(lambda a: [a * 2], [x])[0] + 1, tf.constant(X)), 2 * X + 1
    )


def test_a_variable_made_of_a_tensor_in_a_program() -> None:
    with graphs():

        def first(x: Any) -> Any:
            with tf1.variable_scope("first", reuse=tf1.AUTO_REUSE, use_resource=True):
                return x * tf1.get_variable("w", initializer=tf.range(1.0, 5.0) * 2)

        (found,) = Compiled(lambda x: first(x), [X]).run()
    np.testing.assert_array_equal(found, X * X * 2)


def test_a_sharded_optimizer_is_the_one_that_it_wraps() -> None:
    with graphs():

        def train(x: Any) -> Any:
            with tf1.variable_scope("net", use_resource=True):
                weight = tf1.get_variable("w", initializer=2.0)
            optimizer = sharded_optimizer.ShardedOptimizer(tf1.train.GradientDescentOptimizer(0.5))
            assert optimizer.get_name() == "ShardedOptimizer"
            return optimizer.minimize(tf.reduce_sum(x * weight))

        Compiled(train, [X]).run()
        assert value(tf1.global_variables()[0]) == 2 - 0.5 * X.sum()


@pytest.mark.parametrize("dtype", [None, tf.float16])
def test_an_outfeed_is_summed_in_its_own_type(dtype: Any) -> None:
    with graphs():
        infeed = ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensors(X[:2]).repeat())
        outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
        stages = [lambda x: x * 2, lambda x: x + 1]
        Compiled(
            lambda: pipelining_ops.pipeline(
                stages, gradient_accumulation_count=4, infeed_queue=infeed, outfeed_queue=outfeed,
                accumulate_outfeed=True, accumulate_outfeed_dtype=dtype,
            ),
            queues=[infeed],
        ).run()  # fmt: skip
        (found,) = dequeued(outfeed)
    assert found[0].dtype == (np.float32 if dtype is None else np.float16)
    np.testing.assert_array_equal(found[0], 4 * (2 * X[:2] + 1))


def test_steps_without_momentum() -> None:
    with ipus(1):
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(4,))])
        model.set_weights([X[:, None]])
        model.compile(SGDIpuOptimizer(0.25), "mae")
        model.fit(X[None], np.float32([[0]]), batch_size=1, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0][:, 0], X - 0.25 * X)


def test_a_wrapped_learning_rate_is_read_and_set() -> None:
    inner = tf.keras.optimizers.legacy.SGD(0.5)
    outer = CrossReplicaOptimizer(inner)
    assert float(outer.learning_rate) == 0.5
    outer.learning_rate = 0.25
    assert float(inner.learning_rate) == float(outer.lr) == 0.25


def test_scalars_of_shards_become_a_vector() -> None:
    with ipus(2):

        def both(x: Any) -> Any:
            with ipu.scopes.ipu_shard(0):
                first = tf.reduce_sum(x)
            with ipu.scopes.ipu_shard(1):
                second = tf.reduce_max(x)
            return within_replica_ops.all_gather([first, second], axis=5)

        found = tf.distribute.get_strategy().run(tf.function(both, jit_compile=True), args=(tf.constant(X),))
    for one in found:
        np.testing.assert_array_equal(one, [10, 4])


def test_what_a_strategy_and_processes_say() -> None:
    with ipus(2):
        extended = tf.distribute.get_strategy().extended
        reduced = lambda x: extended._replica_ctx_all_reduce(  # noqa: E731
            tf.distribute.ReduceOp.MEAN, {"a": x, "b": x * 2}
        )
        mean = tf.distribute.get_strategy().run(tf.function(reduced, jit_compile=True), args=(tf.constant(3.0),))
        assert extended._global_batch_size()
        with tf.Graph().as_default():
            outside = tf.ones(())
            assert extended._reduce_to(tf.distribute.ReduceOp.SUM, outside, None, None) is outside
    assert [float(v) for v in tf.nest.flatten(mean)] == [3.0, 6.0]
    assert ipu.horovod.is_homogeneous()


CHANGING = {
    "nothing": ("", lambda x, a, b: x + a + tf.gather(b, [0]) + tf.cast(tf.shape(a)[0], tf.float32)),
    "an assignment": ("a", lambda x, a, b: (a.assign_add(x), b + 1)),
    "a branch": ("b", lambda x, a, b: tf.cond(x[0] > 0, lambda: a + 1, lambda: b.assign(x))),
    "branches": ("ab", lambda x, a, b: tf.cond(x[0] > 0, lambda: a.assign(b), lambda: b.assign(x))),
    "a case": ("a", lambda x, a, b: tf.switch_case(tf.cast(x[0], tf.int32), [lambda: b + 1, lambda: a.assign(x)])),
    "a loop": ("b", lambda x, a, b: tf.while_loop(lambda i: i < 3, lambda i: (b.assign(a), i + 1)[1:], [0])),
    "a loop that reads": ("", lambda x, a, b: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + b), [0, x])),
    "a function": ("a", lambda x, a, b: tf.function(lambda y: a.assign_add(y * b))(x)),
    "a branch in a function": (
        "b", lambda x, a, b: tf.function(lambda y: tf.cond(y[0] > 0, lambda: b.assign(y), lambda: a + y))(x),
    ),
    "a repetition": ("a", lambda x, a, b: loops.repeat(3, lambda y: (a.assign_add(b), y)[1], [x])),
    "a repetition that reads": ("", lambda x, a, b: loops.repeat(3, lambda y: y * a + b, [x])),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGING)
def test_which_variables_a_function_may_change(name: str) -> None:
    expected, function = CHANGING[name]
    variables = {key: tf.Variable(X, name=key) for key in "abc"}
    called = lambda x: (function(x, variables["a"], variables["b"]), x + variables["c"])[1]  # noqa: E731
    traced = trace("f", called, [tf.TensorSpec(4)], automatic=True)
    handles = {id(handle) for handle in changed_handles(traced)}
    assert "".join(key for key, v in variables.items() if id(v.handle) in handles) == expected
    places = changed_captures(traced, 5)
    assert {id(traced.captured[i - 5]) for i in places} == handles
    by_ops = {id(handle) for op in traced.graph.get_operations() for handle in changed_by(op)}
    assert by_ops == {id(traced.captures[i - 5]) for i in places}


REDUCED = {
    "not at all": ([], False, lambda g, h: g * 2),
    "at once": (["mean"], True, lambda g, h: all_reduce(g, "mean")),
    "cast": (["add"], True, lambda g, h: all_reduce(tf.cast(tf.identity(g), tf.float16), "add")),
    "times a number": (["mean"], True, lambda g, h: all_reduce(g * (tf.sqrt(4.0) / 3), "mean")),
    "a number times it": (["mean"], True, lambda g, h: all_reduce(0.5 * g, "mean")),
    "times a vector": ([], True, lambda g, h: all_reduce(g * tf.constant(X), "mean")),
    "times what another gradient has a part in": ([], True, lambda g, h: all_reduce(g * tf.reduce_sum(h), "mean")),
    "times itself": ([], True, lambda g, h: all_reduce(g * tf.reduce_sum(g), "mean")),
    "plus a number": ([], True, lambda g, h: all_reduce(g + 1.0, "mean")),
    "twice": (["mean", "add"], True, lambda g, h: all_reduce(g, "mean") + all_reduce(g * 2.0, "add")),
    "only the other": ([], True, lambda g, h: all_reduce(h, "mean") + g),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCED)
def test_how_a_gradient_is_reduced(name: str) -> None:
    kinds, reduced, function = REDUCED[name]
    traced = trace("f", function, [tf.TensorSpec(4), tf.TensorSpec(4)], automatic=False)
    assert reductions_of(traced.arguments[0], traced.arguments) == kinds
    assert reduces(traced.tensors[0]) is reduced


@pytest.mark.parametrize("method", ["SUM", "MEAN", "RUNNING_MEAN"])
def test_what_a_loop_carries_beside_accumulated_gradients(method: str) -> None:
    weight = tf.Variable(2.0)
    optimizer = optimizers.GradientAccumulationOptimizerV2(
        tf1.train.GradientDescentOptimizer(0.5), 2, reduction_method=method
    )

    def body(x: Any) -> Any:
        with tf.control_dependencies([optimizer.apply_gradients([(x, weight)])]):
            return x * 2

    assert float(run(lambda x: loops.repeat(4, body, [x]), tf.constant(1.0))) == 16
    assert float(weight) == 2 - 0.5 * 15 / (1 if method == "SUM" else 2)


def test_variables_that_a_loop_reads_and_changes() -> None:
    v = tf.Variable(X)

    def loop(x: Any) -> Any:
        for i in tf.range(3):
            v.assign_add(x * tf.cast(i, tf.float32))
            x = x + v
        return x, v.read_value()

    check(tf.function(loop), X)
