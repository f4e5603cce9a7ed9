"""Policies of Keras with float16, and loss scaling, under an IPUStrategy: losses and weights of Keras on the CPU."""

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
import tf_keras as keras

from ipuperf.tensorflow.python import ipu

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 8)).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.int32)
MEAN = ipu.gradient_accumulation.GradientAccumulationReductionMethod.MEAN
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(autouse=True)
def policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


def optimizer(kind: str):
    scaled = keras.mixed_precision.LossScaleOptimizer
    if kind == "fixed":
        return scaled(keras.optimizers.SGD(0.1), dynamic=False, initial_scale=128)
    return {"plain": lambda: keras.optimizers.SGD(0.1), "adam": lambda: keras.optimizers.Adam(0.01)}[kind]()


def model(kind: str, stages: bool = False, **options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,), options.pop("batch", 8))
    first, second = keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2, dtype="float32")
    if stages:
        with ipu.keras.PipelineStage(0):
            hidden = first(inputs)
        with ipu.keras.PipelineStage(1):
            found = second(hidden)
    else:
        found = second(first(inputs))
    return keras.Model(inputs, found), {"optimizer": optimizer(kind), "loss": LOSS, **options}


def data(batch: int = 8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch, drop_remainder=True)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "name"), [("adam", "mixed_float16"), ("fixed", "mixed_float16"), ("plain", "float16")]
)
def test_losses_equal_keras(kind: str, name: str) -> None:
    keras.mixed_precision.set_global_policy(name)
    made, options = model(kind)
    made.compile(**options)
    wanted = made.fit(data(), epochs=3, verbose=0).history["loss"]
    with ipu.ipu_strategy.IPUStrategy().scope():
        made, options = model(kind, steps_per_execution=2)
        made.compile(**options)
        found = made.fit(data(), epochs=3, verbose=0).history["loss"]
    # Processors with arithmetic in float16 add up TensorFlow's products in another way (1e-4 of a loss).
    np.testing.assert_allclose(found, wanted, rtol=3e-4 if name == "mixed_float16" else 2e-3)
    if name == "mixed_float16":
        assert type(made.optimizer).__name__ == "LossScaleOptimizerV3"


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "stages"), [("plain", False), ("fixed", False), ("fixed", True)])
def test_accumulation_and_pipelines_scale_the_loss(kind: str, stages: bool) -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    made, options = model(kind, batch=32)
    made.compile(**options)
    made.fit(data(32), verbose=0)
    wanted = made.get_weights()
    how = {"gradient_accumulation_steps_per_replica": 4, "gradient_accumulation_reduction_method": MEAN}
    with ipu.ipu_strategy.IPUStrategy().scope():
        made, options = model(kind, stages, steps_per_execution=4)
        if stages:
            made.set_pipelining_options(device_mapping=[0, 0], **how)
        else:
            made.set_gradient_accumulation_options(**how)
        made.compile(**options)
        made.fit(data(), verbose=0)
    for one, other in zip(made.get_weights(), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_a_loss_scale_that_follows_all_gradients_has_no_place_in_pipelines() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    with ipu.ipu_strategy.IPUStrategy().scope():
        made, options = model("plain", stages=True, steps_per_execution=4)
        made.set_pipelining_options(gradient_accumulation_steps_per_replica=4, device_mapping=[0, 0])
        made.compile(**options)
        with pytest.raises(NotImplementedError, match=r"from the gradients of several \(op .*cond"):
            made.fit(data(), verbose=0)
