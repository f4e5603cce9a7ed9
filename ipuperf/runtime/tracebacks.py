"""Tracebacks of programs, without the frames of ipuperf and other libraries between the program's own.

A program hands functions to ipuperf (``forward``, ``build``, stages). ipuperf calls them, often through PyTorch, Keras
or TensorFlow. When such a function fails, this module hides the frames between the program's own frames and the
library frames below them. An error that may be a defect of ipuperf keeps the frames after the program's last line:
ipuperf's code raised it, but its class is not one of ipuperf's. ``ipuperf run --debug`` shows all frames.
"""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from itertools import groupby
from pathlib import Path
from types import TracebackType

_PACKAGE = os.path.realpath(Path(__file__).parents[1])
#: Files that start programs and resolve imports. Their frames never help a reader.
_STARTERS = tuple(os.path.join(_PACKAGE, "runtime", name) for name in ("script.py", "install.py"))


def shorten(error: BaseException, debug: bool = False) -> None:
    """Hide frames in the tracebacks of ``error``, its causes and its parts.

    With ``debug``, only the frames that start programs are hidden.
    """
    waiting: list[BaseException] = [error]
    # Causes and contexts may form a cycle.
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        frames = [frame for frame in _frames(error.__traceback__) if _file_of(frame) not in _STARTERS]
        error.__traceback__ = _joined(frames if debug else _shown(frames, is_about_the_program(error)))
        related = (error.__cause__, error.__context__, *getattr(error, "exceptions", ()))
        waiting += [exception for exception in related if exception is not None]


def is_about_the_program(error: BaseException) -> bool:
    """Whether ipuperf raised this error on purpose, or TensorFlow's AutoGraph did, whose text names the program's
    lines.
    """
    if isinstance(error, AttributeError) and (frames := _frames(error.__traceback__)):
        # Modules and options of a front end say so when they do not have a name.
        functions = {frame.tb_frame.f_code.co_name for frame in frames if is_below(_file_of(frame), _PACKAGE)}
        if functions & {"__getattr__", "__setattr__"}:
            return True
    return type(error).__module__.startswith("ipuperf.") or hasattr(error, "ag_error_metadata")


def calling_line(error: BaseException) -> str:
    """Return ``file:line`` of the program's call into ipuperf that raised this error; "" if it did not call ipuperf."""
    frames = [frame for frame in _frames(error.__traceback__) if _file_of(frame) not in _STARTERS]
    of_program = [number for number, frame in enumerate(frames) if not _is_library(_file_of(frame))]
    last_position = of_program[-1] if of_program else -1
    if last_position < 0 or not any(is_below(_file_of(frame), _PACKAGE) for frame in frames[last_position + 1 :]):
        return ""
    return f"{frames[last_position].tb_frame.f_code.co_filename}:{frames[last_position].tb_lineno}"


def _shown(frames: list[TracebackType], on_purpose: bool) -> list[TracebackType]:
    """Return the program's frames, and the frames of libraries that the program calls itself."""
    runs = [(library, list(run)) for library, run in groupby(frames, lambda frame: _is_library(_file_of(frame)))]
    # Without a frame of the program there is nothing to shorten to.
    if all(library for library, _ in runs):
        return frames
    # Runs of library frames and of program frames alternate. Only the last run can hold the line that raised.
    shown_frames: list[TracebackType] = []
    inside_ipuperf = False  # whether an earlier run of frames holds ipuperf's, which then called what follows
    for number, (library, run) in enumerate(runs):
        ours = [library and is_below(_file_of(frame), _PACKAGE) for frame in run]
        shown = run
        if number < len(runs) - 1:
            inside_ipuperf = inside_ipuperf or any(ours)
            shown = [] if any(ours) else run
        # Such an error is about the line that called ipuperf, so ipuperf's own frames say nothing.
        elif on_purpose and any(ours):
            shown = run[: 0 if inside_ipuperf else ours.index(True)]
        # A library below ipuperf raised it while it ran the program's function.
        elif library and inside_ipuperf and not ours[-1]:
            shown = []
        shown_frames += shown
    return shown_frames


def _frames(chain: TracebackType | None) -> list[TracebackType]:
    frames = []
    while chain is not None:
        frames.append(chain)
        chain = chain.tb_next
    return frames


def _joined(frames: list[TracebackType]) -> TracebackType | None:
    for frame, following in zip(frames, [*frames[1:], None]):
        frame.tb_next = following
    return frames[0] if frames else None


def _file_of(frame: TracebackType) -> str:
    return os.path.realpath(frame.tb_frame.f_code.co_filename)


@functools.lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    path = Path(file)
    # Names such as `<frozen importlib._bootstrap>` are no files.
    installed = path.name.startswith("<") or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return installed or any(is_below(file, root) for root in library_folders())


@functools.lru_cache(maxsize=1)
def library_folders() -> tuple[str, ...]:
    """The folders of the standard library, of installed packages and of ipuperf itself."""
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), _PACKAGE]
    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
