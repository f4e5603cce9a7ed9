"""Layers of upstream that are not here, each with what to use instead."""

from __future__ import annotations

from typing import Any

_INSTEAD = {
    "CTCInferenceLayer": "take the network's output with `predict` and decode it on the host, e.g. tf.nn.ctc_beam_search_decoder",
    "CTCPredictionsLayer": "decode the output of `predict` on the host, e.g. with tf.nn.ctc_beam_search_decoder",
    "CTCLoss": "a PopTorch program has torch.nn.CTCLoss",
    "EffectiveTransformer": "use attention layers of tf.keras with padded sequences",
    "CaptureUpstreamGradients": "compute the gradients with tf.GradientTape in a `train_step` of the model's own",
    "CaptureActivationGradients": "compute the gradients with tf.GradientTape in a `train_step` of the model's own",
}


def refused(name: str) -> type:
    """A class called ``name`` that raises NotImplementedError when it is made."""

    def init(self: Any, *_: Any, **__: Any) -> None:
        raise NotImplementedError(f"ipu.keras: {name} is not supported: {_INSTEAD[name]}.")

    return type(name, (), {"__init__": init, "__doc__": f"Not supported: {_INSTEAD[name]}."})
