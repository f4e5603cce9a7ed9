"""Run a program until it needs the first value of one of its sessions, such as its weights on the device.

Nothing of that session is computed. Sessions before it run as usual. The program's output is not shown.
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
    """The program ends before it makes the session; the message says how."""


class _Reached(BaseException):
    """The session is complete, so the rest of the program is not needed.

    This is no ``Exception``: programs catch those.
    """


def executable_of(
    script: str | Path, arguments: Sequence[str], settings: RunSettings, session: int, clock: str = "simulated"
) -> Executable:
    """Return the executable of a session as the program makes it. It is lowered only if the program asked for that.

    Args:
        script, arguments, clock: as for :func:`.script.run_script`; front ends start as in a new process.
        settings: settings of the run; ``before_values`` is overwritten.
        session: its number, in order of creation. The program may also end without running the session.

    Raises:
        NotReachedError: the program fails or makes fewer sessions.
        ScriptError: the program cannot be started.
    """

    def stop(executable: Executable) -> None:
        executables = settings.executables
        if len(executables) > session and executables[session] is executable:
            # The exception unwinds the user's program from where it loads or runs the session.
            raise _Reached

    # Compiling the kernels of a session takes as long as lowering it, so the program ends before that.
    settings.before_values = stop
    with ExitStack() as surroundings:
        surroundings.enter_context(RUN.afresh())
        surroundings.enter_context(use_settings(settings))
        printed = surroundings.enter_context(redirect_stderr(StringIO()))
        surroundings.enter_context(redirect_stdout(StringIO()))
        script_result = run_script(script, arguments, clock=clock)
    # Being stopped ends the program with an exit code too, which says nothing.
    if script_result.exit_code and not isinstance(script_result.error, _Reached):
        raise NotReachedError(f"{script} fails: {_last_words(script_result, printed.getvalue())}")
    if len(settings.executables) <= session:
        raise NotReachedError(f"{script} makes {len(settings.executables)} sessions, the run is of number {session}")
    return settings.executables[session]


def _last_words(script_result: ScriptResult, printed: str) -> str:
    """Return in one line the exception that ended a program, or else the last line of its standard error."""
    if isinstance(script_result.error, Exception):
        return " ".join("".join(format_exception_only(script_result.error)).split())
    return (printed.strip().splitlines() or [f"exit code {script_result.exit_code}"])[-1]
