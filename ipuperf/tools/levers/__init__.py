"""What a change of a program would gain: each is made to the program and simulated (``ipuperf report RUN --why``)."""

from .measure import LeverResults, measure
from .record import lever_values
from .rerun import Rerun, RerunError, rerun_of
from .text import levers_text, unsimulated_text
from .trial import Trial, Untried

__all__ = [
    "LeverResults",
    "Rerun",
    "RerunError",
    "Trial",
    "Untried",
    "lever_values",
    "levers_text",
    "measure",
    "rerun_of",
    "unsimulated_text",
]
