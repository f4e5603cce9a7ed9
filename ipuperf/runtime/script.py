"""Running a user's program (a script or a notebook) unchanged, on the front ends and the clock of ipuperf.

:func:`run_script` does what ``python SCRIPT ARGS`` does: the program is the module ``__main__``, ``sys.argv`` and
``sys.path[0]`` are its own, a failing program prints its traceback (:mod:`.tracebacks`) and has exit code 1. On top of
that ``import popxl`` finds ipuperf, ``import torchvision`` finds the stand-in where torchvision is not installed, and
with ``clock="simulated"`` the program's ``time`` module shows the time of the simulated machine. Afterwards all of this
is as it was before.

**Whose time is simulated.** The program is ``__main__`` and the modules that lie in its folder, except what is
installed (``site-packages``, the standard library) and ipuperf itself. When one of them says ``import time`` or
``from time import ...`` it gets the clock's module; libraries such as tqdm and torch keep the real one, as do
``datetime``, ``timeit`` and ``importlib.import_module("time")``.

**Notebooks.** The code cells run in order in one module. Tracebacks name the cell as ``FILE[cell N]``, N counting
code cells from 1, which is the ``In [N]`` of a notebook run from the top. What becomes of magics and shell lines says
:mod:`ipuperf.runtime.notebook`; the value of one (``files = !ls``) cannot be had and is an error before anything runs.
The value of a last expression is not shown.
"""

from __future__ import annotations

import builtins
import functools
import importlib.machinery
import linecache
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ipuperf.base.progress import warnings_clear_of_bars
from ipuperf.base.requirements import pip_install
from ipuperf.runtime.clock import SimulatedClock, activate
from ipuperf.runtime.install import FRONT_ENDS, install, installed_names, uninstall
from ipuperf.trace.printable import printable

from .notebook import notebook_sources
from .sources import ScriptError, Source
from .tracebacks import calling_line, is_about_the_program, is_below, library_folders, shorten

_MAIN = "__main__"
#: Exit code for a request that ipuperf cannot fulfil, as on the command line (``cli/failures.py``).
_WRONG = 2


@dataclass(frozen=True)
class ScriptResult:
    """The state of a program that has run.

    ``module`` is its ``__main__`` and keeps ``globals`` alive. ``exit_code`` is the one its process would have had.
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


CLOCKS = ("simulated", "everywhere", "wall")
"""What a program sees when it asks for the time: a new simulated clock that starts now; such a clock that also
:data:`LIBRARIES` see; the real time."""
LIBRARIES = (
    "tqdm.std",
    "tf_keras.src.utils.generic_utils",
    "tf_keras.src.callbacks",
    "torch.utils.tensorboard.writer",
)
"""The modules behind progress bars, Keras' callbacks and TensorBoard's writers, which show times and rates."""


def run_script(
    path: str | Path,
    args: Sequence[str] = (),
    *,
    clock: str | SimulatedClock = "simulated",
    names: Iterable[str] | Mapping[str, str] | None = None,
    force_install: bool = False,
    debug: bool = False,
) -> ScriptResult:
    """Run the ``.py`` or ``.ipynb`` file at ``path`` as ``__main__`` with the command-line arguments ``args``.

    ``clock`` is one of :data:`CLOCKS`, or a :class:`SimulatedClock` to run on.
    ``names`` and ``force_install`` are passed to :func:`ipuperf.runtime.install.install`. With ``debug`` tracebacks
    show frames of ipuperf and of libraries that it calls (:mod:`.tracebacks`).

    An exception of the program is printed as Python prints it and makes the exit code 1; ``SystemExit`` gives its own
    code. ``KeyboardInterrupt`` is passed on. Raises :class:`ScriptError` if the program cannot be started and
    :class:`~ipuperf.runtime.install.InstallError` if upstream's own packages are in the way.
    """
    if isinstance(clock, str) and clock not in CLOCKS:
        raise ValueError(f"clock={clock!r}: expected {', '.join(map(repr, CLOCKS))} or a SimulatedClock")
    sources = _read_program(Path(path))
    simulated = clock if isinstance(clock, SimulatedClock) else None if clock == "wall" else SimulatedClock()
    main = _main_module(Path(path))
    # Python's sys.path[0] is the folder of the real file, with links resolved.
    folder = os.path.dirname(os.path.realpath(path))
    with ExitStack() as surroundings:
        surroundings.enter_context(_front_ends(FRONT_ENDS if names is None else names, force_install))
        surroundings.enter_context(_process_state([str(path), *args], folder, main))
        surroundings.enter_context(_user_modules_forgotten(folder))
        if simulated is not None:
            surroundings.enter_context(activate(simulated))
            readers = LIBRARIES if clock == "everywhere" else ()
            surroundings.enter_context(_time_replaced(simulated, main, folder, readers))
        surroundings.enter_context(warnings_clear_of_bars())
        exit_code, error = _execute(sources, main, debug)
    return ScriptResult(main, exit_code, simulated, error)


# ---- reading -------------------------------------------------------------------------------------------------------


def _read_program(path: Path) -> list[Source]:
    if not path.is_file():
        raise ScriptError(f"{path}: no such file, expected a .py script or an .ipynb notebook")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix == ".ipynb":
        return notebook_sources(path, content)
    if path.suffix in (".py", ""):
        return [Source(os.path.abspath(path), content)]
    raise ScriptError(f"{path}: {path.suffix!r} found, expected a .py script or an .ipynb notebook")


#: Packages that programs for the IPU import themselves and that the extra ``tensorflow`` installs.
_IN_EXTRAS = ("tensorflow", "tf_keras")


# ---- running -------------------------------------------------------------------------------------------------------


def _main_module(path: Path) -> ModuleType:
    """An empty ``__main__`` as Python makes it for a script."""
    main = ModuleType(_MAIN)
    absolute = os.path.abspath(path)
    loader = importlib.machinery.SourceFileLoader(_MAIN, absolute) if path.suffix != ".ipynb" else None
    # Programs find their data beside ``__file__``.
    main.__dict__.update(__file__=absolute, __cached__=None, __builtins__=builtins, __loader__=loader)
    return main


def _execute(sources: Sequence[Source], main: ModuleType, debug: bool) -> tuple[int, BaseException | None]:
    """Run the pieces in order; returns the exit code and the exception that ended the program, if one did."""
    # A program may install a hook of its own, which then shows its errors.
    hook = sys.excepthook
    try:
        for source in sources:
            exec(_compile(source), main.__dict__)
    except SystemExit as stop:
        return _exit_code(stop), stop
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _show(error, sys.excepthook if sys.excepthook is not hook else None, debug)
        return _WRONG if _out_of_memory(error) else 1, error
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                with suppress(OSError) if isinstance(sys.exc_info()[1], KeyboardInterrupt) else nullcontext():
                    stream.flush()  # the terminal may be what ended
    return 0, None


def _compile(source: Source) -> CodeType:
    if isinstance(source.text, str):  # a cell is not a file: give tracebacks its lines
        lines = [f"{line}\n" for line in source.text.split("\n")]
        linecache.cache[source.filename] = (len(source.text), None, lines, source.filename)
    # Otherwise `from __future__` imports of this module would hold in the program.
    return compile(source.text, source.filename, "exec", dont_inherit=True)


def _exit_code(stop: SystemExit) -> int:
    """The exit code that Python would give; a message goes to standard error, as Python has it."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return int(stop.code)
    print(stop.code, file=sys.stderr)
    return 1


def _out_of_memory(error: BaseException) -> str:
    """Return the message for values of ipuperf that do not fit the host's memory; "" for any other error."""
    if not isinstance(error, MemoryError):
        return ""
    if is_about_the_program(error):
        return str(error)
    line = calling_line(error)
    from ipuperf.numerics.room import REMEDY

    return f"{line}: out of memory: {' '.join(str(error).split())}; {REMEDY}" if line else ""


def _show(error: BaseException, hook: Callable[..., Any] | None, debug: bool) -> None:
    """Print the traceback as Python would, had it run the program itself; ``hook`` is the program's own excepthook.

    For values that do not fit the host's memory, one line says everything.
    """
    problem = _out_of_memory(error)
    shorten(error, debug)
    if problem and not debug:
        print(f"ipuperf: {printable(problem)}", file=sys.stderr)
        return
    # The plain message does not say which extra installs the package.
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _IN_EXTRAS:
        error.msg = f"{error.msg}: TensorFlow programs need TensorFlow: {pip_install('tensorflow')}"
    if hook is not None:
        hook(type(error), error, error.__traceback__)
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    sys.stderr.write(printable(text) if is_about_the_program(error) else text)


# ---- surroundings --------------------------------------------------------------------------------------------------


@contextmanager
def _front_ends(names: Iterable[str] | Mapping[str, str], force: bool) -> Iterator[None]:
    """Install the front ends, the torchvision stand-in and local files for Keras; remove afterwards what this added."""
    from ipuperf.tools.datasets.keras_files import serve_keras, unserve_keras
    from ipuperf.tools.datasets.torchvision_standin import install_standin, is_standin_installed, uninstall_standin

    front_end_names = names if isinstance(names, Mapping) else tuple(names)
    # What was installed before the program stays installed after it.
    names_before = installed_names()
    standin_before = is_standin_installed()
    install(front_end_names, force=force)
    try:
        install_standin()
        served = serve_keras()
        try:
            yield
        finally:
            if served:
                unserve_keras()
    finally:
        if not standin_before:
            uninstall_standin()
        uninstall([name for name in front_end_names if name not in names_before])


@contextmanager
def _process_state(argv: list[str], folder: str, main: ModuleType) -> Iterator[None]:
    """Set ``sys.argv``, ``sys.path[0]`` and ``__main__`` for the program, then restore them and the excepthook."""
    kept_argv, kept_path, kept_main, kept_hook = sys.argv, list(sys.path), sys.modules.get(_MAIN), sys.excepthook
    sys.argv = argv
    sys.path.insert(0, folder)
    sys.modules[_MAIN] = main
    try:
        yield
    finally:
        sys.argv = kept_argv
        # The list is changed in place, because others may hold it.
        sys.path[:] = kept_path
        sys.excepthook = kept_hook
        if kept_main is None:
            sys.modules.pop(_MAIN, None)
        else:
            sys.modules[_MAIN] = kept_main


@contextmanager
def _user_modules_forgotten(folder: str) -> Iterator[None]:
    """Remove the program's own modules from ``sys.modules`` afterwards: the next program may have other ones of the
    same name.
    """
    names_before = set(sys.modules)
    try:
        yield
    finally:
        # Libraries stay imported: importing some of them twice fails.
        for name in set(sys.modules) - names_before:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and _is_users(file, folder):
                del sys.modules[name]


@contextmanager
def _time_replaced(clock: SimulatedClock, main: ModuleType, folder: str, readers: Sequence[str]) -> Iterator[None]:
    """Within the block, ``import time`` gives the program the clock, ``readers`` what it shows, and all other modules
    the real one."""
    proxy, shown = clock.time_module(), clock.shown_module()
    # ``import time`` in any module ends in ``builtins.__import__`` with the module's globals: these tell who asks.
    original: Callable[..., Any] = builtins.__import__

    @functools.wraps(original)
    def import_for_program(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        # A relative import means a module of a package, whatever its name.
        if name == "time" and level == 0 and globals is not None:
            file = globals.get("__file__")
            if globals is main.__dict__ or (isinstance(file, str) and _is_users(file, folder)):
                return proxy
            if globals.get("__name__") in readers:
                return shown
        return original(name, globals, locals, fromlist, level)

    builtins.__import__ = import_for_program
    _give_time(shown, readers)
    try:
        yield
    finally:
        builtins.__import__ = original
        _give_time(time, readers)


def _give_time(clock: ModuleType, readers: Sequence[str]) -> None:
    """Let the modules ``readers`` that are loaded ask this module for the time."""
    for module in (sys.modules[name] for name in readers if name in sys.modules):
        # Some import the module `time`, others the function of that name.
        vars(module)["time"] = clock.time if callable(vars(module).get("time")) else clock


@functools.lru_cache(maxsize=4096)
def _is_users(file: str, folder: str) -> bool:
    """Whether a module's ``file`` belongs to the program in ``folder``: below it, not installed, and not ipuperf's."""
    real = os.path.realpath(file)
    if not is_below(real, folder):
        return False
    return not any(is_below(real, root) and not is_below(folder, root) for root in library_folders()) and not (
        {"site-packages", "dist-packages"} & set(Path(real).relative_to(folder).parts)
    )
