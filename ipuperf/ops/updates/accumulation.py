"""Gradient accumulation: accumulators and their running means, ops that scale and clear them, copies into
variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ipuperf.ir import DTypeError, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import NUMBER, Attribute, choice, optional

from .. import half, vertices
from ..base import Arrays, Environment, Kernel
from ..binding import sequence
from ..blocks import Coefficients, Piece, bind_weighted_sum, by_pieces, in_float32, pieces, scalar
from ..half import Step
from ..work import Copy, Vertices, Work
from .optimiser import UpdateOp, scratch_of
from .update_vertices import fused_cycles, scaled_add_cycles, type_names

#: Arithmetic operations of the fused expression: (factor known at compile time, factor read from a tensor).
_FUSED_OPERATIONS = {"square": (3, 3), "moving_average": (3, 4), "moving_average_square": (4, 5)}
_KINDS = ("add", "square", "mean", "moving_average", "moving_average_square")


class Accumulate(UpdateOp):
    """Accumulate X into ``t`` in place; the output is ``t``. Types may differ, shapes are equal; integers of one type
    are added without a factor.

    Inputs ``t, X[, factor]``; attributes ``kind`` and ``factor`` (float or None). A third input is the factor ``f``.

    ====================== =========================================== ===========================
    kind                   value                                       vertices
    ====================== =========================================== ===========================
    add                    t + f X (f = 1)                             ScaledAdd
    mean                   t c/(c+1) + X/(c+1), c = f                  aX+bY
    square                 t + f X X (f = 1)                           fused expression
    moving_average         f t + (1-f) X                               fused expression
    moving_average_square  f t + (1-f) X X                             fused expression
    ====================== =========================================== ===========================

    A half accumulator makes ``X``, ``f`` and ``1-f`` of a moving average halves (popx/op/accumulatex.cpp); the sum is
    rounded once.
    """

    in_place = True

    kind = Attribute(choice(*_KINDS), "add")
    factor = Attribute(optional(NUMBER), None)

    def infer(self) -> list[TensorSpec]:
        """The spec of ``t``. Raises for an unknown kind, unequal shapes and a kind that lacks its factor."""
        target, value = self.inputs[:2]
        kind = self.kind
        if target.dtype.is_integer:
            self._check_integers(target, value)
        else:
            self.floating(target, value)
        self.same_shape(target, value)
        self.check_factor("factor")
        if self.factor_index("factor") is None and self.factor is None and kind not in ("add", "square"):
            raise IrError(f"{self.where()}: kind {kind!r} needs a factor (a float or a third input)")
        return [self.like(target)]

    def _check_integers(self, target: Tensor, value: Tensor) -> None:
        """Integers are added without scaling: one type, kind ``add``, no factor."""
        self.same_dtype(target, value)
        if self.kind != "add" or len(self.inputs) > 2 or self.factor not in (None, 1.0):
            raise DTypeError(
                f"{self.where()}: {target.id!r} is {target.dtype.name}; integers accumulate by kind 'add', "
                "without a factor"
            )

    def factor_index(self, name: str) -> int | None:
        """The third input, if there is one, is the factor."""
        return 2 if name == "factor" and len(self.inputs) > 2 else None

    def _coefficients(self, inputs: Arrays) -> Coefficients:
        factor = self.reader("factor", inputs)
        if self.kind in ("add", "square"):
            return lambda r: (1.0, factor(r))
        if self.kind == "mean":
            return lambda r: (factor(r) / (factor(r) + 1.0), 1.0 / (factor(r) + 1.0))
        if inputs[0].dtype == np.float16:
            # A half accumulator makes both factors halves, as PopART's expression does.
            return lambda r: (float(np.float16(factor(r))), float(np.float16(1.0 - factor(r))))
        return lambda r: (factor(r), 1.0 - factor(r))

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """The weighted sum (of values or squares) in float32, rounded once and written to the accumulator."""
        static = self.factor_index("factor") is None
        square = self.kind.endswith("square")
        target = inputs[0]
        if self.inputs[0].dtype.is_integer:
            return partial(np.add, target, inputs[1], out=target)
        value, cast_steps = self._in_type_of(target, inputs[1], env)
        add = bind_weighted_sum(target, target, value, self._coefficients(inputs), static, square, scratch_of(env))
        return sequence(*cast_steps, add)

    def _in_type_of(self, target: np.ndarray, value: np.ndarray, env: Environment) -> tuple[np.ndarray, list[Step]]:
        """The value in the type of the accumulator, where the fused expressions cast it."""
        # Only moving averages cast the value (popx/op/accumulatex.cpp).
        if not self.kind.startswith("moving_average") or target.dtype != np.float16 or value.dtype == np.float16:
            return value, []
        cast = env.scratch(value.shape, np.float16, 8)
        return cast, [half.copy(cast, value)]

    def work(self) -> Sequence[Work]:
        """The vertices of the table above."""
        target, value = self.inputs[:2]
        tensor_factor = self.factor_index("factor") is not None
        count, kind = target.spec.elements, self.kind
        types = type_names(target.dtype, value.dtype)
        if kind in ("add", "mean"):
            scales_both = kind == "mean"
            name = "aXPlusbYSupervisor" if scales_both else "ScaledAddSupervisor"
            vertex = f"popops::{name}<{types},{str(not tensor_factor).lower()}>"
            formula = scaled_add_cycles(target.dtype, value.dtype, tensor_factor, scales_both)
            low_confidence = target.dtype.is_integer  # popops estimates the floating-point vertices only
            return [
                Vertices(vertex, count, formula, flops=(3 if scales_both else 2) * count, low_confidence=low_confidence)
            ]
        operations = _FUSED_OPERATIONS[kind][tensor_factor]
        if kind == "square" and not tensor_factor and self.factor in (None, 1.0):
            # A factor of 1 drops out of the expression: square and add remain.
            operations = 2
        formula = fused_cycles(target.dtype, 2, int(tensor_factor), operations)
        return [Vertices(f"popops::map::Accumulate_{kind}<{types}>", count, formula, flops=operations * count)]


class AccumulatorScale(UpdateOp):
    """``t = f * t`` in place; the output is ``t``. Inputs ``t[, f]``; attribute ``factor``. Factor 0 is a fill.

    Cost: ``BroadcastScalar1DInPlace<MULTIPLY>``, or ``Fill`` for the constant 0.
    """

    in_place = True

    factor = Attribute(optional(NUMBER), None)

    def infer(self) -> list[TensorSpec]:
        """The spec of ``t``; raises for integers (but for the factor 0) and without a factor of one element."""
        if not self.clears:
            self.floating(self.inputs[0])
        self.check_factor("factor")
        if self.factor_index("factor") is None and self.factor is None:
            raise IrError(f"{self.where()}: a factor is needed (a float or a second input)")
        return [self.like(self.inputs[0])]

    def factor_index(self, name: str) -> int | None:
        """The second input, if there is one, is the factor."""
        return 1 if len(self.inputs) > 1 else None

    @property
    def clears(self) -> bool:
        """True when the factor is the constant 0."""
        return self.factor_index("factor") is None and self.factor == 0.0

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """The product in float32, rounded once; a fill where the factor is the constant 0."""
        target = inputs[0]
        # A product with 0 would not clear NaN and infinity.
        if self.clears:
            return lambda: target.fill(0)
        factor = self.reader("factor", inputs)

        def bind(some: Sequence[Piece], scratch: Callable[[int, int], np.ndarray]) -> Kernel:
            bound = in_float32(some, scratch, 0)

            def run() -> None:
                for piece in bound:
                    for step in piece.fill:
                        step()
                    out, value = piece.views
                    np.multiply(value, scalar(factor(piece.replica)), out=out)
                    for step in piece.round:
                        step()

            return run

        return by_pieces(pieces([target, target], per_replica=True), bind, scratch_of(env))

    def work(self) -> Sequence[Work]:
        """A product with a scalar, or a fill."""
        target = self.inputs[0]
        if self.clears:
            return [vertices.fill(target.dtype, target.spec.elements)]
        return [vertices.broadcast_scalar("MULTIPLY", target.dtype, target.spec.elements, in_place=True)]


class AccumulatorZero(AccumulatorScale):
    """``t = 0`` in place; the output is ``t``. Printed as the upstream operation, an AccumulatorScale by 0."""

    type = "AccumulatorScale"

    factor = Attribute(choice(0.0), 0.0)


class CopyVarUpdate(UpdateOp):
    """``t = X`` in place (equal shapes and types); the output is ``t``. Cost: a copy."""

    in_place = True

    def infer(self) -> list[TensorSpec]:
        """The spec of ``t``; raises unless types and shapes are equal."""
        target, value = self.inputs
        self.same_dtype(target, value)
        self.same_shape(target, value)
        return [self.like(target)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A copy."""
        return partial(np.copyto, inputs[0], inputs[1])

    def work(self) -> Sequence[Work]:
        """A copy of the bytes of one operand."""
        return [Copy(self.inputs[0].spec.bytes)]
