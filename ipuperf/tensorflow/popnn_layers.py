"""Recurrent layers of PopNN: one layer, sequences ``[time, batch, inputs]``.

Upstream: ``tensorflow: python/ipu/ops/rnn_ops.py``. The kernel ``[inputs + units, gates * units]`` has the rows of the
inputs first; gates are in the order input, forget, cell, output of an LSTM (``driver/tools/rnn_util.cc``), reset,
update, candidate of a GRU (PopLibs' default).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from .effects import EFFECTS
from .recurrences import Step, gru_step, lstm_step, products, run

tf1 = tf.compat.v1
_ACTIVATIONS = ("tanh", "relu", "softmax", "sigmoid", "hard_sigmoid")
_RECURRENT = ("tanh", "softmax", "sigmoid", "hard_sigmoid")


class _Popnn(tf1.layers.Layer):  # type: ignore[name-defined]
    """What the layers have in common.

    Args:
        num_units: elements of the state.
        dtype: float32 or float16.
        partials_dtype, available_memory_proportion_fwd, available_memory_proportion_bwd: without effect.
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
    ) -> None:
        super().__init__(dtype=dtype, name=name)
        if tf.as_dtype(dtype) not in (tf.float16, tf.float32):
            raise ValueError(f"Only support float16, float32, provided {dtype}")
        EFFECTS.given("ipu.keras.layers.LSTM(partials_dtype)", tf.as_dtype(partials_dtype).name)
        EFFECTS.given("ipu.keras.layers.LSTM(available_memory_proportion_fwd)", available_memory_proportion_fwd)
        EFFECTS.given("ipu.keras.layers.LSTM(available_memory_proportion_bwd)", available_memory_proportion_bwd)
        self.num_units = num_units
        self._initializers = weights_initializer, bias_initializer
        self._seed = seed
        self._activation = _activation(activation, _ACTIVATIONS)
        self._recurrent_activation = _activation(recurrent_activation, _RECURRENT)

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
        self.biases = self.add_weight("biases", shape=self.canonical_bias_shapes, initializer=bias or zeros)
        self.built = True

    def state_shape(self, batch_size: int) -> Any:
        """Shape of a state."""
        return [batch_size, self.num_units]

    def _zeros(self, inputs: Any) -> Any:
        return tf.zeros([inputs.shape[1], self.num_units], inputs.dtype)

    def _kernels(self, inputs: Any) -> tuple[Any, Any]:
        """The rows of the inputs, and those of the state."""
        size = inputs.shape[-1]
        return self.kernel[:size], self.kernel[size:]


def _activation(name: str, allowed: tuple[str, ...]) -> Callable[[Any], Any]:
    if name not in allowed:
        raise ValueError(f"activation {name!r} is not supported; allowed: {', '.join(allowed)}")
    found: Callable[[Any], Any] = tf_keras.activations.get(name)
    return found


class _Lstm(_Popnn):
    """Long short-term memory."""

    gates = 4

    def state_shape(self, batch_size: int) -> Any:
        """Shapes of cell and output."""
        return ([batch_size, self.num_units],) * 2

    def _over(self, inputs: Any, lengths: Any, initial_state: Any) -> Any:
        tuple_of = tf1.nn.rnn_cell.LSTMStateTuple
        x = tf.convert_to_tensor(inputs, self.dtype)
        if initial_state is None:
            initial_state = tuple_of(self._zeros(x), self._zeros(x))
        if type(initial_state).__name__ != "LSTMStateTuple":
            raise ValueError(f"Invalid initial_state type: `{type(initial_state)}`, expecting `LSTMStateTuple`.")
        c, h = (tf.convert_to_tensor(state, self.dtype) for state in initial_state)
        own, recurrent = self._kernels(x)
        step = lstm_step(recurrent, self._activation, self._recurrent_activation)
        weighted = products(x, own, tf.reshape(self.biases, [-1]))
        outputs, (h, c) = run(step, [weighted], [h, c], lengths)
        return outputs, tuple_of(c, h)


class PopnnLSTM(_Lstm):
    """Long short-term memory: ``(outputs [time, batch, units], LSTMStateTuple(c, h))``. See the base class for the
    arguments."""

    def call(self, inputs: Any, initial_state: Any = None, training: bool = True) -> Any:
        """Run over a sequence from ``initial_state``, an ``LSTMStateTuple``; default: zeros.

        Raises:
            ValueError: another initial state.
        """
        EFFECTS.given("ipu.rnn_ops.PopnnLSTM.call(training)", training)
        return self._over(inputs, None, initial_state)


class PopnnDynamicLSTM(_Lstm):
    """:class:`PopnnLSTM` over sequences of several lengths."""

    def call(self, inputs: Any, seq_len: Any, initial_state: Any = None, training: bool = True) -> Any:
        """As there; ``seq_len [batch]``: outputs behind the end of a sequence are 0."""
        EFFECTS.given("ipu.rnn_ops.PopnnLSTM.call(training)", training)
        return self._over(inputs, tf.cast(seq_len, tf.int32), initial_state)


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
        **proportions: float | None,
    ) -> None:
        super().__init__(
            num_units, dtype, partials_dtype, seed, weights_initializer, bias_initializer, activation,
            recurrent_activation, name, **proportions,
        )  # fmt: skip
        self._reset_after = reset_after

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Shape of the biases: with ``reset_after`` those of inputs and of states."""
        return [3, 2, self.num_units] if self._reset_after else [3, self.num_units]

    def _over(self, inputs: Any, biases: Any, initial_state: Any, lengths: Any = None, scores: Any = None) -> Any:
        x = tf.convert_to_tensor(inputs, self.dtype)
        state = self._zeros(x) if initial_state is None else tf.convert_to_tensor(initial_state, self.dtype)
        own, recurrent = self._kernels(x)
        after = tf.reshape(biases[:, 1], [-1]) if self._reset_after else None
        first = biases[:, 0] if self._reset_after else biases
        step: Step = gru_step(recurrent, after, self._activation, self._recurrent_activation, update_first=False)
        sequences = [products(x, own, tf.reshape(first, [-1]))]
        if scores is not None:
            sequences.append(tf.transpose(tf.convert_to_tensor(scores, self.dtype)))
        outputs, (state,) = run(step, sequences, [state], lengths)
        return outputs, state


class PopnnGRU(_Gru):
    """Gated recurrent unit: ``(outputs [time, batch, units], state)``. See the base classes for the arguments."""

    def call(self, inputs: Any, initial_state: Any = None, training: bool = True) -> Any:
        """Run over a sequence from ``initial_state``; default: zeros."""
        EFFECTS.given("ipu.rnn_ops.PopnnLSTM.call(training)", training)
        return self._over(inputs, self.biases, initial_state)


class _DynamicGru(_Gru):
    """With biases of its own: ``bias_r_u`` (ones) and ``bias_c`` (zeros), which both products have with
    ``reset_after``."""

    def build(self, input_shape: Any) -> None:
        """Make the weights."""
        super().build(input_shape)
        ones, zeros = tf1.ones_initializer(), tf1.zeros_initializer()
        self._bias_r_u = self.add_weight("bias_r_u", shape=[2, self.num_units], initializer=ones)
        self._bias_c = self.add_weight("bias_c", shape=[1, self.num_units], initializer=zeros)

    def _own_biases(self) -> Any:
        biases = tf.concat([self._bias_r_u, self._bias_c], 0)
        return tf.stack([biases, biases], 1) if self._reset_after else biases


class PopnnDynamicGRU(_DynamicGru):
    """:class:`PopnnGRU` over sequences of several lengths."""

    def call(self, inputs: Any, seq_len: Any, initial_state: Any = None, training: bool = True) -> Any:
        """As there; ``seq_len [batch]``: outputs behind the end of a sequence are 0."""
        EFFECTS.given("ipu.rnn_ops.PopnnLSTM.call(training)", training)
        return self._over(inputs, self._own_biases(), initial_state, tf.cast(seq_len, tf.int32))


class PopnnAUGRU(_DynamicGru):
    """:class:`PopnnDynamicGRU` whose update gate is multiplied by 1 less a score of attention."""

    def call(
        self, inputs: Any, seq_len: Any, attention_score: Any, initial_state: Any = None, training: bool = True
    ) -> Any:
        """As there; ``attention_score [batch, time]``."""
        EFFECTS.given("ipu.rnn_ops.PopnnLSTM.call(training)", training)
        lengths = tf.cast(seq_len, tf.int32)
        return self._over(inputs, self._own_biases(), initial_state, lengths, attention_score)
