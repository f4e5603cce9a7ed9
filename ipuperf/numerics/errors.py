"""Errors of the evaluator."""

from __future__ import annotations


class EvaluationError(Exception):
    """A program cannot be evaluated, or was given inputs that do not fit. The message names tensor, stream or op."""


class FloatingPointException(EvaluationError):
    """An op has made infinity or NaN of numbers, and the program asks to stop there."""
