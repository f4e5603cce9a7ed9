"""The base classes of all steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from ipuperf.base.near_names import instead_of
from ipuperf.machine import Machine

if TYPE_CHECKING:
    from .sync_groups import SyncGroups


#: What :meth:`Step.amounts` calls the cycles of steps that touch nothing shared.
ON_TILES = "cycles on tiles"


def traffic(kind: str, size: int) -> Iterator[tuple[str, int]]:
    """The amounts of one transfer of ``size`` bytes."""
    yield f"{kind}, number", 1
    yield f"{kind}, bytes", size


@dataclass(frozen=True)
class Cost:
    """The cost of local work on one IPU; costs can be added.

    ``cycles`` are the sum over phases of their slowest tile, with syncs; ``bytes_in`` / ``bytes_out`` go over the
    internal exchange; ``flops`` are floating-point operations.
    """

    cycles: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.cycles + other.cycles,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.flops + other.flops,
        )


class Place(NamedTuple):
    """The place of a step: IPU ``ipu`` of the ``ipus`` IPUs in each of ``replicas`` replicas, on ``machine``."""

    ipu: int
    ipus: int
    replicas: int
    machine: Machine


class HostSlice(Protocol):
    """One slice of ``stream`` (``bytes`` per replica) between host and an IPU; ``direction`` is ``h2d`` or ``d2h``."""

    @property
    def direction(self) -> str:
        """``h2d`` or ``d2h``."""
        ...

    @property
    def bytes(self) -> int:
        """Number of bytes for each replica."""
        ...

    @property
    def stream(self) -> str:
        """The stream's name."""
        ...


@dataclass(frozen=True)
class Step:
    """Base of all steps. ``op_id`` is the index into :attr:`DeviceProgram.ops` (-1: none); ``name`` is for people.

    Class attributes:
        choices: fields with few allowed values, and these values.
        counts: fields that must not be negative.
        io_tiles: the I/O tiles of the IPU take part in it.
    """

    op_id: int
    name: str

    choices: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = ()
    counts: ClassVar[tuple[str, ...]] = ()
    io_tiles: ClassVar[bool] = False

    def for_op(self, op_id: int) -> Step:
        """The same step for another op."""
        if op_id == self.op_id:
            return self
        # dataclasses.replace takes four times as long.
        step, fields = object.__new__(type(self)), self.__dict__.copy()
        fields["op_id"] = op_id
        object.__setattr__(step, "__dict__", fields)
        return step

    def describe(self) -> list[str]:
        """The step as lines of text; steps inside it are indented."""
        detail = {field: value for field, value in vars(self).items() if field not in ("op_id", "name")}
        return [f"{type(self).__name__} {self.name}: {detail}"]

    def faults(self, place: Place) -> Iterable[str]:
        """What is wrong with the step at this place, the first fault first; empty if it can be executed there.

        Raises:
            MachineError: the machine lacks what the step needs.
        """
        for name, allowed in self.choices:
            if getattr(self, name) not in allowed:
                yield f"{name} is {getattr(self, name)!r}{instead_of(getattr(self, name), allowed)}"
        for name in self.counts:
            if getattr(self, name) < 0:
                yield f"{name} is {getattr(self, name)}, it must not be negative"

    def amounts(self) -> Iterator[tuple[str, int]]:
        """Amounts by kind, by which the branches of a conditional are compared (:mod:`..branches`).

        A step whose time depends on others gives its number, and its bytes where it moves any.
        """
        yield f"{type(self).__name__}, number", 1

    def meets(self, ipu: int, syncs: SyncGroups) -> tuple[int, ...]:
        """IPUs of the replica that wait for each other before this step of ``ipu``, though some take no part in it.

        A step that waits for its parties by itself, or for nobody, gives none.
        """
        return ()

    def with_trips(self, trips: Mapping[str, int]) -> Step:
        """The step with other trips of the loops in it; ``trips`` are by name of the loop."""
        return self

    def host_slices(self, ipu: int) -> tuple[HostSlice, ...]:
        """The slices that IPU ``ipu`` of the replica copies to and from the host in this step."""
        return ()


@dataclass(frozen=True)
class LocalStep(Step):
    """A step that runs on the tiles of one IPU and touches nothing shared, so that its time is known beforehand."""

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """Its cost, as a value that can be added."""

    @property
    def duration(self) -> int:
        """Cycles from its begin to its end."""
        return self.cost.cycles

    def amounts(self) -> Iterator[tuple[str, int]]:
        """Its cycles."""
        yield ON_TILES, self.duration

    @property
    def tiles(self) -> int:
        """Number of tiles that the step tells apart; one stands for all where they are alike."""
        return 1


@dataclass(frozen=True)
class SharedStep(Step):
    """A step that stands in the lists of several IPUs of a replica, which meet in it."""

    @abstractmethod
    def parties(self) -> tuple[int, ...]:
        """The IPUs that take part."""


@dataclass(frozen=True)
class JoinableStep(Step):
    """A step that may start together with its neighbours of the same kind (:mod:`..merging`)."""

    def company(self, standing: tuple[int, ...]) -> tuple[int, ...] | None:
        """The IPUs that stand during this step; None if it starts alone.

        Steps start together only if these are equal. ``standing`` are the IPUs that stand during host I/O of its IPU.
        """
        return ()

    def apart(self, ipu: int, others: Sequence[tuple[int, JoinableStep]]) -> Sequence[JoinableStep]:
        """The steps among ``others`` (pairs of IPU and step) with which this step of IPU ``ipu`` cannot start."""
        return ()

    @classmethod
    @abstractmethod
    def together(cls, op_id: int, name: str, parts: Sequence[tuple[int, Any]], company: tuple[int, ...]) -> SharedStep:
        """One step in which all ``parts`` start together (the IPU of each, and the step)."""
