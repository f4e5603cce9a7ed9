"""Room ``validation``: published measurements as data, predictions beside them; ``ipuperf validate``.

:func:`read_cases` reads files of cases strictly, :func:`predict` builds, lowers and simulates their programs by the
road that every program takes, :func:`report` and :func:`draw` show the result. No figure is fitted here.
"""

from ipuperf.tools.errors import CaseError, NotAvailable
from ipuperf.tools.validation.cases import BUILT_IN, Case, Cases, Choice, Measured, NotExpressed, read_cases, select
from ipuperf.tools.validation.leaving_out import by_class_left_out, leave_one_out, left_out_text
from ipuperf.tools.validation.plot import check_format, draw
from ipuperf.tools.validation.programs import Figures, Program, figures, problem
from ipuperf.tools.validation.roofline import ClassBaseline, baseline, baseline_text
from ipuperf.tools.validation.rows import Row, Run, Skipped, by_class, predict, runs, summarise
from ipuperf.tools.validation.scaling import Growth, Line, Lines, Scaling, lines, scaling
from ipuperf.tools.validation.sensitivity import FigureEffect, sensitivity, sensitivity_text
from ipuperf.tools.validation.text import report, why_none_ran

__all__ = [
    "BUILT_IN",
    "Case",
    "CaseError",
    "Cases",
    "Choice",
    "ClassBaseline",
    "FigureEffect",
    "Figures",
    "Growth",
    "Line",
    "Lines",
    "Measured",
    "NotAvailable",
    "NotExpressed",
    "Program",
    "Row",
    "Run",
    "Scaling",
    "Skipped",
    "baseline",
    "baseline_text",
    "by_class",
    "by_class_left_out",
    "check_format",
    "draw",
    "figures",
    "leave_one_out",
    "left_out_text",
    "lines",
    "predict",
    "problem",
    "read_cases",
    "report",
    "runs",
    "scaling",
    "select",
    "sensitivity",
    "sensitivity_text",
    "summarise",
    "why_none_ran",
]
