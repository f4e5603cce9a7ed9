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


class MeetingPlace:
    """Where a party sits each time it arrives with the same step.

    Attributes:
        meetings: at which it sits, ``number`` which place there.
        waits_for: what it says while it waits.
    """

    __slots__ = ("leaf", "meetings", "number", "party", "waits_for")

    def __init__(self, party: Party, leaf: LeafStep, meetings: Meetings, number: int, waits_for: str) -> None:
        self.party = party
        self.leaf = leaf
        self.meetings = meetings
        self.number = number
        self.waits_for = waits_for


class Meetings:
    """Meetings of the same number of places, one after the other."""

    __slots__ = ("_missing", "_taken")

    def __init__(self, size: int) -> None:
        self._taken: list[Any] = [None] * size
        self._missing = size

    def take(self, place: MeetingPlace) -> tuple[MeetingPlace, ...]:
        """The party of ``place`` waits until all places are taken.

        Returns:
            All places when this was the last one (they wait no longer, which whoever asked has to say), else none. Who
            finds its place taken takes it over, and the other waits for ever.
        """
        places = self._taken
        if places[place.number] is None:
            self._missing -= 1
        places[place.number] = place
        place.party.open_wait = place.waits_for
        if self._missing:
            return ()
        self._missing = len(places)
        self._taken = [None] * len(places)
        return tuple(places)


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


def last_arrival(guests: Sequence[Guest | MeetingPlace]) -> int:
    """When the last of them is there, now at the earliest."""
    return max(max([guest.party.clock for guest in guests]), guests[0].party.events.now)
