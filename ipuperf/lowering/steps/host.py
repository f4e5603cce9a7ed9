"""Stream copies between host and IPUs: by one IPU alone, or while others stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipuperf.base.near_names import instead_of

from .base import JoinableStep, Place, SharedStep, traffic
from .inter_ipu import ipus

DIRECTIONS = ("h2d", "d2h")


@dataclass(frozen=True)
class StreamCopy(JoinableStep):
    """``bytes`` per replica between host and this IPU; ``direction`` is ``h2d`` or ``d2h``; one slice of ``stream``."""

    direction: str
    bytes: int
    stream: str

    choices = (("direction", DIRECTIONS),)
    counts = ("bytes",)

    def amounts(self) -> Iterator[tuple[str, int]]:
        """A transfer."""
        return traffic(f"host {self.direction}", self.bytes)

    def host_slices(self, ipu: int) -> tuple[StreamCopy, ...]:
        """Itself."""
        return (self,)

    def company(self, standing: tuple[int, ...]) -> tuple[int, ...] | None:
        """The IPUs that stand, if there are any."""
        return standing or None

    def apart(self, ipu: int, others: Sequence[tuple[int, JoinableStep]]) -> Sequence[JoinableStep]:
        """Slices of the same stream, as its buffer is free again only after a transfer."""
        return [
            step
            for other_ipu, step in others
            if other_ipu == ipu and isinstance(step, StreamCopy) and step.stream == self.stream
        ]

    @classmethod
    def together(
        cls, op_id: int, name: str, parts: Sequence[tuple[int, StreamCopy]], company: tuple[int, ...]
    ) -> HostExchange:
        """An exchange with the host during which ``company`` stands."""
        copies = tuple([HostCopy(ipu, part.direction, part.bytes, part.stream) for ipu, part in parts])
        return HostExchange(op_id, name, copies, company)


@dataclass(frozen=True)
class HostCopy:
    """``bytes`` per replica between host and IPU ``ipu`` of the replica; otherwise as :class:`StreamCopy`."""

    ipu: int
    direction: str
    bytes: int
    stream: str


@dataclass(frozen=True)
class HostExchange(SharedStep):
    """Stream copies during which all ``participants`` (IPUs of the replica) stand, also those that copy nothing.

    They meet, each does its own ``copies``, and they meet again before any goes on. This is host I/O under the sync
    patterns ``full`` (all IPUs of the replica) and ``replica_and_ladder`` (one side of the ladder). An IPU asks for all
    its slices at once and transfers them together.
    """

    copies: tuple[HostCopy, ...]
    participants: tuple[int, ...]

    def amounts(self) -> Iterator[tuple[str, int]]:
        """Its transfers."""
        for copy in self.copies:
            yield from traffic(f"host {copy.direction}", copy.bytes)

    def parties(self) -> tuple[int, ...]:
        """:attr:`participants`."""
        return self.participants

    def host_slices(self, ipu: int) -> tuple[HostCopy, ...]:
        """The copies of one IPU, in order."""
        return tuple(copy for copy in self.copies if copy.ipu == ipu)

    def describe(self) -> list[str]:
        """Who stands, and every copy."""
        moves = ", ".join(f"{c.direction} {c.stream} {c.bytes} bytes on IPU {c.ipu}" for c in self.copies)
        return [f"HostExchange {self.name} of IPUs {', '.join(map(str, self.participants))}: {moves}"]

    def faults(self, place: Place) -> Iterator[str]:
        """IPUs that do not exist or take no part, or two copies of one stream."""
        if place.ipu not in self.participants or not all(0 <= ipu < place.ipus for ipu in self.participants):
            yield (
                f"the participants are {ipus(self.participants)}, allowed: IPU {place.ipu} and others of IPUs 0 to "
                f"{place.ipus - 1}"
            )
        # A stream's buffer is free again only after a transfer, so two copies of it cannot start together.
        number = Counter((copy.ipu, copy.direction, copy.stream) for copy in self.copies)
        for copy in self.copies:
            yield from self._wrong(copy, number[copy.ipu, copy.direction, copy.stream])

    def _wrong(self, copy: HostCopy, number: int) -> Iterator[str]:
        if copy.ipu not in self.participants:
            yield f"a copy on IPU {copy.ipu}, allowed: {ipus(self.participants)}"
        if copy.direction not in DIRECTIONS:
            yield f"direction is {copy.direction!r}{instead_of(copy.direction, DIRECTIONS)}"
        if copy.bytes < 0:
            yield f"bytes is {copy.bytes}, it must not be negative"
        if number > 1:
            yield (
                f"two copies of stream {copy.stream!r} on IPU {copy.ipu}, allowed: 1 (the buffer of a stream is free "
                "again only after a transfer)"
            )
