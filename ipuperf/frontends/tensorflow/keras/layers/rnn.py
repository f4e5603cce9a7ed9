"""``LSTM`` and ``GRU`` of the IPU: Keras' recurrences as one op (:mod:`ipuperf.tensorflow.facade.recurrences`).

Upstream: ``ipu_tensorflow_addons: keras/layers/rnn.py``. Weights are laid out as in Keras.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras import initializers

from ...facade.recurrences import ACTIVATIONS, RECURRENT_ACTIVATIONS, activation_name, plans, recurrence
from ..arguments import Configured

_NEUTRAL = {"use_bias": True, "implementation": (1, 2), "recurrent_dropout": 0.0}
_REFUSED = """
    use_bias kernel_regularizer recurrent_regularizer bias_regularizer activity_regularizer kernel_constraint
    recurrent_constraint bias_constraint recurrent_dropout implementation go_backwards unroll
""".split()


class _Recurrent(Configured, tf_keras.layers.Layer):
    """What both layers have in common.

    Args:
        units: elements of the state.
        activation, recurrent_activation: names of activations.
        use_bias: True.
        kernel_initializer, recurrent_initializer, bias_initializer: of the weights.
        dropout: rate at which elements of the inputs are dropped in training, the same ones in all time steps.
        dropout_seed: two numbers of 32 bits.
        return_sequences: the result is that of each time step, not of the last one.
        return_state: the last state is a result too.
        stateful: the last state is the first one of the next batch.
        time_major: inputs and results are ``[time, batch, ...]``, not ``[batch, time, ...]``.
        seed: of the default initializers.
        partials_dtype, available_memory_proportion_fwd, available_memory_proportion_bwd, options, options_bwd: of the
            products of a step (:func:`ipuperf.tensorflow.facade.recurrences.plans`).

    Raises:
        ValueError: an activation or another argument of Keras' layer that the IPU's does not take.
    """

    gates = 0
    states_count = 0
    arguments = """
        units activation recurrent_activation kernel_initializer recurrent_initializer bias_initializer dropout
        dropout_seed return_sequences return_state stateful seed time_major
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        dropout: float = 0.0,
        dropout_seed: Any = None,
        return_sequences: bool = False,
        return_state: bool = False,
        stateful: bool = False,
        partials_dtype: Any = "float32",
        seed: int | None = None,
        time_major: bool = False,
        available_memory_proportion_fwd: float | None = None,
        available_memory_proportion_bwd: float | None = None,
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._refuse({**kwargs, "use_bias": use_bias})
        super().__init__(**{name: value for name, value in kwargs.items() if name not in _REFUSED})
        self.units = units
        self.activation = self._activation(activation, ACTIVATIONS, "an activation")
        self.recurrent_activation = self._activation(
            recurrent_activation, RECURRENT_ACTIVATIONS, "a recurrent activation"
        )
        shares = available_memory_proportion_fwd, available_memory_proportion_bwd
        self._plans = plans(partials_dtype, *shares, options, options_bwd)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.recurrent_initializer = initializers.get(recurrent_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.dropout, self.dropout_seed, self.seed = dropout, dropout_seed, seed
        self.return_sequences, self.return_state = return_sequences, return_state
        self.stateful, self.time_major = stateful, time_major

    def _refuse(self, arguments: dict[str, Any]) -> None:
        for name in _REFUSED:
            value = arguments.get(name)
            neutral = _NEUTRAL.get(name, (None, False))
            if name in arguments and value not in (neutral if isinstance(neutral, tuple) else (neutral,)):
                raise ValueError(
                    f"IPU custom {type(self).__name__} layer does not support {name} = {value!r}; use "
                    f"tf.keras.layers.{type(self).__name__.removeprefix('Popnn')}, which runs on the IPU too."
                )

    def _activation(self, activation: Any, allowed: tuple[str, ...], role: str) -> str:
        def message(name: str) -> str:
            known = ",".join(f'"{name_of}"' for name_of in allowed)
            return f"IPU custom RNN layer does not support '{name}' as {role}. Acceptable value are {known}"

        return activation_name(activation, allowed, message)

    def build(self, input_shape: Any) -> None:
        """Make kernel ``[inputs, gates * units]``, recurrent kernel ``[units, gates * units]`` and biases."""
        if len(input_shape) != 3:
            raise ValueError(f"Expecting input_shape with 3 dims, got {len(input_shape)}")
        size = self.gates * self.units
        self.kernel = self.add_weight(
            "kernel", shape=[input_shape[-1], size], initializer=self._seeded(self.kernel_initializer)
        )
        self.recurrent_kernel = self.add_weight(
            "recurrent_kernel", shape=[self.units, size], initializer=self._seeded(self.recurrent_initializer)
        )
        self.biases = self._biases(size)
        if self.stateful:
            batch = input_shape[1 if self.time_major else 0]
            self.states = [
                self.add_weight(f"state_{i}", shape=[batch, self.units], initializer="zeros", trainable=False)
                for i in range(self.states_count)
            ]
        super().build(input_shape)

    def _seeded(self, initializer: Any) -> Any:
        if self.seed is None or not hasattr(initializer, "seed"):
            return initializer
        return type(initializer).from_config({**initializer.get_config(), "seed": self.seed})

    def _biases(self, size: int) -> Any:
        return self.add_weight("biases", shape=[size], initializer=self.bias_initializer)

    def call(self, inputs: Any, mask: Any = None, training: Any = None, initial_state: Any = None) -> Any:
        """The layer's results.

        Raises:
            NotImplementedError: a mask, as of an embedding with ``mask_zero``. ValueError: an unknown number of time
                steps.
        """
        if mask is not None:
            raise NotImplementedError(
                f"ipu.keras.{type(self).__name__} does not support call argument mask; use tf.keras.layers."
                f"{type(self).__name__.removeprefix('Popnn')}, which runs on the IPU too."
            )
        x = inputs if self.time_major else tf.transpose(inputs, [1, 0, 2])
        if x.shape[0] is None:
            raise ValueError(
                f"Layer {self.name} needs a known number of time steps, its input has shape {inputs.shape}"
            )
        if training and self.dropout > 0:
            x = self._drop(x)
        # as upstream, what is not known when the program is traced counts as training
        trains = training if isinstance(training, bool) else True
        how = {"activation": self.activation, "gate": self.recurrent_activation, **self._cell(), **self._plans}
        operands = [x, *(tf.convert_to_tensor(t) for t in (self.kernel, self.recurrent_kernel, *self._sums()))]
        rows, states = recurrence(
            self.name, operands=operands, states=self._first(x, initial_state), trains=trains, **how
        )
        if self.stateful:
            for variable, value in zip(self.states, states):
                variable.assign(tf.cast(value, variable.dtype))
        result = rows if self.time_major else tf.transpose(rows, [1, 0, 2])
        result = result if self.return_sequences else states[0]
        return (result, *states) if self.return_state else result

    def _drop(self, x: Any) -> Any:
        from ...facade import networks

        shape = [1, *x.shape[1:]]
        name = f"{self.name}_dropout"
        return networks.dropout(x, seed=self.dropout_seed, rate=self.dropout, noise_shape=shape, name=name)

    def _first(self, x: Any, initial_state: Any) -> list[Any]:
        if initial_state is not None:
            states = initial_state if isinstance(initial_state, (list, tuple)) else [initial_state]
            return [tf.convert_to_tensor(state) for state in states]
        if self.stateful:
            return [tf.convert_to_tensor(state) for state in self.states]
        batch = tf.shape(x)[1] if x.shape[1] is None else x.shape[1]
        return [tf.zeros([batch, self.units], x.dtype)] * self.states_count

    def _cell(self) -> dict[str, Any]:
        """The cell of the op, and how its weights lie."""
        raise NotImplementedError

    def _sums(self) -> list[Any]:
        """The biases of the op."""
        return [self.biases]


class PopnnLSTM(_Recurrent):
    """Long short-term memory; gates input, forget, cell, output. ``unit_forget_bias``: the forget gate's bias starts
    at 1.

    See the base class for the arguments.
    """

    gates, states_count = 4, 2
    arguments = f"{_Recurrent.arguments} unit_forget_bias"

    def __init__(self, units: int, *args: Any, unit_forget_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(units, *args, **kwargs)
        self.unit_forget_bias = unit_forget_bias

    def _biases(self, size: int) -> Any:
        def initialise(shape: Any, *args: Any, **kwargs: Any) -> Any:
            start = self.bias_initializer([self.units], *args, **kwargs)
            end = self.bias_initializer([2 * self.units], *args, **kwargs)
            return tf.concat([start, tf.ones([self.units], start.dtype), end], 0)

        return self.add_weight(
            "biases", shape=[size], initializer=initialise if self.unit_forget_bias else self.bias_initializer
        )

    def _cell(self) -> dict[str, Any]:
        return {"cell": "lstm"}


class PopnnGRU(_Recurrent):
    """Gated recurrent unit; gates update, reset, candidate. ``reset_after``: the reset gate is applied after the
    product.

    See the base class for the arguments. Biases are ``[3 * units]``, or ``[2, 3 * units]`` (inputs, state) with
    ``reset_after``.
    """

    gates, states_count = 3, 1
    arguments = f"{_Recurrent.arguments} reset_after"

    def __init__(self, units: int, *args: Any, reset_after: bool = True, **kwargs: Any) -> None:
        super().__init__(units, *args, **kwargs)
        self.reset_after = reset_after

    def _biases(self, size: int) -> Any:
        shape = [2, size] if self.reset_after else [size]
        return self.add_weight("biases", shape=shape, initializer=self.bias_initializer)

    def _cell(self) -> dict[str, Any]:
        return {"cell": "gru" if self.reset_after else "gru_reset_first", "update_first": True}

    def _sums(self) -> list[Any]:
        return [self.biases[0], self.biases[1]] if self.reset_after else [self.biases]


LSTM, GRU = PopnnLSTM, PopnnGRU
