"""Room ``validation``: published measurements as data, predictions beside them; ``ipuperf validate``.

:func:`read_cases` reads files of cases strictly, :func:`predict` builds, lowers and simulates their programs by the
road that every program takes, :func:`report` and :func:`draw` show the result. No figure is fitted here.
"""

from ipuperf.validation.cases import BUILT_IN, Case, Cases, Measured, NotExpressed, read_cases
from ipuperf.validation.errors import CaseError, NotAvailable
from ipuperf.validation.plot import check_format, draw
from ipuperf.validation.programs import Figures, Program, figures, problem
from ipuperf.validation.rows import Row, Skipped, by_class, predict, summarise
from ipuperf.validation.scaling import Growth, Line, Lines, Scaling, lines, scaling
from ipuperf.validation.text import report, why_none_ran

__all__ = [
    "BUILT_IN",
    "Case",
    "CaseError",
    "Cases",
    "Figures",
    "Growth",
    "Line",
    "Lines",
    "Measured",
    "NotAvailable",
    "NotExpressed",
    "Program",
    "Row",
    "Scaling",
    "Skipped",
    "by_class",
    "check_format",
    "draw",
    "figures",
    "lines",
    "predict",
    "problem",
    "read_cases",
    "report",
    "scaling",
    "summarise",
    "why_none_ran",
]
