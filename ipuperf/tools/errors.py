"""What can be wrong with a calibration, a sweep, a tuning, a case of the validation, a baseline or a data set.

Each message says what is wrong, where, and what is allowed.
"""

from __future__ import annotations


class CalibrationError(ValueError):
    """Nothing can be fitted, or an input is wrong; the message says what, where, and what is allowed."""


class SweepError(ValueError):
    """A sweep cannot be run or its table not be read; the message says what is wrong, where, and what is allowed."""


class TuningError(ValueError):
    """Nothing can be tuned, or no configuration is possible; the message says what, where, and what is allowed."""


class CaseError(ValueError):
    """A file of cases is wrong; the message names file, case and key, the value seen and what is allowed."""


class UnknownOption(CaseError):
    """A case's ``config`` names an option that the model does not have."""


class NotAvailable(RuntimeError):
    """A case cannot run here (an optional package is not installed); the message says what would help."""


class BaselineError(AssertionError):
    """A baseline that cannot be compared: it is missing, damaged, or of another machine or version.

    It is an ``AssertionError``, so that a test with such a baseline fails.
    """


class DatasetError(RuntimeError):
    """A data file is damaged or missing, or cannot be downloaded.

    The message is one statement that names the file or the folders, what was found there and what was expected. It is a
    ``RuntimeError`` because torchvision raises that when a data set is not on disk.
    """
