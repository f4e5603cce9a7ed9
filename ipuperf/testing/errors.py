"""What goes wrong with baselines."""

from __future__ import annotations


class BaselineError(AssertionError):
    """A baseline that nothing can be compared with: missing, damaged, or of another machine or version.

    An ``AssertionError``, so that a test with such a baseline fails.
    """
