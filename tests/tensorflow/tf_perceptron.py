"""A perceptron in three stages, its pipeline, and its training in plain NumPy, as tests of pipelines use them."""

import numpy as np
import tensorflow as tf2
from sessions import Compiled, value

from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import pipelining_ops
from ipuperf.tensorflow.python.ipu.pipelining_ops import OptimizerFunctionOutput

tf = tf2.compat.v1
Dataset = tf2.data.Dataset
tf = tf2.compat.v1
Dataset = tf2.data.Dataset
rng = np.random.default_rng(0)
COUNT = 24
X = rng.normal(size=(COUNT, 4, 8)).astype(np.float32)
Y = rng.integers(0, 5, (COUNT, 4)).astype(np.int32)
WEIGHTS = [rng.normal(size=s).astype(np.float32) * 0.4 for s in ((8, 6), (6, 6), (6, 5))]


# -- the oracle: a perceptron in plain NumPy -------------------------------------------------------------------------


def forward(weights, x, labels):
    w0, w1, w2 = weights
    a = np.maximum(x @ w0, 0)
    b = np.tanh(a @ w1)
    logits = b @ w2
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    loss = -log_p[np.arange(len(labels)), labels].mean()
    return loss, (a, b, np.exp(log_p))


def gradients(weights, x, labels):
    loss, (a, b, p) = forward(weights, x, labels)
    d = p.copy()
    d[np.arange(len(labels)), labels] -= 1
    d /= len(labels)
    g2 = b.T @ d
    d = (d @ weights[2].T) * (1 - b**2)
    g1 = a.T @ d
    d = (d @ weights[1].T) * (a > 0)
    return loss, [x.T @ d, g1, g2]


def train(
    weights, xs, labels, *, micro_batches, replicas=1, rate=0.1, momentum=0.9, reduction="sum", map_gradient=None
):
    """Losses ``(elements,)`` in the order of the feed, and the weights after ``len(xs)`` elements."""
    weights = [w.astype(np.float64) for w in weights]
    velocity = [np.zeros_like(w) for w in weights]
    losses, per_update = [], micro_batches * replicas
    for start in range(0, len(xs), per_update):
        total = [np.zeros_like(w) for w in weights]
        for x, y in zip(xs[start : start + per_update], labels[start : start + per_update]):
            loss, grads = gradients(weights, x.astype(np.float64), y)
            losses.append(loss)
            for t, g in zip(total, grads):
                t += g if map_gradient is None else map_gradient(g)
        scale = 1 / replicas / (1 if reduction == "sum" else micro_batches)
        for w, v, t in zip(weights, velocity, total):
            v *= momentum
            v += t * scale
            w -= rate * v
    return np.array(losses), weights


# -- the same as a pipeline -------------------------------------------------------------------------------------------


def weight(number):
    return tf.get_variable(f"w{number}", initializer=WEIGHTS[number])


def stage0(rate, x, labels):
    return rate, tf.nn.relu(tf.matmul(x, weight(0))), labels


def stage1(rate, hidden, labels):
    return rate, tf.tanh(tf.matmul(hidden, weight(1))), labels


def stage2(rate, hidden, labels):
    logits = tf.matmul(hidden, weight(2))
    return rate, tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


STAGES = [stage0, stage1, stage2]


def momentum(rate, loss):
    return OptimizerFunctionOutput(tf.train.MomentumOptimizer(rate, 0.9), loss)


def cross_replica(rate, loss):
    return OptimizerFunctionOutput(ipu.optimizers.CrossReplicaOptimizer(tf.train.MomentumOptimizer(rate, 0.9)), loss)


def feed():
    return ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices((X, Y)).repeat())


def compiled(stages=STAGES, count=12, rate=0.1, **options):
    """The compiled pipeline and its outfeed."""
    options.setdefault("outfeed_queue", ipu.ipu_outfeed_queue.IPUOutfeedQueue())
    options.setdefault("optimizer_function", momentum)
    options.setdefault("outfeed_loss", options["optimizer_function"] is not None)
    options.setdefault("infeed_queue", feed())

    def model(lr):
        return pipelining_ops.pipeline(stages, count, inputs=[lr], **options)

    queues = (
        [options["infeed_queue"]] if isinstance(options["infeed_queue"], ipu.ipu_infeed_queue.IPUInfeedQueue) else []
    )
    return Compiled(model, [np.float32(rate)], queues), options["outfeed_queue"]


def trained_weights():
    return [value(v) for v in sorted(tf.trainable_variables(), key=lambda v: v.name)]


def check_weights(expected, tolerance=2e-4):
    for found, wanted in zip(trained_weights(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
