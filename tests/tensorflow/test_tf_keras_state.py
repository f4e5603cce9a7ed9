"""What a model on the simulated IPU keeps: weights on disk, checkpoints, callbacks. All equal to Keras' on the CPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import beside, ipus, same  # noqa: E402
from tensorflow import keras  # noqa: E402

RNG = np.random.default_rng(5)
X = RNG.normal(size=(32, 6)).astype("float32")
Y = RNG.normal(size=(32, 2)).astype("float32")
FIT = {"batch_size": 4, "shuffle": False, "verbose": 0}


def network():
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    )


def compiled(model, **options):
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    return model


def models(steps=4):
    """On an IPU and on the CPU."""
    return beside(network, compiled, steps_per_execution=steps)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["weights", "weights.h5"])
def test_weights_go_from_the_ipu_to_the_cpu_and_back(name, tmp_path):
    model, cpu = models()
    model.fit(X, Y, **FIT)
    model.save_weights(tmp_path / name)
    cpu.load_weights(tmp_path / name)
    same(cpu.get_weights(), model.get_weights())
    cpu.fit(X, Y, **FIT)
    cpu.save_weights(tmp_path / name)
    model.load_weights(tmp_path / name)
    same(model.predict(X, batch_size=4, verbose=0), cpu.predict(X, batch_size=4, verbose=0))


@pytest.mark.heavy
def test_weights_set_between_runs_are_those_that_the_ipu_trains():
    model, cpu = models()
    first = [w.copy() for w in cpu.get_weights()]
    cpu.fit(X, Y, **FIT)
    model.fit(X, Y, **FIT)
    for one in (model, cpu):
        one.set_weights(first)
        one.layers[0].bias.assign_add(np.ones(5, np.float32))
        one.optimizer.learning_rate = 0.002
        one.fit(X, Y, **FIT)
    same(model.get_weights(), cpu.get_weights())
    same([v.numpy() for v in model.optimizer.variables], [v.numpy() for v in cpu.optimizer.variables])


@pytest.mark.heavy
def test_a_checkpoint_of_model_and_optimizer_continues_the_training(tmp_path):
    model, cpu = models()
    cpu.fit(X, Y, epochs=2, **FIT)
    model.fit(X, Y, **FIT)
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "all"))
    with model.distribute_strategy.scope():
        resumed = compiled(network(), steps_per_execution=4)
    resumed.optimizer.build(resumed.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=resumed, optimizer=resumed.optimizer)
    checkpoint.restore(saved).assert_existing_objects_matched()
    resumed.fit(X, Y, **FIT)
    same(resumed.get_weights(), cpu.get_weights())


@pytest.mark.heavy
def test_a_saved_model_continues_the_training(tmp_path):
    model, cpu = models()
    cpu.fit(X, Y, epochs=2, **FIT)
    model.fit(X, Y, **FIT)
    model.save(tmp_path / "model.keras")
    with model.distribute_strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.fit(X, Y, **FIT)
    same(loaded.get_weights(), cpu.get_weights())


class Seen(keras.callbacks.Callback):
    """Weights that a callback sees at the end of each epoch."""

    def on_train_begin(self, logs=None):
        self.weights, self.rates = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(self.model.get_weights())
        self.rates.append(float(self.model.optimizer.learning_rate))


@pytest.mark.heavy
def test_callbacks_of_keras(tmp_path):
    def callbacks(folder):
        best = keras.callbacks.ModelCheckpoint(
            folder / "best", monitor="loss", save_best_only=True, save_weights_only=True
        )
        return [
            best,
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=10.0, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0),
            keras.callbacks.TerminateOnNaN(),
            Seen(),
        ]

    model, cpu = models()
    found = {}
    for name, one in (("ipu", model), ("cpu", cpu)):
        (tmp_path / name).mkdir()
        used = callbacks(tmp_path / name)
        history = one.fit(X, Y, epochs=4, validation_data=(X, Y), callbacks=used, **FIT)
        log = np.genfromtxt(tmp_path / name / "log.csv", delimiter=",", names=True)
        found[name] = (
            history.epoch,
            list(history.history.values()),
            used[-1].weights,
            used[-1].rates,
            log.tolist(),
        )
        one.load_weights(tmp_path / name / "best")
    for ours, theirs in zip(found["ipu"], found["cpu"], strict=True):
        same(ours, theirs)
    same(model.get_weights(), cpu.get_weights())


@pytest.mark.heavy
def test_training_is_stopped_and_resumed():
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    model, cpu = models()
    for one in (model, cpu):
        one.fit(X, Y, epochs=3, callbacks=[Stop()], **FIT)
        one.fit(X, Y, initial_epoch=1, epochs=2, **FIT)
    same(model.get_weights(), cpu.get_weights())


@pytest.mark.heavy
@pytest.mark.parametrize("steps", [1, 2, 8])
def test_predict_and_evaluate_do_not_depend_on_the_steps_of_an_execution(steps):
    model, cpu = models(steps)
    same(model.predict(X, batch_size=4, verbose=0), cpu.predict(X, verbose=0))
    same(model.evaluate(X, Y, batch_size=4, verbose=0), cpu.evaluate(X, Y, batch_size=4, verbose=0))
    data = tf.data.Dataset.from_tensor_slices(X).batch(4, drop_remainder=True).repeat()
    same(model.predict(data, steps=8, verbose=0), cpu.predict(X, verbose=0))


@pytest.mark.heavy
def test_what_the_progress_bar_prints_is_what_keras_prints(capsys):
    def printed(model):
        model.fit(X, Y, epochs=2, batch_size=4, shuffle=False, verbose=2)
        lines = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
        return [[word for word in line.split(" - ") if ":" in word] for line in lines]

    model, cpu = models()
    assert printed(model) == printed(cpu)


@pytest.mark.heavy
def test_a_model_made_twice_in_one_scope_has_a_program_of_its_own():
    with ipus(1):
        one, two = (compiled(network(), steps_per_execution=4) for _ in range(2))
        two.set_weights(one.get_weights())
        one.fit(X, Y, epochs=2, **FIT)
        two.fit(X, Y, **FIT)
        two.fit(X, Y, **FIT)
        same(two.get_weights(), one.get_weights())


def test_initial_weights_follow_tensorflows_seed_as_in_2_6() -> None:
    tf.random.set_seed(1)
    first = [tf.keras.initializers.GlorotUniform()((2, 3)).numpy() for _ in range(2)]
    tf.random.set_seed(1)
    again = [tf.keras.initializers.GlorotUniform()((2, 3)).numpy() for _ in range(2)]
    tf.random.set_seed(1)
    plain = [tf.random.uniform((2, 3), -np.sqrt(6 / 5), np.sqrt(6 / 5)).numpy() for _ in range(2)]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first, plain, rtol=1e-6)
    seeded = [tf.keras.initializers.GlorotUniform(seed=3)((2, 3)).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*seeded)
