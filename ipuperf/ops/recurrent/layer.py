"""Recurrent layers: one op for all time steps, as popnn has them.

Upstream: PopART ``willow/src/op/{lstm,gru,rnn}.cpp``, TensorFlow's driver ``popnn/{lstm,gru}.cc``, PopLibs
``lib/popnn/{Lstm,Gru,Rnn}.cpp`` with its default options. By default a step multiplies its input and the state in one
product (``preCalcWeights`` off), and a layer saves what the backward pass needs (``recomputationMode`` none).

Simplifications:

* The gradients of the weights are products over all time steps, so the gates' gradients of all steps are saved for
  them. popnn makes one product for as many steps as fit (``interleaveWUCadence``).
* The gradient of the input is computed even where nobody needs it.
* Weights that are rearranged for the backward products take no memory of their own.
* The loop counter costs nothing.
* A loop over sequences of several lengths takes all time steps; popnn's ends with the longest sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ipuperf.ir import Builder, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import FLOATING, NUMBER, Attribute, optional

from .. import shape
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import WorkingArrays
from ..elementwise.arithmetic import Mul
from ..products.matmul import MatMul
from ..reductions.axes_reduced import ReduceSum
from ..work import Recurrence, Work
from .backward import RecurrentGrad, RecurrentOp
from .cell import RecurrentCell, Scores, States, StepSize
from .cells import cell_of
from .gru import ResetFirstGruCell

#: Attributes that a layer and its backward pass have in common.
_SHARED = ("cell", "activation", "gate", "update_first", "inputs_first", "lengths", "scored", "trains")


class Recurrent(RecurrentOp):
    """All time steps of a recurrent layer in one direction.

    Inputs, in order:

    * the sequence ``(T, B, I)``;
    * the weights of its elements ``(gates * units, I)`` and of the states ``(gates * units, units)``;
    * the bias of their sum ``(gates * units,)``; a ``gru`` also has a bias of the states' products alone;
    * the states before the first step ``(B, units)``: the result, and for an LSTM the cell;
    * with ``lengths`` the lengths of the sequences ``(B,)``, with ``scored`` scores of an attention ``(T, B)``.

    Results: the results of all steps ``(T, B, units)`` and the states after the last step ``(B, units)``. A layer that
    ``trains`` also gives the cells of all steps (LSTM) and the other values that the backward pass needs ``(T, B, kept
    * units)`` (LSTM and GRU).

    Attributes:
        cell: ``lstm`` (gates input, forget, candidate, output), ``gru`` and ``gru_reset_first`` (reset, update,
            candidate; the reset gate is applied after or before the product of the state), ``rnn``.
        activation, gate: the functions of candidates (and of an LSTM's cell) and of gates.
        update_first: the gates of a GRU are in the order update, reset, candidate.
        inputs_first: weights are ``(I, gates * units)`` and ``(units, gates * units)``.
        lengths: behind the end of a sequence results are 0, and states stay as they are.
        scored: the update gate of a GRU is multiplied by 1 less the score.
        trains: the layer saves what the backward pass needs.
        partials_dtype, available_memory_proportion: options of the products of a step (see :class:`.MatMul`).
        gradient_partials_dtype, gradient_memory_proportion: the same options for the backward pass.
    """

    gradient_partials_dtype = Attribute(optional(FLOATING), None)
    gradient_memory_proportion = Attribute(optional(NUMBER), None)

    @property
    def _biases(self) -> int:
        return 1 if self.step.alike else 2

    def infer(self) -> list[TensorSpec]:
        """See the class."""
        x, input_weights, state_weights, *biases_and_states = self.inputs[
            : len(self.inputs) - int(self.lengths) - int(self.scored)
        ]
        dtype = self.same_dtype(x, input_weights, state_weights, *biases_and_states)
        self.floating(x)
        cell, biases = self.step, self._biases
        self.require(len(x.shape) == 3 and x.shape[0] > 0, f"a sequence (T, B, I) is needed, got {x.shape}")
        time, batch, inputs = x.shape
        units = state_weights.shape[0 if self.inputs_first else -1]
        gate_units = cell.gates * units
        weight_shapes = [(gate_units, inputs), (gate_units, units)]
        weight_shapes = [shape[::-1] for shape in weight_shapes] if self.inputs_first else weight_shapes
        self.require(
            [input_weights.shape, state_weights.shape] == weight_shapes
            and [t.shape for t in biases_and_states] == [(gate_units,)] * biases + [(batch, units)] * cell.states,
            f"a cell {self.cell!r} needs weights of ({cell.gates} * units, I) and ({cell.gates} * units, units), "
            f"{biases} biases ({cell.gates} * units,) and {cell.states} states (B, units), got "
            f"{', '.join(str(t.shape) for t in self.inputs)}",
        )
        self._check_rows(time, batch)
        for proportion in (self.available_memory_proportion, self.gradient_memory_proportion):
            if proportion is not None and not 0 < proportion <= 1:
                raise IrError(f"{self.where()}: share of memory {proportion}; allowed: above 0, up to 1")
        sequence, state = TensorSpec((time, batch, units), dtype), TensorSpec((batch, units), dtype)
        specs = [sequence, *[state] * cell.states]
        if self.trains:
            specs += [sequence] * (cell.states - 1)
            specs += [TensorSpec((time, batch, cell.kept * units), dtype)] * (cell.kept > 0)
        return specs

    def _check_rows(self, time: int, batch: int) -> None:
        """Check the operands that have a value for each sequence: lengths and scores."""
        self.require(self.step.scored or not self.scored, f"a cell {self.cell!r} takes no scores")
        if self.lengths:
            lengths = self.inputs[-1 - int(self.scored)]
            fits = lengths.shape == (batch,) and lengths.dtype.is_integer
            self.require(fits, f"whole lengths ({batch},) are needed, got {lengths.spec}")
        if self.scored:
            scores = self.inputs[-1]
            self.require(scores.shape == (time, batch), f"scores ({time}, {batch}) are needed, got {scores.shape}")
            self.same_dtype(self.inputs[0], scores)

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compute step by step, in working type; fp16 is rounded once, at the end."""
        arrays = WorkingArrays(inputs, outputs, env)
        return arrays.kernel(partial(self._run, arrays.operands, arrays.results))

    def _run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        x, input_weights, state_weights, bias, *further = operands
        cell, weights, units = self.step, self.turned(state_weights), results[0].shape[-1]
        # The inputs of all steps are multiplied at once; only
        # the states' products depend on the step before.
        sums = x @ self.turned(input_weights)[:, np.newaxis] + bias[:, np.newaxis, np.newaxis]
        offset = 0 if cell.alike else further[0][:, np.newaxis]
        states: States = tuple(further[self._biases - 1 :][: cell.states])
        lengths = further[self._biases - 1 + cell.states] if self.lengths else None

        def product(operand: np.ndarray, start: int, stop: int) -> np.ndarray:
            state_sums: np.ndarray = operand @ weights[..., start * units : stop * units] + offset
            return state_sums

        for time in range(x.shape[1]):
            scores: Scores = further[-1][:, time, :, np.newaxis] if self.scored else None
            new_states, saved = cell.forward(sums[:, time], states, product, scores)
            result = new_states[0]
            if lengths is not None:
                inside = (time < lengths)[..., np.newaxis]
                # A sequence that has ended gives 0 and keeps its
                # states, as popnn's `preserveFinalState` does.
                result = np.where(inside, result, 0)
                new_states = tuple(np.where(inside, new, old) for new, old in zip(new_states, states, strict=True))
            states = new_states
            results[0][:, time] = result
            # Output 1 + states: the cells of all steps;
            # the last output: the further saved values.
            if self.trains and cell.states > 1:
                results[1 + cell.states][:, time] = states[1]
            if self.trains and saved is not None:
                results[-1][:, time] = saved
        for last_state, state in zip(results[1:], states, strict=False):
            last_state[...] = state

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """See :func:`recurrent_gradients`."""
        if not self.trains:
            self.refuse("no gradient, as it was made without `trains` (TensorFlow: with `training=False`)")
        if any(grad is not None for grad in grads[1 + self.step.states :]):
            self.refuse("no gradient of what is kept for the backward pass; use the results and the last states")
        return recurrent_gradients(builder, self.attributes, self.inputs, self.outputs, grads, builder.forward)

    def work(self) -> list[Work]:
        """One loop over the time steps."""
        time, batch, inputs = self.inputs[0].shape
        cell, size = self.step, StepSize(self.outputs[0].dtype, batch, self.outputs[0].shape[2])
        step_vertices = cell.forward_work(size, self.scored) + (cell.masking(size, self.trains) if self.lengths else [])
        # An LSTM that trains writes its cells as well;
        # `cell.kept` counts the further values per unit.
        written = 1 if not self.trains else cell.states + cell.kept
        return [
            Recurrence(
                time,
                batch,
                inputs,
                size.row,
                self.products(batch, inputs, size.row, backward=False),
                tuple(self._masked(size, step_vertices)),
                read=(1, 0),
                written=(0, written),
                results=(0, sum(gates for gates, _ in cell.sides)),
                kept=self._kept,
                dtype=size.dtype,
                rows=self._row_values,
            )
        ]


def recurrent_gradients(
    builder: Builder,
    attributes: Mapping[str, Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    grads: Gradients,
    tensor_of: Callable[[Tensor], Tensor],
) -> list[Tensor | None]:
    """Make the gradients of a layer's inputs: the time steps backwards, then weights and biases.

    Args:
        builder: makes the ops of the gradients.
        attributes: the attributes of the layer, which ``trains``.
        inputs, outputs: the layer's operands and results.
        grads: the gradients of the outputs; those of saved values are ignored.
        tensor_of: gives a tensor of the layer where the gradients are computed.
    """
    return _Gradients(builder, attributes, inputs, outputs, tensor_of).gradients(grads)


class _Gradients:
    """See :func:`recurrent_gradients`."""

    def __init__(
        self,
        builder: Builder,
        attributes: Mapping[str, Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        tensor_of: Callable[[Tensor], Tensor],
    ) -> None:
        self.builder = builder
        self.inputs, self.outputs = inputs, outputs
        self.tensor_of = tensor_of
        self.shared = {name: attributes[name] for name in _SHARED if name in attributes}
        options = {
            "partials_dtype": attributes.get("gradient_partials_dtype"),
            "available_memory_proportion": attributes.get("gradient_memory_proportion"),
        }
        self.options = {name: value for name, value in options.items() if value is not None}

    @property
    def _cell(self) -> RecurrentCell:
        # Attributes that the layer leaves out have their defaults.
        names = ("activation", "gate", "update_first")
        options = {name: self.shared.get(name, Recurrent.defaults[name]) for name in names}
        return cell_of(self.shared["cell"], **options)

    @property
    def _turned(self) -> bool:
        return bool(self.shared.get("inputs_first", False))

    def gradients(self, grads: Gradients) -> list[Tensor | None]:
        """Make a gradient for each input (None for lengths)."""
        cell = self._cell
        biases, states = (1 if cell.alike else 2), cell.states
        ends = [*grads[: 1 + states], *[None] * (2 - states)]
        arriving = [grad for grad in ends if grad is not None]
        if not arriving:
            return [None] * len(self.inputs)
        # The operands after the biases: states before
        # the first step, then lengths and scores.
        first_states, rows = self.inputs[3 + biases :][:states], self.inputs[3 + biases + states :]
        saved = [self.outputs[0], *([self.outputs[1 + states]] if states > 1 else [])]
        saved += [self.outputs[-1]] if cell.kept else []
        step_grads = self._steps(arriving, [*self.inputs[1:3], *first_states, *saved, *rows], ends, cell)
        x, sums, state_grads, scores = (
            step_grads[0],
            step_grads[1:][:biases],
            step_grads[1 + biases :][:states],
            step_grads[1 + biases + states :],
        )
        input_weights = self._weights(sums[0], self.tensor_of(self.inputs[0]))
        state_weights = self._recurrent_weights(sums[-1], first_states[0], cell)
        offsets = [self._rows_sum(grad) for grad in sums]
        lengths = [None] * (len(rows) - len(scores))
        return [x, input_weights, state_weights, *offsets, *state_grads, *lengths, *scores]

    def _steps(
        self, arriving: Sequence[Tensor], needed: Sequence[Tensor], ends: Gradients, cell: RecurrentCell
    ) -> list[Tensor]:
        sums = ["sums"] if cell.alike else ["sums", "state_sums"]
        # The order of these names is the order of RecurrentGrad's results.
        endings = ["x", *sums, *["before", "cell_before"][: cell.states], *["scores"] * bool(self.shared.get("scored"))]
        of_results, of_last, of_cell = (grad is not None for grad in ends)
        return self.builder.create(
            RecurrentGrad,
            [*arriving, *(self.tensor_of(t) for t in needed)],
            [f"{self.outputs[0].id}_{ending}" for ending in endings],
            **self.shared,
            **self.options,
            of_results=of_results,
            of_last=of_last,
            of_cell=of_cell,
        ).outputs

    def _recurrent_weights(self, sums: Tensor, first_state: Tensor, cell: RecurrentCell) -> Tensor:
        """The gradient of the states' weights. Where the reset gate comes first, the weights of candidates
        multiplied reset states."""
        states, builder = self._states_before(first_state), self.builder
        if not isinstance(cell, ResetFirstGruCell):
            return self._weights(sums, states)
        units = states.shape[2]
        # Gates multiplied the plain states, candidates the
        # reset ones, so each part needs its own product.
        gates, candidates = (
            builder.op(shape.Slice, [sums], axis=2, start=start * units, stop=stop * units)
            for start, stop in ((0, 2), (2, 3))
        )
        reset = builder.op(shape.Slice, [self.tensor_of(self.outputs[-1])], axis=2, start=0, stop=units)
        parts = [self._weights(gates, states), self._weights(candidates, builder.op(Mul, [states, reset]))]
        return builder.op(shape.Concat, parts, axis=1 if self._turned else 0)

    def _states_before(self, first_state: Tensor) -> Tensor:
        """The states before each step ``(T, B, units)``."""
        builder, (first_state, out) = self.builder, (self.tensor_of(t) for t in (first_state, self.outputs[0]))
        first_state = builder.op(shape.Reshape, [first_state], shape=(1, *first_state.shape))
        # A single step has no results before it.
        if out.shape[0] == 1:
            return first_state
        later_states = builder.op(shape.Slice, [out], axis=0, start=0, stop=out.shape[0] - 1)
        return builder.op(shape.Concat, [first_state, later_states], axis=0)

    def _rows(self, sequence: Tensor) -> Tensor:
        time, batch, wide = sequence.shape
        return self.builder.op(shape.Reshape, [sequence], shape=(time * batch, wide))

    def _weights(self, sums: Tensor, operand: Tensor) -> Tensor:
        """The gradient of weights that multiplied ``operand``, given the gradients ``sums`` of all steps' sums."""
        left, right = self._rows(operand), self._rows(sums)
        if not self._turned:
            left, right = right, left
        # The order of the factors gives the product the shape of the weights.
        turned = self.builder.op(shape.Transpose, [left], permutation=(1, 0))
        return self.builder.op(MatMul, [turned, right], pass_="fcwu", **self.options)

    def _rows_sum(self, sums: Tensor) -> Tensor:
        """The gradient of a bias."""
        return self.builder.op(ReduceSum, [self._rows(sums)], axes=(0,), keepdims=False)
