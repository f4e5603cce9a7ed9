"""How each kind of step is simulated: one class per kind, registered for the class of the step.

A kind of local step (:class:`LocalKind`) says how its tiles pass the time; nothing is shared, so one object serves all.
A kind of shared step (:class:`SharedKind`) has one object per simulation, which holds who is meeting whom, and
:meth:`SharedKind.run` is what an IPU does in the step. The kinds stand in :mod:`.steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np

from ipuperf.lowering.steps import LocalStep, Step

from .errors import SimulationError
from .event_loop import Waiting
from .party import Party

if TYPE_CHECKING:
    from .instructions import LeafStep
    from .world import World

S = TypeVar("S", bound=Step)
L = TypeVar("L", bound=LocalStep)
K = TypeVar("K", bound="type[StepKind]")

StepRow = tuple[str, int, float, int, int, int, int, int]
"""Columns of table ``steps`` of a local step: kind, cycles of the slowest tile and of the mean one, active tiles, which
tile is the slowest (-1: all alike), bytes in and out, floating-point operations."""


class StepKind(Generic[S]):
    """What both sorts of kinds say.

    Class attributes:
        types: type of the control programs of a step, as libpva calls them; parts of a shared step count into them.
        in_micro_batch: the step belongs to the micro-batch that was loaded last.
    """

    types: ClassVar[tuple[str, ...]]
    in_micro_batch: ClassVar[bool] = True

    @classmethod
    def programs(cls, step: S) -> tuple[str, ...]:
        """Types of the control programs of ``step``."""
        return cls.types


class LocalKind(StepKind[L]):
    """A kind of step on the tiles of one IPU. How long one lasts it says itself (``LocalStep.duration``)."""

    types = ("OnTileExecute",)

    @classmethod
    def row(cls, step: L, tiles: int, first_tile: int) -> StepRow:
        """What the trace says about ``step``; as it stands, all tiles are busy in it.

        Args:
            step: the step.
            tiles: tiles of the IPU.
            first: first tile of the set (compute or I/O) on which the step runs.
        """
        cost = step.cost
        return ("compute", step.duration, float(step.duration), tiles, -1, cost.bytes_in, cost.bytes_out, cost.flops)

    @classmethod
    def tile_cycles(cls, step: L, tiles: int) -> np.ndarray:
        """Cycles of each of ``tiles`` tiles (``int64[tiles]``) until all meet, for ``fidelity="tile"``; as it stands,
        all tiles last as long as the step."""
        return np.full(tiles, step.duration, dtype=np.int64)


class SharedKind(StepKind[S]):
    """A kind of step that touches something shared: links, DDR, the host, other IPUs.

    Args:
        world: what is shared.

    Class attributes:
        symmetric: replica 0 may stand for all replicas in such a step (:mod:`.symmetry`): whom it meets is of its
            replica, and the routes of its transfers are given by IPU. Programs with a step that does not say so are
            simulated with all replicas.
    """

    symmetric: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        self.world = world

    def prepare(self, party: Party, leaf: LeafStep, step: S) -> Callable[[], Waiting | None]:
        """What ``party`` calls each time it executes this step: `run`, or what a kind makes once for all times."""
        return partial(self.run, party, leaf, step)

    def run(self, party: Party, leaf: LeafStep, step: S) -> Waiting | None:
        """``party`` executes ``step`` (that of ``leaf``): it waits for what it needs and says what passed, part by part
        (:attr:`.party.Party.parts`). It yields None to wait until ``party.go_on`` is called; where that is all
        it does, it need not be a generator and returns None."""
        raise NotImplementedError

    def forget(self) -> None:
        """The simulation is over. Whatever refers to each other is parted, so that it is freed at once and the garbage
        collector need not look for it."""
        vars(self).clear()

    def state(self, time: int) -> tuple[object, ...]:
        """Everything the future depends on that neither the parties nor the network know, relative to ``now``."""
        return ()


_LOCAL: dict[type[Step], type[LocalKind]] = {}
_SHARED: dict[type[Step], type[SharedKind]] = {}


def simulates(step: type[Step]) -> Callable[[K], K]:
    """Registers the kind that simulates steps of this class."""

    def register(kind: K) -> K:
        if issubclass(kind, LocalKind):
            _LOCAL[step] = kind
        elif issubclass(kind, SharedKind):
            _SHARED[step] = kind
        return kind

    return register


def kind_of(step: Step) -> type[StepKind]:
    """The kind of a step.

    Raises:
        SimulationError: there is none.
    """
    kind = _LOCAL.get(type(step)) or _SHARED.get(type(step))
    if kind is None:
        known = ", ".join(sorted(cls.__name__ for cls in (*_LOCAL, *_SHARED)))
        raise SimulationError(f"step {step.name!r} is a {type(step).__name__}, which has no simulation; known: {known}")
    return kind


def local_kind(step: Step) -> type[LocalKind]:
    """The kind of a local step."""
    return _LOCAL[type(step)]


def shared_kinds(world: World) -> dict[type[Step], SharedKind]:
    """A fresh object of each kind of shared step, for one simulation."""
    return {step: kind(world) for step, kind in _SHARED.items()}
