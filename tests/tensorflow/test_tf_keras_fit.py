"""``fit``, ``evaluate`` and ``predict`` on the simulated IPU equal Keras' own on the CPU."""

from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import beside, ipus, same, stage  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.keras.scopes import is_ipu  # noqa: E402
from ipuperf.tensorflow.python.ipu import pipelining_ops  # noqa: E402

RNG = np.random.default_rng(7)
X = RNG.normal(size=(96, 5)).astype("float32")
Y = RNG.normal(size=(96, 2)).astype("float32")

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.02),
    "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "legacy momentum": lambda: keras.optimizers.legacy.SGD(0.02, momentum=0.9),
    "legacy adam": lambda: keras.optimizers.legacy.Adam(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)),
}


def network(pipelined=False):
    staged = pipelined and is_ipu(tf.distribute.get_strategy())
    inputs = keras.Input((5,))
    with stage(0, staged):
        x = keras.layers.Dense(6, "relu")(inputs)
    with stage(1, staged):
        x = keras.layers.Add()([keras.layers.Dense(6, "tanh")(x), x])
        x = keras.layers.Dense(2, kernel_regularizer="l2")(x)
    return keras.Model(inputs, x)


def pair(optimizer="sgd", count=1, pipelined=False, steps=4):
    """On IPUs and on the CPU. Keras adds the gradients of replicas up, so each has its share of the loss."""

    def compiled(model, share=1.0, **options):
        model.layers[-1].kernel_regularizer.l2 *= share
        loss = lambda y, p: share * tf.reduce_mean(tf.square(y - p), axis=-1)  # noqa: E731
        model.compile(OPTIMIZERS[optimizer](), loss, metrics=["mae"], **options)

    share = 1 / (count // 2 if pipelined else count)
    return beside(lambda: network(pipelined), compiled, count, share=share, steps_per_execution=steps)


def fitted(model, batch, epochs=2, **options):
    return model.fit(X, Y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, **options).history


@pytest.mark.heavy
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_ipu(optimizer):
    model, cpu = pair(optimizer)
    same(fitted(model, 8), fitted(cpu, 8))
    same(model.get_weights(), cpu.get_weights())
    same(model.predict(X, batch_size=8, verbose=0), cpu.predict(X, verbose=0))
    same(model.evaluate(X, Y, batch_size=8, verbose=0), cpu.evaluate(X, Y, batch_size=8, verbose=0))
    assert int(model.optimizer.iterations) == 24


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("replicas", "accumulation", "optimizer"), [(2, 1, "momentum"), (1, 4, "adam"), (2, 3, "adam")]
)
def test_replicas_and_accumulation_are_one_larger_batch(replicas, accumulation, optimizer):
    model, cpu = pair(optimizer, replicas, steps=12)
    model.set_gradient_accumulation_options(accumulation, "mean")
    model.set_metrics_options(mean_over_replicas=True)
    found, expected = fitted(model, 4), fitted(cpu, 4 * replicas * accumulation)
    same(model.get_weights(), cpu.get_weights())
    if accumulation == 1:
        same(found["mae"], expected["mae"])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("count", "schedule", "optimizer"),
    [(2, "Grouped", "momentum"), (2, "Interleaved", "adam"), (2, "Sequential", "sgd"), (4, "Grouped", "legacy adam")],
)
def test_pipelines(count, schedule, optimizer):
    model, cpu = pair(optimizer, count, pipelined=True)
    model.set_metrics_options(mean_over_replicas=True)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4,
        gradient_accumulation_reduction_method="mean",
        pipeline_schedule=pipelining_ops.PipelineSchedule[schedule],
    )
    assert set(fitted(model, 4)) == set(fitted(cpu, 8 * count))
    same(model.get_weights(), cpu.get_weights())
    same(model.predict(X, batch_size=4, verbose=0), cpu.predict(X, verbose=0))
    metrics = model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
    same(metrics["mae"], cpu.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)["mae"])


@pytest.mark.heavy
def test_sequential_model_in_stages_with_a_device_mapping_and_accumulated_metrics():
    def build():
        return keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(3), keras.layers.Dense(2)])

    cpu = build()
    cpu.build((None, 5))
    first = cpu.get_weights()
    cpu.compile(keras.optimizers.SGD(0.1), "mse")
    cpu.fit(X, Y, batch_size=24, shuffle=False, verbose=0)
    with ipus(2):
        model = build()
        model.set_pipeline_stage_assignment([0, 1, 2])
        model.build((None, 5))
        model.set_weights(first)
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=24)
        model.set_pipelining_options(
            6,
            device_mapping=[0, 1, 0],
            accumulate_outfeed=True,
            gradient_accumulation_reduction_method="mean",
            pipeline_schedule=pipelining_ops.PipelineSchedule.Sequential,
        )
        history = model.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history
        same(model.get_weights(), cpu.get_weights())
        assert 0.5 < history["loss"][0] < 5
        same(model.predict(X, batch_size=4, verbose=0), cpu.predict(X, batch_size=4, verbose=0))


class Trained(keras.Model):
    """A model with a ``train_step`` of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"mine": loss}


def test_a_train_step_of_the_models_own():
    def build():
        model = Trained()
        model.build((None, 5))
        return model

    def compiled(model, **options):
        model.compile(keras.optimizers.SGD(0.1), **options)

    model, cpu = beside(build, compiled, steps_per_execution=12)
    same(fitted(model, 8), fitted(cpu, 8))
    same(model.get_weights(), cpu.get_weights())


@pytest.mark.heavy
def test_weights_of_samples_and_classes_and_validation_data():
    weights, labels = RNG.random(96).astype("float32"), RNG.integers(0, 2, 96)

    def compiled(model, **options):
        metrics = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
        model.compile("sgd", "sparse_categorical_crossentropy", **metrics, **options)

    def build():
        return keras.Sequential([keras.layers.Dense(2, "softmax", input_shape=(5,))])

    model, cpu = beside(build, compiled, steps_per_execution=6)
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, "validation_data": (X, labels)}
    for weighting in ({"sample_weight": weights}, {"class_weight": {0: 1.0, 1: 3.0}}):
        same(model.fit(X, labels, **weighting, **options).history, cpu.fit(X, labels, **weighting, **options).history)


class Counting(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.losses = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)
        self.losses.append(float(logs["loss"]))


@pytest.mark.heavy
def test_callbacks_are_called_for_executions_or_for_every_batch():
    model, _ = pair()
    first, sparse, dense = model.get_weights(), Counting(), Counting()
    fitted(model, 8, 1, callbacks=[sparse])
    model.set_weights(first)
    model.set_asynchronous_callbacks(True)
    fitted(model, 8, 1, callbacks=[dense])
    assert (sparse.batches, dense.batches) == ([3, 7, 11], list(range(12)))
    same(sparse.losses, dense.losses[3::4])
    assert model.predict(X, batch_size=8, verbose=0).shape == (96, 2)


def test_nothing_is_dropped_in_predictions():
    with ipus(1):
        model = keras.Sequential([keras.layers.Dropout(0.5, input_shape=(5,))])
        model.compile(loss="mse", steps_per_execution=12)
        same(model.predict(X, batch_size=8, verbose=0), X)


@pytest.mark.heavy
def test_one_batch():
    model, cpu = pair()
    same(model.train_on_batch(X[:8], Y[:8]), cpu.train_on_batch(X[:8], Y[:8]))
    same(model.get_weights(), cpu.get_weights())
    same(model.predict_on_batch(X[:8]), cpu.predict_on_batch(X[:8]))
    same(model.test_on_batch(X[:8], Y[:8]), cpu.test_on_batch(X[:8], Y[:8]))


@pytest.mark.parametrize("count", [1, 2])
def test_one_batch_builds_a_model_first(count):
    def build():
        return keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])

    with ipus(count):
        model = build()
        if count == 2:
            model.set_pipeline_stage_assignment([0, 1])
            model.set_pipelining_options(pipeline_schedule=pipelining_ops.PipelineSchedule.Sequential)
        model.compile()
        found = model.predict_on_batch(X[:8])
    cpu = build()
    cpu.build((None, 5))
    cpu.set_weights(model.get_weights())
    same(found, cpu.predict_on_batch(X[:8]))


@pytest.mark.heavy
def test_data_sets_continue_from_epoch_to_epoch():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True).repeat()
    found, expected = (one.fit(data, steps_per_epoch=8, epochs=3, verbose=0).history for one in pair())
    same(found, expected)


@pytest.mark.heavy
def test_saved_models_keep_their_options(tmp_path):
    with ipus(2):
        model = network(pipelined=True)
        model.set_pipelining_options(8, device_mapping=[1, 0])
        model.set_infeed_queue_options(prefetch_depth=3)
        model.compile("sgd", "mse", steps_per_execution=24)
        model.fit(X, Y, batch_size=4, verbose=0)
        for name in ("model.h5", "model.keras", "saved"):
            model.save(tmp_path / name)
            loaded = keras.models.load_model(tmp_path / name)
            loaded.compile("sgd", "mse", steps_per_execution=24)
            stages = [one.pipeline_stage for one in loaded.get_pipeline_stage_assignment()]
            assert stages == [one.pipeline_stage for one in model.get_pipeline_stage_assignment()]
            same(loaded.get_weights(), model.get_weights())
            same(loaded.predict(X, batch_size=4, verbose=0), model.predict(X, batch_size=4, verbose=0))


# -- what is not allowed -----------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts the threads of Linux")
def test_no_thread_that_reads_data_is_left():
    counts = []
    for _ in range(3):
        with ipus(1):
            model = keras.Sequential([keras.layers.Dense(2)])
            model.compile("sgd", "mse", steps_per_execution=4)
            model.fit(X[:16], Y[:16], batch_size=4, epochs=2, validation_data=(X[:16], Y[:16]), verbose=0)
            model.predict(X[:16], batch_size=4, verbose=0)
        counts.append(len(list(Path("/proc/self/task").iterdir())))
    assert counts[1] == counts[2], counts
