"""Functions of neural networks, with the formulas of PopLibs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....effects import EFFECTS
from ....functions import ctc
from ....functions.multi_convs import multi_conv_scope
from ....refusals import refused


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

    def decorated(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if options is not None and not isinstance(options, dict):
                raise TypeError(f"Expected the multi_conv `options` to be a `dict`, but got {options} instead.")
            with multi_conv_scope(options or {}):
                return inner(*args)

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
    return ctc.loss(name or "ctc_loss", labels, logits, label_length, logit_length, blank_index, out_dtype, True)


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
    return ctc.loss(name or "ctc_loss", labels, data, label_length, data_length, blank_index, out_dtype, False)


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
    found = name or "ctc_beam_search"
    return ctc.beam_search(found, logits, logits_lengths, beam_width, top_paths, blank_index, True)


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
    found = name or "ctc_beam_search"
    return ctc.beam_search(found, log_probs, input_lengths, beam_width, top_paths, blank_index, False)


_SAMPLED = "candidates are sampled by an op that the IPU does not have; compute the full softmax"
nce_loss = refused("nn_ops.nce_loss", _SAMPLED)
sampled_softmax_loss = refused("nn_ops.sampled_softmax_loss", _SAMPLED)

__all__ = [
    "ctc_beam_search_decoder",
    "ctc_beam_search_decoder_with_log_probs",
    "ctc_loss",
    "ctc_loss_v2",
    "ctc_loss_with_log_probs",
    "ctc_loss_with_logits",
    "gelu",
    "hard_sigmoid",
    "multi_conv",
    "nce_loss",
    "sampled_softmax_loss",
    "softmax",
    "swish",
]
