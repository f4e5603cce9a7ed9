"""How flows share links: max-min fair rates, and what becomes of flows at these rates until the first of them ends.

What becomes of them depends on nothing but the resources they occupy and how much of each is left. It is therefore
worked out once and kept (:class:`Sharings`): where the same flows come again, and be it in a program that never repeats
as a whole, an event of the network is a look into a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from .flows import FlowSplit, Resources

_RATES_KEPT = 4096
"""Different sets of flows whose rates are remembered."""

_SHARINGS_KEPT = 65536
"""Different sets of flows with what is left of them that are remembered."""

Shares = list[tuple[int, list[int]]]
"""The rates of a flow's sends: each with the places of those that have it."""


def fair_rates(routes: Sequence[tuple[int, ...]], capacity: Sequence[int]) -> list[int]:
    """Max-min fair rate of each route, in the (integer) unit of ``capacity``; the result does not depend on order.

    >>> fair_rates([(0,), (0, 1), (1,)], [10, 4])  # link 1 is tight: 2 each; the rest of link 0 goes to the first
    [8, 2, 2]
    """
    rates = [0] * len(routes)
    users: dict[int, list[int]] = {}
    for index, route in enumerate(routes):
        for resource in route:
            users.setdefault(resource, []).append(index)
    remaining = {resource: capacity[resource] for resource in users}
    count = {resource: len(flows) for resource, flows in users.items()}
    open_flows = set(range(len(routes)))
    while open_flows:
        shares = {resource: remaining[resource] // number for resource, number in count.items() if number}
        share = min(shares.values())
        tight = [resource for resource, fair_share in shares.items() if fair_share == share]
        for index in {index for resource in tight for index in users[resource]} & open_flows:
            open_flows.discard(index)
            rates[index] = share
            for resource in routes[index]:
                remaining[resource] -= share
                count[resource] -= 1
    return rates


class Sharing:
    """Flows of these ``kinds`` (numbers of what they occupy) of each send of which so much is ``left``.

    Attributes:
        rates: units that a send of each moves in a cycle.
        lasts: cycles until the first ends.
        ended, others: places of the flows that end then, and of those that do not.
        after: what becomes of the others, None until it has been asked for or where there are none.
        splits: what the network keeps of the flows that shared like this, by the identity of the first.
    """

    __slots__ = ("after", "ended", "kinds", "lasts", "left", "others", "rates", "splits")

    def __init__(self, kinds: tuple[int, ...], left: tuple[int, ...], rates: tuple[int, ...]) -> None:
        self.kinds, self.left, self.rates = kinds, left, rates
        self.lasts = lasts = min([-(-units // rate) for units, rate in zip(left, rates, strict=True)])
        left_at_end = self.left_after(lasts)
        self.ended = [place for place, units in enumerate(left_at_end) if units <= 0]
        self.others = [place for place, units in enumerate(left_at_end) if units > 0]
        self.after: Sharing | None = None
        self.splits: dict[int, FlowSplit] = {}

    def left_after(self, cycles: int) -> tuple[int, ...]:
        """What is left of each after so many cycles, which are not more than it ``lasts``."""
        return tuple([units - rate * cycles for units, rate in zip(self.left, self.rates, strict=True)])


class Sharings:
    """What becomes of flows on resources of this ``capacity``, found once and kept."""

    def __init__(self, capacity: Sequence[int]) -> None:
        self._capacity = capacity
        self._kinds: dict[Resources, int] = {}
        self._resources: list[Resources] = []
        self._shares: dict[tuple[int, ...], list[Shares]] = {}
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Sharing] = {}

    def kind(self, resources: Resources) -> int:
        """The number of a flow whose sends occupy these."""
        number = self._kinds.get(resources)
        if number is None:
            number = self._kinds[resources] = len(self._resources)
            self._resources.append(resources)
        return number

    def of(self, kinds: tuple[int, ...], left: tuple[int, ...]) -> Sharing | list[Shares]:
        """What becomes of these flows; their rates where the sends of a flow differ, which has then to be parted."""
        sharing = self._known.get((kinds, left))
        if sharing is None:
            shares = self._rates(kinds)
            if max(map(len, shares)) > 1:
                return shares
            if len(self._known) == _SHARINGS_KEPT:
                self._known.clear()
            rates = tuple([rate for ((rate, _),) in shares])
            sharing = self._known[kinds, left] = Sharing(kinds, left, rates)
        return sharing

    def after(self, sharing: Sharing) -> Sharing | list[Shares]:
        """What becomes of the flows that do not end first."""
        if sharing.after is not None:
            return sharing.after
        left_at_end, others = sharing.left_after(sharing.lasts), sharing.others
        outcome = self.of(
            tuple([sharing.kinds[place] for place in others]), tuple([left_at_end[place] for place in others])
        )
        if isinstance(outcome, Sharing):
            sharing.after = outcome
        return outcome

    def _rates(self, kinds: tuple[int, ...]) -> list[Shares]:
        """The rates of each flow's sends."""
        shares = self._shares.get(kinds)
        if shares is None:
            if len(self._shares) == _RATES_KEPT:
                self._shares.clear()
            flows = [self._resources[kind] for kind in kinds]
            rates = iter(fair_rates([route for flow in flows for route in flow], self._capacity))
            shares = []
            for flow in flows:
                places: dict[int, list[int]] = {}
                for place in range(len(flow)):
                    places.setdefault(next(rates), []).append(place)
                shares.append(list(places.items()))
            self._shares[kinds] = shares
        return shares
