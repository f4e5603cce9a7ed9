"""Pipelines whose optimizers clip by the norm of all gradients: one norm over all stages, as TensorFlow has it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
from sessions import Compiled, graphs, value
from tensorflow.python.eager import context

from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import pipelining_ops

tf = tf2.compat.v1
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(16, 4, 6)).astype(np.float32), RNG.normal(size=(16, 4, 2)).astype(np.float32)
WEIGHTS = [RNG.normal(size=size).astype(np.float32) for size in ((6, 8), (8, 8), (8, 2), ())]


class ClippedMomentum(tf.train.MomentumOptimizer):
    """Clips by the norm of all gradients when it applies them."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads, variables = zip(*grads_and_vars)
        clipped, _ = tf2.clip_by_global_norm(grads, 0.5)
        return super().apply_gradients(list(zip(clipped, variables)), global_step, name)


OPTIMIZERS = {
    "v1": lambda: ClippedMomentum(0.1, 0.9),
    "keras": lambda: tf2.keras.optimizers.Adam(0.05, global_clipnorm=0.3),
    "legacy": lambda: tf2.keras.optimizers.legacy.SGD(0.1, momentum=0.9, global_clipnorm=0.3),
}


class Averaged:
    """A Keras optimizer with the mean over the replicas."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def apply_gradients(self, pairs):
        mean = ipu.cross_replica_ops.cross_replica_mean
        return self.optimizer.apply_gradients([(mean(g), v) for g, v in pairs])


def weight(number: int):
    return tf.get_variable(f"w{number}", initializer=WEIGHTS[number], use_resource=True)


def loss_of(hidden, labels):
    return tf2.reduce_mean((hidden - labels) ** 2)


STAGES = [
    lambda x, y: (tf2.tanh(x @ weight(0)), y),
    lambda x, y: (tf2.tanh(x @ weight(1)), y),
    lambda x, y: (x @ weight(2) * weight(3), y),
    lambda x, y: loss_of(x, y),
]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_one_norm_over_all_stages(name: str, replicas: int) -> None:
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 4 * replicas
    config.configure_ipu_system()
    count = 8

    def optimizer_function(loss):
        if name == "v1":
            mean = ipu.cross_replica_ops.cross_replica_mean
            return pipelining_ops.OptimizerFunctionOutput(_averaged_v1(mean), loss)
        variables = tf2.compat.v1.trainable_variables()
        return pipelining_ops.OptimizerFunctionOutput(Averaged(OPTIMIZERS[name]()), loss, variables=variables)

    with graphs():
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf2.data.Dataset.from_tensor_slices((X, Y)).repeat())
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def net():
            return pipelining_ops.pipeline(
                STAGES, count, infeed_queue=infeed, outfeed_queue=outfeed, outfeed_loss=True,
                optimizer_function=optimizer_function,
            )  # fmt: skip

        program = Compiled(net, [], [infeed])
        for _ in range(2):
            program.run()
        found = {v.name: value(v) for v in tf.trainable_variables()}
        copies = [op for op in program.program.ir.main_graph.ops if op.type == "IpuCopy"]
        assert copies, "squares of the norm come from all IPUs"

    with context.eager_mode():
        variables = [tf2.Variable(w) for w in WEIGHTS]
        optimizer = OPTIMIZERS[name]()

        @tf2.function
        def step(x, y):
            with tf2.GradientTape() as tape:
                h = tf2.tanh(tf2.tanh(x @ variables[0]) @ variables[1]) @ variables[2] * variables[3]
                loss = tf2.reduce_sum(tf2.reduce_mean((h - y) ** 2, [1, 2])) / replicas
            optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables)))

        for run in range(2):
            taken = [(run * count * replicas + i) % len(X) for i in range(count * replicas)]
            step(tf2.constant(X[taken]), tf2.constant(Y[taken]))
        for number, variable in enumerate(variables):
            np.testing.assert_allclose(found[f"w{number}:0"], variable.numpy(), rtol=1e-5, atol=1e-6)


def _averaged_v1(mean):
    class Meaned(ClippedMomentum):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            return super().apply_gradients([(mean(g), v) for g, v in grads_and_vars], global_step, name)

    return Meaned(0.1, 0.9)
