"""What can be wrong with a tuning."""

from __future__ import annotations


class TuningError(ValueError):
    """Nothing can be tuned, or no configuration is possible; the message says what, where, and what is allowed."""
