"""Recurrent layers: one op for all time steps, as popnn has them.

Upstream: PopART ``willow/src/op/{lstm,gru,rnn}.cpp``, TensorFlow's driver ``popnn/{lstm,gru}.cc``, PopLibs
``lib/popnn/{Lstm,Gru,Rnn}.cpp`` with its default options: a step multiplies its input and the state in one product
(``preCalcWeights`` off), what the backward pass needs is kept (``recomputationMode`` none).

Simplifications: the gradients of the weights are products of all time steps, where popnn has one for as many steps as
fit (``interleaveWUCadence``), so the gates' gradients of all steps are kept for them; the gradient of the input is
there also where nobody needs it; weights arranged for the backward products take no memory of their own; the counter
of the loop costs nothing; a loop over sequences of several lengths takes all time steps (popnn's ends with the longest
sequence).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ipuperf.ir import Builder, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import FLOATING, NUMBER, Attribute, optional

from . import shape
from .base import Arrays, Environment, Gradients, Kernel
from .binding import WorkingArrays
from .elementwise import Mul
from .matmul import MatMul
from .recurrent_cell import RecurrentCell, Scores, States, StepSize
from .recurrent_cells import cell_of
from .recurrent_grad import RecurrentGrad, RecurrentOp
from .recurrent_gru import ResetFirstGruCell
from .reduce import ReduceSum
from .work import Recurrence, Work

#: Attributes that a layer and its backward pass have in common.
_SHARED = ("cell", "activation", "gate", "update_first", "inputs_first", "lengths", "scored", "trains")


class Recurrent(RecurrentOp):
    """All time steps of a recurrent layer in one direction.

    Inputs: the sequence ``(T, B, I)``, weights of its elements ``(gates * units, I)`` and of the states
    ``(gates * units, units)``, the bias of their sum ``(gates * units,)``, of a ``gru`` also that of the states'
    products alone, and the states before the first step ``(B, units)``: the result, of an LSTM also the cell. With
    ``lengths`` those of the sequences ``(B,)``, with ``scored`` scores of an attention ``(T, B)``. Results: those of
    all steps ``(T, B, units)``, the states after the last one ``(B, units)``; if it ``trains`` of an LSTM the cells of
    all steps, and of an LSTM or GRU what else the backward pass needs ``(T, B, kept * units)``.

    Attributes:
        cell: ``lstm`` (gates input, forget, candidate, output), ``gru`` and ``gru_reset_first`` (reset, update,
            candidate; the reset gate after or before the product of the state), ``rnn``.
        activation, gate: functions of candidates (of an LSTM also of the cell) and of gates.
        update_first: a GRU's gates are update, reset, candidate.
        inputs_first: weights are ``(I, gates * units)`` and ``(units, gates * units)``.
        lengths: behind the end of a sequence results are 0, and states stay as they are.
        scored: the update gate of a GRU is multiplied by 1 less the score.
        trains: what the backward pass needs is kept.
        partials_dtype, available_memory_proportion: of the products of a step (see :class:`.MatMul`).
        gradient_partials_dtype, gradient_memory_proportion: of those of the backward pass.
    """

    type = "Recurrent"

    gradient_partials_dtype = Attribute(optional(FLOATING), None)
    gradient_memory_proportion = Attribute(optional(NUMBER), None)

    @property
    def _biases(self) -> int:
        return 1 if self.step.alike else 2

    def infer(self) -> list[TensorSpec]:
        """See the class."""
        x, own, recurrent, *others = self.inputs[: len(self.inputs) - int(self.lengths) - int(self.scored)]
        dtype = self.same_dtype(x, own, recurrent, *others)
        self.floating(x)
        cell, biases = self.step, self._biases
        self.require(len(x.shape) == 3 and x.shape[0] > 0, f"a sequence (T, B, I) is needed, got {x.shape}")
        time, batch, inputs = x.shape
        units = recurrent.shape[0 if self.inputs_first else -1]
        wide = cell.gates * units
        wanted = [(wide, inputs), (wide, units)]
        wanted = [shape[::-1] for shape in wanted] if self.inputs_first else wanted
        self.require(
            [own.shape, recurrent.shape] == wanted
            and [t.shape for t in others] == [(wide,)] * biases + [(batch, units)] * cell.states,
            f"a cell {self.cell!r} needs weights of ({cell.gates} * units, I) and ({cell.gates} * units, units), "
            f"{biases} biases ({cell.gates} * units,) and {cell.states} states (B, units), got "
            f"{', '.join(str(t.shape) for t in self.inputs)}",
        )
        self._check_rows(time, batch)
        for share in (self.available_memory_proportion, self.gradient_memory_proportion):
            if share is not None and not 0 < share <= 1:
                raise IrError(f"{self.where()}: share of memory {share}; allowed: above 0, up to 1")
        sequence, state = TensorSpec((time, batch, units), dtype), TensorSpec((batch, units), dtype)
        found = [sequence, *[state] * cell.states]
        if self.trains:
            found += [sequence] * (cell.states - 1)
            found += [TensorSpec((time, batch, cell.kept * units), dtype)] * (cell.kept > 0)
        return found

    def _check_rows(self, time: int, batch: int) -> None:
        """Lengths and scores."""
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
        """Step by step, in working type; fp16 is rounded at the end."""
        arrays = WorkingArrays(inputs, outputs, env)
        return arrays.kernel(partial(self._run, arrays.operands, arrays.results))

    def _run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        x, own, recurrent, bias, *others = operands
        cell, turned, units = self.step, self.turned(recurrent), results[0].shape[-1]
        sums = x @ self.turned(own)[:, np.newaxis] + bias[:, np.newaxis, np.newaxis]
        offset = 0 if cell.alike else others[0][:, np.newaxis]
        states: States = tuple(others[self._biases - 1 :][: cell.states])
        lengths = others[self._biases - 1 + cell.states] if self.lengths else None

        def product(operand: np.ndarray, start: int, stop: int) -> np.ndarray:
            found: np.ndarray = operand @ turned[..., start * units : stop * units] + offset
            return found

        for time in range(x.shape[1]):
            scores: Scores = others[-1][:, time, :, np.newaxis] if self.scored else None
            after, kept = cell.forward(sums[:, time], states, product, scores)
            result = after[0]
            if lengths is not None:
                inside = (time < lengths)[..., np.newaxis]
                result = np.where(inside, result, 0)
                after = tuple(np.where(inside, new, old) for new, old in zip(after, states, strict=True))
            states = after
            results[0][:, time] = result
            if self.trains and cell.states > 1:
                results[1 + cell.states][:, time] = states[1]
            if self.trains and kept is not None:
                results[-1][:, time] = kept
        for found, state in zip(results[1:], states, strict=False):
            found[...] = state

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """See :func:`recurrent_gradients`."""
        if not self.trains:
            self.refuse("no gradient, as it was made without `trains` (TensorFlow: with `training=False`)")
        if any(grad is not None for grad in grads[1 + self.step.states :]):
            self.refuse("no gradient of what is kept for the backward pass; use the results and the last states")
        return recurrent_gradients(builder, self.attributes, self.inputs, self.outputs, grads, builder.forward)

    def work(self) -> list[Work]:
        """The loop."""
        time, batch, inputs = self.inputs[0].shape
        cell, size = self.step, StepSize(self.outputs[0].dtype, batch, self.outputs[0].shape[2])
        own = cell.forward_work(size, self.scored) + (cell.masking(size, self.trains) if self.lengths else [])
        written = 1 if not self.trains else cell.states + cell.kept
        return [
            Recurrence(
                time,
                batch,
                inputs,
                size.row,
                self.products(batch, inputs, size.row, backward=False),
                tuple(self._masked(size, own)),
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
    taken: Callable[[Tensor], Tensor],
) -> list[Tensor | None]:
    """Gradients of a layer's inputs: the time steps backwards, then those of weights and biases.

    Args:
        builder: makes their ops.
        attributes: of the layer, which ``trains``.
        inputs, outputs: the layer's.
        grads: of the outputs; those of what is kept are not read.
        taken: gives a tensor of the layer where the ops are made.
    """
    return _Gradients(builder, attributes, inputs, outputs, taken).made(grads)


class _Gradients:
    """See :func:`recurrent_gradients`."""

    def __init__(
        self,
        builder: Builder,
        attributes: Mapping[str, Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        taken: Callable[[Tensor], Tensor],
    ) -> None:
        self.builder = builder
        self.inputs, self.outputs = inputs, outputs
        self.taken = taken
        self.shared = {name: attributes[name] for name in _SHARED if name in attributes}
        options = {
            "partials_dtype": attributes.get("gradient_partials_dtype"),
            "available_memory_proportion": attributes.get("gradient_memory_proportion"),
        }
        self.options = {name: value for name, value in options.items() if value is not None}

    @property
    def _cell(self) -> RecurrentCell:
        names = ("activation", "gate", "update_first")
        given = {name: self.shared.get(name, Recurrent.defaults[name]) for name in names}
        return cell_of(self.shared["cell"], **given)

    @property
    def _turned(self) -> bool:
        return bool(self.shared.get("inputs_first", False))

    def made(self, grads: Gradients) -> list[Tensor | None]:
        """A gradient for each input."""
        cell = self._cell
        biases, states = (1 if cell.alike else 2), cell.states
        ends = [*grads[: 1 + states], *[None] * (2 - states)]
        arriving = [grad for grad in ends if grad is not None]
        if not arriving:
            return [None] * len(self.inputs)
        first, rows = self.inputs[3 + biases :][:states], self.inputs[3 + biases + states :]
        saved = [self.outputs[0], *([self.outputs[1 + states]] if states > 1 else [])]
        saved += [self.outputs[-1]] if cell.kept else []
        found = self._steps(arriving, [*self.inputs[1:3], *first, *saved, *rows], ends, cell)
        x, sums, before, scores = (
            found[0],
            found[1:][:biases],
            found[1 + biases :][:states],
            found[1 + biases + states :],
        )
        own = self._weights(sums[0], self.taken(self.inputs[0]))
        recurrent = self._recurrent_weights(sums[-1], first[0], cell)
        offsets = [self._rows_sum(each) for each in sums]
        lengths = [None] * (len(rows) - len(scores))
        return [x, own, recurrent, *offsets, *before, *lengths, *scores]

    def _steps(
        self, arriving: Sequence[Tensor], needed: Sequence[Tensor], ends: Gradients, cell: RecurrentCell
    ) -> list[Tensor]:
        sums = ["sums"] if cell.alike else ["sums", "state_sums"]
        endings = ["x", *sums, *["before", "cell_before"][: cell.states], *["scores"] * bool(self.shared.get("scored"))]
        of_results, of_last, of_cell = (grad is not None for grad in ends)
        return self.builder.create(
            RecurrentGrad,
            [*arriving, *(self.taken(t) for t in needed)],
            [f"{self.outputs[0].id}_{ending}" for ending in endings],
            **self.shared,
            **self.options,
            of_results=of_results,
            of_last=of_last,
            of_cell=of_cell,
        ).outputs

    def _recurrent_weights(self, sums: Tensor, first: Tensor, cell: RecurrentCell) -> Tensor:
        """Of the states: those before each step; where the reset gate comes first, for candidates reset ones."""
        before, builder = self._before(first), self.builder
        if not isinstance(cell, ResetFirstGruCell):
            return self._weights(sums, before)
        units = before.shape[2]
        gates, candidates = (
            builder.op(shape.Slice, [sums], axis=2, start=start * units, stop=stop * units)
            for start, stop in ((0, 2), (2, 3))
        )
        reset = builder.op(shape.Slice, [self.taken(self.outputs[-1])], axis=2, start=0, stop=units)
        parts = [self._weights(gates, before), self._weights(candidates, builder.op(Mul, [before, reset]))]
        return builder.op(shape.Concat, parts, axis=1 if self._turned else 0)

    def _before(self, first: Tensor) -> Tensor:
        """The states before each step ``(T, B, units)``."""
        builder, (first, out) = self.builder, (self.taken(t) for t in (first, self.outputs[0]))
        first = builder.op(shape.Reshape, [first], shape=(1, *first.shape))
        if out.shape[0] == 1:
            return first
        others = builder.op(shape.Slice, [out], axis=0, start=0, stop=out.shape[0] - 1)
        return builder.op(shape.Concat, [first, others], axis=0)

    def _rows(self, sequence: Tensor) -> Tensor:
        time, batch, wide = sequence.shape
        return self.builder.op(shape.Reshape, [sequence], shape=(time * batch, wide))

    def _weights(self, sums: Tensor, operand: Tensor) -> Tensor:
        """The gradient of weights that multiplied ``operand``, from that of the sums of all steps."""
        one, other = self._rows(operand), self._rows(sums)
        if not self._turned:
            one, other = other, one
        turned = self.builder.op(shape.Transpose, [one], permutation=(1, 0))
        return self.builder.op(MatMul, [turned, other], pass_="fcwu", **self.options)

    def _rows_sum(self, sums: Tensor) -> Tensor:
        """The gradient of a bias."""
        return self.builder.op(ReduceSum, [self._rows(sums)], axes=(0,), keepdims=False)
