"""What went wrong, in the one line that the command line shows for it."""

from __future__ import annotations

import click

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""
WRONG = 2
"""Exit code of a command that ipuperf could not do: a wrong option, file or environment."""

_LIMITS = {MemoryError: "out of memory", OverflowError: "a number is too large", RecursionError: "nested too deep"}


def line_of(error: BaseException) -> str | None:
    """The error in one line; None for what only a defect of ipuperf can raise, whose traceback is needed."""
    text = _text_of(error)
    return None if text is None else " ".join(part.strip() for part in text.splitlines())


def _text_of(error: BaseException) -> str | None:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.format_message()} (see '{error.ctx.command_path} --help')"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError):
        return _text_of_os_error(error)
    for kind, words in _LIMITS.items():
        if isinstance(error, kind):
            return f"{words}: {error}" if str(error) else words
    return str(error) if isinstance(error, _own_errors()) else None


def _text_of_os_error(error: OSError) -> str:
    """File and reason, without the number."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _own_errors() -> tuple[type[Exception], ...]:
    """The errors that rooms of ipuperf raise on purpose; loaded only here, since the rooms need NumPy."""
    from ipuperf.datasets import DatasetError
    from ipuperf.ir import IrError
    from ipuperf.lowering.estimates import EstimateError
    from ipuperf.machine import MachineError
    from ipuperf.runtime.install import InstallError
    from ipuperf.runtime.script import ScriptError
    from ipuperf.schedules import ScheduleError
    from ipuperf.simulation import SimulationError
    from ipuperf.sweep.errors import SweepError
    from ipuperf.trace import TraceError
    from ipuperf.tuning.errors import TuningError
    from ipuperf.validation.errors import CaseError

    return (CaseError, DatasetError, EstimateError, InstallError, IrError, MachineError, ScheduleError, ScriptError,
            SimulationError, SweepError, TraceError, TuningError)  # fmt: skip
