"""Programs of version 1 in a graph and a session of their own, as tests use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ipuperf.tensorflow.config import IPUConfig
from ipuperf.tensorflow.facade import compiling
from ipuperf.tensorflow.programs.program import TracedProgram

tf1 = tf.compat.v1


def configure(**options: Any) -> None:
    """Configure the system with these options (``__`` for dots)."""
    IPUConfig.from_dict({name.replace("__", "."): value for name, value in options.items()}).configure_ipu_system()


class Graphs:
    """The graph that is active; :meth:`fresh` makes another one active."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.session: Any = None
        self.fresh()

    def fresh(self) -> None:
        """An empty graph, and a session for it."""
        self._stack.enter_context(tf.Graph().as_default())
        tf1.set_random_seed(1)
        self.session = self._stack.enter_context(tf1.Session())


@contextmanager
def graphs() -> Iterator[Graphs]:
    """A graph of version 1 for a block."""
    with ExitStack() as stack:
        yield Graphs(stack)


class Compiled:
    """A compiled function: :meth:`run` executes it in the active session.

    Attributes:
        program: what it became.
    """

    def __init__(self, function: Callable[..., Any], values: Sequence[Any] = (), queues: Sequence[Any] = ()) -> None:
        self._values = [np.asarray(v) for v in values]
        self._values = [v.astype(np.float32) if v.dtype == np.float64 else v for v in self._values]
        self._holders = [tf1.placeholder(v.dtype, v.shape) for v in self._values]
        made: list[TracedProgram] = []
        kept = compiling.TracedProgram
        compiling.TracedProgram = lambda *a: made.append(kept(*a)) or made[-1]
        try:
            self.result = compiling.compile(function, self._holders)
        finally:
            compiling.TracedProgram = kept
        self.program = made[-1]
        self._queues = list(queues)
        self._started: Any = None

    def run(self, *values: Any) -> Any:
        """What the function returns, for the values given at compilation or others."""
        session = tf1.get_default_session()
        if self._started is not session:
            session.run([tf1.variables_initializer(missing(session)), [q.initializer for q in self._queues]])
            self._started = session
        fed = dict(zip(self._holders, values or self._values))
        return session.run(self.result, fed)

    __call__ = run


def missing(session: Any) -> list[Any]:
    """Variables that have no value yet."""
    flags = session.run([tf1.is_variable_initialized(v) for v in tf1.global_variables()])
    return [v for v, there in zip(tf1.global_variables(), flags) if not there]


def dequeued(queue: Any) -> Any:
    """What a session gets from an outfeed."""
    return tf1.get_default_session().run(queue.dequeue())


def value(variable: Any) -> np.ndarray:
    """A variable's value in the active session."""
    return tf1.get_default_session().run(variable)
