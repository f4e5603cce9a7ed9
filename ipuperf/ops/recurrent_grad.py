"""The time steps of a recurrent layer backwards, and what it has in common with those forwards."""

from __future__ import annotations

from functools import partial

import numpy as np

from ipuperf.ir import FLOAT32, INT32, TensorSpec
from ipuperf.ir.attributes import FLAG, FLOATING, NUMBER, Attribute, choice, optional

from . import vertices
from .base import Arrays, Environment, Kernel, Op
from .binding import WorkingArrays
from .recurrent_activations import ACTIVATIONS
from .recurrent_cell import RecurrentCell, Scores, States, StepSize
from .recurrent_cells import CELLS, cell_of
from .work import DEFAULT_SHARE, Recurrence, Vertices, Work
from .work import MatMul as Product


class RecurrentOp(Op):
    """Base of both: the cell, and the products of a step. Attributes: see :class:`.Recurrent`."""

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
        """What a time step computes."""
        return cell_of(self.cell, self.activation, self.gate, self.update_first)

    @property
    def saved(self) -> int:
        """Results of a layer that the backward pass needs: those of all steps, of an LSTM the cells, what is kept."""
        return self.step.states + (self.step.kept > 0)

    def turned(self, weights: np.ndarray) -> np.ndarray:
        """Weights as ``(R, inputs, gates * units)``."""
        return weights if self.inputs_first else weights.swapaxes(1, 2)

    def products(self, batch: int, inputs: int, units: int, *, backward: bool) -> tuple[Product, ...]:
        """Those of a step, or of its gradient."""
        wide = {"x": inputs, "h": units, "both": inputs + units}
        pass_ = ("fcbwd" if backward else "fcfwd") if self.trains else "fcinf"
        dtype, sums = self.outputs[0].dtype, self.partials_dtype or FLOAT32
        share = self.available_memory_proportion or DEFAULT_SHARE
        found = []
        for gates, side in self.step.sides:
            k, n = (gates * units, wide[side]) if backward else (wide[side], gates * units)
            found.append(Product(1, batch, k, n, dtype, dtype, sums, pass_, share))
        return tuple(found)

    def _masked(self, size: StepSize, own: list[Vertices]) -> list[Vertices]:
        """The vertices of a step whose sequences end, given ``own`` ones that let those compute nothing: which they
        are, and their states, which stay (``preserveFinalState``)."""
        if not self.lengths:
            return own
        states = self.step.states * size.units
        return [
            vertices.broadcast_scalar("GREATER_THAN", INT32, size.batch),
            *own,
            vertices.broadcast_outer("MULTIPLY", size.dtype, states, size.row),
            vertices.binary("ADD", size.dtype, states, in_place=True),
        ]

    @property
    def _kept(self) -> int:
        """Slices of states that are kept in training, the cell before a step among them."""
        return self.step.kept + self.step.states - 1

    @property
    def _row_values(self) -> int:
        """Values of a step that each sequence has: whether it goes on, as 1 and as 0, and its score."""
        return 2 * int(self.lengths) + int(self.scored)


class RecurrentGrad(RecurrentOp):
    """The time steps backwards: ``(gradients of all results, of the last result, of the last cell, those that there
    are, both weights, states before the first step, results, cells and kept values of Recurrent, lengths, scores) ->
    gradients of the sequence, of the sums (of products and bias) of all steps, of a GRU with two biases also of the
    states' products, of the states before the first step, of the scores``.

    Attributes: as there; ``of_results``, ``of_last``, ``of_cell``: which gradients there are.
    """

    type = "RecurrentGrad"

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
        cell, given = self.step, self._grads
        own, _, first = self.inputs[given : given + 3]
        out = self.inputs[given + 2 + cell.states]
        inputs, wide = own.shape if self.inputs_first else own.shape[::-1]
        sums = TensorSpec((*out.shape[:2], wide), out.dtype)
        sequence = TensorSpec((*out.shape[:2], inputs), out.dtype)
        found = [sequence, *[sums] * self._sums, *[TensorSpec(first.shape, out.dtype)] * cell.states]
        return [*found, TensorSpec(out.shape[:2], out.dtype)] if self.scored else found

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Step by step, in working type; fp16 is rounded at the end."""
        arrays = WorkingArrays(inputs, outputs, env)
        return arrays.kernel(partial(self._run, arrays.operands, arrays.results))

    def _run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        cell, given = self.step, self._grads
        arriving, (own, recurrent, *rest) = iter(operands[:given]), operands[given:]
        first, saved, more = rest[: cell.states], rest[cell.states :][: self.saved], rest[cell.states + self.saved :]
        lengths = more[0] if self.lengths else None
        after, kept = saved[: cell.states], saved[-1]  # of a plain cell that keeps nothing the results
        sequence = next(arriving) if self.of_results else None
        ends = (self.of_last, self.of_cell)
        grads: States = tuple(next(arriving) if ends[i] else np.zeros_like(state) for i, state in enumerate(first))
        turned, units = self.turned(recurrent).swapaxes(1, 2), first[0].shape[-1]

        def product(operand: np.ndarray, start: int, stop: int) -> np.ndarray:
            return operand @ turned[:, start * units : stop * units]

        for time in reversed(range(after[0].shape[1])):
            inside = None if lengths is None else (time < lengths)[..., np.newaxis]
            states = [a[:, time - 1] for a in after] if time else first
            scores: Scores = more[-1][:, time, :, np.newaxis] if self.scored else None
            now = grads if sequence is None else self._joined(grads, sequence[:, time], inside)
            x, h, found, gained = cell.backward(now, tuple(states), kept[:, time], product, scores)
            if inside is not None:
                x, h = np.where(inside, x, 0), np.where(inside, h, 0)
                gained = None if gained is None else np.where(inside, gained, 0)
                found = tuple(np.where(inside, new, old) for new, old in zip(found, grads, strict=True))
            grads = found
            for number, array in enumerate((x, h)[: self._sums], 1):
                results[number][:, time] = array
            if gained is not None:
                results[-1][:, time] = gained[..., 0]
        results[0][...] = results[1] @ self.turned(own).swapaxes(1, 2)[:, np.newaxis]
        for result, grad in zip(results[1 + self._sums :], grads, strict=False):
            result[...] = grad

    @staticmethod
    def _joined(grads: States, arriving: np.ndarray, inside: np.ndarray | None) -> States:
        """The gradients of the states with that of a step's result, which is nothing behind the end."""
        return (grads[0] + (arriving if inside is None else np.where(inside, arriving, 0)), *grads[1:])

    def work(self) -> list[Work]:
        """The loop."""
        time, batch, inputs = self.outputs[0].shape
        cell, units = self.step, self.inputs[self._grads + 2].shape[1]
        size = StepSize(self.outputs[0].dtype, batch, units)
        sides = [one for _, side in cell.sides for one in ("xh" if side == "both" else side)]
        read = int(self.of_results) + 1 + cell.kept  # one state: an LSTM's cell, a GRU's result before, a plain result
        own = cell.backward_work(size, self.scored) + (cell.gradient_masking(size) if self.lengths else [])
        return [
            Recurrence(
                time,
                batch,
                inputs,
                units,
                self.products(batch, inputs, units, backward=True),
                tuple(self._masked(size, own)),
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
