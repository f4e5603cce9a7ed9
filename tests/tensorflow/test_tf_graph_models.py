"""Whole models through the import: training steps of Keras models, TensorFlow's gradients and ipuperf's own."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import GraphPlace, check, compare, narrowed, traced

from ipuperf import ir, ops
from ipuperf.numerics import Evaluator
from ipuperf.tensorflow.importer import captured_values, import_graph
from ipuperf.tensorflow.importer.branches import BranchPlace

K, L = tf.keras, tf.keras.layers
RNG = np.random.default_rng(2)
IMAGES, SEQUENCES = (4, 9, 9, 2), (3, 6, 4)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def tokens(*shape: int, high: int = 10) -> np.ndarray:
    return RNG.integers(0, high, shape).astype(np.int32)


def cnn() -> Any:
    return K.Sequential(
        [
            L.Conv2D(4, 3, padding="same", use_bias=False),
            L.BatchNormalization(),
            L.ReLU(),
            L.MaxPool2D(),
            L.SeparableConv2D(6, 3),
            L.AveragePooling2D(2),
            L.Conv2DTranspose(3, 3, 2),
            L.GlobalAveragePooling2D(),
            L.Dense(2),
        ]
    )


def perceptron() -> Any:
    return K.Sequential([L.Flatten(), L.Dense(8, "relu"), L.Dense(2)])


def attention() -> Any:
    x = K.Input((6, 8))
    h = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4, use_bias=False)(x, x))
    h = L.LayerNormalization()(h + L.Dense(8, "gelu")(h))
    return K.Model(x, L.Dense(2)(L.Flatten()(h)))


def lookup() -> Any:
    return K.Sequential([K.Input((6,)), L.Embedding(10, 4), L.Flatten(), L.Dense(2)])


def recurrent(layer: Any) -> Callable[[], Any]:
    return lambda: K.Sequential([layer, L.Dense(2)])


MODELS: dict[str, tuple[Callable[[], Any], np.ndarray]] = {
    "cnn": (cnn, f32(*IMAGES)),
    "attention": (attention, f32(3, 6, 8)),
    "lookup": (lookup, tokens(3, 6)),
    "lstm": (lambda: K.Sequential([L.LSTM(5, return_sequences=True), L.LSTM(3), L.Dense(2)]), f32(*SEQUENCES)),
    "gru": (lambda: K.Sequential([L.GRU(5), L.Dense(2)]), f32(*SEQUENCES)),
    "masked": (
        lambda: K.Sequential([L.Embedding(10, 4, mask_zero=True), L.Bidirectional(L.SimpleRNN(5)), L.Dense(2)]),
        tokens(3, 6, high=4),
    ),
}


def step(model: Any, optimizer: Any) -> Callable[..., Any]:
    """A training step: loss, then gradients; variables change."""
    (optimizer.build if hasattr(optimizer, "build") else optimizer._create_all_weights)(model.trainable_variables)

    @tf.function
    def run(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(K.losses.mean_squared_error(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return [loss, *(tf.convert_to_tensor(g) for g in gradients)]

    return run


OPTIMIZERS = "SGD Adam RMSprop Adagrad Adadelta Adamax Nadam Ftrl".split()


@pytest.mark.heavy
@pytest.mark.parametrize("build", [perceptron, lookup])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["optimizers", "legacy"])
def test_an_optimizer_equals_tensorflow(kind: str, name: str, build: Callable[[], Any]) -> None:
    module = K.optimizers.legacy if kind == "legacy" else K.optimizers
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    tf.keras.utils.set_random_seed(1)  # RMSprop divides by gradients, and the smallest of any draw decide
    model = build()
    x = tokens(3, 6) if build is lookup else f32(3, 5)
    model(x)
    check(step(model, getattr(module, name)(0.05, **options)), x, f32(3, 2), rtol=2e-5, atol=3e-6)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["cnn", "attention", "lstm", "lookup"])
def test_gradients_of_a_stage_are_ipuperfs_own(name: str) -> None:
    """A pure graph of values, as a pipeline's stage is, is differentiated by the IR; loops are unrolled."""
    build, x = MODELS[name]
    model = build()
    y = f32(x.shape[0], 2)
    model(x)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(K.losses.mean_squared_error(y, model(x, training=True)))

    with tf.GradientTape() as tape:
        expected = loss(tf.constant(x), tf.constant(y))
    gradients = tape.gradient(expected, model.trainable_variables)

    program = ir.Ir()
    place = GraphPlace(program.main_graph)
    graph = traced(loss, x, y)
    with ir.CONTEXT.building(place):
        arguments = [place.data("x", x), place.data("y", y), *captured_values(graph)]
        stage = BranchPlace(place, "stage")
        stage.differentiated = True
        with ir.CONTEXT.building(stage):
            (result,) = import_graph(graph, arguments, stage)
            stage.graph.add_output(result)
        weights = {
            r: v for r, v in place.variables.items() if any(r.handle is w.handle for w in model.trainable_variables)
        }
        found = _gradients(place, stage, list(weights.values()))
    evaluator = Evaluator(program)
    evaluator.load_variables()
    outputs = evaluator.run({})
    values = {variable: outputs[stream][0, 0] for variable, stream in found.items()}
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        (tensor,) = (v for r, v in weights.items() if r.handle is variable.handle)
        compare(values[tensor], narrowed(tf.convert_to_tensor(gradient).numpy()), 2e-5, 3e-6)


def _gradients(place: GraphPlace, stage: BranchPlace, weights: list[ir.Tensor]) -> dict[ir.Tensor, ir.Stream]:
    """Streams of the gradients of a scalar stage for weights that it reads."""
    required = [inner for inner, outer in zip(stage.graph.inputs, stage.captured) if outer in weights]
    derivative = ir.differentiate(stage.graph, add_class=ops.Add, required=required)
    call = place.create(ops.Call, stage.captured, [t.name for t in stage.graph.outputs], callee=stage.graph)
    values = dict(zip(stage.graph.outputs, call.outputs)) | dict(zip(stage.graph.inputs, stage.captured))
    one = place.graph.constant(np.ones((), np.float32), ir.FLOAT32)
    operands = [one if c.is_gradient else values[c.tensor] for c in derivative.inputs]
    back = place.create(ops.Call, operands, [t.name for t in derivative.graph.outputs], callee=derivative.graph)
    found: dict[ir.Tensor, ir.Stream] = {}
    for connection, tensor in zip(derivative.outputs, back.outputs, strict=True):
        stream = ir.Stream(place.graph.tensor_id("gradient"), tensor.spec, place.graph, "d2h")
        stream.transfers = 1
        place.graph.add(stream)
        place.create(ops.HostStore, [tensor], [], stream=stream)
        found[values[connection.tensor]] = stream
    return found


# -- size --------------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_import_of_bert_base_takes_less_than_five_seconds() -> None:
    """Forward and backward pass of twelve layers with a fused update for each weight. (The time does not depend on the
    sizes: a sixth of BERT-base's spares the test its memory.)"""
    model = bert(layers=12, hidden=132, heads=12, length=32, words=1000)
    optimizer = K.optimizers.legacy.SGD(0.1, momentum=0.9)
    optimizer._create_all_weights(model.trainable_variables)

    def run(words: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            scores = model(words, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, scores)
            loss = tf.reduce_mean(losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    graph = traced(run, tokens(1, 32), tokens(1, 32, high=2))
    place = GraphPlace(ir.Ir().main_graph)
    values = captured_values(graph)
    for resource in dict.fromkeys(v for v in values if not isinstance(v, np.ndarray)):
        place.read(resource)
    with ir.CONTEXT.building(place):
        arguments = [place.data(name, tokens(1, 32, high=2)) for name in ("words", "classes")]
        start = time.process_time()
        import_graph(graph, [*arguments, *values], place)
        taken = time.process_time() - start
    assert sum(op.type == "MatMul" for op in place.graph.ops) > 12 * 8 * 2
    assert taken < 5


def bert(layers: int, hidden: int, heads: int, length: int, words: int) -> Any:
    """BERT's encoder of plain layers with a classifier of two classes, whose weights are zeros."""

    def dense(size: int, activation: str | None = None) -> Any:
        return L.Dense(size, activation, kernel_initializer="zeros")

    def block(h: Any) -> Any:
        parts = (tf.reshape(dense(hidden)(h), [-1, length, heads, hidden // heads]) for _ in range(3))
        q, k, v = (tf.transpose(part, [0, 2, 1, 3]) for part in parts)
        weights = L.Dropout(0.1)(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 8.0))
        mixed = tf.reshape(tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3]), [-1, length, hidden])
        h = L.LayerNormalization()(h + L.Dropout(0.1)(dense(hidden)(mixed)))
        return L.LayerNormalization()(h + L.Dropout(0.1)(dense(hidden)(dense(4 * hidden, "gelu")(h))))

    tokens_in = K.Input((length,), 1, dtype=tf.int32)
    h = L.Embedding(words, hidden, embeddings_initializer="zeros")(tokens_in)
    h = h + L.Embedding(length, hidden, embeddings_initializer="zeros")(tf.range(length))
    h = L.Dropout(0.1)(L.LayerNormalization()(h))
    for _ in range(layers):
        h = block(h)
    return K.Model(tokens_in, dense(2)(h))
