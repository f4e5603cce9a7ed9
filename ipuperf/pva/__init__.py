"""What ``import pva`` finds: libpva's object model over traces of ipuperf, read only.

>>> report = openReport("report/0-session")                                # doctest: +SKIP
>>> sum(step.ipus[0].cycles for step in report.execution.steps)            # doctest: +SKIP

Names are those that public programs use (``docs/reference/traces.md`` 2; graphcore/examples
``tutorials/tutorials/popvision/libpva``). Values are those of the tables of the trace, to the cycle and byte. What a
trace does not hold is an ``AttributeError`` that says what there is instead.
"""

from __future__ import annotations

from .compilation import Target
from .programs import Program, ProgramVisitor
from .report import Report, openReport

__all__ = ["Program", "ProgramVisitor", "Report", "Target", "openReport"]
