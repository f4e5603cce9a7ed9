"""How parties wait for each other.

A meeting begins when its last party arrives. Nobody can arrive at the next meeting of the same key before leaving this
one, so a key (which step, which group; which pairs of IPUs) identifies a meeting, and a party that waits for ever can
be named. Parties say that they arrive ahead of time (``party.clock``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from .instructions import LeafStep
    from .party import Party

K = TypeVar("K", bound=Hashable)


class Guest(NamedTuple):
    """A party and the step it came with."""

    party: Party
    leaf: LeafStep

    @property
    def go_on(self) -> Callable[[], None]:
        """What to call when it may go on."""
        return self.party.go_on


class Arrival(NamedTuple):
    """What a party says each time it arrives at the same step (see :meth:`Gathering.arrive`)."""

    key: Any
    guest: Guest
    expected: int
    waits_for: str


class Gathering(Generic[K]):
    """Meetings whose parties are still arriving."""

    def __init__(self) -> None:
        self._waiting: dict[K, dict[int, Guest]] = {}

    def arrive(self, key: K, seat: int, guest: Guest, expected: int, waits_for: str) -> list[Guest]:
        """``guest`` waits (``waits_for`` says for what) until ``expected`` seats are taken.

        Returns:
            All guests by seat when this was the last one, else none. Who finds its seat taken takes it over, and the
            other waits for ever.
        """
        return self.take(Arrival(key, guest, expected, waits_for), seat)

    def take(self, arrival: Arrival, seat: int) -> list[Guest]:
        """`arrive` where the guest arrives again and again."""
        key, guest, expected, waits_for = arrival
        guests = self._waiting.get(key)
        if guests is None:
            guests = self._waiting[key] = {}
        guests[seat] = guest
        guest.party.open_wait = waits_for
        if len(guests) < expected:
            return []
        del self._waiting[key]
        for party, _ in guests.values():
            party.open_wait = ""
        return [guests[seat] for seat in sorted(guests)]


def last_arrival(guests: Sequence[Guest]) -> int:
    """When the last of them is there, now at the earliest."""
    return max([party.clock for party, _ in guests] + [guests[0].party.events.now])
