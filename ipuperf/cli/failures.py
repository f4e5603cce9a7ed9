"""Failures in the one line that the command line shows for them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C, as shells have it."""
WRONG = 2
"""Exit code of a command that failed on a wrong option, file or environment."""

_LIMITS = {MemoryError: "out of memory", OverflowError: "a number is too large", RecursionError: "nested too deep"}


class Ended(KeyboardInterrupt):
    """A signal asks the process to end; ``number`` is the signal. Programs see it as they see Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise :class:`Ended` within the block for the signals of batch systems and closed terminals, unless ignored."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP
    handlers = {name: signal.getsignal(getattr(signal, name)) for name in names}

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended(number)

    # Only default handlers are replaced: ``nohup`` ignores SIGHUP, and a caller's own handler stays.
    signals = [getattr(signal, name) for name, handler in handlers.items() if handler is signal.SIG_DFL]
    try:
        for number in signals:
            signal.signal(number, end)
        yield
    finally:
        for number in signals:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)


def line_of(error: BaseException) -> str | None:
    """Return the error in one line; None for an error that only a defect of ipuperf raises: it needs a traceback."""
    text = _text_of(error)
    return None if text is None else " ".join(part.strip() for part in text.splitlines())


def _text_of(error: BaseException) -> str | None:
    # Only wrong usage points to the help; other errors of click need none.
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.format_message()}{_elsewhere(error)} (see '{error.ctx.command_path} --help')"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError):
        return _text_of_os_error(error)
    for kind, words in _LIMITS.items():
        if isinstance(error, kind):
            return f"{words}: {error}" if str(error) else words
    return str(error) if isinstance(error, _own_errors()) else None


def _elsewhere(error: click.UsageError) -> str:
    """The other commands that have an option which this one has not."""
    around = error.ctx.parent.command if error.ctx and error.ctx.parent else None
    if not isinstance(error, click.NoSuchOption) or not isinstance(around, click.Group):
        return ""
    names = [
        f"`{around.name} {name}`"
        for name, command in sorted(around.commands.items())
        if any(error.option_name in param.opts for param in command.params)
    ]
    return f" {' and '.join(names)} {'has' if len(names) == 1 else 'have'} it." if names else ""


def _text_of_os_error(error: OSError) -> str:
    """File and reason, without the number."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _own_errors() -> tuple[type[Exception], ...]:
    """Return the errors that rooms of ipuperf raise on purpose; imported only here, as the rooms need NumPy."""
    from ipuperf.ir import IrError
    from ipuperf.lowering.estimates import EstimateError
    from ipuperf.machine import MachineError
    from ipuperf.pipelines.schedules import ScheduleError
    from ipuperf.runtime.install import InstallError
    from ipuperf.runtime.origin import OriginError
    from ipuperf.runtime.reports import ReportFolderError
    from ipuperf.runtime.sources import ScriptError
    from ipuperf.simulation import SimulationError
    from ipuperf.tools.datasets import DatasetError
    from ipuperf.tools.errors import CalibrationError, CaseError, SweepError, TuningError
    from ipuperf.trace import TraceError

    return (CalibrationError, CaseError, DatasetError, EstimateError, InstallError, IrError, MachineError, OriginError,
            ReportFolderError, ScheduleError, ScriptError, SimulationError, SweepError, TraceError,
            TuningError)  # fmt: skip
