"""How each kind of step is simulated: one class per kind, registered for the class of the step.

A kind of local step (:class:`LocalKind`) says how its tiles spend the time. It shares nothing and has no state, so its
methods belong to the class. A kind of shared step (:class:`SharedKind`) has one object per simulation, which knows the
IPUs that are meeting. Its method :meth:`SharedKind.run` is what an IPU does in the step. The kinds are in
:mod:`.steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from ipuperf.lowering.steps import LocalStep, Step

from .errors import SimulationError
from .event_loop import Waiting
from .party import Party

if TYPE_CHECKING:
    from ipuperf.machine import SlowIpu

    from .instructions import LeafStep
    from .world import World

S = TypeVar("S", bound=Step)
L = TypeVar("L", bound=LocalStep)
K = TypeVar("K", bound="type[StepKind[Any]]")

StepRow = tuple[str, int, float, int, int, int, int, int]
"""A row of table ``steps`` for a local step.

The columns are kind, cycles of the slowest tile, mean cycles over the tiles, active tiles, the slowest tile (-1: all
are equal), bytes in, bytes out, and floating-point operations."""


class StepKind(Generic[S]):
    """What local and shared kinds have in common.

    Class attributes:
        types: types of the control programs of a step, by libpva's names; parts of a shared step are indices into them.
        in_micro_batch: whether the step belongs to the micro-batch that was loaded last.
    """

    types: ClassVar[tuple[str, ...]]
    in_micro_batch: ClassVar[bool] = True

    @classmethod
    def programs(cls, step: S) -> tuple[str, ...]:
        """The types of the control programs of ``step``."""
        return cls.types


class LocalKind(StepKind[L]):
    """A kind of step on the tiles of one IPU. The step itself says how long it lasts (``LocalStep.duration``)."""

    types = ("OnTileExecute",)

    @classmethod
    def row(cls, step: L, tiles: int, first_tile: int) -> StepRow:
        """The trace's row of ``step``. This default says that all tiles are busy for the whole step.

        Args:
            step: the step.
            tiles: how many tiles the IPU has.
            first_tile: the first tile of the set (compute or I/O) on which the step runs.
        """
        cost = step.cost
        return ("compute", step.duration, float(step.duration), tiles, -1, cost.bytes_in, cost.bytes_out, cost.flops)

    @classmethod
    def tile_cycles(cls, step: L, tiles: int) -> np.ndarray:
        """Cycles of each tile (``int64[tiles]``) until all tiles meet, for ``fidelity="tile"``.

        This default gives each tile the duration of the step.
        """
        return np.full(tiles, step.duration, dtype=np.int64)

    @classmethod
    def slowed(cls, step: L, tiles: int, faults: Sequence[SlowIpu], first_tile: int) -> np.ndarray:
        """As :meth:`tile_cycles`, on an IPU with these faults.

        Slow tiles take longer for what they compute. An exchange is timed for all tiles and a sync is one of all, so
        only an IPU that is slow as a whole takes longer for these.

        Args:
            step: the step.
            tiles: how many tiles there are.
            faults: those of the IPU; the lowest rate holds for each tile.
            first_tile: the number of the first of these tiles on the IPU.
        """
        cycles = cls.tile_cycles(step, tiles)
        slow: np.ndarray = cycles.copy()
        compute = cls.programs(step) == ("OnTileExecute",)
        for fault in faults:
            if fault.tiles is None:
                slow = np.maximum(slow, fault.cycles(cycles))
            elif compute:
                first, end = max(0, fault.tiles[0] - first_tile), max(0, fault.tiles[1] + 1 - first_tile)
                slow[first:end] = np.maximum(slow[first:end], fault.cycles(cycles[first:end]))
        return slow


class SharedKind(StepKind[S]):
    """A kind of step that touches something shared: links, DDR, the host, other IPUs.

    Args:
        world: what the IPUs share.

    Class attributes:
        symmetric: whether a replica may stand for others in such a step (:mod:`.symmetry`). The parties that meet must
            then belong to one replica (or be a collective's), and the routes of transfers must be given by IPU. A
            program with any other shared step is simulated with all its replicas.
    """

    symmetric: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        self.world = world

    def prepare(self, party: Party, leaf: LeafStep, step: S) -> Callable[[], Waiting | None]:
        """The call that executes this step for ``party`` each time: `run`, or what the kind prepared once."""
        return partial(self.run, party, leaf, step)

    def run(self, party: Party, leaf: LeafStep, step: S) -> Waiting | None:
        """Execute ``step`` (the step of ``leaf``) for ``party``.

        The party waits for what it needs and reports what happened, part by part (:attr:`.party.Party.parts`). It
        yields None to wait until ``party.go_on`` is called. A kind that only waits for this call need not be a
        generator: it returns None.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Break reference cycles when the simulation is over.

        The objects are then freed at once, without the garbage collector.
        """
        vars(self).clear()

    def state(self, time: int) -> tuple[object, ...]:
        """Everything on which the future depends and that neither parties nor network know, relative to ``time``."""
        return ()


_LOCAL: dict[type[Step], type[LocalKind[Any]]] = {}
_SHARED: dict[type[Step], type[SharedKind[Any]]] = {}


def simulates(step: type[Step]) -> Callable[[K], K]:
    """Register the decorated kind for steps of this class."""

    def register(kind: K) -> K:
        if issubclass(kind, LocalKind):
            _LOCAL[step] = kind
        elif issubclass(kind, SharedKind):
            _SHARED[step] = kind
        return kind

    return register


def kind_of(step: Step) -> type[StepKind[Any]]:
    """The kind of a step.

    Raises:
        SimulationError: there is none.
    """
    kind = _LOCAL.get(type(step)) or _SHARED.get(type(step))
    if kind is None:
        known = ", ".join(sorted(cls.__name__ for cls in (*_LOCAL, *_SHARED)))
        raise SimulationError(f"step {step.name!r} is a {type(step).__name__}, which has no simulation; known: {known}")
    return kind


def local_kind(step: Step) -> type[LocalKind[Any]]:
    """The kind of a local step."""
    return _LOCAL[type(step)]


def shared_kinds(world: World) -> dict[type[Step], SharedKind[Any]]:
    """A fresh object of each kind of shared step, for one simulation."""
    return {step: kind(world) for step, kind in _SHARED.items()}
