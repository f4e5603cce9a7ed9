"""Recurrences over time as loops: what the recurrent layers of PopNN have in common.

PopLibs (``lib/popnn/{Lstm,Gru}.cpp``) makes the products of the inputs of all time steps at once, then loops over the
steps; so does this. Layouts: sequences are ``[time, batch, ...]``, states ``[batch, units]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

#: ``step(inputs of a time step, states, number of the step)``: the states after it, the result first.
Step = Callable[[list[Any], list[Any]], list[Any]]


def run(step: Step, sequences: Sequence[Any], states: Sequence[Any], lengths: Any = None) -> tuple[Any, list[Any]]:
    """Results ``[time, batch, units]`` and the states after the last step.

    Args:
        step: ``step(inputs, states)``: the states after a time step, the result first; ``inputs`` has an element of
            each of ``sequences``.
        lengths: ``[batch]``: behind the end of a sequence results are 0 and states stay as they are.
    """
    time = sequences[0].shape[0]
    given = [tf.TensorArray(s.dtype, time, element_shape=s.shape[1:]).unstack(s) for s in sequences]
    results = tf.TensorArray(states[0].dtype, time, element_shape=states[0].shape)

    def body(number: Any, results: Any, *before: Any) -> tuple[Any, ...]:
        after = step([s.read(number) for s in given], list(before))
        result = after[0]
        if lengths is not None:
            inside = (number < lengths)[:, tf.newaxis]
            result = tf.where(inside, result, tf.zeros_like(result))
            after = [tf.where(inside, new, old) for new, old in zip(after, before)]
        return (number + 1, results.write(number, result), *after)

    first = (tf.constant(0), results, *states)
    _, results, *after = tf.while_loop(lambda number, *_: number < time, body, first, maximum_iterations=time)
    return results.stack(), list(after)


def products(sequence: Any, kernel: Any, bias: Any = None) -> Any:
    """``sequence @ kernel + bias`` of all time steps in one product."""
    time, _, inputs = sequence.shape
    flat = tf.matmul(tf.reshape(sequence, [-1, inputs]), kernel)
    flat = flat if bias is None else flat + bias
    return tf.reshape(flat, [time, -1, kernel.shape[1]])


def lstm_step(kernel: Any, activation: Callable[[Any], Any], gate: Callable[[Any], Any]) -> Step:
    """A time step of an LSTM: inputs are products ``[batch, 4 * units]`` of the gates input, forget, cell, output;
    states are output and cell; ``kernel [units, 4 * units]``."""

    def step(inputs: list[Any], states: list[Any]) -> list[Any]:
        h, c = states
        i, f, g, o = tf.split(inputs[0] + tf.matmul(h, kernel), 4, axis=1)
        c = gate(f) * c + gate(i) * activation(g)
        return [gate(o) * activation(c), c]

    return step


def gru_step(
    kernel: Any,
    bias: Any,
    activation: Callable[[Any], Any],
    gate: Callable[[Any], Any],
    *,
    update_first: bool,
) -> Step:
    """A time step of a GRU: inputs are products ``[batch, 3 * units]`` of the gates and the candidate, and, where there
    are two, scores of attention ``[batch]``, which weaken the update gate; ``kernel [units, 3 * units]``.

    Args:
        bias: ``[3 * units]`` of the states' products, where the reset gate is applied after them; None: before.
        update_first: the gates are update, reset, not reset, update.
    """
    units = kernel.shape[0]

    def step(inputs: list[Any], states: list[Any]) -> list[Any]:
        (h,) = states
        *x, x_candidate = tf.split(inputs[0], 3, axis=1)
        if bias is None:
            first, second = tf.split(tf.matmul(h, kernel[:, : 2 * units]), 2, axis=1)
        else:
            first, second, recurrent = tf.split(tf.matmul(h, kernel) + bias, 3, axis=1)
        gates = [gate(x[0] + first), gate(x[1] + second)]
        update, reset = gates if update_first else reversed(gates)
        if bias is None:
            recurrent = tf.matmul(reset * h, kernel[:, 2 * units :])
            candidate = activation(x_candidate + recurrent)
        else:
            candidate = activation(x_candidate + reset * recurrent)
        if len(inputs) > 1:
            update = update * (1 - inputs[1][:, tf.newaxis])
        return [update * h + (1 - update) * candidate]

    return step
