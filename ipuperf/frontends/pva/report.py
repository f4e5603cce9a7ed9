"""Open a report: a trace of ipuperf, seen through libpva's object model."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from ipuperf.base.kinds import checked
from ipuperf.trace import Trace, TraceError

from .absent import ReportPart
from .compilation import Compilation
from .execution import Execution
from .programs import Programs

TRACE_FILE = "trace.ipt"


class PoplarVersion(ReportPart):
    """``string``: what simulated the program. It names ipuperf, as no Poplar took part."""

    ABSENT: ClassVar = dict.fromkeys(("major", "minor", "point", "packageHash"), "no Poplar was there")

    def __init__(self, version: str) -> None:
        self.string = f"ipuperf {version}, no Poplar"


class Report(ReportPart):
    """A trace in the form in which libpva shows a profile.

    Attributes:
        trace: the trace itself, with every table; libpva has no such name.
        poplarVersion: names ipuperf.
    """

    ABSENT: ClassVar = {
        "version": "no profile of Poplar's was read; report.trace.meta['schema_version'] is the format's of the trace",
        "instrumentationSettings": "nothing is instrumented: every step of every IPU is known",
        "listPrintLength": "lists here are Python's and print whole",
    }

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.poplarVersion = PoplarVersion(str(trace.meta["ipuperf_version"]))

    @cached_property
    def _programs(self) -> Programs:
        return Programs(self.trace)

    @cached_property
    def compilation(self) -> Compilation:
        """The compiled program."""
        return Compilation(self.trace, self._programs)

    @cached_property
    def execution(self) -> Execution:
        """The executed runs and steps."""
        return Execution(self.trace, self._programs)


def find_trace(path: str | os.PathLike[str]) -> Path:
    """Return the ``.ipt`` file that ``path`` stands for.

    This is the path itself or ``trace.ipt`` of a report folder. For the path of a ``profile.pop`` that does not exist,
    it is the trace beside which Poplar would have put the profile.

    Raises:
        FileNotFoundError: there is none.
        TraceError: the path is a real ``profile.pop``, which nothing here reads.
    """
    report_path = Path(path)
    if report_path.is_file() and report_path.suffix != ".pop":
        return report_path
    if report_path.is_file():
        raise TraceError(
            f"{report_path} is a profile of Poplar's; ipuperf.pva reads traces of ipuperf only (.ipt, or a report "
            "folder)"
        )
    folder = report_path.parent if report_path.suffix == ".pop" else report_path
    trace_path = folder / TRACE_FILE
    if trace_path.is_file():
        return trace_path
    # A folder of several sessions is ambiguous, but one session is what was meant.
    below = sorted(folder.glob(f"*/{TRACE_FILE}"))
    if len(below) == 1:
        return below[0]
    where = f"{len(below)} of them stand below it: {', '.join(map(str, below))}" if below else "none stands below it"
    raise FileNotFoundError(
        f"{report_path}: {folder} has no {TRACE_FILE} of ipuperf, and {where}; name a report folder"
    )


@checked()
def openReport(profileFilename: str | os.PathLike[str], debugInfoFilename: str | os.PathLike[str] = "") -> Report:
    """Open a trace: an ``.ipt`` file, a report folder, or the path at which Poplar would have written ``profile.pop``.

    ipuperf writes no ``profile.pop``; the trace in that folder is opened. The trace also has the lines of the user's
    program, for which Poplar writes a second file, so no file ``debugInfoFilename`` has to exist.

    Raises: FileNotFoundError, TraceError: see :func:`find_trace`; also for a trace that cannot be read, and for a
    second file that exists, as it is Poplar's.
    """
    if os.fspath(debugInfoFilename) and Path(debugInfoFilename).is_file():
        raise TraceError(
            f"{debugInfoFilename} is a file of Poplar's; the lines of the user's program are in the trace, leave it out"
        )
    return Report(Trace.load(find_trace(profileFilename)))
