"""How parties wait for each other.

A meeting begins when its last party arrives. No party can arrive at the next meeting with the same key before it leaves
this one. A key (step and group, or pairs of IPUs) therefore identifies a meeting, and a party that waits for ever can
be named in messages. Parties announce their arrival ahead of time (``party.clock``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from .instructions import LeafStep
    from .party import Party

K = TypeVar("K", bound=Hashable)


class Guest(NamedTuple):
    """A party at a meeting, and the step with which it arrived."""

    party: Party
    leaf: LeafStep

    @property
    def go_on(self) -> Callable[[], None]:
        """The call that ends the wait of the party."""
        return self.party.go_on


class MeetingPlace:
    """The place of a party each time it arrives with the same step.

    Attributes:
        party: the party.
        leaf: the step.
        meetings: the meetings to which the place belongs.
        number: the number of the place at these meetings.
        waits_for: what the party waits for there, for messages.
    """

    __slots__ = ("leaf", "meetings", "number", "party", "waits_for")

    def __init__(self, party: Party, leaf: LeafStep, meetings: Meetings, number: int, waits_for: object) -> None:
        self.party = party
        self.leaf = leaf
        self.meetings = meetings
        self.number = number
        self.waits_for = waits_for


class Meetings:
    """Meetings with the same number of places, one after the other."""

    __slots__ = ("_missing", "_taken")

    def __init__(self, size: int) -> None:
        self._taken: list[Any] = [None] * size
        self._missing = size

    def take(self, place: MeetingPlace) -> tuple[MeetingPlace, ...]:
        """The party of ``place`` waits until all places are taken.

        A party that finds its place taken replaces the other party, which waits for ever.

        Returns:
            All places if this was the last one, else none. The caller has to end the waits of the parties.
        """
        places = self._taken
        if places[place.number] is None:
            self._missing -= 1
        places[place.number] = place
        place.party.open_wait = place.waits_for
        if self._missing:
            return ()
        # The next meeting needs a new list, because the places of this one go to the caller.
        self._missing = len(places)
        self._taken = [None] * len(places)
        return tuple(places)


class Gathering(Generic[K]):
    """Meetings whose parties are still arriving."""

    def __init__(self) -> None:
        self._waiting: dict[K, dict[int, Guest]] = {}

    def arrive(self, key: K, seat: int, guest: Guest, expected: int, waits_for: str) -> list[Guest]:
        """``guest`` waits (``waits_for`` says for what) until ``expected`` seats are taken.

        A guest that finds its seat taken replaces the other guest, which waits for ever.

        Returns:
            All guests by seat if this was the last one, else none.
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


def sync_of(leaf: LeafStep) -> str:
    """What a party waits for at a sync."""
    return f"the sync of {leaf.step.name!r}"


def last_arrival(guests: Sequence[Guest | MeetingPlace]) -> int:
    """The time at which the last guest arrives, which is now or later."""
    # The clock of a party that waits is behind the event loop, so the present counts too.
    return max(max([guest.party.clock for guest in guests]), guests[0].party.events.now)
