"""Floating-point exceptions: an op that makes infinity or NaN from numbers stops the program.

The hardware raises them for invalid operations, divisions by zero and overflows. Here the operands and results of each
op are checked for what such an exception leaves behind: results that are infinite where no operand was (division by
zero, overflow), or not a number where no operand was (invalid). A comparison with NaN and a division by zero or by
infinity are exceptions too (``poptorch:python/options.py``), whatever their results; a test for NaN is allowed. A
conversion to an integer type that does not hold the number is an invalid operation. Ops that only bring
data, which may hold anything, do not compute. A program may ask for some of the three kinds (:data:`KINDS`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ipuperf import ops
from ipuperf.ops import base
from ipuperf.ops.elementwise.arithmetic import Binary

from .errors import FloatingPointException

INVALID, ZERO, OVERFLOW = "invalid operation", "division by zero", "overflow"
KINDS = frozenset({INVALID, ZERO, OVERFLOW})
"""The kinds of exceptions that the hardware tells apart."""

_DIVISIONS = (ops.Div, ops.FloorQuotient, ops.Reciprocal)
"""Ops that divide by their last operand."""


class CheckedKernel:
    """A kernel that raises :class:`.errors.FloatingPointException` after results that only an exception leaves
    behind."""

    def __init__(
        self,
        op: base.Op,
        kernel: base.Kernel,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        kinds: Collection[str] = KINDS,
    ) -> None:
        self._op = op
        self._kinds = kinds
        self._kernel = kernel
        # Integers cannot be infinite or NaN.
        self._inputs = [array for array in inputs if _floating(array)]
        changed = [inputs[index] for index in op.modified_inputs()]
        self._outputs = [array for array in (*outputs, *changed) if _floating(array)]

    def __call__(self) -> None:
        """Run the kernel and check its operands and results."""
        # Operands are checked before the kernel runs, as it may change them in place.
        infinite = any(np.isinf(array).any() for array in self._inputs)
        undefined = any(np.isnan(array).any() for array in self._inputs)
        # Checked first: the result of a comparison is a bool, which shows no NaN afterwards.
        if undefined and isinstance(self._op, Binary) and self._op.comparison:
            nan_mask = next(np.isnan(array) for array in self._inputs if np.isnan(array).any())
            self._raise(INVALID, "a comparison with an operand that is not a number", nan_mask)
        if isinstance(self._op, ops.Cast) and self._inputs and self._op.dtype.category in ("int", "uint"):
            allowed = np.iinfo(self._op.dtype.numpy)
            # The largest integer may have no neighbour among the floats, its successor is a power of two and has one.
            held = (self._inputs[0] >= allowed.min) & (self._inputs[0] < float(allowed.max) + 1)
            self._raise(INVALID, f"a number that {self._op.dtype} does not hold", ~held)
        self._kernel()
        divides = isinstance(self._op, _DIVISIONS) and bool(self._inputs)
        # Checked by the operand, as a division by infinity gives an ordinary 0.
        divisor = self._inputs[-1] if divides else np.ones(())
        by_zero = bool((divisor == 0).any())
        for array in self._outputs:
            if not undefined and np.isnan(array).any():
                problem = "an invalid operation: a result is not a number and no operand was"
                self._raise(INVALID, problem, np.isnan(array))
            if not (infinite or undefined):
                problem = "an overflow or a division by zero: a result is infinite and no operand was"
                self._raise(ZERO if by_zero else OVERFLOW, problem, np.isinf(array))
        if divides:
            self._raise(ZERO, "a division by zero", divisor == 0)
            self._raise(ZERO, "a division by infinity", np.isinf(divisor))

    def _raise(self, kind: str, problem: str, mask: np.ndarray) -> None:
        if kind not in self._kinds or not mask.any():
            return
        replica, *element = (int(index) for index in np.argwhere(mask)[0])
        raise FloatingPointException(f"{self._op.where()}: {problem} (replica {replica}, element {tuple(element)})")


def checks(op: base.Op) -> bool:
    """Whether an op computes, so that its results are checked."""
    return bool(op.inputs) and op.own_phase != "io"


def _floating(array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating)
