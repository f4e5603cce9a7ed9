"""Statistics of a batch that a layer hands to the optimizer as the gradients of its moving averages, in a pipeline."""

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus, stage  # noqa: E402

KEPT = 0.75


class Tracking(tf.keras.layers.Layer):
    """Its input; mean and variance over the batch are the gradients of its weights."""

    def build(self, shape: Any) -> None:
        for name in ("mean", "variance"):
            setattr(self, name, self.add_weight(f"moving_{name}", (shape[-1],), initializer="zeros"))

    def call(self, inputs: Any) -> Any:
        mean, variance = tf.nn.moments(inputs, [0])

        @tf.custom_gradient
        def passed(x: Any, moving_mean: Any, moving_variance: Any) -> Any:
            return tf.identity(x), lambda grad: (grad, mean, variance)

        return passed(inputs, self.mean, self.variance)


class Following(tf.keras.optimizers.legacy.SGD):
    """Moving averages follow their gradients, reduced in a way of their own."""

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        pairs = list(grads_and_vars)
        means, variances = ([p for p in pairs if f"moving_{name}" in p[1].name] for name in ("mean", "variance"))
        others = [pair for pair in pairs if "moving_" not in pair[1].name]
        reduce = tf.distribute.get_replica_context().all_reduce
        reduced = reduce(tf.distribute.ReduceOp.MEAN, [gradient for gradient, _ in means])
        spread = [
            tf.square(own[0] - mean) + variance[0]
            for own, mean, variance in zip(means, reduced, variances, strict=True)
        ]
        spread = reduce(tf.distribute.ReduceOp.MEAN, spread)
        tracked = [*zip(reduced, [v for _, v in means]), *zip(spread, [v for _, v in variances])]
        return [*tracked, *super()._aggregate_gradients(others)]

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        if "moving_" not in var.name:
            return super()._resource_apply_dense(grad, var, apply_state)
        return var.assign(var * KEPT + grad * (1 - KEPT)).op


def trained(replicas: int, reduction: str) -> Any:
    """Two stages, one update of four micro-batches."""
    x = np.random.default_rng(0).normal(2, 3, (16 * replicas, 100)).astype(np.float32)
    with ipus(2 * replicas):
        inputs = tf.keras.Input((100,))
        with stage(0):
            outputs = tf.keras.layers.Dense(2)(Tracking()(inputs))
        with stage(1):
            outputs = tf.keras.layers.Dense(1)(outputs)
        model = tf.keras.Model(inputs, outputs)
        model.compile(Following(0.01), "mse", steps_per_execution=4)
        model.set_pipelining_options(4, gradient_accumulation_reduction_method=reduction)
        model.fit(x, np.zeros((len(x), 1), np.float32), batch_size=4, shuffle=False, verbose=0)
    return x, model.layers[1]


@pytest.mark.parametrize(("replicas", "reduction"), [(1, "mean"), (2, "mean"), (2, "running_mean")])
def test_moving_averages_follow_the_statistics_of_the_micro_batches(replicas: int, reduction: str) -> None:
    x, layer = trained(replicas, reduction)
    parts = np.stack(np.split(x.astype(np.float64), 4 * replicas)).reshape(4, replicas, -1, x.shape[1])
    means, variances = parts.mean(2).mean(0), parts.var(2).mean(0)
    spread = ((means - means.mean(0)) ** 2 + variances).mean(0)
    for moving, followed in ((layer.mean, means.mean(0)), (layer.variance, spread)):
        np.testing.assert_allclose(moving.numpy(), (1 - KEPT) * followed, rtol=1e-5, atol=1e-6)
