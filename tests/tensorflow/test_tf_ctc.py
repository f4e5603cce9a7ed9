"""CTC losses and beam searches against TensorFlow on the CPU."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
import tf_keras
from graphcases import Program
from tensorflow.python.ops.ctc_ops import ctc_loss_dense

from ipuperf.tensorflow.keras import layers
from ipuperf.tensorflow.python import ipu

TIME, BATCH, CLASSES, LABELS = 7, 3, 5, 3


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(TIME, BATCH, CLASSES)).astype(np.float32)
    labels = np.array([[1, 2, 2], [3, 0, 0], [4, 1, 0]], np.int32)
    return logits, labels, np.array([3, 1, 2], np.int32), np.array([7, 4, 6], np.int32)


def expected(logits, labels, label_length, logit_length):
    with tf.GradientTape() as tape:
        x = tf.constant(logits)
        tape.watch(x)
        losses = ctc_loss_dense(labels, x, label_length, logit_length, blank_index=0)
        total = tf.reduce_sum(losses * [1.0, 2.0, 3.0])
    return losses.numpy(), tape.gradient(total, x).numpy()


@pytest.mark.parametrize("log_probs", [False, True])
@pytest.mark.parametrize("where", ["ipu", "host"])
def test_loss_and_gradient_equal_tensorflow(log_probs: bool, where: str) -> None:
    given = data()

    def function(logits, labels, label_length, logit_length):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            if log_probs:
                logs = tf.nn.log_softmax(logits)
                losses = ipu.nn_ops.ctc_loss_with_log_probs(labels, logs, label_length, logit_length, 0)
            else:
                losses = ipu.nn_ops.ctc_loss_v2(labels, logits, label_length, logit_length, 0)
            total = tf.reduce_sum(losses * [1.0, 2.0, 3.0])
        return losses, tape.gradient(total, logits)

    if where == "ipu":
        program = Program(function, given)
        kinds = {op.type for op in program.ir.main_graph.ops}
        assert {"Ctc", "CtcGrad"} <= kinds
        found = program.run()
    else:
        found = [t.numpy() for t in function(*(tf.constant(v) for v in given))]
    for one, other in zip(found, expected(*given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_float16_losses_of_float32_logits_are_refused() -> None:
    logits, labels, label_length, logit_length = data()
    with pytest.raises(ValueError, match="cannot be float16"):
        ipu.nn_ops.ctc_loss_v2(labels, logits, label_length, logit_length, 0, out_dtype=tf.float16)


@pytest.mark.parametrize("log_probs", [False, True])
def test_beam_search_finds_the_paths_of_tensorflow(log_probs: bool) -> None:
    logits, _, _, lengths = data()

    def function(logits, lengths):
        if log_probs:
            logs = tf.nn.log_softmax(logits)
            return ipu.nn_ops.ctc_beam_search_decoder_with_log_probs(logs, lengths, 20, 2)
        return ipu.nn_ops.ctc_beam_search_decoder(logits, lengths, 20, 2, -1)

    chances, counts, labels = Program(function, (logits, lengths)).run()
    paths, logs = tf.nn.ctc_beam_search_decoder(logits, lengths, 20, 2)
    np.testing.assert_allclose(chances, -logs, rtol=1e-5)
    for rank, path in enumerate(paths):
        dense = tf.sparse.to_dense(path, default_value=-1).numpy()
        for number in range(BATCH):
            wanted = dense[number][dense[number] >= 0]
            assert counts[number, rank] == len(wanted)
            np.testing.assert_array_equal(labels[number, rank, : len(wanted)], wanted)


@pytest.mark.heavy
def test_layers_train_and_predict() -> None:
    logits, labels, label_length, logit_length = data()
    strategy = ipu.ipu_strategy.IPUStrategy()

    def model(loss_layer):
        inputs = [
            tf_keras.Input((LABELS,), BATCH, dtype=tf.int32),
            tf_keras.Input((TIME, CLASSES), BATCH),
            tf_keras.Input((), BATCH, dtype=tf.int32),
            tf_keras.Input((), BATCH, dtype=tf.int32),
        ]
        x = tf_keras.layers.Dense(CLASSES, kernel_initializer="identity")(inputs[1])
        x = tf.transpose(x, [1, 0, 2])
        return tf_keras.Model(inputs, loss_layer(inputs[0], x, inputs[2], inputs[3]))

    def own(labels, x, label_length, logit_length):
        losses = tf_keras.layers.Lambda(lambda v: ctc_loss_dense(v[0], v[1], v[2], v[3], blank_index=0))
        return tf.reshape(tf.reduce_mean(losses([labels, x, label_length, logit_length])), [1])

    given = [labels, np.swapaxes(logits, 0, 1).copy(), label_length, logit_length]

    def fit(made):
        made.compile("sgd", loss=lambda y, p: p)
        dataset = tf.data.Dataset.from_tensors((tuple(given), np.zeros((BATCH, 1), np.float32)))
        return made.fit(dataset.repeat(2), steps_per_epoch=2, verbose=0).history["loss"]

    reference = fit(model(own))
    with strategy.scope():
        trained = model(layers.CTCLoss(from_logits=True))
        np.testing.assert_allclose(fit(trained), reference, rtol=1e-5)
        predicted = layers.CTCPredictionsLayer(from_logits=True, top_paths=2)(logits, logit_length)
    _, counts, paths = layers.CTCInferenceLayer(from_logits=True)(logits, logit_length)
    for number in range(BATCH):
        np.testing.assert_array_equal(predicted[number, : counts[number, 0]], paths[number, 0, : counts[number, 0]])
        assert not np.any(predicted[number, int(counts[number, 0]) :])
