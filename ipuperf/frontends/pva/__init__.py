"""The module that ``import pva`` finds: libpva's object model over traces of ipuperf, read only.

>>> report = openReport("report/0-session")                                # doctest: +SKIP
>>> sum(step.ipus[0].cycles for step in report.execution.steps)            # doctest: +SKIP

Names are those that public programs use (``docs/reference/traces.md`` 2; graphcore/examples
``tutorials/tutorials/popvision/libpva``). Values come from the tables of the trace, exact to the cycle and byte. A name
that a trace has no value for is an ``AttributeError`` that names the nearest thing there is.
"""

from __future__ import annotations

from typing import NoReturn

from ipuperf.base.near_names import did_you_mean as _did_you_mean

from .compilation import Target
from .operations import OperationAnalysis
from .programs import Program, ProgramVisitor
from .report import Report, openReport

__all__ = ["OperationAnalysis", "Program", "ProgramVisitor", "Report", "Target", "openReport"]

_REFUSED = {
    "openTrace": "a trace of the host (.pvti) is not written; what the host does is report.trace.table('host_events')",
    "BriefLoweredVariable": "report.trace.table('variables') has the tiles of each variable",
}


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    why = f"; {reason}" if (reason := _REFUSED.get(name)) else ""
    raise AttributeError(
        f"pva.{name} is not in ipuperf{why or _did_you_mean(name, __all__)} (there is: {', '.join(__all__)})"
    )
