"""Pipelines: every schedule gives the numbers of plain gradient accumulation, every optimizer those of TensorFlow."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
from sessions import Compiled, configure, dequeued
from tensorflow.python.eager import context
from tf_perceptron import (
    COUNT,
    WEIGHTS,
    X,
    Y,
    check_weights,
    compiled,
    cross_replica,
    feed,
    forward,
    gradients,
    momentum,
    stage0,
    stage1,
    stage2,
    train,
    trained_weights,
    weight,
)

from ipuperf.tensorflow.importer.errors import GraphError
from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import pipelining_ops
from ipuperf.tensorflow.python.ipu.pipelining_ops import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
)

tf = tf2.compat.v1
Dataset = tf2.data.Dataset


pytestmark = pytest.mark.usefixtures("graph")


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "mean", "running_mean"])
def test_schedules_train_like_plain_accumulation(schedule, recompute, reduction):
    configure(allow_recompute=recompute)
    program, outfeed = compiled(pipeline_schedule=schedule, repeat_count=2, reduction_method=reduction)
    assert program.run() is None
    losses, weights = train(WEIGHTS, X, Y, micro_batches=12, reduction=reduction)
    np.testing.assert_allclose(dequeued(outfeed), losses, rtol=1e-4)
    check_weights(weights)
    timetable = program.program.pipeline.timetable
    assert len(timetable.steps) == {"grouped": 12 + 5, "interleaved": 2 * 14, "sequential": 72}[timetable.name]
    assert any(c.kind == "R" for step in timetable.steps for row in step for c in row) is recompute


def test_runs_continue_and_the_learning_rate_may_change():
    program, outfeed = compiled()
    program.run()
    _, after_one = train(WEIGHTS, X[:12], Y[:12], micro_batches=12)
    check_weights(after_one)
    before = trained_weights()
    program(np.float32(0))
    dequeued(outfeed)
    for found, wanted in zip(trained_weights(), before):
        np.testing.assert_array_equal(found, wanted)


def test_replicas_and_sharded_offloaded_state():
    configure(auto_select_ipus=8, optimizations__minimum_remote_tensor_size=4)
    program, outfeed = compiled(
        count=6, optimizer_function=cross_replica, replicated_optimizer_state_sharding=True, repeat_count=2
    )
    program.run()
    assert program.program.ir.replication_factor == 2  # 3 shards count as 4
    losses, weights = train(WEIGHTS, X, Y, micro_batches=6, replicas=2)
    np.testing.assert_allclose(dequeued(outfeed), losses.reshape(12, 2), rtol=1e-4)
    check_weights(weights)
    state = program.program.pipeline.state.values()
    assert all(v.remote is not None and v.shard_over == 2 for v in state)


@pytest.mark.parametrize("supported", [True, False])
def test_optimiser_state_is_offloaded_where_the_machine_can(supported, graph):
    from ipuperf.runtime.settings import RunSettings, use_settings

    configure(optimizations__minimum_remote_tensor_size=4)
    machine = "pod4" if supported else "gc2-1"
    stages = [stage0, stage1, stage2]
    with use_settings(RunSettings(machine=machine)):
        program, _ = compiled(stages, device_mapping=None if supported else [0, 0, 0])
        program.run()
        assert all((v.remote is not None) == supported for v in program.program.pipeline.state.values())
    if not supported:
        graph.fresh()
        with use_settings(RunSettings(machine=machine)):
            program, _ = compiled(device_mapping=[0, 0, 0], offload_weight_update_variables=True)
            with pytest.raises(ValueError, match="no Streaming Memory"):
                program.run()


def test_activations_and_accumulators_in_streaming_memory():
    program, outfeed = compiled(offload_activations=True, offload_gradient_accumulation_buffers=True)
    program.run()
    losses, weights = train(WEIGHTS, X[:12], Y[:12], micro_batches=12)
    np.testing.assert_allclose(dequeued(outfeed), losses, rtol=1e-4)
    check_weights(weights)


def test_results_masked_accumulated_and_in_another_type(graph):
    program, outfeed = compiled(outfeed_loss=False, outfeed_mask=[True, False])
    program.run()
    losses, _ = train(WEIGHTS, X[:12], Y[:12], micro_batches=12)
    (found,) = dequeued(outfeed)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    graph.fresh()
    program, outfeed = compiled(accumulate_outfeed=True)
    program.run()
    np.testing.assert_allclose(dequeued(outfeed), [losses.sum()], rtol=1e-4)
    graph.fresh()
    program, outfeed = compiled(outfeed_loss=False)
    program.run()
    rates, found = dequeued(outfeed)
    np.testing.assert_allclose(rates, np.full(12, 0.1), rtol=1e-6)
    np.testing.assert_allclose(found, losses, rtol=1e-4)


def test_inference_returns_the_structure_of_the_last_stage():
    def last(rate, hidden, labels):
        return {"logits": tf.matmul(hidden, weight(2)), "labels": labels}

    program, outfeed = compiled([stage0, stage1, last], count=6, optimizer_function=None, repeat_count=2)
    program.run()
    result = dequeued(outfeed)
    assert result["logits"].shape == (12, 4, 5)
    np.testing.assert_array_equal(result["labels"], Y[:12])
    expected = [np.tanh(np.maximum(x @ WEIGHTS[0], 0) @ WEIGHTS[1]) @ WEIGHTS[2] for x in X[:12]]
    np.testing.assert_allclose(result["logits"], expected, rtol=1e-4, atol=1e-5)
    assert len(program.program.pipeline.timetable.steps) == 6 + 2


def test_concurrent_stages_share_the_feed_and_concatenate_results():
    def left(rate, x, labels):
        return tf.nn.relu(tf.matmul(x, weight(0)))

    def right(rate, x, labels):
        return labels, rate

    def middle_a(hidden, labels, rate):
        return tf.tanh(tf.matmul(hidden, weight(1)))

    def middle_b(hidden, labels, rate):
        return labels, rate

    def last(hidden, labels, rate):
        logits = tf.matmul(hidden, weight(2))
        return rate, tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    program, outfeed = compiled(
        [[left, right], [middle_a, middle_b], last], device_mapping=[[0, 1], [2, 1], 3], repeat_count=2
    )
    program.run()
    losses, weights = train(WEIGHTS, X, Y, micro_batches=12)
    np.testing.assert_allclose(dequeued(outfeed), losses, rtol=1e-4)
    check_weights(weights)
    assert program.program.pipeline.timetable.stages == 3


def test_map_gradients_of_each_micro_batch():
    def clipped(rate, loss):
        optimizer = ipu.optimizers.MapGradientOptimizer(
            tf.train.MomentumOptimizer(rate, 0.9), lambda grad, variable: tf.clip_by_value(grad, -0.01, 0.01)
        )
        return OptimizerFunctionOutput(optimizer, loss)

    program, _ = compiled(optimizer_function=clipped)
    program.run()
    _, weights = train(WEIGHTS, X[:12], Y[:12], micro_batches=12, map_gradient=lambda g: np.clip(g, -0.01, 0.01))
    check_weights(weights)


class CastingOptimizer(tf.train.GradientDescentOptimizer):
    """The user guide's way to accumulate in another type."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        return super().apply_gradients([(tf.cast(g, v.dtype), v) for g, v in grads_and_vars], global_step, name)


def test_accumulators_of_another_type(graph):
    with pytest.raises(TypeError, match="is float16, the variable is float32; cast it"):
        compiled(gradient_accumulation_dtype=tf.float16)
    for choice in (tf.float16, lambda variable: tf.float16):
        graph.fresh()
        program, _ = compiled(
            gradient_accumulation_dtype=choice,
            optimizer_function=lambda rate, loss: OptimizerFunctionOutput(CastingOptimizer(rate), loss),
        )
        program.run()
        _, weights = train(WEIGHTS, X[:12], Y[:12], micro_batches=12, momentum=0)
        check_weights(weights, 5e-3)


def test_var_list_and_stage_options():
    options = [PipelineStageOptions(matmul_options={"availableMemoryProportion": 0.1 * (i + 1)}) for i in range(3)]

    def only_last(rate, loss):
        chosen = [v for v in tf.trainable_variables() if v.op.name == "w2"]
        return OptimizerFunctionOutput(
            tf.train.GradientDescentOptimizer(rate), loss, compute_gradients_kwargs={"var_list": chosen}
        )

    program, _ = compiled(optimizer_function=only_last, forward_propagation_stages_poplar_options=options)
    program.run()
    found = trained_weights()
    np.testing.assert_array_equal(found[0], WEIGHTS[0])
    assert not np.array_equal(found[2], WEIGHTS[2])
    stage = program.program.pipeline.stages[1].description.graph
    assert [op.attributes["available_memory_proportion"] for op in stage.ops if op.type == "MatMul"] == [0.2]


def test_checkpoints_are_passed_on_for_interleaved_recomputation(graph):
    def checkpointed(rate, hidden, labels):
        product = pipelining_ops.recomputation_checkpoint(tf.matmul(hidden, weight(1)))
        return rate, tf.tanh(product), labels

    configure(allow_recompute=True)
    for mode, count in (
        (RecomputationMode.RecomputeAndBackpropagateInterleaved, 1),
        (RecomputationMode.RecomputeThenBackpropagate, 0),
    ):
        graph.fresh()
        program, _ = compiled([stage0, checkpointed, stage2], recomputation_mode=mode)
        program.run()
        assert len(program.program.pipeline.stages[1].description.checkpoints) == count
        _, weights = train(WEIGHTS, X[:12], Y[:12], micro_batches=12)
        check_weights(weights)


def test_default_mapping_snakes_and_two_stages_may_share_an_ipu(graph):
    def four(rate, hidden, labels):
        return rate, hidden * 1.0, labels

    program, _ = compiled([stage0, four, stage1, stage2], count=8)
    program.run()
    assert [s.description.ipu for s in program.program.pipeline.stages] == [0, 1, 3, 2]
    graph.fresh()
    program, _ = compiled(device_mapping=[0, 1, 0])
    program.run()
    _, weights = train(WEIGHTS, X[:12], Y[:12], micro_batches=12)
    check_weights(weights)


def test_time_is_simulated_and_schedules_differ(graph):
    def wide(number):
        def stage(rate, x, labels):
            w = tf.get_variable(f"wide{number}", (512, 512))
            return rate, tf.nn.relu(tf.matmul(x, w)), labels

        return stage

    def last(rate, x, labels):
        return rate, tf.reduce_mean(tf.square(x))

    data = Dataset.from_tensors((np.ones((64, 512), np.float32), np.zeros(4, np.int32))).repeat()
    cycles = {}
    for schedule in (PipelineSchedule.Grouped, PipelineSchedule.Sequential):
        graph.fresh()
        program, _ = compiled(
            [wide(0), wide(1), last],
            count=12,
            pipeline_schedule=schedule,
            infeed_queue=ipu.ipu_infeed_queue.IPUInfeedQueue(data),
        )
        program.program.finish()
        cycles[schedule.name] = program.program.executable.trace.summary()["total_cycles"]
    assert cycles["Grouped"] != cycles["Sequential"]


class ClippedMomentum(tf.train.MomentumOptimizer):
    """Gradients by the norm of all of them, which no stage has alone."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads, variables = zip(*grads_and_vars)
        grads, _ = tf2.clip_by_global_norm(list(grads), 0.3)
        return super().apply_gradients(list(zip(grads, variables)), global_step, name)


OPTIMIZERS = {
    "SGD": lambda: tf.train.GradientDescentOptimizer(0.05),
    "Momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "Adam": lambda: tf.train.AdamOptimizer(0.01),
    "KerasAdam": lambda: tf2.keras.optimizers.Adam(0.01),
    "clipped": lambda: ClippedMomentum(0.1, 0.9),
    "clipped by Keras": lambda: tf2.keras.optimizers.Adam(0.01, global_clipnorm=0.3),
    "clipped by older Keras": lambda: tf2.keras.optimizers.legacy.SGD(0.1, momentum=0.9, global_clipnorm=0.3),
}


class Averaged:
    """A Keras optimizer with the mean over the replicas, as IPUStrategy would have its sum."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def apply_gradients(self, pairs):
        mean = ipu.cross_replica_ops.cross_replica_mean
        return self.optimizer.apply_gradients([(mean(g), v) for g, v in pairs])


@pytest.mark.heavy
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_equal_tensorflow(name, replicas):
    """A pipeline, and TensorFlow on the CPU with the mean over the replicas of the sums over the micro-batches."""
    configure(auto_select_ipus=4 * replicas)
    make = OPTIMIZERS[name]

    def optimizer_function(rate, loss):
        if isinstance(make(), tf.train.Optimizer):
            return OptimizerFunctionOutput(ipu.optimizers.CrossReplicaOptimizer(make()), loss)
        return OptimizerFunctionOutput(Averaged(make()), loss, variables=tf.trainable_variables())

    program, _ = compiled(count=6, optimizer_function=optimizer_function)
    program.run()
    program.run()
    found = trained_weights()

    with context.eager_mode():
        variables = [tf2.Variable(w) for w in WEIGHTS]
        optimizer = make()

        @tf2.function
        def step(x, y):
            with tf2.GradientTape() as tape:
                hidden = tf.tanh(tf.nn.relu(x @ variables[0]) @ variables[1])
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=hidden @ variables[2])
                loss = tf.reduce_sum(tf.reduce_mean(losses, axis=1)) / replicas
            optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables)))

        for run in range(2):
            rows = [(run * 6 * replicas + i) % COUNT for i in range(6 * replicas)]
            step(tf2.constant(X[rows]), tf2.constant(Y[rows]))
        expected = [v.numpy() for v in variables]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_an_update_reduces_gradients_in_several_ways():
    """The variance over replicas needs the means over them, and other gradients are summed."""
    configure(auto_select_ipus=4)
    rows = np.random.default_rng(7).normal(size=(8, 4)).astype(np.float32)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices(rows).repeat())

    def first(x):
        a, b = (tf.get_variable(name, initializer=np.ones(4, np.float32)) for name in "ab")
        return x, tf.reduce_sum(a * x + b * x * x)

    def second(x, part):
        return part + tf.reduce_sum(tf.get_variable("c", initializer=np.ones(4, np.float32)) * x)

    class Spread(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            (a, b, c), variables = zip(*grads_and_vars)
            mean = ipu.cross_replica_ops.cross_replica_mean(a)
            spread = ipu.cross_replica_ops.cross_replica_mean(tf.square(a - mean) + 0.5 * b)
            reduced = (mean, spread, ipu.cross_replica_ops.cross_replica_sum(c))
            return super().apply_gradients(list(zip(reduced, variables)))

    def model():
        return pipelining_ops.pipeline(
            [first, second],
            4,
            infeed_queue=infeed,
            outfeed_queue=ipu.ipu_outfeed_queue.IPUOutfeedQueue(),
            optimizer_function=lambda loss: OptimizerFunctionOutput(Spread(0.5), loss),
        )

    program = Compiled(model, [], [infeed])
    program.run()
    assert program.program.ir.replication_factor == 2
    sums = np.stack([rows[replica::2].sum(0) for replica in range(2)])
    squares = np.stack([(rows[replica::2] ** 2).sum(0) for replica in range(2)])
    spread = ((sums - sums.mean(0)) ** 2 + 0.5 * squares).mean(0)
    for weights, change in zip(trained_weights(), (sums.mean(0), spread, sums.sum(0)), strict=True):
        np.testing.assert_allclose(weights, 1 - 0.5 * change, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_the_program_behind_a_convolution():
    """Whose axes are in another order on the device: the program's gradient sees TensorFlow's."""
    configure(auto_select_ipus=2)
    rows = np.random.default_rng(8).normal(size=(4, 1, 2, 3, 4)).astype(np.float32)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices(rows).repeat())

    def first(x):
        a = tf.get_variable("a", initializer=np.eye(4, dtype=np.float32)[None, None])
        moving = tf.get_variable("moving", initializer=np.ones(4, np.float32))
        y = tf.nn.conv2d(x, a, padding="SAME")
        mean = tf.reduce_mean(y, [0, 1, 2])

        @tf2.custom_gradient
        def followed(y, moving):
            return y, lambda dy: (dy, mean)

        return tf.reduce_sum(followed(y, moving))

    def model():
        return pipelining_ops.pipeline(
            [first, lambda loss: loss * tf.get_variable("scale", initializer=1.0)],
            4,
            infeed_queue=infeed,
            outfeed_queue=ipu.ipu_outfeed_queue.IPUOutfeedQueue(),
            optimizer_function=lambda loss: OptimizerFunctionOutput(tf.train.GradientDescentOptimizer(0.5), loss),
        )

    Compiled(model, [], [infeed]).run()
    by_shape = {weights.shape: weights for weights in trained_weights()}
    np.testing.assert_allclose(by_shape[(4,)], 1 - 0.5 * rows.mean((1, 2, 3)).sum(0), rtol=1e-5, atol=1e-6)


def test_the_oracle_itself():
    """Its gradients against differences."""
    weights = [w.astype(np.float64) for w in WEIGHTS]
    _, grads = gradients(weights, X[0].astype(np.float64), Y[0])
    for number, position in ((0, (1, 2)), (1, (3, 3)), (2, (5, 0))):
        moved = [w.copy() for w in weights]
        moved[number][position] += 1e-6
        slope = (forward(moved, X[0], Y[0])[0] - forward(weights, X[0], Y[0])[0]) / 1e-6
        assert slope == pytest.approx(grads[number][position], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_a_recomputed_stage_drops_the_same_elements(schedule, graph):
    """The gradient of sum(dropout(w)) is the mask that the outfeed shows."""

    def masked(x):
        w = tf.get_variable("w", initializer=np.ones(50, np.float32))
        return tf.nn.dropout(w, 0.5) * tf.reduce_mean(x)

    def last(dropped):
        return tf.reduce_sum(dropped), dropped

    found = []
    for recompute in (False, True):
        graph.fresh()
        configure(allow_recompute=recompute)
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensors(np.ones(4, np.float32)).repeat())

        def model(infeed=infeed, outfeed=outfeed):
            return pipelining_ops.pipeline(
                [masked, last],
                4,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss, dropped: OptimizerFunctionOutput(
                    tf.train.GradientDescentOptimizer(1.0), loss
                ),
                outfeed_mask=[True, False],
                pipeline_schedule=schedule,
            )

        Compiled(model, [], [infeed]).run()
        (masks,) = dequeued(outfeed)
        assert len({m.tobytes() for m in masks}) == 4
        (w,) = trained_weights()
        np.testing.assert_allclose(w, 1 - masks.sum(0), rtol=1e-5)
        found.append(masks)
    np.testing.assert_array_equal(found[0], found[1])


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_variables_of_two_ipus_and_computed_rates_are_refused(graph):
    def again(rate, hidden, labels):
        with tf.variable_scope("", reuse=True):
            return rate, hidden + tf.reduce_sum(tf.get_variable("w0")), labels

    program, _ = compiled([stage0, again, stage2])
    with pytest.raises(Exception, match="all stages that use a variable have to be on one IPU"):
        program.run()
    graph.fresh()
    program, _ = compiled(optimizer_function=lambda rate, loss: momentum(rate * 0.5, loss))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="a number of optimizer 'Momentum' .* is computed in a stage"
    ):
        program.run()


def test_an_update_that_mixes_gradients_is_refused():
    class Mixed(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            grads, variables = zip(*grads_and_vars)
            both = tf2.reduce_sum(tf2.matmul(grads[0], grads[1]))
            return super().apply_gradients([(g + both, v) for g, v in zip(grads, variables)])

    program, _ = compiled(optimizer_function=lambda rate, loss: OptimizerFunctionOutput(Mixed(rate), loss))
    with pytest.raises(NotImplementedError, match="from the gradients of several .*only numbers such as the norm"):
        program.run()


def test_a_stage_on_an_ipu_that_is_not_there():
    configure(auto_select_ipus=2)
    program, _ = compiled()
    with pytest.raises(ValueError, match="an IPU device with 2 IPUs and 4 shards"):
        program.run()


def test_replicas_without_cross_replica_optimizer_are_refused():
    configure(auto_select_ipus=8)
    program, _ = compiled(count=6)
    with pytest.raises(ValueError, match="CrossReplicaOptimizer"):
        program.run()


def test_a_pipeline_within_a_conditional_is_refused():
    def model(condition):
        def run():
            made = pipelining_ops.pipeline(
                [lambda rate, hidden, labels: hidden * 2, tf.reduce_sum],
                6,
                inputs=[condition],
                infeed_queue=feed(),
                outfeed_queue=ipu.ipu_outfeed_queue.IPUOutfeedQueue(),
            )
            with tf.control_dependencies([made]):
                return tf.constant(1.0)

        return tf.cond(condition > 0, run, lambda: tf.constant(2.0))

    with pytest.raises(GraphError, match="a pipeline in a branch of a tf.cond: how often it runs"):
        Compiled(model, [np.float32(0.1)], []).run()
