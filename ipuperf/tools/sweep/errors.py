"""What can be wrong with a sweep."""

from __future__ import annotations


class SweepError(ValueError):
    """A sweep cannot be run or its table not be read; the message says what is wrong, where, and what is allowed."""
