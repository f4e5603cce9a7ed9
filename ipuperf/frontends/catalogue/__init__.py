"""The catalogue: one row per function of :mod:`ipuperf.functions` that a front end offers.

``functions.csv`` holds the names of a function in each vocabulary and what it is compared with (:class:`.rows.Row`);
``arguments.csv`` holds the arguments that a vocabulary has and the function has not (:class:`.arguments.Argument`).
Front ends make their tables of these rows, and ``tests/catalogue`` runs each row in every vocabulary. The tables are
CSV, because a row is one line: a reader sees a function's names beside each other, and a new function is one line more.
"""

from .operands import taking_tensors
from .rows import ROWS, Row

__all__ = ["ROWS", "Row", "taking_tensors"]
