"""Tracebacks of programs, as short as they are where nothing stands between a program and its functions.

A program hands functions to ipuperf (``forward``, ``build``, stages), which calls them, often through PyTorch, Keras or
TensorFlow. When one fails, the frames between the program's own are hidden, and those of libraries below them. An error
that may be a defect of ipuperf (raised in its code, of another class than its own) keeps the frames behind the last
line of the program. ``ipuperf run --debug`` shows all.
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
_STARTERS = tuple(os.path.join(_PACKAGE, "runtime", name) for name in ("script.py", "install.py"))
"""They start programs and resolve imports: their frames are never of use."""


def shorten(error: BaseException, debug: bool = False) -> None:
    """Hide frames in the tracebacks of ``error``, its causes and its parts; with ``debug`` those that start programs
    alone."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        frames = [frame for frame in _frames(error.__traceback__) if _file_of(frame) not in _STARTERS]
        error.__traceback__ = _joined(frames if debug else _shown(frames, is_about_the_program(error)))
        related = (error.__cause__, error.__context__, *getattr(error, "exceptions", ()))
        waiting += [each for each in related if each is not None]


def is_about_the_program(error: BaseException) -> bool:
    """Whether ipuperf has raised this on purpose, or TensorFlow's AutoGraph, whose text names the program's lines."""
    return type(error).__module__.startswith("ipuperf.") or hasattr(error, "ag_error_metadata")


def calling_line(error: BaseException) -> str:
    """``file:line`` of the program that called what has raised this in ipuperf; "" if ipuperf was not called."""
    frames = [frame for frame in _frames(error.__traceback__) if _file_of(frame) not in _STARTERS]
    of_program = [number for number, frame in enumerate(frames) if not _is_library(_file_of(frame))]
    last = of_program[-1] if of_program else -1
    if last < 0 or not any(is_below(_file_of(frame), _PACKAGE) for frame in frames[last + 1 :]):
        return ""
    return f"{frames[last].tb_frame.f_code.co_filename}:{frames[last].tb_lineno}"


def _shown(frames: list[TracebackType], on_purpose: bool) -> list[TracebackType]:
    """The frames of the program, and those of libraries that it calls itself."""
    runs = [(library, list(run)) for library, run in groupby(frames, lambda frame: _is_library(_file_of(frame)))]
    if all(library for library, _ in runs):
        return frames
    kept: list[TracebackType] = []
    within = False  # a function that ipuperf calls
    for number, (library, run) in enumerate(runs):
        ours = [library and is_below(_file_of(frame), _PACKAGE) for frame in run]
        shown = run
        if number < len(runs) - 1:
            within = within or any(ours)
            shown = [] if any(ours) else run
        elif on_purpose and any(ours):
            shown = run[: 0 if within else ours.index(True)]
        elif library and within and not ours[-1]:
            shown = []
        kept += shown
    return kept


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
