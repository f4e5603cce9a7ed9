"""Copies between the IPUs of a replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .base import JoinableStep, Place, SharedStep, traffic

if TYPE_CHECKING:
    from .sync_groups import SyncGroups


@dataclass(frozen=True)
class IpuTransfer:
    """``bytes`` from IPU ``source`` to IPU ``destination`` of one replica."""

    source: int
    destination: int
    bytes: int

    @property
    def ends(self) -> tuple[int, int]:
        """Source and destination."""
        return (self.source, self.destination)


@dataclass(frozen=True)
class InterIpuCopy(SharedStep, JoinableStep):
    """One exchange between IPUs of a replica: all ``copies`` (each pair of IPUs at most once) start together.

    Every IPU that sends or receives has this step at its place and goes on when its own transfers are done.
    """

    copies: tuple[IpuTransfer, ...]

    @cached_property
    def participants(self) -> tuple[int, ...]:
        """IPUs of the replica that send or receive, ascending."""
        return tuple(sorted({end for copy in self.copies for end in copy.ends}))

    def parties(self) -> tuple[int, ...]:
        """:attr:`participants`."""
        return self.participants

    @classmethod
    def together(
        cls, op_id: int, name: str, parts: Sequence[tuple[int, InterIpuCopy]], company: tuple[int, ...]
    ) -> InterIpuCopy:
        """One exchange, with a single transfer for each pair of IPUs."""
        # An exchange has at most one transfer for each pair of IPUs.
        size: dict[tuple[int, int], int] = {}
        for copy in [copy for _, part in parts for copy in part.copies]:
            size[copy.ends] = size.get(copy.ends, 0) + copy.bytes
        return cls(op_id, name, tuple([IpuTransfer(*pair, total) for pair, total in size.items()]))

    @cached_property
    def _moved(self) -> tuple[Counter[int], Counter[int]]:
        """Bytes that each participant receives and sends."""
        received, sent = Counter[int](), Counter[int]()
        for copy in self.copies:
            received[copy.destination] += copy.bytes
            sent[copy.source] += copy.bytes
        return received, sent

    def received(self, ipu: int) -> int:
        """Bytes that ``ipu`` receives."""
        return self._moved[0][ipu]

    def sent(self, ipu: int) -> int:
        """Bytes that ``ipu`` sends."""
        return self._moved[1][ipu]

    def meets(self, ipu: int, syncs: SyncGroups) -> tuple[int, ...]:
        """All IPUs, where not all take part: one of the two sync groups always contains every IPU."""
        return syncs.everyone if len(self.participants) < len(syncs.ipus) else ()

    def describe(self) -> list[str]:
        """Every transfer."""
        moves = ", ".join(f"{c.bytes} bytes {c.source}->{c.destination}" for c in self.copies)
        return [f"InterIpuCopy {self.name}: {moves}"]

    def amounts(self) -> Iterator[tuple[str, int]]:
        """An exchange of the bytes of all pairs."""
        return traffic("exchange between IPUs", sum(copy.bytes for copy in self.copies))

    def faults(self, place: Place) -> Iterator[str]:
        """IPUs that do not exist, two copies of a pair, or an IPU that takes no part."""
        # Every party asks, and nearly every exchange is sound.
        if not self._sound or self.participants[0] < 0 or self.participants[-1] >= place.ipus:
            yield from self._faults(place.ipus)
        if place.ipu not in self.participants:
            yield f"it is between {ipus(self.participants)}"

    @cached_property
    def _sound(self) -> bool:
        """Whether nothing is wrong with the copies, wherever the exchange runs."""
        return bool(self.copies) and not any(self._faults(self.participants[-1] + 1))

    def _faults(self, count: int) -> Iterator[str]:
        if not self.copies:
            yield "it has no copies, at least 1 is needed"
        pairs = Counter(copy.ends for copy in self.copies)
        for copy in self.copies:
            yield from self._wrong(copy, count, pairs[copy.ends])

    def _wrong(self, copy: IpuTransfer, count: int, alike: int) -> Iterator[str]:
        source, destination = copy.ends
        if source == destination or not (0 <= source < count and 0 <= destination < count):
            yield f"from IPU {source} to IPU {destination}, allowed: two of IPUs 0 to {count - 1}"
        if copy.bytes < 0:
            yield f"bytes is {copy.bytes}, it must not be negative"
        if alike > 1:
            yield f"two copies from IPU {source} to IPU {destination}, allowed: 1 for each pair"


def ipus(numbers: Sequence[int]) -> str:
    """``IPU 0 and IPU 1``."""
    names = [f"IPU {number}" for number in numbers]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
