"""Weighted sums of two tensors, also in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ipuperf.ir import Phase, TensorSpec
from ipuperf.ir.attributes import INTEGER, NUMBER, Attribute, optional

from ..base import Arrays, Environment, Kernel
from ..blocks import bind_weighted_sum
from ..work import Copy, Vertices, Work
from .optimiser import UpdateOp, scratch_of
from .update_vertices import scaled_add_cycles, type_names


class ScaledAdd(UpdateOp):
    """``a * X + b * Y`` in X's type; X and Y have equal shapes, their types may differ.

    Inputs ``X, Y[, a][, b]``; attributes ``a``, ``b`` (floats, default 1) or ``a_input``, ``b_input`` (input indices).
    Cost: a copy of X and the vertex of the in-place form.
    """

    own_phase: ClassVar[Phase | None] = None  # a gradient rule makes it as well as an update

    a = Attribute(optional(NUMBER), None)
    b = Attribute(optional(NUMBER), None)
    a_input = Attribute(optional(INTEGER), None)
    b_input = Attribute(optional(INTEGER), None)

    def infer(self) -> list[TensorSpec]:
        """The spec of X; raises for integers, unequal shapes and factors of more than one element."""
        x, y = self.inputs[:2]
        self.floating(x, y)
        self.same_shape(x, y)
        if not (self.attributes["a_input"] is self.attributes["b_input"] is None):  # floats are frequent
            self.check_factor("a")
            self.check_factor("b")
        return [x.spec]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """The weighted sum in float32, rounded once."""
        a, b = self.reader("a", inputs), self.reader("b", inputs)
        static = not self.has_tensor_factor("a", "b")
        return bind_weighted_sum(
            outputs[0], inputs[0], inputs[1], lambda r: (a(r), b(r)), static, False, scratch_of(env)
        )

    def vertices(self) -> Vertices:
        """The ScaledAdd or aX+bY compute set."""
        x, y = self.inputs[:2]
        tensor = self.has_tensor_factor("a", "b")
        # A factor of 1 on X needs no vertex with two factors.
        both = self.factor_index("a") is not None or self.a not in (None, 1.0)
        name = "aXPlusbYSupervisor" if both else "ScaledAddSupervisor"
        return Vertices(
            f"popops::{name}<{type_names(x.dtype, y.dtype)},{str(not tensor).lower()}>",
            x.spec.elements,
            scaled_add_cycles(x.dtype, y.dtype, tensor, both),
            flops=(3 if both else 2) * x.spec.elements,
        )

    def work(self) -> Sequence[Work]:
        """A copy of X, then the vertex of the in-place form."""
        return [Copy(self.inputs[0].spec.bytes), self.vertices()]


class ScaledAddLhsInplace(ScaledAdd):
    """``X = a * X + b * Y`` in place; the output is X."""

    own_phase = "update"  # the step of SGD
    in_place = True

    def work(self) -> Sequence[Work]:
        """The ScaledAdd or aX+bY vertex."""
        return [self.vertices()]
