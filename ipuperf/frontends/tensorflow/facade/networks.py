"""Functions of neural networks, with the formulas of PopLibs; random masks, images, products in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from ipuperf.base.near_names import instead_of
from ipuperf.functions import arithmetic, make, make_all, networks
from ipuperf.ir import FLOAT16, FLOAT32, Tensor
from ipuperf.ops import CtcBeamSearchDecoder, CtcLoss, CtcLossGrad

from ..effects import EFFECTS, checked_kinds
from ..importer.multi_convs import multi_conv_scope
from .device_function import device_function


@checked_kinds()
def gelu(x: Any, name: str | None = None) -> tf.Tensor:
    """Gaussian error linear unit in PopLibs' approximation by ``tanh``."""
    return tf.nn.gelu(x, approximate=True, name=name)


@checked_kinds()
def hard_sigmoid(x: Any, name: str | None = None) -> tf.Tensor:
    """``0.2 x + 0.5``, limited to 0 and 1."""
    x = tf.convert_to_tensor(x)
    return tf.clip_by_value(0.2 * x + 0.5, 0.0, 1.0, name=name)


@checked_kinds()
def swish(x: Any, name: str | None = None) -> tf.Tensor:
    """``x`` times its sigmoid."""
    x = tf.convert_to_tensor(x)
    return tf.multiply(x, tf.sigmoid(x), name=name)


@checked_kinds()
def softmax(x: Any, stable: bool = False, name: str | None = None) -> tf.Tensor:
    """Softmax over the last axis."""
    EFFECTS.given("ipu.nn_ops.softmax(stable)", stable)
    return tf.nn.softmax(x, name=name)


@checked_kinds("options")
def multi_conv(func: Callable[..., Any] | None = None, options: Mapping[str, str] | None = None) -> Any:
    """A function (or decorator) whose convolutions are one op, planned together, and so are their gradients.

    ``options``: PopLibs' options of a multi-convolution by name: ``planType`` (``parallel``: side by side on tiles of
    their own, the default; ``serial``), ``perConvReservedTiles`` (50), ``cycleBackOff`` (0.1).

    Raises (when called):
        TypeError: ``options`` is no dictionary. ValueError: an unknown option, or a value it cannot have.
        GraphError: one convolution needs the result of another (when the program is built).
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if options is not None and not isinstance(options, dict):
                raise TypeError(f"Expected the multi_conv `options` to be a `dict`, but got {options} instead.")
            with multi_conv_scope(options or {}):
                return function(*args)

        return call

    return decorated if func is None else decorated(func)


@checked_kinds()
def ctc_loss_v2(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> tf.Tensor:
    """``-log p(labels)`` of each sequence ``[batch]``.

    Args:
        labels: ``[batch, most labels]``; label_length, logit_length: ``[batch]``.
        logits: ``[time, batch, classes]``.
        blank_index: the class that is no label.
        out_dtype: of the losses; default: that of ``logits``.

    Raises:
        ValueError: float16 losses of float32 logits.
    """
    return ctc_losses(name or "ctc_loss", labels, logits, label_length, logit_length, blank_index, out_dtype, True)


@checked_kinds()
def ctc_loss_with_log_probs(
    labels: Any,
    data: Any,
    label_length: Any,
    data_length: Any,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> tf.Tensor:
    """:func:`ctc_loss_v2` of logarithms of probabilities; its gradient is that for logits of which they are the
    log-softmax."""
    return ctc_losses(name or "ctc_loss", labels, data, label_length, data_length, blank_index, out_dtype, False)


ctc_loss_with_logits = ctc_loss_v2
ctc_loss = ctc_loss_with_log_probs


@checked_kinds()
def ctc_beam_search_decoder(
    logits: Any,
    logits_lengths: Any,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The likeliest labels of sequences.

    Args:
        logits: ``[time, batch, classes]``; logits_lengths: ``[batch]``.
        beam_width: prefixes that are kept from step to step; top_paths: how many come back.
        blank_index: the class that is no label; negative ones count from the end.

    Returns:
        Negative logarithms of the paths' probabilities and the paths' lengths ``[batch, top_paths]``, their labels
        ``[batch, top_paths, time]``, padded with the blank.
    """
    op_name = name or "ctc_beam_search"
    return ctc_paths(op_name, logits, logits_lengths, beam_width, top_paths, blank_index, True)


@checked_kinds()
def ctc_beam_search_decoder_with_log_probs(
    log_probs: Any,
    input_lengths: Any,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """:func:`ctc_beam_search_decoder` of logarithms of probabilities."""
    op_name = name or "ctc_beam_search"
    return ctc_paths(op_name, log_probs, input_lengths, beam_width, top_paths, blank_index, False)


def ctc_losses(
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
    loss_dtype = FLOAT16 if kind == tf.float16 else FLOAT32

    def logs_of(scores: Tensor) -> Tensor:
        return networks.log_softmax(scores, -1) if logits else scores

    def forward(scores: Tensor, *sequences: Tensor) -> Tensor:
        losses = make(CtcLoss, logs_of(scores), *sequences, blank=blank)
        return losses if loss_dtype == FLOAT32 else arithmetic.cast(losses, loss_dtype)

    def backward(grad: Tensor, scores: Tensor, *sequences: Tensor) -> Tensor:
        wide = grad if grad.dtype == FLOAT32 else arithmetic.cast(grad, FLOAT32)
        return make(CtcLossGrad, wide, logs_of(scores), *sequences, blank=blank)

    def gradient(inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        spec = tf.TensorSpec(scores.shape, scores.dtype)
        score_grads = device_function(f"{name}_grad", backward, [grads[0], *inputs], [spec])
        return [*score_grads, None, None, None]

    operands = [scores, *(_whole(value) for value in (labels, data_length, label_length))]
    return device_function(name, forward, operands, [tf.TensorSpec(scores.shape[1:2], kind)], gradient)[0]


def ctc_paths(
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

    def function(scores: Tensor, sizes: Tensor) -> list[Tensor]:
        logs = networks.log_softmax(scores, -1) if logits else scores
        names = ["probabilities", "lengths", "labels"]
        chances, counts, labels = make_all(CtcBeamSearchDecoder, [logs, sizes], names, **settings)
        negative = arithmetic.negate(chances)
        return [negative if negative.dtype == scores.dtype else arithmetic.cast(negative, scores.dtype), counts, labels]

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


@checked_kinds()
def dropout(
    x: Any,
    rate: float = 0.5,
    noise_shape: Any = None,
    seed: Any = None,
    ref: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> tf.Tensor:
    """Set elements to zero at ``rate``, and scale the others by ``1 / (1 - rate)``.

    Args:
        noise_shape: shape of the mask; axes of length 1 share theirs.
        seed: no effect: masks follow from the program's seed.
        ref: no effect: a mask is the same in the backward pass anyway.

    Raises:
        ValueError: a rate outside of ``[0, 1)``. TypeError: unknown arguments.
    """
    if kwargs:
        raise TypeError(f"dropout: unknown arguments {', '.join(kwargs)}")
    EFFECTS.given("ipu.rand_ops.dropout(seed)", seed)
    EFFECTS.given("ipu.rand_ops.dropout(ref)", ref)
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be in the range [0, 1), it is {rate}")
    return tf.nn.dropout(x, rate, noise_shape=noise_shape, name=name)


@checked_kinds()
def normalise_image(
    image: Any, channel_offsets: Any, channel_scales: Any, scale: float = 1, name: str | None = None
) -> tf.Tensor:
    """``(image * scale - channel_offsets) * channel_scales`` with a fourth channel of zeros.

    Args:
        image: ``(..., 3)``, uint8, float16 or float32.

    Returns:
        ``(..., 4)`` of the image's type, float16 for uint8.

    Raises:
        TypeError: another type. ValueError: another number of channels.
    """
    image = tf.convert_to_tensor(image)
    if image.dtype not in (tf.float16, tf.float32, tf.uint8):
        raise TypeError("The input `image` to `normalise_image` must be either float16, float32 or uint8.")
    if image.shape[-1] != 3:
        raise ValueError(f"normalise_image: the image has shape {image.shape}; three channels are needed")
    dtype = tf.float16 if image.dtype == tf.uint8 else image.dtype
    offsets, scales = tf.cast(channel_offsets, dtype), tf.cast(channel_scales, dtype)
    normalised = (tf.cast(image, dtype) * tf.cast(scale, dtype) - offsets) * scales
    return tf.pad(normalised, [*[[0, 0]] * (image.shape.rank - 1), [0, 1]], name=name)


@checked_kinds()
def segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> tf.Tensor:
    """Sums of the rows of ``data`` with equal numbers in ``segment_ids`` (sorted): ``(num_segments, ...)``."""
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments, name=name)


@checked_kinds()
def serialized_matmul(
    a: Any,
    b: Any,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """``a @ b``, made of ``serialization_factor`` products one after the other.

    Args:
        serialization_dimension: ``a_columns`` (the rows of the product), ``b_rows`` (its columns), ``a_rows_b_columns``
            (the axis that is summed over).

    Raises:
        ValueError: another axis, or a factor that does not divide it.
    """
    a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
    a = tf.linalg.matrix_transpose(a) if transpose_a else a
    b = tf.linalg.matrix_transpose(b) if transpose_b else b
    axes = {"a_columns": -2, "a_rows_b_columns": -1, "b_rows": -1}
    if serialization_dimension not in axes:
        raise ValueError(
            f"serialization_dimension is {serialization_dimension!r}{instead_of(serialization_dimension, axes)}"
        )
    axis = axes[serialization_dimension]
    for name, shape in (("a", a.shape), ("b", b.shape)):
        if len(shape) < 2:
            raise ValueError(f"serialized_matmul: {name} has shape {shape}; at least two axes are needed")
    size = int((b if serialization_dimension == "b_rows" else a).shape[axis])
    if serialization_factor < 1 or size % serialization_factor:
        raise ValueError(
            f"serialization_factor {serialization_factor} does not divide {serialization_dimension} ({size})"
        )
    if serialization_dimension == "a_columns":
        parts = [tf.matmul(part, b) for part in tf.split(a, serialization_factor, axis=-2)]
        return tf.concat(parts, axis=-2, name=name)
    if serialization_dimension == "b_rows":
        parts = [tf.matmul(a, part) for part in tf.split(b, serialization_factor, axis=-1)]
        return tf.concat(parts, axis=-1, name=name)
    pairs = zip(tf.split(a, serialization_factor, axis=-1), tf.split(b, serialization_factor, axis=-2))
    return tf.add_n([tf.matmul(left, right) for left, right in pairs], name=name)
