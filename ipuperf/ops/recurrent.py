"""Recurrent layers: one op for all time steps, as popnn has them.

Upstream: PopART ``willow/src/op/{lstm,gru,rnn}.cpp``, PopLibs ``lib/popnn/{Lstm,Gru,Rnn}.cpp``. The products of all
inputs are one product outside of these ops (popnn's ``preCalcWeights``); within them is the loop over the time steps.

Simplifications: the gradient of the recurrent weights is one product of all time steps (popnn's ``rnnStepsPerWU`` may
ask for several), so the gates' gradients of all steps are kept for it; the counter of the loop costs nothing.
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
from .recurrent_cells import CELLS, Cell, States
from .work import MatMul as Product
from .work import Recurrence, Work


class _Recurrent(Op):
    """Base of the two: the cell, and the loop's cost."""

    cell = Attribute(choice(*CELLS))
    trains = Attribute(FLAG, False)

    @property
    def step(self) -> Cell:
        """What a time step computes."""
        return CELLS[self.cell]

    def loop(self, sequence: Tensor, weights: Tensor, *, backward: bool) -> list[Work]:
        """The time steps of ``sequence`` ``(T, B, gates * units)``."""
        time, batch, wide = sequence.shape
        units, dtype, cell = weights.shape[1], sequence.dtype, self.step
        size = batch * units
        inner, columns, pass_ = (wide, units, "fcbwd") if backward else (units, wide, "fcfwd")
        product = Product(1, batch, inner, columns, dtype, dtype, FLOAT32, pass_ if self.trains else "fcinf")
        vertices = (cell.backward_work if backward else cell.forward_work)(dtype, size, batch)
        states, kept = cell.states * size, cell.kept * size
        if backward:
            read, written = 2 * states + kept, batch * wide * (1 if cell.alike else 2)
        else:
            read, written = batch * wide, size + (kept + states - size if self.trains else 0)
        return [Recurrence(time, product, tuple(vertices), read, written, dtype, backward)]


class Recurrent(_Recurrent):
    """All time steps of a recurrent layer in one direction.

    Inputs: sums of products of the inputs ``(T, B, gates * units)``, weights of the states ``(gates * units, units)``,
    the states before the first step ``(B, units)`` (the result, of an LSTM also the cell), and of a GRU the bias of the
    states' products ``(gates * units,)``. Results: those of all steps ``(T, B, units)``; of an LSTM the cells of all
    steps if it ``trains``, else the last ``(B, units)``; if it trains, what else the backward pass needs
    ``(T, B, kept * units)``.

    Attributes: ``cell`` (``lstm``, ``gru``, ``tanh``, ``relu``, with PyTorch's gates and order), ``trains``.
    """

    type = "Recurrent"

    def infer(self) -> list[TensorSpec]:
        """See the class."""
        x, weights, *others = self.inputs
        dtype = self.same_dtype(*self.inputs)
        self.floating(x)
        cell = self.step
        self.require(len(x.shape) == 3 and x.shape[0] > 0, f"sums (T, B, gates * units) are needed, got {x.shape}")
        time, batch, wide = x.shape
        units = wide // cell.gates
        fits = (
            weights.shape == (wide, units)
            and wide == cell.gates * units
            and [t.shape for t in others] == [(batch, units)] * cell.states + [(wide,)] * (not cell.alike)
        )
        bias = "" if cell.alike else f" and a bias ({cell.gates} * units,)"
        self.require(
            fits,
            f"a cell {self.cell!r} needs weights ({cell.gates} * units, units), {cell.states} states (B, units){bias}, "
            f"got {', '.join(str(t.shape) for t in self.inputs)}",
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
        x, weights, *others = operands
        cell, turned = self.step, weights.swapaxes(1, 2)
        states: States = tuple(others[: cell.states])
        bias = others[-1][:, np.newaxis] if not cell.alike else 0
        for time in range(x.shape[1]):
            states, kept = cell.forward(x[:, time], states[0] @ turned + bias, states)
            results[0][:, time] = states[0]
            if cell.states > 1:
                results[1][:, time if self.trains else slice(None)] = states[1]
            if kept is not None and self.trains:
                results[-1][:, time] = kept

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """The time steps backwards; then the weights' gradient, one product, and the bias'."""
        cell = self.step
        if not self.trains:
            self.refuse("no gradient, as it was made without `trains`")
        given = [grad is not None for grad in grads[: cell.states]]
        if not any(given):
            return [None] * len(self.inputs)
        needed = [*self.inputs[1 : 2 + cell.states], *self.outputs]
        present = [grad for grad in grads[: cell.states] if grad is not None]
        names = [f"{self.outputs[0].id}_{end}" for end in ("x", "h", "before", "cell_before")]
        found = builder.create(
            RecurrentGrad, [*present, *(builder.forward(t) for t in needed)],
            [names[0], *names[1 : 1 if cell.alike else 2], *names[2 : 2 + cell.states]], cell=self.cell, trains=True,
            of_result=given[0], of_cell=given[-1] and cell.states > 1,
        ).outputs  # fmt: skip
        x, products, *states = found if not cell.alike else [found[0], *found]
        weights, bias = self._parameters(builder, products)
        return [x, weights, *states, *([] if cell.alike else [bias])]

    def _parameters(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of weights and bias (which nobody needs where there is none), from that of the sums of their
        products ``(T, B, gates * units)``."""
        time, batch, wide = grad.shape
        units = wide // self.step.gates
        first = builder.op(shape.Reshape, [builder.forward(self.inputs[2])], shape=(1, batch, units))
        before = [first]
        if time > 1:
            out = builder.forward(self.outputs[0])
            before.append(builder.op(shape.Slice, [out], axis=0, start=0, stop=time - 1))
        states = builder.op(shape.Concat, before, axis=0) if time > 1 else first
        states = builder.op(shape.Reshape, [states], shape=(time * batch, units))
        rows = builder.op(shape.Reshape, [grad], shape=(time * batch, wide))
        turned = builder.op(shape.Transpose, [rows], permutation=(1, 0))
        weights = builder.op(MatMul, [turned, states], pass_="fcwu")
        return weights, reduce.sum_to(builder, rows, (wide,))

    def work(self) -> list[Work]:
        """The loop."""
        return self.loop(self.inputs[0], self.inputs[1], backward=False)


class RecurrentGrad(_Recurrent):
    """The time steps backwards: ``(gradients of the results and of the cells, those that there are, weights, states
    before the first step, results of Recurrent) -> gradients of the inputs' sums, of the states' sums where a cell has
    others, and of the states before the first step``.

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
        weights, first, out = (self.inputs[self._grads + index] for index in (0, 1, 1 + cell.states))
        sums = TensorSpec((*out.shape[:2], weights.shape[0]), out.dtype)
        state = TensorSpec(first.shape, out.dtype)
        return [sums] * (1 if cell.alike else 2) + [state] * cell.states

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Step by step, in working type; fp16 is rounded at the end."""
        arrays = WorkingArrays(inputs, outputs, env)
        return arrays.kernel(partial(self._run, arrays.operands, arrays.results))

    def _run(self, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        cell, own = self.step, self._grads
        weights, *rest = operands[own:]
        first, after, kept = rest[: cell.states], rest[cell.states : 2 * cell.states], rest[2 * cell.states :]
        arriving = [operands[0] if self.of_result else None, operands[own - 1] if self.of_cell else None]
        grads: States = tuple(np.zeros_like(state) for state in first)
        for time in reversed(range(after[0].shape[1])):
            now = tuple(
                grad if new is None else grad + new[:, time] for grad, new in zip(grads, arriving, strict=False)
            )
            before = tuple(a[:, time - 1] for a in after) if time else tuple(first)
            x, h, grads = cell.backward(
                now, before, tuple(a[:, time] for a in after), kept[0][:, time] if kept else None
            )
            grads = (grads[0] + h @ weights, *grads[1:])
            results[0][:, time] = x
            if not cell.alike:
                results[1][:, time] = h
        for result, grad in zip(results[-cell.states :], grads, strict=True):
            result[...] = grad

    def work(self) -> list[Work]:
        """The loop."""
        return self.loop(self.outputs[0], self.inputs[self._grads], backward=True)
