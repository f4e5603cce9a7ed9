"""The backward pass over the time steps of a recurrent layer, and the base it shares with the forward pass."""

from __future__ import annotations

from functools import partial

import numpy as np

from ipuperf.ir import FLOAT32, INT32, TensorSpec
from ipuperf.ir.attributes import FLAG, FLOATING, NUMBER, Attribute, choice, optional

from .. import vertices
from ..base import Arrays, Environment, Kernel, Op
from ..binding import WorkingArrays
from ..work import DEFAULT_SHARE, Recurrence, Vertices, Work
from ..work import MatMul as Product
from .activations import ACTIVATIONS
from .cell import RecurrentCell, Scores, States, StepSize
from .cells import CELLS, cell_of


class RecurrentOp(Op, abstract=True):
    """Base of the forward and the backward loop: the cell, and the products of a step. Attributes: see
    :class:`.Recurrent`."""

    cell = Attribute(choice(*CELLS))
    activation = Attribute(choice(*ACTIVATIONS), "tanh")
    gate = Attribute(choice(*ACTIVATIONS), "sigmoid")
    update_first = Attribute(FLAG, False)
    inputs_first = Attribute(FLAG, False)
    lengths = Attribute(FLAG, False)
    scored = Attribute(FLAG, False)
    trains = Attribute(FLAG, False)
    partials_dtype = Attribute(optional(FLOATING), None)
    available_memory_proportion = Attribute(optional(NUMBER), None)

    @property
    def step(self) -> RecurrentCell:
        """The cell, which computes one time step."""
        return cell_of(self.cell, self.activation, self.gate, self.update_first)

    @property
    def saved(self) -> int:
        """How many results of a layer the backward pass needs: the results of all steps, an LSTM's cells, the
        further saved values."""
        return self.step.states + (self.step.kept > 0)

    def turned(self, weights: np.ndarray) -> np.ndarray:
        """The weights as ``(R, inputs, gates * units)``."""
        return weights if self.inputs_first else weights.swapaxes(1, 2)

    def products(self, batch: int, inputs: int, units: int, *, backward: bool) -> tuple[Product, ...]:
        """The matrix products of a step, or of its gradient."""
        row_length = {"x": inputs, "h": units, "both": inputs + units}
        pass_ = ("fcbwd" if backward else "fcfwd") if self.trains else "fcinf"
        dtype, sums = self.outputs[0].dtype, self.partials_dtype or FLOAT32
        share = self.available_memory_proportion or DEFAULT_SHARE
        products = []
        for gates, side in self.step.sides:
            # A backward product multiplies the gates' gradients
            # by transposed weights, so k and n change places.
            k, n = (gates * units, row_length[side]) if backward else (row_length[side], gates * units)
            products.append(Product(1, batch, k, n, dtype, dtype, sums, pass_, share))
        return tuple(products)

    def _masked(self, size: StepSize, step_vertices: list[Vertices]) -> list[Vertices]:
        """The vertices of a step, with those that let sequences end.

        They find out which sequences have ended, and keep the states of those (``preserveFinalState``).
        ``step_vertices`` already set the results of ended sequences to zero.
        """
        if not self.lengths:
            return step_vertices
        states = self.step.states * size.units
        return [
            vertices.broadcast_scalar("GREATER_THAN", INT32, size.batch),
            *step_vertices,
            vertices.broadcast_outer("MULTIPLY", size.dtype, states, size.row),
            vertices.binary("ADD", size.dtype, states, in_place=True),
        ]

    @property
    def _kept(self) -> int:
        """Slices of states that are saved in training; the cell before a step is one of them."""
        return self.step.kept + self.step.states - 1

    @property
    def _row_values(self) -> int:
        """Values that each sequence has in a step: whether it goes on (as 1 and as 0), and its score."""
        return 2 * int(self.lengths) + int(self.scored)


class RecurrentGrad(RecurrentOp):
    """The backward pass over the time steps.

    Inputs: the gradients of all results, of the last result and of the last cell (those that exist); both weights; the
    states before the first step; the results, cells and saved values of :class:`.Recurrent`; lengths; scores. Results:
    the gradients of the sequence, of the sums (of products and bias) of all steps, for a GRU with two biases also of
    the states' products, of the states before the first step, and of the scores.

    Attributes: those of :class:`.Recurrent`, and ``of_results``, ``of_last``, ``of_cell``: which gradients exist.
    """

    of_results = Attribute(FLAG, True)
    of_last = Attribute(FLAG, False)
    of_cell = Attribute(FLAG, False)

    @property
    def _grads(self) -> int:
        return int(self.of_results) + int(self.of_last) + int(self.of_cell)

    @property
    def _sums(self) -> int:
        return 1 if self.step.alike else 2

    def infer(self) -> list[TensorSpec]:
        """See the class."""
        cell, grad_count = self.step, self._grads
        input_weights, _, first_state = self.inputs[grad_count : grad_count + 3]
        out = self.inputs[grad_count + 2 + cell.states]
        inputs, gate_units = input_weights.shape if self.inputs_first else input_weights.shape[::-1]
        sums = TensorSpec((*out.shape[:2], gate_units), out.dtype)
        sequence = TensorSpec((*out.shape[:2], inputs), out.dtype)
        specs = [sequence, *[sums] * self._sums, *[TensorSpec(first_state.shape, out.dtype)] * cell.states]
        return [*specs, TensorSpec(out.shape[:2], out.dtype)] if self.scored else specs

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compute step by step, in working type; fp16 is rounded once, at the end."""
        arrays = WorkingArrays(inputs, outputs, env)
        return arrays.kernel(partial(self._run, arrays.operands, arrays.results))

    def _run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        cell, grad_count = self.step, self._grads
        arriving, (input_weights, state_weights, *further) = iter(operands[:grad_count]), operands[grad_count:]
        first_states, saved, sequence_values = (
            further[: cell.states],
            further[cell.states :][: self.saved],
            further[cell.states + self.saved :],
        )
        lengths = sequence_values[0] if self.lengths else None
        states_after, saved_values = saved[: cell.states], saved[-1]  # of a plain cell that keeps nothing the results
        sequence = next(arriving) if self.of_results else None
        # A state whose last value has no gradient begins with zeros.
        ends = (self.of_last, self.of_cell)
        grads: States = tuple(
            next(arriving) if ends[i] else np.zeros_like(state) for i, state in enumerate(first_states)
        )
        weights, units = self.turned(state_weights).swapaxes(1, 2), first_states[0].shape[-1]

        def product(operand: np.ndarray, start: int, stop: int) -> np.ndarray:
            product_of_gate: np.ndarray = operand @ weights[:, start * units : stop * units]
            return product_of_gate

        for time in reversed(range(states_after[0].shape[1])):
            inside = None if lengths is None else (time < lengths)[..., np.newaxis]
            # The state before a step is the one after the
            # step before it, so only the first is an operand.
            states = [a[:, time - 1] for a in states_after] if time else first_states
            scores: Scores = sequence_values[-1][:, time, :, np.newaxis] if self.scored else None
            step_grads = grads if sequence is None else self._joined(grads, sequence[:, time], inside)
            x, h, previous_grads, score_grad = cell.backward(
                step_grads, tuple(states), saved_values[:, time], product, scores
            )
            if inside is not None:
                x, h = np.where(inside, x, 0), np.where(inside, h, 0)
                score_grad = None if score_grad is None else np.where(inside, score_grad, 0)
                previous_grads = tuple(
                    np.where(inside, new, old) for new, old in zip(previous_grads, grads, strict=True)
                )
            grads = previous_grads
            # With one bias both sums have the same gradient, so only one is a result.
            for number, array in enumerate((x, h)[: self._sums], 1):
                results[number][:, time] = array
            if score_grad is not None:
                results[-1][:, time] = score_grad[..., 0]
        # The gradient of the sequence needs no state, so one product serves all steps.
        results[0][...] = results[1] @ self.turned(input_weights).swapaxes(1, 2)[:, np.newaxis]
        for result, grad in zip(results[1 + self._sums :], grads, strict=False):
            result[...] = grad

    @staticmethod
    def _joined(grads: States, arriving: np.ndarray, inside: np.ndarray | None) -> States:
        """The gradients of the states plus the gradient of a step's result, which is ignored behind the end."""
        return (grads[0] + (arriving if inside is None else np.where(inside, arriving, 0)), *grads[1:])

    def work(self) -> list[Work]:
        """One loop over the time steps."""
        time, batch, inputs = self.outputs[0].shape
        cell, units = self.step, self.inputs[self._grads + 2].shape[1]
        size = StepSize(self.outputs[0].dtype, batch, units)
        sides = [operand for _, multiplied in cell.sides for operand in ("xh" if multiplied == "both" else multiplied)]
        read = int(self.of_results) + 1 + cell.kept  # one state: an LSTM's cell, a GRU's result before, a plain result
        step_vertices = cell.backward_work(size, self.scored) + (cell.gradient_masking(size) if self.lengths else [])
        return [
            Recurrence(
                time,
                batch,
                inputs,
                units,
                self.products(batch, inputs, units, backward=True),
                tuple(self._masked(size, step_vertices)),
                read=(0, read),
                written=(1, self._sums * cell.gates),
                results=(sides.count("x"), sides.count("h")),
                kept=self._kept,
                dtype=size.dtype,
                backward=True,
                weights=self._grads,
                rows=self._row_values,
            )
        ]
