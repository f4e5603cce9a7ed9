"""The errors of the trace room."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace cannot be built, read or written.

    The message names the table and column, or the file, then the value seen and what is allowed.
    """


class TraceSizeError(TraceError):
    """A trace file whose contents would take more memory than allowed."""
