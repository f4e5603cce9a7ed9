"""The program of a run, run again until the session of the report is about to run for the first time.

Nothing of that session is computed; sessions before it run as they did. What the program prints is not shown. Each time
the program starts afresh, in the folder and under the environment of then, so that a change of one time is gone in the
next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ipuperf.kinds import checked
from ipuperf.pipelines import BuildRequest, revising
from ipuperf.runtime.auto_report import VARIABLE
from ipuperf.runtime.executable import Executable
from ipuperf.runtime.origin import Origin, OriginError, read_origin
from ipuperf.runtime.reaching import NotReachedError, executable_of
from ipuperf.runtime.settings import RunSettings

if TYPE_CHECKING:
    from ipuperf.lowering import DeviceProgram
    from ipuperf.trace import Trace


class RerunError(ValueError):
    """The program of a run cannot be run again, or is no longer what it was; the message says what is wrong."""


class Rerun:
    """The program of a run.

    Args:
        origin: how it was started.
        trace: of the run.

    Raises:
        RerunError: the program has changed, fails, or takes another time than the run did.
    """

    def __init__(self, origin: Origin, trace: Trace) -> None:
        self.origin = origin
        changed = origin.changed()
        if changed:
            raise RerunError(f"{changed}; run it again with `ipuperf run --report`")
        self.trace = trace
        self.executable = self.fresh()
        self._check(int(trace.columns("runs")["dur"][-1]))

    def _check(self, before: int) -> None:
        now = self.executable.simulated_run_cycles
        if now != before:
            raise RerunError(
                f"{self.origin.script} now takes {now:,} cycles, the run took {before:,}: something that it reads, its "
                "machine or ipuperf has changed since; run it again with `ipuperf run --report`"
            )

    @cached_property
    def device_program(self) -> DeviceProgram:
        """The program of the run as it was lowered."""
        return self.executable.device_program

    def fresh(self, revise: Callable[[BuildRequest], BuildRequest] | None = None) -> Executable:
        """The session as the program makes it, not lowered yet; whoever gets it may change its program.

        Args:
            revise: changes pipelines before they are built (:func:`ipuperf.pipelines.revising`).

        Raises:
            RerunError: the program ends before.
        """
        origin, settings = self.origin, RunSettings(self.origin.machine)
        with _surroundings(origin), revising(revise):
            try:
                made = executable_of(origin.script, origin.arguments, settings, origin.session, origin.clock)
            except NotReachedError as error:
                raise RerunError(str(error)) from None
        made.values_each_run = self._brings_values(made)
        return made

    def _brings_values(self, executable: Executable) -> bool:
        """Whether the trace is of a run that comes after one that brings new values."""
        values = executable.new_values
        return values is not None and values.name in set(self.trace.table("host_events")["label"])


@checked()
def rerun_of(folder: Path, trace: Trace) -> Rerun:
    """The program of the run whose report is in ``folder`` and whose trace is given.

    Raises:
        RerunError: nothing says which program it was; and see :class:`Rerun`.
    """
    try:
        return Rerun(read_origin(folder), trace)
    except OriginError as error:
        raise RerunError(str(error)) from None


@contextmanager
def _surroundings(origin: Origin) -> Iterator[None]:
    """Folder and environment of the run; nobody asks for reports."""
    folder, before = os.getcwd(), dict(os.environ)
    os.chdir(origin.folder)
    os.environ.update(origin.environment)
    os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.chdir(folder)
