"""Errors that have TensorFlow's names."""

from __future__ import annotations


class OutOfRangeError(IndexError):
    """A dataset has no more elements."""


class InvalidArgumentError(ValueError):
    """An argument that cannot be worked with."""


class FailedPreconditionError(RuntimeError):
    """Something that has to come first has not been done."""
