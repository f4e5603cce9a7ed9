"""Running a user's program (a script or a notebook) unchanged, on the front ends and the clock of ipuperf.

:func:`run_script` does what ``python SCRIPT ARGS`` does: the program is the module ``__main__``, ``sys.argv`` and
``sys.path[0]`` are its own, a failing program prints its traceback (without ipuperf's frames) and has exit code 1. On
top of that ``import popxl`` finds ipuperf, ``import torchvision`` finds the stand-in where torchvision is not
installed, and with ``clock="simulated"`` the program's ``time`` module shows the time of the simulated machine.
Afterwards all of this is as it was before.

**Whose time is simulated.** The program is ``__main__`` and the modules that lie in its folder, except what is
installed (``site-packages``, the standard library) and ipuperf itself. When one of them says ``import time`` or
``from time import ...`` it gets the clock's module; libraries such as tqdm and torch keep the real one, as do
``datetime``, ``timeit`` and ``importlib.import_module("time")``.

**Notebooks.** The code cells run in order in one module. Tracebacks name the cell as ``FILE[cell N]``, N counting
code cells from 1, which is the ``In [N]`` of a notebook run from the top. Line magics and shell lines are skipped
with a note on standard error, ``%time STATEMENT`` runs its statement; ``%%time``, ``%%timeit``, ``%%capture`` and
``%%prun`` run the rest of their cell; a cell of any other cell magic (``%%bash``, ``%%html`` ...) is skipped whole. A
value taken from a magic or shell line (``files = !ls``) cannot be had and is an error before anything runs. The value
of a last expression is not shown.
"""

from __future__ import annotations

import builtins
import functools
import importlib.machinery
import json
import linecache
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from ipuperf.runtime.clock import SimulatedClock, activate
from ipuperf.runtime.install import default_names, install, installed_names, uninstall

_MAIN = "__main__"
_PACKAGE = os.path.realpath(Path(__file__).parents[1])
_OWN_FILES = (__file__, install.__code__.co_filename)
_CELL_MAGICS_WITH_PYTHON = ("time", "timeit", "capture", "prun")


class ScriptError(RuntimeError):
    """A program cannot be started: it does not exist, is of no known kind, or is a notebook that cannot be read."""


@dataclass(frozen=True)
class ScriptResult:
    """What is left of a program that has run.

    ``module`` is its ``__main__`` and keeps ``globals`` alive. ``exit_code`` is what the process would have ended with.
    ``clock`` is the simulated clock it ran on, ``None`` for wall time. ``error`` is the exception that ended it.
    """

    module: ModuleType
    exit_code: int
    clock: SimulatedClock | None
    error: BaseException | None = None

    @property
    def globals(self) -> dict[str, Any]:
        """The global names of the program."""
        return self.module.__dict__


@dataclass(frozen=True)
class _Source:
    """A piece of program that is compiled by itself: a whole script, or one cell."""

    filename: str
    text: str | bytes


def run_script(
    path: str | Path,
    args: Sequence[str] = (),
    *,
    clock: str | SimulatedClock = "simulated",
    names: Iterable[str] | Mapping[str, str] | None = None,
    force_install: bool = False,
) -> ScriptResult:
    """Run the ``.py`` or ``.ipynb`` file at ``path`` as ``__main__`` with the command-line arguments ``args``.

    ``clock`` is ``"simulated"`` (a new clock that starts now), ``"wall"``, or a :class:`SimulatedClock` to run on.
    ``names`` and ``force_install`` are passed to :func:`ipuperf.runtime.install.install`.

    An exception of the program is printed as Python prints it and makes the exit code 1; ``SystemExit`` gives its own
    code. ``KeyboardInterrupt`` is passed on. Raises :class:`ScriptError` if the program cannot be started and
    :class:`~ipuperf.runtime.install.InstallError` if upstream's own packages are in the way.
    """
    if isinstance(clock, str) and clock not in ("simulated", "wall"):
        raise ValueError(f"clock={clock!r}: expected 'simulated', 'wall' or a SimulatedClock")
    sources = _read_program(Path(path))
    simulated = clock if isinstance(clock, SimulatedClock) else SimulatedClock() if clock == "simulated" else None
    main = _main_module(Path(path))
    folder = os.path.dirname(os.path.realpath(path))
    with ExitStack() as surroundings:
        surroundings.enter_context(_front_ends(default_names() if names is None else names, force_install))
        surroundings.enter_context(_process_state([str(path), *args], folder, main))
        surroundings.enter_context(_user_modules_forgotten(folder))
        if simulated is not None:
            surroundings.enter_context(activate(simulated))
            surroundings.enter_context(_time_replaced(simulated.time_module(), main, folder))
        exit_code, error = _execute(sources, main)
    return ScriptResult(main, exit_code, simulated, error)


# ---- reading -------------------------------------------------------------------------------------------------------


def _read_program(path: Path) -> list[_Source]:
    if not path.is_file():
        raise ScriptError(f"{path}: no such file, expected a .py script or an .ipynb notebook")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix == ".ipynb":
        return _notebook_sources(path, content)
    if path.suffix in (".py", ""):
        return [_Source(os.path.abspath(path), content)]
    raise ScriptError(f"{path}: {path.suffix!r} found, expected a .py script or an .ipynb notebook")


def _notebook_sources(path: Path, content: bytes) -> list[_Source]:
    """The code cells of a notebook, each as plain Python with its line numbers kept."""
    try:
        notebook = json.loads(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ScriptError(f"{path}: not a notebook: JSON expected, but {error}") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ScriptError(f"{path}: not a notebook of format 4: an object with a list 'cells' expected")
    sources: list[_Source] = []
    for position, cell in enumerate(cells, start=1):
        kind = cell.get("cell_type") if isinstance(cell, dict) else None
        text = cell.get("source") if isinstance(cell, dict) else None
        if isinstance(text, list) and all(isinstance(line, str) for line in text):
            text = "".join(text)
        if not isinstance(kind, str) or not isinstance(text, str):
            raise ScriptError(
                f"{path}: entry {position} of 'cells' is no cell: texts 'cell_type' and 'source' expected"
            )
        if kind == "code":
            filename = f"{path}[cell {len(sources) + 1}]"
            sources.append(_Source(filename, _without_magics(text, filename)))
    return sources


_MAGIC_LINE = re.compile(r"(?P<indent>\s*)(?P<text>%{1,2}[A-Za-z].*|!.*|\?{1,2}[\w.].*|[\w.]+\?{1,2}\s*$)", re.DOTALL)
_TIMED_LINE = re.compile(r"%time\s+(?P<statement>\S.*)", re.DOTALL)
_VALUE_OF_MAGIC = re.compile(r"\s*[\w.,\[\]() ]+=\s*(?P<text>![^=].*|%{1,2}[A-Za-z].*)", re.DOTALL)


def _without_magics(text: str, filename: str) -> str:
    """The Python of a cell. IPython's own lines become ``pass`` or their statement, so lines keep their numbers."""
    lines = text.replace("\r\n", "\n").split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is not None and lines[first].startswith("%%"):
        magic = re.split(r"\W", lines[first][2:], maxsplit=1)[0]
        if magic not in _CELL_MAGICS_WITH_PYTHON:
            _note(filename, first + 1, f"skipped the whole cell, as %%{magic} is not Python")
            return ""
        _note(filename, first + 1, f"skipped {lines[first].strip()!r}")
        lines[first] = ""
    state = _LineState()
    number = 0
    while number < len(lines):
        line = lines[number]
        last = number
        if state.at_statement:
            while lines[last].endswith("\\") and last + 1 < len(lines):
                last += 1
            replaced = _replace_magic("\n".join(lines[number : last + 1]), filename, number + 1)
            if replaced is None:  # plain Python: taken line by line
                last = number
            else:
                line = replaced
                lines[number : last + 1] = [*line.split("\n"), *[""] * (last - number - line.count("\n"))]
        state.read(line)
        number = last + 1
    return "\n".join(lines).rstrip("\n") + "\n"


def _replace_magic(statement: str, filename: str, line: int) -> str | None:
    """What stands for a statement that only IPython understands; ``None`` if it is not one."""
    value = _VALUE_OF_MAGIC.match(statement)
    if value:
        raise ScriptError(
            f"{filename} line {line}: {statement.strip()!r} takes a value from {value['text'].split()[0]!r}, which "
            "only IPython can run; give the value in plain Python"
        )
    magic = _MAGIC_LINE.match(statement)
    if not magic:
        return None
    timed = _TIMED_LINE.match(magic["text"])
    if timed:
        _note(filename, line, "ran the statement of %time without timing it")
        return magic["indent"] + timed["statement"]
    _note(filename, line, f"skipped {magic['text'].strip()!r}")
    return magic["indent"] + "pass"


class _LineState:
    """Follows Python source line by line just far enough to know where a statement begins.

    A line that begins with ``%`` or ``!`` is IPython's only there; within brackets, in a string of several lines or
    after a backslash it is part of the Python statement above.
    """

    _TOKEN = re.compile(r"""(?P<quote>'''|\"\"\"|'|")|(?P<comment>\#)|(?P<open>[(\[{])|(?P<close>[)\]}])""")

    def __init__(self) -> None:
        self._quote = ""  # the quotes of the string that goes on into the next line
        self._depth = 0
        self._continued = False

    @property
    def at_statement(self) -> bool:
        """Whether the next line begins a statement."""
        return not (self._quote or self._depth or self._continued)

    def read(self, line: str) -> None:
        """Take note of one more line (or several, joined)."""
        position = 0
        if self._quote:
            position = self._end_of_string(line, 0, self._quote)
        while not self._quote and (token := self._TOKEN.search(line, position)):
            position = token.end()
            if token["comment"]:
                position = line.find("\n", position)
                if position < 0:
                    self._continued = False
                    return
            elif token["open"]:
                self._depth += 1
            elif token["close"]:
                self._depth = max(0, self._depth - 1)
            else:
                position = self._end_of_string(line, position, token["quote"])
        self._continued = not self._quote and line.endswith("\\")

    def _end_of_string(self, line: str, position: int, quote: str) -> int:
        """Where the string that is open at ``position`` ends; notes it as still open if it goes on in the next line."""
        self._quote = ""
        while position < len(line):
            if line[position] == "\\":
                position += 2
            elif line.startswith(quote, position):
                return position + len(quote)
            else:
                position += 1
        if len(quote) == 3 or line.endswith("\\"):
            self._quote = quote
        return len(line)


def _note(filename: str, line: int, what: str) -> None:
    print(f"ipuperf: {filename} line {line}: {what}", file=sys.stderr)


# ---- running -------------------------------------------------------------------------------------------------------


def _main_module(path: Path) -> ModuleType:
    """An empty ``__main__`` as Python makes it for a script."""
    main = ModuleType(_MAIN)
    absolute = os.path.abspath(path)
    loader = importlib.machinery.SourceFileLoader(_MAIN, absolute) if path.suffix != ".ipynb" else None
    main.__dict__.update(__file__=absolute, __cached__=None, __builtins__=builtins, __loader__=loader)
    return main


def _execute(sources: Sequence[_Source], main: ModuleType) -> tuple[int, BaseException | None]:
    """Run the pieces in order; returns the exit code and the exception that ended the program, if one did."""
    hook = sys.excepthook
    try:
        for source in sources:
            exec(_compile(source), main.__dict__)
    except SystemExit as stop:
        return _exit_code(stop), stop
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _show(error, sys.excepthook if sys.excepthook is not hook else None)
        return 1, error
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    return 0, None


def _compile(source: _Source) -> CodeType:
    if isinstance(source.text, str):  # a cell is not a file: give tracebacks its lines
        lines = [f"{line}\n" for line in source.text.split("\n")]
        linecache.cache[source.filename] = (len(source.text), None, lines, source.filename)
    return compile(source.text, source.filename, "exec", dont_inherit=True)


def _exit_code(stop: SystemExit) -> int:
    """The exit code that Python would give; a message goes to standard error, as Python has it."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return int(stop.code)
    print(stop.code, file=sys.stderr)
    return 1


def _show(error: BaseException, hook: Callable[..., Any] | None) -> None:
    """Print the traceback as Python would have, had it run the program itself; ``hook`` is the program's own way."""
    _strip(error, set())
    show = hook or traceback.print_exception
    show(type(error), error, error.__traceback__)


def _strip(error: BaseException | None, seen: set[int]) -> None:
    """Take the frames that start programs and resolve imports out of the tracebacks of ``error`` and its causes.

    An error of a class of ipuperf's is about the program: the frames of ipuperf that led to it tell nothing, so its
    traceback ends with the program's line. Any other error may be a defect of ipuperf and keeps them.
    """
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _without_own_frames(error.__traceback__)
    if type(error).__module__.startswith("ipuperf."):
        error.__traceback__ = _up_to_the_program(error.__traceback__)
    for related in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        _strip(related, seen)


def _without_own_frames(chain: TracebackType | None) -> TracebackType | None:
    kept = []
    while chain is not None:
        if chain.tb_frame.f_code.co_filename not in _OWN_FILES:
            kept.append(chain)
        chain = chain.tb_next
    for link, following in zip(kept, [*kept[1:], None]):
        link.tb_next = following
    return kept[0] if kept else None


def _up_to_the_program(chain: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of ipuperf at its end; all of it where there are no others."""
    frames = []
    while chain is not None:
        frames.append(chain)
        chain = chain.tb_next
    others = [number for number, frame in enumerate(frames) if not _is_below(_file_of(frame), _PACKAGE)]
    if not others:
        return frames[0] if frames else None
    frames[others[-1]].tb_next = None
    return frames[0]


def _file_of(frame: TracebackType) -> str:
    return os.path.realpath(frame.tb_frame.f_code.co_filename)


# ---- surroundings --------------------------------------------------------------------------------------------------


@contextmanager
def _front_ends(names: Iterable[str] | Mapping[str, str], force: bool) -> Iterator[None]:
    """Front ends and torchvision stand-in in place; afterwards those that were not there before are gone."""
    from ipuperf.datasets.torchvision_standin import install_standin, is_standin_installed, uninstall_standin

    wanted = names if isinstance(names, Mapping) else tuple(names)
    before = installed_names()
    standin_before = is_standin_installed()
    install(wanted, force=force)
    try:
        install_standin()
        yield
    finally:
        if not standin_before:
            uninstall_standin()
        uninstall([name for name in wanted if name not in before])


@contextmanager
def _process_state(argv: list[str], folder: str, main: ModuleType) -> Iterator[None]:
    """``sys.argv``, ``sys.path[0]`` and ``__main__`` of the program, then those of before (and their excepthook)."""
    kept_argv, kept_path, kept_main, kept_hook = sys.argv, list(sys.path), sys.modules.get(_MAIN), sys.excepthook
    sys.argv = argv
    sys.path.insert(0, folder)
    sys.modules[_MAIN] = main
    try:
        yield
    finally:
        sys.argv = kept_argv
        sys.path[:] = kept_path
        sys.excepthook = kept_hook
        if kept_main is None:
            sys.modules.pop(_MAIN, None)
        else:
            sys.modules[_MAIN] = kept_main


@contextmanager
def _user_modules_forgotten(folder: str) -> Iterator[None]:
    """Afterwards the program's own modules leave ``sys.modules``: a next program may have others of the same name."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and _is_users(file, folder):
                del sys.modules[name]


@contextmanager
def _time_replaced(proxy: ModuleType, main: ModuleType, folder: str) -> Iterator[None]:
    """Within the block, ``import time`` gives ``proxy`` to the program's modules and the real module to all others."""
    original: Callable[..., Any] = builtins.__import__

    @functools.wraps(original)
    def import_for_program(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if name == "time" and level == 0 and globals is not None:
            file = globals.get("__file__")
            if globals is main.__dict__ or (isinstance(file, str) and _is_users(file, folder)):
                return proxy
        return original(name, globals, locals, fromlist, level)

    builtins.__import__ = import_for_program
    try:
        yield
    finally:
        builtins.__import__ = original


@functools.lru_cache(maxsize=4096)
def _is_users(file: str, folder: str) -> bool:
    """Whether a module's ``file`` belongs to the program in ``folder``: below it, but neither installed nor
    ipuperf's."""
    real = os.path.realpath(file)
    if not _is_below(real, folder):
        return False
    return not any(_is_below(real, root) and not _is_below(folder, root) for root in _library_folders()) and not (
        {"site-packages", "dist-packages"} & set(Path(real).relative_to(folder).parts)
    )


@functools.lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    """The folders of the standard library, of installed packages and of ipuperf itself."""
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), _PACKAGE]
    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
