"""Errors of the evaluator."""

from __future__ import annotations


class EvaluationError(Exception):
    """A program cannot be evaluated, or was given inputs that do not fit. The message names tensor, stream or op."""


class HostMemoryError(MemoryError):
    """The values of a program are more than the memory of the host. The message names the largest tensors, what is
    needed and what is free, and what helps."""


class FloatingPointException(EvaluationError):
    """An op has made infinity or NaN of numbers, and the program asks to stop there."""
