"""The files of a run: a record of each finished session before the next begins, and a report of each at the end.

``DIR/unfinished-*`` is there while the run of ``ipuperf run --report DIR`` lasts. Its ``run.json`` says how the program
was started, and each folder ``<n>-<name>`` in it has the trace of a session and its own ``run.json``. A folder is
filled under another name and then renamed, so it is whole or absent. A run that is killed leaves ``unfinished-*``:
the name shows that the run was cut short, and :func:`recover` makes the reports.

``DIR`` has the reports of one program. A later run of the program replaces those of an earlier one when it ends.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from .clock import active_clock
from .origin import ORIGIN, Origin, OriginError, read_origin
from .settings import RunSettings, current_settings

if TYPE_CHECKING:
    from ipuperf.trace import Trace

    from .executable import Executable


_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Deliver signals that end a program after the block instead of within it. The block should be short.

    An exception in the middle of a library's own clean-up (``zipfile``) would turn into another exception.
    """
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread alone
        yield
        return
    received: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        received.append(number)

    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    # Only Python handlers are delayed. A default or ignored signal raises nothing in Python code.
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, later)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        # One signal is enough to end the program, however many arrived.
        for number in received[:1]:
            signal.raise_signal(number)


#: Name of the trace in the folder of a report.
TRACE = "trace.ipt"
_PREFIX = "unfinished-"


class ReportFolderError(ValueError):
    """A folder cannot take the reports of a run, or has none to recover."""


class Journal:
    """The finished sessions of a run on disk, in case the run is cut short.

    Args:
        directory: the folder for the reports.
        origin: how the program was started.

    Raises:
        ReportFolderError: the directory holds the reports of another program.
        OSError: the directory cannot be written to.
    """

    def __init__(self, directory: Path, origin: Origin) -> None:
        # Reports of two programs in one folder would replace each other.
        for report in _folders(directory):
            if _script(report) not in ("", origin.script):
                script = _script(report)
                raise ReportFolderError(f"{directory} holds reports of {script}: name another folder, or remove it")
        self.folder = directory / f"{_PREFIX}{secrets.token_hex(4)}"
        self._origin = origin
        self._traces: dict[str, Trace] = {}
        # The random part of the name keeps runs into the same directory apart.
        self.folder.mkdir()
        try:
            _write_origin(origin, self.folder)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def keep(self, number: int, executable: Executable) -> None:
        """Write a session, unless the journal has its trace already. A full disk gives a message and does not end the
        program.
        """
        from ipuperf.report.staging import staged

        try:
            name, trace = _folder_name(number, executable), executable.as_called().trace
        except Exception:  # simulating the session for its report will fail again and show the error
            return
        # The trace is cached by the executable, so identity tells whether it was written.
        if self._traces.get(name) is trace:
            return
        # An interrupt between the two would mark a session as saved that has no folder.
        with uninterrupted():
            self._traces[name] = trace  # set first, so that sessions of other threads do not write it too
            try:
                with staged(self.folder / name) as place:
                    trace.save(place / TRACE)
                    _write_origin(replace(self._origin, session=number), place)
            except OSError as error:
                del self._traces[name]
                print(f"ipuperf: {name} would be lost if the run were cut short: {error.strerror}", file=sys.stderr)

    def file_of(self, name: str, trace: Trace) -> Path | None:
        """Return the file of this trace of a session; None if the journal does not have it."""
        trace_file = self.folder / name / TRACE
        return trace_file if self._traces.get(name) is trace and trace_file.is_file() else None

    @property
    def holds_sessions(self) -> bool:
        """Whether there is something to recover."""
        return bool(self._traces)

    def close(self) -> None:
        """Remove the journal once all reports are written, and the reports of earlier runs if this run has made any."""
        if self._traces:
            _settle(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)


def keep_finished(settings: RunSettings) -> None:
    """Write the sessions that have run, if the run has a journal; called when another session begins or one has ended.

    On the simulated clock, a session that another thread is simulating waits for the next call.
    """
    if settings.journal is None:
        return
    for number, executable in enumerate(settings.executables):
        if executable.is_simulated or (executable.runs and active_clock() is None):
            settings.journal.keep(number, executable)


def write_reports(
    settings: RunSettings | None = None,
    *,
    compiled: bool = False,
    written: Callable[[Path], None] = lambda folder: None,
) -> list[Path]:
    """Write a report folder ``<n>-<name>`` for each executable of the settings, in order of creation.

    Args:
        settings: default: those in force.
        compiled: only of executables that have run or been simulated, as after Ctrl-C.
        written: told every folder as soon as it is there.

    Returns:
        The folders; empty when there is no report directory.

    Raises:
        OSError: a folder cannot be written; nothing of it is left, and finished sessions can be recovered.
    """
    settings = current_settings() if settings is None else settings
    if settings.report_directory is None:
        return []
    keep_finished(settings)
    folders = []
    for number, executable in enumerate(settings.executables):
        folder = Path(settings.report_directory) / _folder_name(number, executable)
        if executable.is_compiled or not compiled:
            origin = settings.origin
            trace = executable.as_called().trace
            trace_file = None if settings.journal is None else settings.journal.file_of(folder.name, trace)
            _write(trace, folder, None if origin is None else replace(origin, session=number), trace_file)
            folders.append(folder)
            written(folder)
    if settings.journal is not None:
        settings.journal.close()
    return folders


def recover(directory: Path, written: Callable[[Path], None] = lambda folder: None) -> None:
    """Make the reports of the sessions that runs into ``directory`` had finished when they were cut short.

    A report stays if it is whole and was written later than its session.

    Args:
        directory: as given to ``ipuperf run --report``.
        written: called with every folder once it is written.

    Raises:
        ReportFolderError: no run was cut short there, or none of its sessions was finished.
        TraceError, OriginError: a session is damaged.
        OSError: a report cannot be written.
    """
    from ipuperf.trace import Trace

    journals = unfinished(directory)
    sessions = [session for journal in journals for session in _folders(journal)]
    for session in sessions:
        report = directory / session.name
        # Remains of a killed writer show that a report may not be whole.
        if _rubbish(report) or not _is_older(session / ORIGIN, report / ORIGIN):
            _write(Trace.load(session / TRACE), report, read_origin(session), session / TRACE)
        written(report)
    for journal in journals:
        if _folders(journal):
            _settle(journal)
        shutil.rmtree(journal, ignore_errors=True)
    if not sessions:
        reason = f"no run was cut short (no {_PREFIX}* in it)"
        if journals:
            reason = "all finished sessions have reports" if _folders(directory) else "no session had finished"
        raise ReportFolderError(f"{directory}: nothing to recover, {reason}")


def unfinished(directory: Path) -> list[Path]:
    """Return the journals of runs into ``directory`` that were cut short or still run, the earliest first."""
    return sorted(directory.glob(f"{_PREFIX}*"), key=lambda folder: folder.stat().st_mtime_ns)


def finished(directory: Path) -> list[str]:
    """Return the names of the reports in ``directory``, in order of creation."""
    return [folder.name for folder in _folders(directory)]


def _settle(journal: Path) -> None:
    """Remove the remains of earlier runs of the program and of killed writers, once the run's reports are written."""
    from ipuperf.report.folder import remove_report

    directory = journal.parent
    for session in _folders(journal):
        for folder in _rubbish(directory / session.name):
            shutil.rmtree(folder, ignore_errors=True)
    for report in _folders(directory):
        if _is_older(report / ORIGIN, journal / ORIGIN) and _script(report) == _script(journal):
            remove_report(report, also=[ORIGIN])


def _folder_name(number: int, executable: Executable) -> str:
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", executable.name).strip("-") or "program"
    return f"{number}-{stem}"


def _folders(directory: Path) -> list[Path]:
    """The reports, or the kept sessions, in a folder, in order of creation."""
    folders = [path.parent for path in directory.glob(f"[0-9]*-*/{ORIGIN}")]
    # Numbers have no leading zeros: a shorter number comes first.
    return sorted(folders, key=lambda folder: (len(folder.name.partition("-")[0]), folder.name))


def _rubbish(report: Path) -> list[Path]:
    """Return the temporary folders that killed writers of a report have left."""
    return list(report.parent.glob(f".{report.name}.*.tmp"))


def _script(report: Path) -> str:
    """The program that a report is of, "" where that cannot be read."""
    try:
        return read_origin(report).script
    except OriginError:
        return ""


def _is_older(path: Path, reference: Path) -> bool:
    """Whether both files are there and ``path`` was not written after ``reference``."""
    return path.is_file() and reference.is_file() and path.stat().st_mtime_ns <= reference.stat().st_mtime_ns


def _write(trace: Trace, folder: Path, origin: Origin | None, trace_file: Path | None) -> None:
    """Write a report; ``trace_file`` is the file of its trace, if there is one already."""
    from ipuperf.report import View, write_report
    from ipuperf.report.folder import VIEWS

    also = []
    if origin is not None:
        also = [View(ORIGIN, "how the program was started", lambda trace, path: _write_origin(origin, path.parent))]
    if trace_file is not None:
        also += [replace(view, write=_taken_from(trace_file)) for view in VIEWS if view.name == TRACE]
    write_report(trace, folder, also)


def _taken_from(trace_file: Path) -> Callable[[Trace, Path], None]:
    """Return a writer that gives a report an existing trace file, by a link where the file system has links."""

    def write(trace: Trace, path: Path) -> None:
        try:
            os.link(trace_file, path)
        except OSError:  # a file system without links
            shutil.copyfile(trace_file, path)

    return write


def _write_origin(origin: Origin, folder: Path) -> None:
    (folder / ORIGIN).write_text(origin.text(), encoding="utf-8")
