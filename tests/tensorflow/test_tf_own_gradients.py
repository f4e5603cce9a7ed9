"""Keras optimizers that compute gradients in a way of the program's own: with accumulation, and in pipelines."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import beside, gradients_of, ipus, same, two_stages  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf import ir, ops  # noqa: E402
from ipuperf.tensorflow.pipelining.custom_gradients import tap  # noqa: E402

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(8, 4)).astype("float32"), RNG.normal(size=(8, 2)).astype("float32")


class Twice(keras.optimizers.legacy.SGD):
    def _compute_gradients(self, *args, **kwargs):
        return [(2 * g, v) for g, v in super()._compute_gradients(*args, **kwargs)]


class Larger(keras.optimizers.legacy.SGD):
    def _transform_loss(self, loss):
        return 3 * loss

    def _transform_unaggregated_gradients(self, pairs):
        return [(tf.identity(g), v) for g, v in pairs]


class Newer(keras.optimizers.experimental.SGD):
    def compute_gradients(self, loss, variables, tape=None):
        return [(2 * g, v) for g, v in super().compute_gradients(loss, variables, tape)]


class Graph(keras.optimizers.legacy.SGD):
    """Upstream's accumulation asks for gradients by this method, which Keras' own training does not call."""

    def get_gradients(self, loss, params):
        return [2 * g for g in super().get_gradients(loss, params)]


def scaled():
    return keras.mixed_precision.LossScaleOptimizer(Twice(0.05), dynamic=False, initial_scale=8.0)


@pytest.mark.heavy
@pytest.mark.parametrize("make", [Twice, Larger, Newer, Graph, scaled])
def test_accumulation_calls_what_the_optimizer_has(make):
    def compiled(model, accumulated=False):
        optimizer = Twice(0.05) if make is Graph and not accumulated else make() if make is scaled else make(0.05)
        options = {"steps_per_execution": 4} if accumulated else {}
        model.compile(optimizer, lambda y, p: tf.reduce_mean((y - p) ** 2, -1) * (1 if accumulated else 4), **options)
        if accumulated:
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)

    model, cpu = beside(lambda: two_stages(False), compiled, accumulated=True)
    model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
    cpu.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    same(model.get_weights(), cpu.get_weights())


class First(tf.compat.v1.train.GradientDescentOptimizer):
    """An optimizer of version 1."""

    def compute_gradients(self, *args, **kwargs):
        return [(tf.clip_by_value(g, -0.02, 0.02), v) for g, v in super().compute_gradients(*args, **kwargs)]


class Scaling(tf.compat.v1.train.GradientDescentOptimizer):
    """Loss scaling by hand, and a decay of the weights in the loss."""

    def compute_gradients(self, loss, var_list=None, **kwargs):
        loss = loss * 128.0 + 6.4 * tf.add_n([tf.nn.l2_loss(v) for v in var_list])
        return [(g / 128.0, v) for g, v in super().compute_gradients(loss, var_list, **kwargs)]


def changed(make, gradient, weight):
    """What the optimizers above make of a gradient."""
    if make is First:
        return np.clip(gradient, -0.02, 0.02)
    if make is Scaling:
        return gradient + 0.05 * weight
    return gradient * (3 if make is Larger else 2)


@pytest.mark.parametrize(
    ("make", "pipelined"),
    [(First, False), (Scaling, False), *((make, True) for make in (Twice, Larger, Newer, Graph, First, Scaling))],
)
def test_accumulation_and_pipelines_call_it(make, pipelined):
    with ipus(2 if pipelined else 1):
        model = two_stages(pipelined)
        model.compile(make(0.05), "mse", steps_per_execution=4)
        set_options = model.set_pipelining_options if pipelined else model.set_gradient_accumulation_options
        set_options(gradient_accumulation_steps_per_replica=4)
        weights, gradients = model.get_weights(), gradients_of(model, X, Y, 4)
        expected = [
            weight - 0.05 * sum(changed(make, part, weight) for part in parts)
            for weight, parts in zip(weights, zip(*gradients, strict=True), strict=True)
        ]
        model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
        same(model.get_weights(), expected)


def test_all_readers_of_a_tensor_read_its_tap():
    graph = ir.Ir().create_graph("stage")
    x = graph.add_input(ir.TensorSpec((2,), ir.FLOAT32), "x")
    square = graph.create(ops.Mul, [x, x], ["square"])
    total = graph.create(ops.Add, [*square.outputs, x], ["total"])
    tap(graph, x, mapping=None, number=0, images={}, program=None, executions=1)
    first, (tapped,) = graph.ops[0], graph.ops[0].outputs
    assert graph.ops == [first, square, total]
    assert (first.inputs, square.inputs, total.inputs) == ([x], [tapped, tapped], [*square.outputs, tapped])
    assert (x.consumers, tapped.consumers) == ([first], [square, square, total])


def of_all(pairs, loss):
    gradients, variables = zip(*pairs, strict=True)
    return zip(tf.clip_by_global_norm(gradients, 0.1)[0], variables, strict=True)


def of_the_loss(pairs, loss):
    return [(g * loss, v) for g, v in pairs]


def of_some(pairs, loss):
    return pairs[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_all, "uses the gradients of several variables"),
        (of_the_loss, "uses the loss itself"),
        (of_some, "gives no gradient for"),
    ],
)
def test_what_no_stage_has_is_refused(change, message):
    class Changing(tf.compat.v1.train.GradientDescentOptimizer):
        def compute_gradients(self, loss, *args, **kwargs):
            return list(change(super().compute_gradients(loss, *args, **kwargs), loss))

    with ipus(2):
        model = two_stages(True)
        model.compile(Changing(0.05), "mse", steps_per_execution=4)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        with pytest.raises(NotImplementedError, match=f"compute_gradients of optimizer .* {message}"):
            model.fit(X, Y, batch_size=2, verbose=0)


@pytest.mark.parametrize(("make", "told"), [(First, True), (Graph, True), (Twice, False), (Newer, False)])
def test_keras_says_what_its_own_training_does_not_call(make, told, monkeypatch):
    """As Keras on the CPU, it takes gradients from a tape without accumulation."""
    messages = []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda message, *_: messages.append(message))
    with ipus(1):
        model = two_stages(False)
        model.compile(make(0.05), "mse", steps_per_execution=4)
        weights = model.get_weights()
        model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
    assert told == any("acts with gradient accumulation and in pipelines only" in message for message in messages)
    if told:
        cpu = two_stages(False)
        cpu.set_weights(weights)
        cpu.compile(make(0.05), "mse", run_eagerly=True)
        cpu.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
        same(model.get_weights(), cpu.get_weights())


def test_a_scaled_loss_around_it_is_refused_in_pipelines():
    with ipus(2):
        model = two_stages(True)
        model.compile(scaled(), "mse", steps_per_execution=4)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        with pytest.raises(NotImplementedError, match="scales the loss around an optimizer with a _compute_gradients"):
            model.fit(X, Y, batch_size=2, verbose=0)
