"""Metrics over replicas: the last replica's, which sees every n-th batch, or means over all."""

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus, same, two_stages  # noqa: E402

keras = tf.keras
RNG = np.random.default_rng(5)
X = RNG.normal(size=(96, 4)).astype("float32")
Y = (X[:, :1] + RNG.normal(size=(96, 1)) > 0).astype("float32")


def network(pipelined: bool) -> Any:
    return two_stages(pipelined, second=[keras.layers.Dense(1, "sigmoid")])


def compiled(model: Any, **options: Any) -> Any:
    """With metrics whose state is numbers, and vectors; at rate 0, so that batches may be seen in any order."""
    made = keras.metrics
    metrics = [made.MeanAbsoluteError(), made.Precision(name="precision"), made.AUC(num_thresholds=20, name="auc")]
    model.compile(keras.optimizers.legacy.SGD(0.0), "binary_crossentropy", metrics=metrics, **options)
    return model


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("replicas", "accumulation", "pipelined"),
    [(1, 2, False), (2, 1, False), (3, 1, False), (2, 2, False), (2, 4, True)],
)
def test_shown_are_those_of_the_last_replica(replicas: int, accumulation: int, pipelined: bool) -> None:
    """Of all its batches of an epoch, over several executions; every epoch begins anew."""
    with ipus(4 if pipelined else replicas):
        model = compiled(network(pipelined), steps_per_execution=4)
        if pipelined:
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=accumulation)
        else:
            model.set_gradient_accumulation_options(accumulation)
        found = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y)).history
        evaluated = model.evaluate(X, Y, batch_size=4, verbose=0)
    cpu = compiled(network(False), run_eagerly=True)
    cpu.set_weights(model.get_weights())
    last = np.arange(96).reshape(-1, replicas, 4)[:, -1].reshape(-1)
    expected = cpu.evaluate(X[last], Y[last], batch_size=4, verbose=0)
    same(evaluated, expected)
    for prefix in ("", "val_"):
        for name, value in zip(cpu.metrics_names, expected, strict=True):
            same(found[prefix + name], [value, value])


@pytest.mark.heavy
def test_they_may_be_means_over_all_replicas() -> None:
    with ipus(2):
        model = compiled(network(False), steps_per_execution=4)
        model.set_metrics_options(mean_over_replicas=True)
        found = model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
    cpu = compiled(network(False), run_eagerly=True)
    cpu.set_weights(model.get_weights())
    same(
        found["mean_absolute_error"],
        cpu.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)["mean_absolute_error"],
    )
