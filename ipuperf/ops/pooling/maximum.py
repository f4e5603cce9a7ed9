"""The maximum over windows and its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec

from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, WorkingArrays
from .base import RegularPooling, reduction_kernel
from .windows import AxisPass, Windows, flat, temporaries


class MaxPool(RegularPooling):
    """``x -> y``: largest element of each window; padding is never the largest."""

    vertex, kind, reduction = "MaxPooling", "max", "MAX"
    dilated = True

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One stage for each axis."""
        return reduction_kernel(self.stages(), np.maximum, -math.inf, inputs[0], outputs[0], env, [])

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """From the pooled and the unpooled tensor, as upstream."""
        y, x = builder.forward(self.outputs[0]), builder.forward(self.inputs[0])
        return [builder.op(MaxPoolGrad, [grad, y, x], **self.options())]


class MaxPoolGrad(RegularPooling):
    """``(grad, pooled, x) -> dx``: the gradient of each window goes to its first largest element (in the order of
    memory), as in PyTorch. Attributes as in :class:`MaxPool`.

    Operands are those of PopART; only tensors of the forward graph are saved. The device's vertex (popnn
    MaxPoolingGrad) gives the gradient to every element that equals the maximum, which differs from this value where
    elements tie. A window whose maximum is NaN passes its gradient to its last element or to none.
    """

    vertex, kind, reduction = "MaxPoolingGrad", "max_grad", ""
    visit_flops = 2  # each element compares itself with the maximum of each of its windows
    dilated = True
    backward = True

    def infer(self) -> list[TensorSpec]:
        """The spec of ``x``."""
        self.require(len(self.inputs) == 3, f"needs 3 operands (grad, pooled, x), got {len(self.inputs)}")
        self.operand()
        grad, pooled, x = self.inputs
        self.same_dtype(*self.inputs)
        expected = self.pooled(x)
        for name, tensor in (("gradient", grad), ("pooled tensor", pooled)):
            self.require(
                tensor.shape == expected, f"{name} has shape {tensor.shape}; {expected} follows from {x.shape}"
            )
        return [x.spec]

    def windows(self) -> list[Windows]:
        """Windows over ``x``."""
        return self.windows_of(self.inputs[2].shape[2:])

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compute the maxima over the last axes again. Then for each stage, in reverse, pass the gradient to the first
        maximum of a line.

        Lines along later axes are compared first, so the choice is the first one in the order of memory.
        """
        stages = self.stages()[::-1]
        arrays = WorkingArrays(inputs, outputs, env)
        (grad, pooled, x), (out,) = arrays.operands, arrays.results
        if not stages:
            return arrays.kernel(partial(np.copyto, out, grad))
        slot = 4
        values = [flat(x), *temporaries(flat(x).shape, stages, x.dtype, env, slot), flat(pooled)]
        slot += len(stages)
        grads = [flat(out), *temporaries(flat(x).shape, stages, x.dtype, env, slot), flat(grad)]
        slot += len(stages)
        steps: list[Step] = []
        # The last stage's maxima are the pooled tensor, which is an operand.
        for index, stage in enumerate(stages[:-1]):
            steps += stage.reduce(np.maximum, -math.inf, values[index], values[index + 1])
        for index in reversed(range(len(stages))):
            coarse = values[index + 1]
            mask = env.scratch(coarse.shape, np.bool_, slot=slot)
            remainder, part = (env.scratch(coarse.shape, coarse.dtype, slot=slot + 1 + i) for i in range(2))
            # Windows that do not meet need no additions.
            give = _give_apart if stages[index].windows.full and stages[index].windows.disjoint else _give_shared
            lines = _Lines(values[index], coarse, grads[index], grads[index + 1], mask, remainder, part)
            steps += give(stages[index], lines)
        return arrays.kernel(*steps)


def _bits(array: np.ndarray) -> np.ndarray:
    """The array as integers. Multiplied by 0 or 1 and subtracted, they stay exact; infinity and NaN would not."""
    return array.view(np.dtype(f"i{array.itemsize}"))


@dataclass(frozen=True)
class _Lines:
    """The arrays of one stage of a maximum's gradient: values and gradients before and after the stage, and
    temporaries of the shape after it."""

    fine: np.ndarray
    coarse: np.ndarray
    d_fine: np.ndarray
    d_coarse: np.ndarray
    mask: np.ndarray
    remainder: np.ndarray
    part: np.ndarray


def _give_apart(stage: AxisPass, lines: _Lines) -> list[Step]:
    """Pass the gradient to the first maximum where windows do not meet. Every element is assigned once; the last
    one of a window takes what the others did not."""
    pairs = stage.windows.pairs
    steps: list[Step] = [] if stage.covers else [partial(lines.d_fine.fill, 0)]
    left = _bits(lines.d_coarse)
    for index, pair in enumerate(pairs):
        target = stage.views(pair, _bits(lines.d_coarse), _bits(lines.d_fine))[1]
        # The last element holds what the others left; a single one takes everything.
        if index == len(pairs) - 1:
            return [*steps, partial(np.copyto, target, left)] if index == 0 else steps
        steps.append(partial(np.equal, stage.views(pair, lines.coarse, lines.fine)[1], lines.coarse, lines.mask))
        steps.append(partial(np.multiply, left, lines.mask, target))
        last_target = stage.views(pairs[-1], _bits(lines.d_coarse), _bits(lines.d_fine))[1]
        # The last element holds the remainder itself, so it needs no step of its own.
        remains = last_target if index == len(pairs) - 2 else _bits(lines.remainder)
        steps.append(partial(np.subtract, left, target, remains))
        left = remains
    return steps


def _give_shared(stage: AxisPass, lines: _Lines) -> list[Step]:
    """Pass the gradient to the first maximum in general. The gradients of windows that share an element are added."""
    steps: list[Step] = [partial(lines.d_fine.fill, 0), partial(np.copyto, lines.remainder, lines.d_coarse)]
    for pair in stage.windows.pairs:
        largest, candidate = stage.views(pair, lines.coarse, lines.fine)
        chosen = stage.views(pair, lines.mask, lines.fine)[0]
        left, share = (stage.views(pair, a, lines.fine)[0] for a in (lines.remainder, lines.part))
        target = stage.views(pair, lines.coarse, lines.d_fine)[1]
        steps.append(partial(np.equal, candidate, largest, chosen))
        steps.append(partial(np.multiply, _bits(left), chosen, _bits(share)))
        steps.append(partial(np.add, target, share, target))
        # What was given away is no longer there for later elements of the window.
        steps.append(partial(np.subtract, _bits(left), _bits(share), _bits(left)))
    return steps
