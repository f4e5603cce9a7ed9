"""Recurrent layers of PopNN in TensorFlow's graph: one op for all time steps (:mod:`ipuperf.ops.recurrent.layer`).

Upstream: ``tensorflow: compiler/plugin/poplar/driver/ops/custom_ops/popnn/{lstm,gru}.cc`` and
``python/ipu/ops/rnn_ops_grad.py``. Layouts: sequences are ``[time, batch, ...]``, states ``[batch, units]``, weights
``[inputs, gates * units]`` and ``[units, gates * units]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ipuperf.functions.recurrences import recurrent
from ipuperf.ir import CONTEXT, FLOAT16, FLOAT32, DType, Tensor
from ipuperf.ops.recurrent.cells import CELLS
from ipuperf.ops.recurrent.layer import recurrent_gradients

from ..effects import EFFECTS
from ..programs.devices import PLAN_OPTIONS, of_gradient, plan_attributes
from .device_function import device_function

#: Names that candidates, and gates, may have as functions.
ACTIVATIONS = ("tanh", "relu", "softmax", "sigmoid", "hard_sigmoid")
RECURRENT_ACTIVATIONS = ("tanh", "softmax", "sigmoid", "hard_sigmoid")


def recurrence(
    name: str,
    cell: str,
    operands: Sequence[Any],
    states: Sequence[Any],
    *,
    trains: bool,
    lengths: Any = None,
    scores: Any = None,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """Results ``[time, batch, units]`` of a layer and the states after the last step, the result first.

    Args:
        name: of the op, and in errors.
        cell: ``lstm``, ``gru`` (the reset gate after the product of the state) or ``gru_reset_first``.
        operands: the sequence, both weights, the biases.
        states: before the first step, the result first.
        trains: there may be gradients.
        lengths: ``[batch]``: behind the end of a sequence results are 0 and states stay as they are.
        scores: ``[time, batch]``: those of an attention.
        options: attributes of the op, besides.
    """
    x = tf.convert_to_tensor(operands[0])
    rows = [] if lengths is None else [tf.cast(lengths, tf.int32)]
    rows += [] if scores is None else [scores]
    attributes = {"cell": cell, "inputs_first": True, **options}
    attributes |= {"lengths": lengths is not None, "scored": scores is not None}

    def function(*tensors: Tensor) -> list[Tensor]:
        return recurrent(tensors, trains=trains, **attributes)[0]

    def gradient(operands: Sequence[Any], results: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        if not trains:
            raise ValueError(f"To use {name} in gradients, is_training must be set to True.")
        return _gradient(f"{name}_grad", {**attributes, "trains": True}, operands, results, grads)

    (time, batch, _), units, count = x.shape, states[0].shape[-1], CELLS[cell].states
    # What the backward pass reads comes out as further results, in training only.
    widths = [*[1] * (count - 1), CELLS[cell].kept] if trains else []
    specs = [
        tf.TensorSpec([time, batch, units], x.dtype),
        *[tf.TensorSpec([batch, units], x.dtype)] * count,
        *(tf.TensorSpec([time, batch, width * units], x.dtype) for width in widths),
    ]
    outputs = device_function(name, function, [x, *operands[1:], *states, *rows], specs, gradient)
    return outputs[0], outputs[1 : 1 + count]


def _gradient(
    name: str, attributes: Mapping[str, Any], inputs: Sequence[Any], results: Sequence[Any], grads: Sequence[Any]
) -> list[Any]:
    """Gradients of what a layer has taken; those of lengths are None."""
    number, ends = len(inputs), 1 + CELLS[attributes["cell"]].states

    def backward(*operands: Tensor | None) -> list[Tensor]:
        tensors = [t for t in operands[: number + len(results)] if t is not None]
        # Only the result and the states have gradients; what is kept for the backward pass has none.
        arriving = [*operands[number + len(results) :], *[None] * (len(results) - ends)]
        gradients = recurrent_gradients(
            CONTEXT.builder, attributes, tensors[:number], tensors[number:], arriving, lambda t: t
        )
        return [grad for grad in gradients if grad is not None]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in inputs if t.dtype.is_floating]
    gradients = iter(device_function(name, backward, [*inputs, *results, *grads[:ends]], specs, absent=ends))
    return [next(gradients) if t.dtype.is_floating else None for t in inputs]


def activation_name(activation: Any, allowed: Sequence[str], message: Callable[[str], str]) -> str:
    """The name of an activation (a name, or one of Keras' functions).

    Raises:
        ValueError: ``message(name)``, for one that is not among the ``allowed`` ones.
    """
    name = activation if isinstance(activation, str) else getattr(activation, "__name__", str(activation))
    if name not in allowed:
        raise ValueError(message(name))
    return name


def plans(
    partials_dtype: Any,
    forward: float | None,
    backward: float | None,
    options: Mapping[str, Any] | None,
    options_bwd: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Attributes of the op for a layer's arguments: type of partial sums, shares of memory (None, -1: the program's) of
    the forward and the backward pass (None: as forwards), and options of both, which come before those.

    Raises:
        ValueError: another type of partial sums than float16 and float32.
    """
    kinds = {tf.float16: FLOAT16, tf.float32: FLOAT32}
    kind = kinds.get(tf.as_dtype(partials_dtype))
    if kind is None:
        raise ValueError(f"partials_dtype {partials_dtype!r}; allowed: float16, float32")
    behind = forward if backward is None else backward
    return {
        **_pass_plans(kind, forward, options or {}),
        **of_gradient(_pass_plans(kind, behind, options_bwd or {})),
    }


def _pass_plans(kind: DType, share: float | None, options: Mapping[str, Any]) -> dict[str, Any]:
    if set(options) - PLAN_OPTIONS:
        EFFECTS.given("ipu.keras.layers.LSTM(options, other keys)", dict(options))
    attributes: dict[str, Any] = {"partials_dtype": kind}
    if share is not None and share != -1:
        attributes["available_memory_proportion"] = float(share)
    return {**attributes, **plan_attributes(options)}
