"""Several convolutions as one op: PopART's MultiConv and its two gradients.

Each convolution is a :class:`ConvolutionPart`: the type of an op of :mod:`.convolution`, with its attributes. Shape
rules, values and gradients are those of the parts. The parts share a plan (:class:`.work.MultiConvolution`), which
changes time and memory, never values. :func:`multi_conv_of` joins existing ops.

Source: popart: willow/src/op/multiconv.cpp, willow/src/popx/op/multiconvx.cpp; PopLibs:
lib/poplin/MultiConvolution.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec, join
from ipuperf.ir import Op as Operation
from ipuperf.ir.attributes import INTEGER, NUMBER, Attribute, choice, instance, many

from .. import work as works
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import sequence
from .convolution import Conv, ConvInputGrad, ConvTranspose, ConvWeightGrad, _Convolutional

PLAN_TYPES = ("parallel", "serial")
_KINDS: Mapping[str, type[_Convolutional]] = {
    kind.type: kind for kind in (Conv, ConvTranspose, ConvInputGrad, ConvWeightGrad)
}


@dataclass(frozen=True)
class ConvolutionPart:
    """One of the convolutions: the type of its op, and its attributes by name."""

    kind: str
    attributes: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, op: Operation) -> ConvolutionPart:
        """The part that describes an op."""
        return cls(op.type, tuple(op.attributes.items()))


class Convolutions(Op, abstract=True):
    """Base of the ops ``(x0, w0, x1, w1, ...) -> (y0, y1, ...)``: convolutions that do not need each other's results.

    Attributes:
        parts: the convolutions, in the order of operands and results.
        plan_type: ``parallel`` (at once, each on tiles of its own) or ``serial`` (one after the other on all tiles).
        per_conv_reserved_tiles: in a parallel plan, tiles reserved for each convolution but the largest.
        cycle_back_off: in a parallel plan, how much longer than its fastest plan the largest convolution may take for
            each of the others.
    """

    parts = Attribute(many(instance(ConvolutionPart)))
    plan_type = Attribute(choice(*PLAN_TYPES), "parallel")
    per_conv_reserved_tiles = Attribute(INTEGER, 50)
    cycle_back_off = Attribute(NUMBER, 0.1)

    def members(self) -> list[_Convolutional]:
        """The convolutions as ops of their own, which belong to no graph."""
        ops = []
        for index, part in enumerate(self.parts):
            operands, attributes = self.inputs[2 * index : 2 * index + 2], dict(part.attributes)
            # The attributes were settled when the parts
            # were ops, so they are not settled again.
            op = _KINDS[part.kind](self.graph, self.id, operands, attributes, self.location, settled=True)
            op.outputs = self.outputs[index : index + 1]
            ops.append(op)
        return ops

    def infer(self) -> list[TensorSpec]:
        """The results of all convolutions."""
        counts = f"{len(self.parts)} convolutions need 2 operands each, got {len(self.inputs)}"
        self.require(len(self.inputs) == 2 * len(self.parts) > 0, counts)
        unknown = [part.kind for part in self.parts if part.kind not in _KINDS]
        self.require(not unknown, f"parts of types {unknown}; allowed: {', '.join(_KINDS)}")
        valid = self.per_conv_reserved_tiles >= 0 and self.cycle_back_off >= 0
        options = f"per_conv_reserved_tiles={self.per_conv_reserved_tiles}, cycle_back_off={self.cycle_back_off}"
        self.require(valid, f"{options}; numbers that are not negative are needed")
        return [spec for member in self.members() for spec in member.infer()]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compute one convolution after the other."""
        kernels = [
            member.kernel(inputs[2 * index : 2 * index + 2], outputs[index : index + 1], env)
            for index, member in enumerate(self.members())
        ]
        return sequence(*kernels)

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """For each of the two operands one op that holds the gradients of all convolutions whose result has a
        gradient. It is planned as this op is."""
        input_grads: list[Tensor | None] = []
        for member, grad in zip(self.members(), grads, strict=True):
            input_grads += (None, None) if grad is None else member.gradient(builder, [grad])
        for operand in range(2):
            # Input gradients are joined with each other, and so are weight gradients.
            ops = [tensor.producer for tensor in input_grads[operand::2] if tensor is not None]
            multi_conv_of([op for op in ops if op is not None], **self.planning())
        return input_grads

    def planning(self) -> dict[str, Any]:
        """The attributes of the plan."""
        return {name: self.attributes[name] for name in ("plan_type", "per_conv_reserved_tiles", "cycle_back_off")}

    def work(self) -> list[works.Work]:
        """The convolutions, planned together."""
        convolutions = tuple(member.convolution() for member in self.members())
        return [works.MultiConvolution(convolutions, self.plan_type, self.per_conv_reserved_tiles, self.cycle_back_off)]


class MultiConvForward(Convolutions):
    """``(x0, w0, x1, w1, ...) -> (y0, y1, ...)``: convolutions, also transposed ones."""

    type = "MultiConv"


class MultiConvInputGrad(Convolutions):
    """``(g0, w0, g1, w1, ...) -> (dx0, dx1, ...)``: the gradients of the inputs of a :class:`MultiConvForward`."""

    type = "MultiConvDataGrad"


class MultiConvWeightGrad(Convolutions):
    """``(g0, x0, g1, x1, ...) -> (dw0, dw1, ...)``: the gradients of the weights of a :class:`MultiConvForward`."""

    type = "MultiConvWeightsGrad"


_JOINED: Mapping[str, type[Convolutions]] = {
    ConvInputGrad.type: MultiConvInputGrad,
    ConvWeightGrad.type: MultiConvWeightGrad,
}


def multi_conv_of(ops: Sequence[Operation], **planning: Any) -> Convolutions:
    """Replace convolutions of a graph by one op (``planning``: attributes of :class:`Convolutions`).

    Raises:
        IrError: one of them needs the result of another.
    """
    # Convolutions of several kinds become a forward MultiConv, whose parts may be any.
    kinds = {_JOINED.get(op.type, MultiConvForward) for op in ops}
    kind = kinds.pop() if len(kinds) == 1 else MultiConvForward
    return join(kind, ops, parts=tuple(map(ConvolutionPart.of, ops)), **planning)
