"""Recurrent layers: one op for all time steps, as popnn has them.

Upstream: PopART ``willow/src/op/{lstm,gru,rnn}.cpp``, PopLibs ``lib/popnn/{Lstm,Gru,Rnn}.cpp`` with its default
options: a step multiplies its input and the state in one product (``preCalcWeights`` off), what the backward pass needs
is kept (``recomputationMode`` none).

Simplifications: the gradients of the weights are products of all time steps, where popnn has one for as many steps as
fit (``interleaveWUCadence``), so the gates' gradients of all steps are kept for them; the gradient of the input is
there also where nobody needs it; weights arranged for the backward products take no memory of their own; the counter
of the loop costs nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ipuperf.ir import FLOAT32, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, Attribute, choice

from . import reduce, shape
from .base import Arrays, Environment, Gradients, Kernel, Op
from .binding import WorkingArrays
from .matmul import MatMul
from .recurrent_cells import CELLS, RecurrentCell, States
from .work import MatMul as Product
from .work import Recurrence, Work


class _Recurrent(Op):
    """Base of the two: the cell, and the products of a step."""

    cell = Attribute(choice(*CELLS))
    trains = Attribute(FLAG, False)

    @property
    def step(self) -> RecurrentCell:
        """What a time step computes."""
        return CELLS[self.cell]

    def products(self, batch: int, own: Tensor, recurrent: Tensor, *, backward: bool) -> tuple[Product, ...]:
        """Those of a step, for weights ``own`` of the input and ``recurrent`` of the state; of its gradient."""
        cell, units, wide, dtype = self.step, recurrent.shape[1], own.shape[1], own.dtype
        alone = cell.gates - cell.joint
        sides = [(cell.joint * units, wide + units), *[(alone * units, n) for n in (wide, units) if alone]]
        pass_ = ("fcbwd" if backward else "fcfwd") if self.trains else "fcinf"
        return tuple(
            Product(1, batch, *((gates, n) if backward else (n, gates)), dtype, dtype, FLOAT32, pass_)
            for gates, n in sides
        )


class Recurrent(_Recurrent):
    """All time steps of a recurrent layer in one direction.

    Inputs: the sequence ``(T, B, I)``, weights of its elements ``(gates * units, I)`` and of the states
    ``(gates * units, units)``, the bias of their sum ``(gates * units,)``, of a GRU also that of the states' products
    alone, and the states before the first step ``(B, units)``: the result, of an LSTM also the cell. Results: those of
    all steps ``(T, B, units)``; of an LSTM the cells of all steps if it ``trains``, else the last ``(B, units)``; of an
    LSTM or GRU that ``trains`` what else the backward pass needs ``(T, B, kept * units)``.

    Attributes: ``cell`` (``lstm``, ``gru``, ``tanh``, ``relu``, with PyTorch's gates and order), ``trains``.
    """

    type = "Recurrent"

    @property
    def _biases(self) -> int:
        return 1 if self.step.alike else 2

    def infer(self) -> list[TensorSpec]:
        """See the class."""
        x, own, recurrent, *others = self.inputs
        dtype = self.same_dtype(*self.inputs)
        self.floating(x)
        cell, biases = self.step, self._biases
        self.require(len(x.shape) == 3 and x.shape[0] > 0, f"a sequence (T, B, I) is needed, got {x.shape}")
        time, batch, inputs = x.shape
        units = recurrent.shape[-1]
        wide = cell.gates * units
        fits = (own.shape, recurrent.shape) == ((wide, inputs), (wide, units))
        self.require(
            fits and [t.shape for t in others] == [(wide,)] * biases + [(batch, units)] * cell.states,
            f"a cell {self.cell!r} needs weights ({cell.gates} * units, I) and ({cell.gates} * units, units), {biases} "
            f"biases ({cell.gates} * units,) and {cell.states} states (B, units), got "
            f"{', '.join(str(t.shape) for t in self.inputs)}",
        )
        found = [TensorSpec((time, batch, units), dtype)]
        if cell.states > 1:
            found.append(TensorSpec((time, batch, units) if self.trains else (batch, units), dtype))
        if cell.kept and self.trains:
            found.append(TensorSpec((time, batch, cell.kept * units), dtype))
        return found

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Step by step, in working type; fp16 is rounded at the end."""
        arrays = WorkingArrays(inputs, outputs, env)
        return arrays.kernel(partial(self._run, arrays.operands, arrays.results))

    def _run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        x, own, recurrent, bias, *others = operands
        cell, turned = self.step, recurrent.swapaxes(1, 2)
        sums = x @ own.swapaxes(1, 2)[:, np.newaxis] + bias[:, np.newaxis, np.newaxis]
        offset = 0 if cell.alike else others[0][:, np.newaxis]
        states: States = tuple(others[self._biases - 1 :])
        for time in range(x.shape[1]):
            states, kept = cell.forward(sums[:, time], states[0] @ turned + offset, states)
            results[0][:, time] = states[0]
            if cell.states > 1:
                results[1][:, time if self.trains else slice(None)] = states[1]
            if kept is not None and self.trains:
                results[-1][:, time] = kept

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """The time steps backwards; then the gradients of weights and biases."""
        cell = self.step
        if not self.trains:
            self.refuse("no gradient, as it was made without `trains`")
        arriving = [grad for grad in grads[: cell.states] if grad is not None]
        if not arriving:
            return [None] * len(self.inputs)
        needed = [*self.inputs[1:3], *self.inputs[3 + self._biases :], *self.outputs]
        endings = ["x", "sums", *["state_sums"] * (not cell.alike), *["before", "cell_before"][: cell.states]]
        x, *sums_and_states = builder.create(
            RecurrentGrad,
            [*arriving, *(builder.forward(t) for t in needed)],
            [f"{self.outputs[0].id}_{ending}" for ending in endings],
            cell=self.cell,
            trains=True,
            of_result=grads[0] is not None,
            of_cell=cell.states > 1 and grads[1] is not None,
        ).outputs
        sums, states = sums_and_states[: self._biases], sums_and_states[self._biases :]
        own, bias = self._parameters(builder, sums[0], builder.forward(self.inputs[0]))
        recurrent, other = self._parameters(builder, sums[-1], self._before(builder), cell.alike)
        return [x, own, recurrent, bias, *([] if other is None else [other]), *states]

    def _before(self, builder: GradientBuilder) -> Tensor:
        """The states before each step ``(T, B, units)``."""
        first, out = (builder.forward(t) for t in (self.inputs[3 + self._biases], self.outputs[0]))
        first = builder.op(shape.Reshape, [first], shape=(1, *first.shape))
        if out.shape[0] == 1:
            return first
        others = builder.op(shape.Slice, [out], axis=0, start=0, stop=out.shape[0] - 1)
        return builder.op(shape.Concat, [first, others], axis=0)

    @staticmethod
    def _parameters(
        builder: GradientBuilder, grad: Tensor, operand: Tensor, weights_alone: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of the weights that multiply ``operand``, and of the bias, from that of the sums."""
        rows, operands = (
            builder.op(shape.Reshape, [t], shape=(t.shape[0] * t.shape[1], t.shape[2])) for t in (grad, operand)
        )
        turned = builder.op(shape.Transpose, [rows], permutation=(1, 0))
        weights = builder.op(MatMul, [turned, operands], pass_="fcwu")
        return weights, None if weights_alone else reduce.sum_to(builder, rows, (rows.shape[1],))

    def work(self) -> list[Work]:
        """The loop."""
        x, own, recurrent = self.inputs[:3]
        time, batch, inputs = x.shape
        cell, units = self.step, batch * recurrent.shape[1]
        written = (1 if not self.trains else cell.states + cell.kept) * units
        products = self.products(batch, own, recurrent, backward=False)
        vertices = cell.forward_work(x.dtype, units)
        return [Recurrence(time, products, tuple(vertices), batch * inputs, written, x.dtype)]


class RecurrentGrad(_Recurrent):
    """The time steps backwards: ``(gradients of the results and of the cells, those that there are, both weights,
    states before the first step, results of Recurrent) -> gradients of the sequence, of the sums (of products and bias)
    of all steps, of a GRU also of the states' products, and of the states before the first step``.

    Attributes: ``cell``, ``trains`` as there; ``of_result``, ``of_cell``: which gradients there are.
    """

    type = "RecurrentGrad"

    of_result = Attribute(FLAG, True)
    of_cell = Attribute(FLAG, False)

    @property
    def _grads(self) -> int:
        return int(self.of_result) + int(self.of_cell)

    def infer(self) -> list[TensorSpec]:
        """See the class."""
        cell = self.step
        own, _, first = self.inputs[self._grads : self._grads + 3]
        out = self.inputs[self._grads + 2 + cell.states]
        wide, inputs = own.shape
        sums = TensorSpec((*out.shape[:2], wide), out.dtype)
        sequence = TensorSpec((*out.shape[:2], inputs), out.dtype)
        return [sequence, *[sums] * (1 if cell.alike else 2), *[TensorSpec(first.shape, out.dtype)] * cell.states]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Step by step, in working type; fp16 is rounded at the end."""
        arrays = WorkingArrays(inputs, outputs, env)
        return arrays.kernel(partial(self._run, arrays.operands, arrays.results))

    def _run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        cell, given = self.step, self._grads
        own, recurrent, *rest = operands[given:]
        first, after, kept = rest[: cell.states], rest[cell.states : 2 * cell.states], rest[2 * cell.states :]
        arriving = [operands[0] if self.of_result else None, operands[given - 1] if self.of_cell else None]
        grads: States = tuple(np.zeros_like(state) for state in first)
        for time in reversed(range(after[0].shape[1])):
            now = [grad if new is None else grad + new[:, time] for grad, new in zip(grads, arriving, strict=False)]
            before = [a[:, time - 1] for a in after] if time else first
            x, h, grads = cell.backward(
                tuple(now), tuple(before), tuple(a[:, time] for a in after), kept[0][:, time] if kept else None
            )
            grads = (grads[0] + h @ recurrent, *grads[1:])
            results[1][:, time] = x
            if not cell.alike:
                results[2][:, time] = h
        results[0][...] = results[1] @ own[:, np.newaxis]
        for result, grad in zip(results[-cell.states :], grads, strict=True):
            result[...] = grad

    def work(self) -> list[Work]:
        """The loop."""
        own, recurrent = self.inputs[self._grads : self._grads + 2]
        time, batch, inputs = self.outputs[0].shape
        cell, units = self.step, batch * recurrent.shape[1]
        read = (self._grads + (cell.states - 1 if cell.kept else cell.states) + cell.kept) * units
        written = batch * inputs + (1 if cell.alike else 2) * cell.gates * units
        products = self.products(batch, own, recurrent, backward=True)
        vertices = cell.backward_work(own.dtype, units)
        return [Recurrence(time, products, tuple(vertices), read, written, own.dtype, backward=True)]
