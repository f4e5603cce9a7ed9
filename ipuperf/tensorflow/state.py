"""What TensorFlow keeps per process: the default graph's variables, the IPU configuration, graph or eager mode.

Upstream has one of each per process, so there is one :class:`State` here too (in :data:`RUN`), shared by all threads.
``tf.compat.v1.reset_default_graph()`` and ``ipu.config.reset_ipu_configuration()`` clear it; :func:`isolated` gives a
block (a test, an embedded program) a state of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipuperf.runtime.run_context import RUN

if TYPE_CHECKING:
    from .python.ipu.config import IPUConfig
    from .variables import Variable


@dataclass
class OpenScope:
    """An active variable scope: its full name, whether it reuses variables, its default initialiser and type."""

    name: str = ""
    reuse: object = False
    initializer: object = None
    dtype: object = None


@dataclass
class State:
    """The state of a process.

    Attributes:
        variables: variables of the default graph by name.
        scopes: active variable scopes, innermost last.
        unique: how often a default name has been taken.
        config: the configuration applied last, None before the first.
        eager: whether host operations happen when called; False: when a session runs them.
        device: ordinal of the active ``/device:IPU:n``.
        seed: ``tf.random.set_seed``.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    scopes: list[OpenScope] = field(default_factory=lambda: [OpenScope()])
    unique: dict[str, int] = field(default_factory=dict)
    config: IPUConfig | None = None
    eager: bool = True
    device: int = 0
    seed: int = 0

    def reset_graph(self) -> None:
        """Forget variables and names."""
        self.variables = {}
        self.scopes = [OpenScope()]
        self.unique = {}

    def unique_name(self, stem: str) -> str:
        """``stem``, ``stem_1``, ``stem_2`` ..."""
        number = self.unique.get(stem, 0)
        self.unique[stem] = number + 1
        return stem if number == 0 else f"{stem}_{number}"


def state() -> State:
    """The state in force."""
    return RUN.of(State)


def isolated() -> AbstractContextManager[State]:
    """A fresh state within the block."""
    return RUN.fresh(State)
