"""Run the program of a report again, up to the point where the session of the report would run for the first time.

That session is not executed; sessions before it run as they did. The program's output is not shown. The program
starts anew each time, in the folder and with the environment of the original run. So a change made to one rerun does
not reach the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from ipuperf.base.kinds import checked
from ipuperf.lowering import DeviceProgram
from ipuperf.pipelines import BuildRequest, revising
from ipuperf.runtime.auto_report import VARIABLE
from ipuperf.runtime.executable import Executable
from ipuperf.runtime.model_revision import ModelRequest, ModelRevision, revising_models
from ipuperf.runtime.origin import Origin, OriginError, read_origin
from ipuperf.runtime.reaching import NotReachedError, executable_of
from ipuperf.runtime.settings import RunSettings
from ipuperf.trace import Trace

from .change import ProgramChange
from .program_text import ProgramText


class RerunError(ValueError):
    """The program of a run cannot be run again, or it has changed; the message says what is wrong."""


class Rerun:
    """The program of a run.

    Args:
        origin: how the program was started.
        trace: the trace of the run.

    Attributes:
        executable: the session as the program makes it.
        pipelines: the pipelines that were built up to it.
        models: the models that front ends were asked for up to it.
        change: the change that the program has, as :meth:`after` makes it; levers act on the changed program.

    Raises:
        RerunError: the program has changed, fails, or takes other cycles than the run did.
    """

    def __init__(self, origin: Origin, trace: Trace) -> None:
        self.origin = origin
        changed = origin.changed()
        if changed:
            raise RerunError(f"{changed}; run it again with `ipuperf run --report`")
        self.trace = trace
        self._start()
        self._check(int(trace.columns("runs")["dur"][-1]))

    def _start(self) -> None:
        """Run the program for the first time, and note what it asks of front ends."""
        self.change = ProgramChange("")
        self.pipelines: list[BuildRequest] = []
        self.models: list[ModelRequest] = []
        self.executable = self.fresh(self._note, self.models.append)
        self._unchanged = self

    def _note(self, request: BuildRequest) -> BuildRequest:
        self.pipelines.append(request)
        return request

    def after(self, change: ProgramChange, trace: Trace) -> Rerun:
        """The program with one more change, whose trace is known. Further levers act on it."""
        run = copy(self)
        vars(run).pop("device_program", None)
        run.change, run.trace = self.change.then(change), trace
        if run.change.from_program:
            run.pipelines, run.models = [], []
        run.executable = run._changed(run.change)
        return run

    def with_change(self, change: ProgramChange) -> Executable:
        """The session with one more change."""
        return self.after(change, self.trace).executable

    def _changed(self, change: ProgramChange) -> Executable:
        """The session as the program makes it with a change; notes what front ends are asked for."""
        first = self._unchanged

        def of_model(request: ModelRequest) -> None:
            # Models of the other kind, such as one for validation, stay as they are.
            if change.of_model and first.model and request.training == first.model.training:
                change.of_model(request)
            self.models.append(request)

        def of_pipeline(request: BuildRequest) -> BuildRequest:
            return self._note(change.of_pipeline(request) if change.of_pipeline else request)

        executable = self.fresh(of_pipeline, of_model) if change.from_program else first.executable
        if change.of_ir:
            change.of_ir(executable.ir)
        if change.of_executable:
            executable = change.of_executable(executable)
        script_seconds = float(first.executable.machine.host.script_seconds * change.work)
        if script_seconds:  # a script loads the samples of a call
            executable = executable.on(executable.machine.with_script(script_seconds), lowered_alike=True)
        if change.of_program:
            program = change.of_program(executable.device_program)
            executable = executable.on(executable.machine)
            # `cached_property` looks into the instance first, so this program is simulated instead of a lowered one.
            vars(executable)["device_program"] = program
        return executable

    @cached_property
    def text(self) -> ProgramText:
        """The text of the program."""
        return ProgramText(Path(self.origin.script).read_text(encoding="utf-8", errors="replace"))

    def option(self, call: str, arguments: str) -> tuple[str, ...]:
        """The diff with which an option of PopTorch is set; empty for other programs."""
        return () if self.torch_model is None else self.text.called(call, arguments)

    def keyword(self, name: str, factor: Fraction, function: str = "") -> tuple[str, ...]:
        """The diff in which a keyword argument of the user's program is scaled, by the changes before this one too."""
        return self.text.keyword(name, self.change.scale(name) * factor, function)

    @property
    def torch_model(self) -> ModelRequest | None:
        """The model that the session runs, if it is one of PopTorch."""
        return None if self.model is None or self.model.module is None else self.model

    @property
    def model(self) -> ModelRequest | None:
        """The model that the session runs; None where no front end was asked for a model."""
        kind = self.executable.report_name
        of_kind = [model for model in self.models if kind in ("", "training" if model.training else "inference")]
        return of_kind[-1] if of_kind else None

    def _check(self, run_cycles: int) -> None:
        # The files of the program are checked already. Equal cycles show that machine and ipuperf are the same too.
        rerun_cycles = self.executable.simulated_run_cycles
        if rerun_cycles != run_cycles:
            raise RerunError(
                f"{self.origin.script} now takes {rerun_cycles:,} cycles, the run took {run_cycles:,}: something that "
                "it reads, its machine or ipuperf has changed since; run it again with `ipuperf run --report`"
            )

    @cached_property
    def device_program(self) -> DeviceProgram:
        """The program of the run as it was lowered."""
        return self.executable.device_program

    def fresh(
        self,
        revise: Callable[[BuildRequest], BuildRequest] | None = None,
        revise_model: ModelRevision | None = None,
    ) -> Executable:
        """The session as the program makes it, not lowered yet. The caller may change it.

        Args:
            revise: changes pipelines before they are built (:func:`ipuperf.pipelines.revising`).
            revise_model: changes models before they are compiled (:mod:`ipuperf.runtime.model_revision`).

        Raises:
            RerunError: the program ends before it reaches the session.
        """
        with revising(revise), revising_models(revise_model):
            return self._reached()

    def _reached(self) -> Executable:
        origin = self.origin
        settings = RunSettings(origin.machine, between_calls=origin.between_calls, faults=origin.faults)
        with _surroundings(origin):
            try:
                executable = executable_of(origin.script, origin.arguments, settings, origin.session, origin.clock)
            except NotReachedError as error:
                raise RerunError(str(error)) from None
        options = replace(executable.options, values_each_run=self._brings_values(executable))
        return executable.changed(options=options)

    def _brings_values(self, executable: Executable) -> bool:
        """Whether the run of the trace comes after a run of its own that brings new values from the host."""
        values = executable.options.new_values
        return values is not None and values.name in set(self.trace.table("host_events")["label"])


@checked()
def rerun_of(folder: Path, trace: Trace) -> Rerun:
    """The program of the run whose report is in ``folder``.

    Raises:
        RerunError: the report does not say which program it was; and see :class:`Rerun`.
    """
    try:
        return Rerun(read_origin(folder), trace)
    except OriginError as error:
        raise RerunError(str(error)) from None


@contextmanager
def _surroundings(origin: Origin) -> Iterator[None]:
    """Folder and environment of the original run, within the block."""
    folder, environment = os.getcwd(), dict(os.environ)
    os.chdir(origin.folder)
    os.environ.update(origin.environment)
    # A program that is run again must not write the report that its environment asks for once more.
    os.environ.pop(VARIABLE, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
