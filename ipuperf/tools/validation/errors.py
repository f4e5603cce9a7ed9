"""Errors in a case, and reasons why a case does not run."""

from __future__ import annotations


class CaseError(ValueError):
    """A file of cases is wrong; the message names file, case and key, the value seen and what is allowed."""


class UnknownOption(CaseError):
    """A case's ``config`` names an option that the model does not have."""


class NotAvailable(RuntimeError):
    """A case cannot run here (an optional package is not installed); the message says what would help."""
