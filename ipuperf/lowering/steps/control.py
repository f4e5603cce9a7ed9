"""Steps that contain steps. They are the grammar of a program, so walks over the tree know each of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from .base import Step


@dataclass(frozen=True)
class ControlStep(Step):
    """A step that executes others: those ``inside``, or, of a call, the body of the function."""

    @property
    @abstractmethod
    def inside(self) -> tuple[Step, ...]:
        """Steps directly inside it, in order."""

    def amounts(self) -> Iterator[tuple[str, int]]:
        """The amounts of the steps directly inside it, in order."""
        for step in self.inside:
            yield from step.amounts()

    def describe_inside(self) -> list[str]:
        """The lines of the steps inside it."""
        return [line for step in self.inside for line in step.describe()]


@dataclass(frozen=True)
class Sequence(ControlStep):
    """Steps in order."""

    steps: tuple[Step, ...]

    @property
    def inside(self) -> tuple[Step, ...]:
        """Its steps."""
        return self.steps

    def with_trips(self, trips: Mapping[str, int]) -> Sequence:
        """Its steps with other trips."""
        return replace(self, steps=tuple([step.with_trips(trips) for step in self.steps]))

    def describe(self) -> list[str]:
        """Its steps."""
        return self.describe_inside()


@dataclass(frozen=True)
class IoTiles(Sequence):
    """Steps that run on the I/O tiles while the compute tiles go on.

    The two tile sets meet at each :class:`~.tile_set_copy.TileSetCopy`.
    """

    io_tiles = True

    def describe(self) -> list[str]:
        """Its steps, indented."""
        return ["I/O tiles:", *indented(self.describe_inside())]


@dataclass(frozen=True)
class Repeat(ControlStep):
    """``body`` executed ``count`` times."""

    count: int
    body: Sequence

    @property
    def inside(self) -> tuple[Step, ...]:
        """The body."""
        return (self.body,)

    def amounts(self) -> Iterator[tuple[str, int]]:
        """The amounts of the body, in all trips."""
        return ((kind, self.count * amount) for kind, amount in self.body.amounts())

    def with_trips(self, trips: Mapping[str, int]) -> Repeat:
        """The loop with its own number of trips, and its body."""
        # A loop has the name of the graph that it repeats, which is the key here.
        return replace(self, count=trips[self.name], body=self.body.with_trips(trips))

    def describe(self) -> list[str]:
        """The trips, then the body, indented."""
        return [f"Repeat x{self.count} {self.name}", *indented(self.describe_inside())]


@dataclass(frozen=True)
class Call(ControlStep):
    """The function of this name (see :attr:`DeviceProgram.functions`) executed once."""

    function: str

    @property
    def inside(self) -> tuple[Step, ...]:
        """Nothing, as the body is in the program's functions."""
        return ()

    def describe(self) -> list[str]:
        """The name of the function."""
        return [f"Call {self.function}"]


def indented(lines: list[str]) -> list[str]:
    """Lines of text, one level further in."""
    return [f"  {line}" for line in lines]
