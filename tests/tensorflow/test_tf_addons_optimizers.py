"""Optimizers of ``ipu_tensorflow_addons`` against NumPy, on the simulated IPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.addons.keras.optimizers import (  # noqa: E402
    AdamIpuOptimizer,
    IpuOptimizerBase,
    LAMBIpuOptimizer,
    SGDIpuOptimizer,
)

X = np.random.default_rng(3).normal(size=(16, 4)).astype(np.float32)
Y = np.random.default_rng(4).normal(size=(16, 1)).astype(np.float32)
START = np.array([[0.5], [-1.0], [0.25], [0.75]], np.float32)
STEPS = 4


def trained(optimizer):
    """The weights of a linear layer after each sample group of four rows was seen once."""
    with ipus(1):
        model = keras.Sequential([keras.layers.Dense(1, use_bias=False, input_shape=(4,), name="linear")])
        model.set_weights([START])
        model.compile(optimizer, "mse", steps_per_execution=STEPS)
        model.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0)
        return model.get_weights()[0]


def by_numpy(step, **state):
    """The same weights by ``step(gradient, weights, number, state)``, which gives the change."""
    weights = START.astype(np.float64)
    for number in range(1, STEPS + 1):
        rows = slice(4 * number - 4, 4 * number)
        grad = 2 / 4 * X[rows].T @ (X[rows] @ weights - Y[rows])
        weights = weights - step(grad, weights, number, state)
    return weights


def moments(grad, number, state, debiasing=True):
    state["m"] = 0.8 * state.get("m", 0) + 0.2 * grad
    state["v"] = 0.9 * state.get("v", 0) + 0.1 * grad**2
    return (state["m"] / (1 - 0.8**number), state["v"] / (1 - 0.9**number)) if debiasing else (state["m"], state["v"])


def adam(grad, weights, number, state, debiasing=True, largest=False):
    m, v = moments(grad, number, state, debiasing)
    if largest:
        v = state["largest"] = np.maximum(state.get("largest", 0), v)
    return 0.05 * m / (np.sqrt(v) + 1e-4)


BETAS = {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-4}


@pytest.mark.parametrize("debiasing", [True, False])
@pytest.mark.parametrize("largest", [True, False])
def test_adam(debiasing, largest):
    outlined = {"outline_apply_gradients": True, "outline_apply_gradients_kwargs": {"name": "step"}}
    found = trained(AdamIpuOptimizer(0.05, amsgrad=largest, debiasing=debiasing, **BETAS, **outlined))
    wanted = by_numpy(lambda *a: adam(*a, debiasing=debiasing, largest=largest))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("adapted", [True, False])
def test_lamb(adapted):
    def step(grad, weights, number, state):
        m, v = moments(grad, number, state)
        update = m / (np.sqrt(v) + 1e-4) + 0.1 * weights
        norm = min(np.linalg.norm(weights), 1.25)
        return 0.05 * update * (norm / np.linalg.norm(update) if adapted else 1)

    excluded = None if adapted else ["^linear/"]
    made = LAMBIpuOptimizer(
        0.05, weight_decay_rate=0.1, weight_norm_clip=1.25, exclude_from_layer_adaptation=excluded, **BETAS
    )
    np.testing.assert_allclose(trained(made), by_numpy(step), rtol=1e-4)


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum(nesterov):
    def step(grad, weights, number, state):
        state["moving"] = 0.9 * state.get("moving", 0) - 0.02 * grad
        return 0.02 * grad - 0.9 * state["moving"] if nesterov else -state["moving"]

    np.testing.assert_allclose(trained(SGDIpuOptimizer(0.02, 0.9, nesterov)), by_numpy(step), rtol=1e-4)


def test_the_state_has_its_own_types_and_gradients_are_transformed():
    halve = [lambda pairs: [(tf.cast(grad, tf.float32) / 2, variable) for grad, variable in pairs]]
    made = AdamIpuOptimizer(0.05, m_dtype=tf.float16, v_dtype="float32", gradient_transformers=halve, **BETAS)
    halved = lambda grad, *rest: adam(grad / 2, *rest)  # noqa: E731
    np.testing.assert_allclose(trained(made), by_numpy(halved), rtol=2e-3)
    assert [weight.dtype for weight in made.weights[1:]] == [tf.float16, tf.float32]
    again = AdamIpuOptimizer.from_config(made.get_config())
    assert (again.m_dtype, again.opt_dtypes) == (tf.float16, (tf.float32,))


def test_an_optimizer_of_a_programs_own():
    class Signs(IpuOptimizerBase):
        def __init__(self, learning_rate, **kwargs):
            super().__init__("Signs", **kwargs)
            self._set_hyper("learning_rate", learning_rate)

        def _create_slots(self, var_list):
            for var in var_list:
                self.add_slot(var, "seen", initializer="ones")

        def _resource_apply_dense(self, grad, var, apply_state=None):
            rate = self.coefficients(var, apply_state)["lr_t"]
            seen = self.get_slot(var, "seen")
            return tf.group(var.assign_sub(rate * seen * tf.sign(grad)), seen.assign(seen / 2))

    found = trained(Signs(0.125))
    wanted = by_numpy(lambda grad, weights, number, state: 0.125 / 2 ** (number - 1) * np.sign(grad))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
