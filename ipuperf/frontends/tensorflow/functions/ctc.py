"""Connectionist temporal classification in TensorFlow's graph:
:mod:`ipuperf.ops.losses.ctc`, with whole numbers as TensorFlow gives them, and losses of logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.functions import arithmetic, make, make_all, networks
from ipuperf.ir import FLOAT16, FLOAT32, Tensor
from ipuperf.ops import CtcBeamSearchDecoder, CtcLoss, CtcLossGrad

from .device_function import device_function


def loss(
    name: str, labels: Any, data: Any, label_length: Any, data_length: Any, blank: int, out_dtype: Any, logits: bool
) -> tf.Tensor:
    """``-log p(labels)`` of each sequence.

    Args:
        labels: ``[batch, most labels]``; label_length, data_length: ``[batch]``.
        data: ``[time, batch, classes]``: logarithms of probabilities, or logits.
        out_dtype: None: that of ``data``.

    Raises:
        ValueError: float16 losses of float32 data.
    """
    scores = tf.convert_to_tensor(data)
    kind = scores.dtype if out_dtype is None else tf.as_dtype(out_dtype)
    if scores.dtype == tf.float32 and kind == tf.float16:
        raise ValueError("out_dtype cannot be float16 when dtype of data is float32.")
    wanted = FLOAT16 if kind == tf.float16 else FLOAT32

    def logs_of(given: Tensor) -> Tensor:
        return networks.log_softmax(given, -1) if logits else given

    def forward(given: Tensor, *rest: Tensor) -> Tensor:
        found = make(CtcLoss, logs_of(given), *rest, blank=blank)
        return found if wanted == FLOAT32 else arithmetic.cast(found, wanted)

    def backward(grad: Tensor, given: Tensor, *rest: Tensor) -> Tensor:
        wide = grad if grad.dtype == FLOAT32 else arithmetic.cast(grad, FLOAT32)
        return make(CtcLossGrad, wide, logs_of(given), *rest, blank=blank)

    def gradient(inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        spec = tf.TensorSpec(scores.shape, scores.dtype)
        found = device_function(f"{name}_grad", backward, [grads[0], *inputs], [spec])
        return [*found, None, None, None]

    operands = [scores, *(_whole(value) for value in (labels, data_length, label_length))]
    return device_function(name, forward, operands, [tf.TensorSpec(scores.shape[1:2], kind)], gradient)[0]


def beam_search(
    name: str, data: Any, lengths: Any, beam_width: int, top_paths: int, blank: int, logits: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The likeliest labels of sequences.

    Args:
        data: ``[time, batch, classes]``: logarithms of probabilities, or logits; lengths: ``[batch]``.
        blank: a class; negative ones count from the end.

    Returns:
        Negative logarithms of the paths' probabilities and their lengths ``[batch, top_paths]``, their labels
        ``[batch, top_paths, time]``.
    """
    scores = tf.convert_to_tensor(data)
    time, batch, classes = scores.shape.as_list()
    settings = {"blank": blank % classes, "beam_width": beam_width, "top_paths": top_paths}

    def function(given: Tensor, sizes: Tensor) -> list[Tensor]:
        logs = networks.log_softmax(given, -1) if logits else given
        names = ["probabilities", "lengths", "labels"]
        found, counts, labels = make_all(CtcBeamSearchDecoder, [logs, sizes], names, **settings)
        negative = arithmetic.negate(found)
        return [negative if negative.dtype == given.dtype else arithmetic.cast(negative, given.dtype), counts, labels]

    shape = [batch, top_paths]
    specs = [
        tf.TensorSpec(shape, scores.dtype),
        tf.TensorSpec(shape, tf.int32),
        tf.TensorSpec([*shape, time], tf.int32),
    ]
    chances, counts, labels = device_function(name, function, [scores, _whole(lengths)], specs)
    return chances, counts, labels


def _whole(value: Any) -> tf.Tensor:
    return tf.cast(value, tf.int32)
