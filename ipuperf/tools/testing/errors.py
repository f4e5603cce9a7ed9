"""Errors about baselines."""

from __future__ import annotations


class BaselineError(AssertionError):
    """A baseline that cannot be compared: it is missing, damaged, or of another machine or version.

    It is an ``AssertionError``, so that a test with such a baseline fails.
    """
