"""Errors raised while a program is being built. Each message names the thing, the value seen and what is allowed."""

from __future__ import annotations


class IrError(Exception):
    """A program cannot be built or scheduled as written."""


class ShapeError(IrError, ValueError):
    """Operand shapes do not fit an op's shape rule."""


class DTypeError(IrError, ValueError):
    """Operand data types do not fit an op's type rule."""


class OptionError(IrError, ValueError):
    """An option of an op has a value that it does not take."""


class MixedTypesError(DTypeError, TypeError):
    """A :class:`DTypeError` where upstream raises a ``TypeError``."""


class ForeignTensorError(IrError, ValueError):
    """An operand belongs to another graph or program than the op."""


class AmbiguityError(IrError):
    """Nothing orders an in-place change against another use of the same tensor."""


class ApplicationRuntimeError(IrError):
    """A check that a program makes while it runs has failed (Poplar's ``application_runtime_error``)."""


class CycleError(IrError):
    """Data flow and ordering constraints of a graph contradict each other."""
