"""Errors of the evaluator."""

from __future__ import annotations


class EvaluationError(Exception):
    """A program cannot be evaluated, or its inputs do not fit. The message names tensor, stream or op."""


class HostMemoryError(MemoryError):
    """The values of a program need more than the memory of the host.

    The message names the largest tensors, the bytes needed and free, and a remedy.
    """


class FloatingPointException(EvaluationError):
    """An op has made infinity or NaN from numbers, and the program asks to stop there."""
