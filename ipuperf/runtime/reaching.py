"""A program run until one of its sessions is about to run for the first time.

Nothing of that session is computed; sessions before it run as they do. What the program prints is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from traceback import format_exception_only

from .executable import Executable
from .run_context import RUN
from .script import ScriptResult, run_script
from .settings import RunSettings, use_settings


class NotReachedError(ValueError):
    """The program ends before; the message says how."""


class _Reached(BaseException):
    """The session is about to run: the program is not needed any further. (No ``Exception``, which programs catch.)"""


def executable_of(
    script: str | Path, arguments: Sequence[str], settings: RunSettings, session: int, clock: str = "simulated"
) -> Executable:
    """The executable of a session as the program makes it, not lowered unless the program asked for that.

    Args:
        script, arguments, clock: as for :func:`.script.run_script`; front ends begin as in a process of their own.
        settings: of the run; ``before_run`` is overwritten.
        session: its number, in order of creation. A program that makes it and ends without running it is as good.

    Raises:
        NotReachedError: the program fails or makes fewer sessions. ScriptError: it cannot be started.
    """

    def stop(executable: Executable) -> None:
        made = settings.executables
        if len(made) > session and made[session] is executable:
            raise _Reached

    settings.before_run = stop
    with ExitStack() as around:
        around.enter_context(RUN.afresh())
        around.enter_context(use_settings(settings))
        printed = around.enter_context(redirect_stderr(StringIO()))
        around.enter_context(redirect_stdout(StringIO()))
        done = run_script(script, arguments, clock=clock)
    if done.exit_code and not isinstance(done.error, _Reached):
        raise NotReachedError(f"{script} fails: {_last_words(done, printed.getvalue())}")
    if len(settings.executables) <= session:
        raise NotReachedError(f"{script} makes {len(settings.executables)} sessions, the run is of number {session}")
    return settings.executables[session]


def _last_words(done: ScriptResult, printed: str) -> str:
    """In one line the exception that ended a program, all of it; else the last line on standard error."""
    if isinstance(done.error, Exception):
        return " ".join("".join(format_exception_only(done.error)).split())
    return (printed.strip().splitlines() or [f"exit code {done.exit_code}"])[-1]
