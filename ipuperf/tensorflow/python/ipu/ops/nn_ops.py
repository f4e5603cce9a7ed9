"""Functions of neural networks, with the formulas of PopLibs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from ....effects import EFFECTS
from ....multi_convs import multi_conv_scope
from ....refusals import refused


def gelu(x: Any, name: str | None = None) -> tf.Tensor:
    """Gaussian error linear unit in PopLibs' approximation by ``tanh``."""
    return tf.nn.gelu(x, approximate=True, name=name)


def hard_sigmoid(x: Any, name: str | None = None) -> tf.Tensor:
    """``0.2 x + 0.5``, limited to 0 and 1."""
    x = tf.convert_to_tensor(x)
    return tf.clip_by_value(0.2 * x + 0.5, 0.0, 1.0, name=name)


def swish(x: Any, name: str | None = None) -> tf.Tensor:
    """``x`` times its sigmoid."""
    x = tf.convert_to_tensor(x)
    return tf.multiply(x, tf.sigmoid(x), name=name)


def softmax(x: Any, stable: bool = False, name: str | None = None) -> tf.Tensor:
    """Softmax over the last axis."""
    EFFECTS.given("ipu.nn_ops.softmax(stable)", stable)
    return tf.nn.softmax(x, name=name)


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


_CTC = "use tf.nn.ctc_loss on the host, in the input pipeline or between runs"
_SAMPLED = "candidates are sampled by an op that the IPU does not have; compute the full softmax"
ctc_loss_v2 = refused("nn_ops.ctc_loss_v2", _CTC)
ctc_loss_with_log_probs = refused("nn_ops.ctc_loss_with_log_probs", _CTC)
ctc_beam_search_decoder = refused("nn_ops.ctc_beam_search_decoder", _CTC)
ctc_beam_search_decoder_with_log_probs = refused("nn_ops.ctc_beam_search_decoder_with_log_probs", _CTC)
nce_loss = refused("nn_ops.nce_loss", _SAMPLED)
sampled_softmax_loss = refused("nn_ops.sampled_softmax_loss", _SAMPLED)

__all__ = [
    "ctc_beam_search_decoder",
    "ctc_beam_search_decoder_with_log_probs",
    "ctc_loss_v2",
    "ctc_loss_with_log_probs",
    "gelu",
    "hard_sigmoid",
    "multi_conv",
    "nce_loss",
    "sampled_softmax_loss",
    "softmax",
    "swish",
]
