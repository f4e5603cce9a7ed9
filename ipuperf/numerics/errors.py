"""Errors of the evaluator."""

from __future__ import annotations


class EvaluationError(Exception):
    """A program cannot be evaluated, or was given inputs that do not fit. The message names tensor, stream or op."""
