"""Compiled functions and sessions: how traced programs are run from the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .dtypes import HostArray, as_dtype, to_host
from .effects import EFFECTS
from .program import TracedProgram
from .state import state
from .tracing import Operation, map_structure
from .variables import Variable


class Placeholder:
    """A value that a session feeds: an argument of compiled functions.

    Attributes:
        default: the value while none has been fed, zeros unless given.
    """

    def __init__(self, dtype: Any, shape: Sequence[int] | None = None, name: str | None = None) -> None:
        if shape is None or any(n is None for n in shape):
            raise ValueError(f"placeholder {name or ''!r}: an IPU program needs a fixed shape, got {shape}")
        self.dtype = as_dtype(dtype)
        self.shape = tuple(shape)
        self.name = name or "Placeholder"
        self.default = np.zeros(self.shape, self.dtype.numpy)


class Compiled(Operation):
    """A traced function; running it executes the program once.

    Attributes:
        program: the program.
    """

    def __init__(self, program: TracedProgram, arguments: Sequence[Any]) -> None:
        super().__init__(program.name)
        self.program = program
        self._arguments = [a for a in arguments if not isinstance(a, Variable)]

    def run(self, feed: Mapping[Any, Any] | None = None) -> Any:
        """Execute once with the arguments given at compilation, placeholders replaced by what ``feed`` holds."""
        fed = {id(k): v for k, v in (feed or {}).items()}
        values = [fed.get(id(a), a.default if isinstance(a, Placeholder) else a) for a in self._arguments]
        return self.program.run([to_host(v) if not isinstance(v, (int, float)) else v for v in values])

    def __call__(self, *arguments: Any) -> Any:
        """Execute once, with other arguments when any are given."""
        return self.program.run(list(arguments)) if arguments else self.run()


def compile_function(function: Callable[..., Any], arguments: Sequence[Any], name: str | None = None) -> Compiled:
    """Trace ``function`` for arguments like the given ones (host data, placeholders, variables)."""
    program = TracedProgram(name or getattr(function, "__name__", "program"))
    program.trace(getattr(function, "python_function", function), arguments)
    return Compiled(program, arguments)


class Function:
    """``tf.function``: inside a program a plain call, otherwise a program that is traced once per kind of arguments.

    Arguments other than arrays and numbers (models, optimisers, queues) are passed as they are and belong to the kind.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.python_function = getattr(function, "python_function", function)
        self.__name__ = name or getattr(function, "__name__", "function")
        self._programs: dict[Any, tuple[TracedProgram, Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inline the function in a program that is being traced; otherwise run it on the device."""
        from .tracing import is_tracing

        if is_tracing():
            return self.python_function(*args, **kwargs)
        return self.execute(args, kwargs)

    def execute(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run on the device now."""
        data, rebuild, key = _split(args, kwargs)
        if key not in self._programs:
            program = TracedProgram(self.__name__)
            program.trace(lambda *arrays: _call(self.python_function, rebuild, arrays), data)
            self._programs[key] = program, (args, kwargs)  # the key holds identities: keep the objects
        return self._programs[key][0].run(data)


def _split(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Callable[..., Any], Any]:
    """Host data among the arguments, a function that puts arrays in its place, and a key for the kind."""
    data: list[Any] = []
    kinds: list[Any] = []

    def visit(value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic, float, int)) and not isinstance(value, bool):
            data.append(to_host(value))
            kinds.append((data[-1].shape, str(data[-1].dtype)))
        else:
            kinds.append(id(value))
        return value

    map_structure(visit, [list(args), dict(kwargs)])

    def rebuild(arrays: Sequence[Any]) -> Any:
        rest = iter(arrays)
        fixed = (np.ndarray, np.generic, float, int)
        return map_structure(
            lambda v: next(rest) if isinstance(v, fixed) and not isinstance(v, bool) else v,
            [list(args), dict(kwargs)],
        )

    return data, rebuild, tuple(kinds)


def _call(function: Callable[..., Any], rebuild: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    positional, named = rebuild(arrays)
    return function(*positional, **named)


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Any = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_compile: bool | None = None,
    experimental_relax_shapes: bool | None = None,
) -> Any:
    """Decorator ``tf.function``, with or without arguments (all are hints to TensorFlow)."""
    EFFECTS.given("function(input_signature)", input_signature)
    EFFECTS.given("function(autograph)", autograph)
    EFFECTS.given("function(jit_compile)", jit_compile)
    EFFECTS.given("function(experimental_compile)", experimental_compile)
    EFFECTS.given("function(reduce_retracing)", reduce_retracing)
    EFFECTS.given("function(experimental_relax_shapes)", experimental_relax_shapes)
    if func is None:
        return lambda f: Function(f)
    return Function(func)


class Session:
    """``tf.Session``: runs handles in the order in which they are given."""

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        EFFECTS.given("Session(target)", target)
        EFFECTS.given("Session(graph)", graph)
        EFFECTS.given("Session(config)", config)
        self.graph = graph

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def close(self) -> None:
        """Nothing needs to be closed."""

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """The results of ``fetches``, in their structure: compiled functions, operations, dequeues, variables, data.

        Raises:
            TypeError: something that cannot be fetched.
        """

        def fetch(item: Any) -> Any:
            if isinstance(item, Compiled):
                return item.run(feed_dict)
            if isinstance(item, Operation):
                return item.run()
            if isinstance(item, Variable):
                return item.numpy().view(HostArray)
            if isinstance(item, Placeholder):
                return to_host((feed_dict or {})[item])
            if item is None or isinstance(item, (np.ndarray, np.generic, int, float, bool, str)):
                return item
            raise TypeError(
                f"Session.run cannot fetch {item!r}: a compiled function, an operation or a variable is needed"
            )

        return map_structure(fetch, fetches)


class Graph:
    """``tf.Graph``: ``as_default()`` gives variables and names of its own, and graph mode."""

    def __init__(self) -> None:
        self._variables: dict[str, Variable] = {}
        self._unique: dict[str, int] = {}

    def as_default(self) -> Graph:
        """A context in which the graph is the default one."""
        return self

    def __enter__(self) -> Graph:
        from .state import OpenScope

        own = state()
        self._kept = (own.variables, own.scopes, own.unique, own.eager)
        own.variables, own.scopes, own.unique, own.eager = self._variables, [OpenScope()], self._unique, False
        return self

    def __exit__(self, *error: Any) -> None:
        own = state()
        own.variables, own.scopes, own.unique, own.eager = self._kept
