"""Bitwise operations on whole numbers. Vertices: PopLibs' unary and binary operations of the same names
(``lib/popops/popopsCycleEstimators.hpp``). They have no gradient."""

from __future__ import annotations

import numpy as np

from ipuperf.ir import DTypeError, TensorSpec

from .arithmetic import Binary
from .unary import Unary


class _Bitwise(Binary):
    """Base: two operands of one integer type."""

    flat = True

    def infer(self) -> list[TensorSpec]:
        """As other binary ops, for whole numbers only."""
        specs = super().infer()
        if not specs[0].dtype.is_integer:
            raise DTypeError(f"{self.where()}: operands are {specs[0].dtype.name}; a whole-number type is needed")
        return specs


class BitwiseAnd(_Bitwise):
    """Bits that are set in both operands."""

    ufunc = np.bitwise_and
    vertex = "BITWISE_AND"


class BitwiseOr(_Bitwise):
    """Bits that are set in at least one operand."""

    ufunc = np.bitwise_or
    vertex = "BITWISE_OR"


class BitwiseXor(_Bitwise):
    """Bits that are set in exactly one operand."""

    ufunc = np.bitwise_xor
    vertex = "BITWISE_XOR"


class ShiftLeft(_Bitwise):
    """``lhs`` times two to the power of ``rhs``; bits beyond the type are lost."""

    ufunc = np.left_shift
    vertex = "SHIFT_LEFT"


class ShiftRight(_Bitwise):
    """``lhs`` divided by two to the power of ``rhs``, rounded down: the sign stays."""

    ufunc = np.right_shift
    vertex = "SHIFT_RIGHT_SIGN_EXTEND"


class BitwiseNot(Unary):
    """Every bit inverted."""

    flat = True
    ufunc = np.invert
    vertex = "BITWISE_NOT"
    allowed = "any"

    def infer(self) -> list[TensorSpec]:
        """As the operand, for whole numbers only."""
        specs = super().infer()
        if not specs[0].dtype.is_integer:
            raise DTypeError(f"{self.where()}: the operand is {specs[0].dtype.name}; a whole-number type is needed")
        return specs
