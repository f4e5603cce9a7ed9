"""A convolutional network of four stages in the manner of TensorFlow 1, against plain TensorFlow on the CPU."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
from sessions import Compiled, dequeued, graphs

from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import loops, pipelining_ops

tf = tf2.compat.v1
RNG = np.random.default_rng(5)
COUNT, BATCH, ACCUMULATE = 16, 4, 8
IMAGES = RNG.normal(size=(COUNT, BATCH, 12, 12, 1)).astype(np.float32)
LABELS = RNG.integers(0, 10, (COUNT, BATCH)).astype(np.int32)


@pytest.fixture
def graph():
    with graphs() as made:
        yield made


def stage0(images, labels):
    x = tf.layers.conv2d(images, 8, 3, padding="same", activation=tf.nn.relu, name="conv0", reuse=tf.AUTO_REUSE)
    return tf.layers.max_pooling2d(x, 2, 2), labels


def stage1(x, labels):
    x = tf.layers.conv2d(x, 12, 3, padding="valid", use_bias=False, name="conv1", reuse=tf.AUTO_REUSE)
    return tf.nn.relu(x), labels


def stage2(x, labels):
    x = tf.reshape(x, [BATCH, -1])
    return tf.layers.dense(x, 24, activation=tf.nn.tanh, name="dense0", reuse=tf.AUTO_REUSE), labels


def stage3(x, labels):
    logits = tf.layers.dense(x, 10, name="dense1", reuse=tf.AUTO_REUSE)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


STAGES = [stage0, stage1, stage2, stage3]


def loss_of(images, labels):
    values = images, labels
    for stage in STAGES[:-1]:
        values = stage(*values)
    return stage3(*values)


def momentum():
    return tf.train.MomentumOptimizer(0.05, 0.9)


def by_tensorflow():
    """Losses and weights after all data, with a step after each ``ACCUMULATE`` elements; and the first weights."""
    with tf2.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(3)
        images, labels = tf.placeholder(tf.float32, IMAGES.shape[1:]), tf.placeholder(tf.int32, LABELS.shape[1:])
        loss = loss_of(images, labels)
        variables = tf.trainable_variables()
        grads = tf.gradients(loss, variables)
        given = [tf.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
        step = momentum().apply_gradients(list(zip(given, variables)))
        session.run(tf.global_variables_initializer())
        first, losses = session.run({v.op.name: v for v in variables}), []
        for start in range(0, COUNT, ACCUMULATE):
            total = [0.0] * len(variables)
            for x, y in zip(IMAGES[start : start + ACCUMULATE], LABELS[start : start + ACCUMULATE]):
                value, found = session.run([loss, grads], {images: x, labels: y})
                losses.append(value)
                total = [t + g for t, g in zip(total, found)]
            session.run(step, dict(zip(given, total)))
        return losses, session.run({v.op.name: v for v in variables}), first


@pytest.fixture(scope="module")
def wanted():
    return by_tensorflow()


def check(program, outfeed, session, wanted):
    """Run from the first weights of the other run; compare losses and weights."""
    losses, weights, first = wanted
    session.run(tf.global_variables_initializer())
    variables = {v.op.name: v for v in tf.trainable_variables()}
    assert variables.keys() == first.keys()
    for name, value in first.items():
        variables[name].load(value, session)
    program.run()
    found = np.asarray(dequeued(outfeed)).reshape(-1)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for name, value in session.run(variables).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-5, atol=1e-6, err_msg=name)


def queues():
    data = tf2.data.Dataset.from_tensor_slices((IMAGES, LABELS)).repeat()
    return ipu.ipu_infeed_queue.IPUInfeedQueue(data), ipu.ipu_outfeed_queue.IPUOutfeedQueue()


def test_a_training_loop_with_accumulation(graph, wanted):
    infeed, outfeed = queues()
    optimizer = ipu.optimizers.GradientAccumulationOptimizerV2(momentum(), ACCUMULATE)

    def body(images, labels):
        loss = loss_of(images, labels)
        return optimizer.minimize(loss), outfeed.enqueue(loss)

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        program = Compiled(lambda: loops.repeat(COUNT, body, [], infeed), [], [infeed])
    check(program, outfeed, graph.session, wanted)


@pytest.mark.parametrize("schedule", list(pipelining_ops.PipelineSchedule))
def test_a_pipeline_of_four_stages(graph, wanted, schedule):
    infeed, outfeed = queues()

    def model():
        return pipelining_ops.pipeline(
            STAGES,
            ACCUMULATE,
            repeat_count=COUNT // ACCUMULATE,
            infeed_queue=infeed,
            outfeed_queue=outfeed,
            optimizer_function=lambda loss: pipelining_ops.OptimizerFunctionOutput(momentum(), loss),
            pipeline_schedule=schedule,
        )

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        program = Compiled(model, [], [infeed])
    check(program, outfeed, graph.session, wanted)
    assert program.program.pipeline.timetable.stages == 4
