"""Recurrent layers of PopNN: one layer, sequences ``[time, batch, inputs]``.

Upstream: ``tensorflow: python/ipu/ops/rnn_ops.py``. The kernel ``[inputs + units, gates * units]`` has the rows of the
inputs first; gates are in the order input, forget, cell, output of an LSTM, update, reset, candidate of a GRU
(``driver/tools/rnn_util.cc``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ipuperf.base.near_names import instead_of

from .recurrences import ACTIVATIONS, RECURRENT_ACTIVATIONS, activation_name, plans, recurrence

tf1 = tf.compat.v1


class _Popnn(tf1.layers.Layer):  # type: ignore[name-defined]
    """What the layers have in common.

    Args:
        num_units: elements of the state.
        dtype: float32 or float16.
        partials_dtype, available_memory_proportion_fwd, available_memory_proportion_bwd, options, options_bwd: of the
            products of a step (:func:`.recurrences.plans`).
        return_state: the states after the last step are a result too.
        seed: of the default initializer of the kernel, Glorot's uniform one.
        weights_initializer, bias_initializer: of ``kernel`` and ``biases`` (default: zeros).
        activation, recurrent_activation: names.

    Raises:
        ValueError: another type or activation.
    """

    gates = 0

    def __init__(
        self,
        num_units: int,
        dtype: Any = tf.float32,
        partials_dtype: Any = tf.float32,
        seed: int | None = None,
        weights_initializer: Any = None,
        bias_initializer: Any = None,
        activation: str = "tanh",
        recurrent_activation: str = "sigmoid",
        name: str | None = None,
        available_memory_proportion_fwd: float | None = None,
        available_memory_proportion_bwd: float | None = None,
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
        return_state: bool = True,
    ) -> None:
        super().__init__(dtype=dtype, name=name)
        if tf.as_dtype(dtype) not in (tf.float16, tf.float32):
            raise ValueError(f"Only support float16, float32, provided {dtype}")
        self._attributes = {
            "activation": _named(activation, ACTIVATIONS),
            "gate": _named(recurrent_activation, RECURRENT_ACTIVATIONS),
            **plans(
                partials_dtype, available_memory_proportion_fwd, available_memory_proportion_bwd, options, options_bwd
            ),
        }
        self.num_units = num_units
        self._initializers = weights_initializer, bias_initializer
        self._seed = seed
        self._return_state = return_state

    @property
    def num_layers(self) -> int:
        """1."""
        return 1

    @property
    def input_size(self) -> int:
        """Elements of an input.

        Raises:
            ValueError: there has been none yet.
        """
        if not self.built:
            raise ValueError("'input_size' is unknown since layer has not been built.")
        return int(self.kernel.shape[0]) - self.num_units

    @property
    def canonical_weight_shape(self) -> list[int]:
        """Shape of the kernel."""
        return [self.input_size + self.num_units, self.gates * self.num_units]

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Shape of the biases."""
        return [self.gates, self.num_units]

    def build(self, input_shape: Any) -> None:
        """Make ``kernel`` and ``biases``.

        Raises:
            ValueError: inputs of another rank, or of unknown size.
        """
        shape = tf.TensorShape(input_shape)
        if shape.rank != 3:
            raise ValueError(f"Expecting input_shape with 3 dims, got {shape.rank}")
        if shape[-1] is None:
            raise ValueError("The last dimension of the inputs should be defined. Found `None`.")
        weights, bias = self._initializers
        size = [shape[-1] + self.num_units, self.gates * self.num_units]
        glorot = tf1.glorot_uniform_initializer(self._seed)
        self.kernel = self.add_weight("kernel", shape=size, initializer=weights or glorot)
        zeros = tf1.zeros_initializer()
        self.biases = self._biases("biases", bias or zeros)
        self.built = True

    def _biases(self, name: str, initializer: Any) -> Any:
        return self.add_weight(name, shape=self.canonical_bias_shapes, initializer=initializer)

    def state_shape(self, batch_size: int) -> Any:
        """Shape of a state."""
        return [batch_size, self.num_units]

    def _zeros(self, inputs: Any) -> Any:
        return tf.zeros([inputs.shape[1], self.num_units], inputs.dtype)

    def _operands(self, inputs: Any, biases: Sequence[Any]) -> list[Any]:
        """The sequence, the rows of the kernel for the inputs and for the state, the biases."""
        size = inputs.shape[-1]
        return [inputs, self.kernel[:size], self.kernel[size:], *(tf.reshape(bias, [-1]) for bias in biases)]


def _named(activation: Any, allowed: Sequence[str]) -> str:
    return activation_name(
        activation, allowed, lambda name: f"activation {name!r} is not supported{instead_of(name, allowed)}"
    )


def time_first(inputs: Any, time_major: bool) -> Any:
    """Inputs as ``[time, batch, inputs]``."""
    return inputs if time_major else tf.transpose(inputs, [1, 0, 2])


class _Lstm(_Popnn):
    """Long short-term memory."""

    gates = 4

    def state_shape(self, batch_size: int) -> Any:
        """Shapes of cell and output."""
        return ([batch_size, self.num_units],) * 2

    def _over(self, inputs: Any, lengths: Any, initial_state: Any, training: bool) -> Any:
        tuple_of = tf1.nn.rnn_cell.LSTMStateTuple
        x = tf.convert_to_tensor(inputs, self.dtype)
        if initial_state is None:
            initial_state = tuple_of(self._zeros(x), self._zeros(x))
        if type(initial_state).__name__ != "LSTMStateTuple":
            raise ValueError(f"Invalid initial_state type: `{type(initial_state)}`, expecting `LSTMStateTuple`.")
        c, h = (tf.convert_to_tensor(state, self.dtype) for state in initial_state)
        how = {"trains": bool(training), "lengths": lengths, **self._attributes}
        outputs, (h, c) = recurrence("PopnnLstmLayer", "lstm", self._operands(x, [self.biases]), [h, c], **how)
        return (outputs, tuple_of(c, h)) if self._return_state else outputs


class PopnnLSTM(_Lstm):
    """Long short-term memory: ``(outputs [time, batch, units], LSTMStateTuple(c, h))``. See the base class for the
    arguments."""

    def call(self, inputs: Any, initial_state: Any = None, training: bool = True) -> Any:
        """Run over a sequence from ``initial_state``, an ``LSTMStateTuple``; default: zeros. ``training``: what the
        backward pass needs is kept, and there may be one.

        Raises:
            ValueError: another initial state, or gradients without ``training``.
        """
        return self._over(inputs, None, initial_state, training)


class PopnnDynamicLSTM(_Lstm):
    """:class:`PopnnLSTM` over sequences of several lengths."""

    def call(self, inputs: Any, seq_len: Any, initial_state: Any = None, training: bool = True) -> Any:
        """As there; ``seq_len [batch]``: outputs behind the end of a sequence are 0."""
        return self._over(inputs, seq_len, initial_state, training)


class _Gru(_Popnn):
    """Gated recurrent unit. ``reset_after``: the reset gate is applied after the product."""

    gates = 3

    def __init__(
        self,
        num_units: int,
        dtype: Any = tf.float32,
        partials_dtype: Any = tf.float32,
        seed: int | None = None,
        weights_initializer: Any = None,
        bias_initializer: Any = None,
        activation: str = "tanh",
        recurrent_activation: str = "sigmoid",
        name: str | None = None,
        reset_after: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            num_units, dtype, partials_dtype, seed, weights_initializer, bias_initializer, activation,
            recurrent_activation, name, **options,
        )  # fmt: skip
        self._reset_after = reset_after

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Shape of the biases: with ``reset_after`` those of inputs and of states."""
        return [3, 2, self.num_units] if self._reset_after else [3, self.num_units]

    def _over(
        self, inputs: Any, biases: Any, initial_state: Any, training: bool, lengths: Any = None, scores: Any = None
    ) -> Any:
        x = tf.convert_to_tensor(inputs, self.dtype)
        state = self._zeros(x) if initial_state is None else tf.convert_to_tensor(initial_state, self.dtype)
        cell = "gru" if self._reset_after else "gru_reset_first"
        operands = self._operands(x, [biases[:, 0], biases[:, 1]] if self._reset_after else [biases])
        how = {"trains": bool(training), "lengths": lengths, "scores": scores, **self._attributes}
        outputs, (state,) = recurrence("PopnnGRULayer", cell, operands, [state], update_first=True, **how)
        return (outputs, state) if self._return_state else outputs


class PopnnGRU(_Gru):
    """Gated recurrent unit: ``(outputs [time, batch, units], state)``. See the base classes for the arguments."""

    def call(self, inputs: Any, initial_state: Any = None, training: bool = True) -> Any:
        """Run over a sequence from ``initial_state``; default: zeros. ``training``: as of :class:`PopnnLSTM`."""
        return self._over(inputs, self.biases, initial_state, training)


class _DynamicGru(_Gru):
    """With biases of its own: ``bias_r_u`` (ones) and ``bias_c`` (zeros), which both products have with
    ``reset_after``."""

    def _biases(self, name: str, initializer: Any) -> Any:
        ones, zeros = tf1.ones_initializer(), tf1.zeros_initializer()
        self._bias_r_u = self.add_weight("bias_r_u", shape=[2, self.num_units], initializer=ones)
        self._bias_c = self.add_weight("bias_c", shape=[1, self.num_units], initializer=zeros)
        return super()._biases(name, initializer)

    def _own_biases(self) -> Any:
        biases = tf.concat([self._bias_r_u, self._bias_c], 0)
        return tf.stack([biases, biases], 1) if self._reset_after else biases


class PopnnDynamicGRU(_DynamicGru):
    """:class:`PopnnGRU` over sequences of several lengths, with biases of its own (as upstream, ``biases`` is
    there too, and unused)."""

    def call(
        self, inputs: Any, seq_len: Any, initial_state: Any = None, training: bool = True, time_major: bool = True
    ) -> Any:
        """As there; ``seq_len [batch]``: outputs behind the end of a sequence are 0. Without ``time_major`` inputs are
        ``[batch, time, inputs]``."""
        return self._over(time_first(inputs, time_major), self._own_biases(), initial_state, training, seq_len)


class PopnnAUGRU(_DynamicGru):
    """:class:`PopnnDynamicGRU` whose update gate is multiplied by 1 less a score of attention."""

    def call(
        self,
        inputs: Any,
        seq_len: Any,
        attention_score: Any,
        initial_state: Any = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """As there; ``attention_score [time, batch]``, where sizes tell also ``[batch, time]`` (as upstream's documents
        have it); without ``time_major`` ``[batch, time]``."""
        inputs = time_first(inputs, time_major)
        scores = tf.convert_to_tensor(attention_score, self.dtype)
        time, batch, _ = inputs.shape
        by_time = time_major and scores.shape.as_list() == [time, batch]
        scores = scores if by_time else tf.transpose(scores)
        return self._over(inputs, self._own_biases(), initial_state, training, seq_len, scores)
