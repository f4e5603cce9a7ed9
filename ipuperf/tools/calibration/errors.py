"""What can be wrong with a calibration."""

from __future__ import annotations


class CalibrationError(ValueError):
    """Nothing can be fitted, or an input is wrong; the message says what, where, and what is allowed."""
