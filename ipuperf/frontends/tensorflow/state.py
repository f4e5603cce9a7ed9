"""What TensorFlow for the IPU keeps per process: the configuration, the active device; the versions that it runs on.

Upstream has one of each per process, so there is one :class:`State` here too (in :data:`RUN`), shared by all threads.
``ipu.config.reset_ipu_configuration()`` clears it; :func:`isolated` gives a block (a test, an embedded program) a state
of its own. Graphs, variables and seeds are TensorFlow's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipuperf.base.requirements import pip_install
from ipuperf.runtime.run_context import RUN

if TYPE_CHECKING:
    from .config import IPUConfig


@dataclass
class State:
    """The state of a process.

    Attributes:
        config: the configuration applied last, None before the first.
        device: ordinal of the active ``/device:IPU:n``.
        random_seed: what ``utils.reset_ipu_seed`` set: part of the seeds of programs that are compiled later.
    """

    config: IPUConfig | None = None
    device: int = 0
    random_seed: int = 0


def state() -> State:
    """The state in force."""
    return RUN.of(State)


def isolated() -> AbstractContextManager[State]:
    """A fresh state within the block."""
    return RUN.fresh(State)


FIRST, END = (2, 16), (2, 22)
"""The first version (major, minor) that works, and the first one that has not been tried."""


def check_version(installed: str) -> None:
    """Raise ImportError unless TensorFlow ``installed`` (``2.21.0``) is one of these versions."""
    parts = tuple(int(part) for part in installed.split(".")[:2])
    if not FIRST <= parts < END:
        oldest, end = (".".join(map(str, version)) for version in (FIRST, END))
        raise ImportError(
            f"TensorFlow {installed} is installed, and programs for the IPU run on TensorFlow {oldest} and newer, "
            f"below {end}, with tf-keras of the same version: {pip_install('tensorflow')}",
            name="tensorflow",
        )
