"""How parties wait for each other.

A meeting begins when its last party arrives. Nobody can arrive at the next meeting of the same key before leaving this
one, so a key (which step, which group; which pairs of IPUs) identifies a meeting, and a party that waits for ever can
be named.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from .instructions import LeafStep
    from .party import Party

K = TypeVar("K", bound=Hashable)


class Guest(NamedTuple):
    """A party, the step it came with, and what to call when it may go on."""

    party: Party
    leaf: LeafStep
    go_on: Callable[[], None]


class Gathering(Generic[K]):
    """Meetings whose parties are still arriving."""

    def __init__(self) -> None:
        self._waiting: dict[K, dict[int, Guest]] = {}

    def arrive(self, key: K, seat: int, guest: Guest, expected: int, waits_for: str) -> list[Guest]:
        """``guest`` waits (``waits_for`` says for what) until ``expected`` seats are taken.

        Returns:
            All guests in order of arrival when this was the last one, else none. Who finds its seat taken takes it
            over, and the other waits for ever.
        """
        guests = self._waiting.setdefault(key, {})
        guests[seat] = guest
        guest.party.open_wait = waits_for
        if len(guests) < expected:
            return []
        del self._waiting[key]
        for party, _, _ in guests.values():
            party.open_wait = ""
        return list(guests.values())
