"""The exceptions of the machine room."""

from __future__ import annotations


class MachineError(ValueError):
    """A machine, one of its figures or a query about it is wrong.

    The message is one sentence that names the place (file and dotted key, or the method's arguments), the value seen
    and what is allowed.
    """


class TooFewIpusError(MachineError):
    """A program needs more IPUs than the machine has."""
