"""Syncs in which IPUs wait until other IPUs are ready to communicate.

Where one IPU of many communicates again and again (a weight update, stage by stage), the others have nothing to do
between the syncs before it. Such an IPU comes once and *stands* in all of these syncs (:meth:`.party.Party.stand`). A
sync then costs as many calls as IPUs come to it, however many stand in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ipuperf.lowering.steps import ExternalSync

from ..errors import SimulationError
from ..event_loop import EventLoop
from ..gathering import sync_of
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..party import Party
from ..world import World

SyncKey = tuple[int, tuple[int, ...]]
"""Replica and participants."""


class _Guest(NamedTuple):
    """A party that came to sync number ``first`` and leaves after the last of ``leaves``, one for each sync."""

    party: Party
    first: int
    leaves: Sequence[LeafStep]


class _Syncs:
    """The syncs of the same IPUs of a replica, one after the other.

    Args:
        events: the event loop.
        size: how many IPUs there are.

    Attributes:
        times: when each sync was over.
    """

    def __init__(self, events: EventLoop, size: int) -> None:
        self.times: list[int] = []
        self._events = events
        self._missing = size
        self._guests: list[_Guest | None] = [None] * size
        self._leaving: dict[int, list[int]] = {}  # seats, by the last sync of their guests

    def come(self, seat: int, party: Party, leaves: Sequence[LeafStep], waits_for: str) -> None:
        """The party waits until all are there, in each of the syncs of ``leaves``.

        A party that finds its seat taken replaces the other party, which waits for ever.
        """
        number, party.open_wait = len(self.times), waits_for
        if self._guests[seat] is None:
            self._missing -= 1
        self._guests[seat] = _Guest(party, number, leaves)
        self._leaving.setdefault(number + len(leaves) - 1, []).append(seat)
        if len(leaves) > 1:
            party.stand(self.times)
        while not self._missing:
            self._meet([guest for guest in self._guests if guest is not None])

    def _meet(self, guests: Sequence[_Guest]) -> None:
        """All are there: those for whom it is the last sync go on.

        Raises:
            SimulationError: the IPUs expect different communication.
        """
        number, before = len(self.times), self.times[-1] if self.times else 0
        _require_same(number, guests)
        # The clock of a party that stands or waits is behind the syncs and the event loop, so these count too.
        time = max(before, self._events.now, max([guest.party.clock for guest in guests]))
        leaving = []
        for seat in self._leaving.pop(number, ()):
            guest = self._guests[seat]
            # A guest that was replaced is no longer there.
            if guest is not None and guest.first + len(guest.leaves) == number + 1:
                self._guests[seat] = None
                leaving.append(guest)
        for guest in leaving:
            if len(guest.leaves) > 1:
                guest.party.leave_syncs()
        self.times.append(time)
        self._missing = len(leaving)
        for party, _, _ in leaving:
            party.open_wait = ""
            party.parts.close_at(time, "sync_external")
            party.go_on()


@simulates(ExternalSync)
class ExternalSyncKind(SharedKind[ExternalSync]):
    """All participants meet, which is a part of kind ``sync_external``, and go on together."""

    types = ("Sync",)
    symmetric = True
    in_micro_batch = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._syncs: dict[SyncKey, _Syncs] = {}

    def prepare(self, party: Party, leaf: LeafStep, step: ExternalSync) -> Callable[[], None]:
        """The call by which the party comes. It goes on when all have come."""
        # The step is not part of the key: IPUs at different syncs meet and are reported.
        key = (party.replica, step.participants)
        if key not in self._syncs:
            self._syncs[key] = _Syncs(self.world.events, len(step.participants))
        seat, leaves = step.participants.index(party.index), party.alike_ahead(step.participants)
        return partial(self._syncs[key].come, seat, party, leaves, sync_of(leaf))


def _require_same(number: int, guests: Sequence[_Guest]) -> None:
    """Raise :class:`SimulationError` unless all guests of this sync expect the same communication."""
    leaves = [guest.leaves[number - guest.first] for guest in guests]
    # They mostly share one object, which needs no comparison.
    if len({id(leaf.step) for leaf in leaves}) == 1 or len({leaf.step.name for leaf in leaves}) == 1:
        return
    meant = {leaf.step.name: guest.party.name for leaf, guest in zip(leaves, guests, strict=True)}
    told = "; ".join(f"{name!r} on {where}" for name, where in meant.items())
    raise SimulationError(
        f"the IPUs of a replica meet before different communication: {told}; all have to execute it in the same order"
    )
