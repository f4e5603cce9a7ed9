"""How flows share links: their max-min fair rates, and what happens at these rates until the first flow ends.

This depends only on the resources that the flows occupy and on how much each of them has still to move. It is therefore
computed once and remembered (:class:`Sharings`). Where the same flows occur again, an event of the network is a lookup
in a table, even in a program that never repeats as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from .caches import Cache
from .flows import FlowSplit, NetworkFlow, Resources

_RATES_KEPT = 4096
"""Largest number of different sets of flows whose rates are remembered."""

_SHARINGS_KEPT = 65536
"""Largest number of different sets of flows with remaining units that are remembered."""

_SPLITS_KEPT = 64
"""Largest number of lists of flows that each :class:`Sharing` remembers."""

Shares = list[tuple[int, list[int]]]
"""The different rates of a flow's sends, each with the places of the sends that have it."""


def fair_rates(routes: Sequence[tuple[int, ...]], capacity: Sequence[int]) -> list[int]:
    """The max-min fair rate of each route, in the (integer) unit of ``capacity``. It does not depend on their order.

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
        # All resources with the smallest share go together, so the order of the routes does not matter.
        tight = [resource for resource, fair_share in shares.items() if fair_share == share]
        for index in {index for resource in tight for index in users[resource]} & open_flows:
            open_flows.discard(index)
            rates[index] = share
            for resource in routes[index]:
                remaining[resource] -= share
                count[resource] -= 1
    return rates


class Sharing:
    """What happens to a set of flows until the first of them ends.

    Attributes:
        kinds: for each flow, the number of the resources it occupies.
        left: for each flow, the units that each of its sends has still to move.
        rates: for each flow, the units that each of its sends moves in a cycle.
        lasts: cycles until the first flow ends.
        ended: places of the flows that end then.
        others: places of the flows that do not end then.
        after: what happens to the other flows; None until somebody asks, or where there are no others.
        splits: splits of lists of flows that shared like this, by the first flow; the network uses them.
    """

    __slots__ = ("after", "ended", "kinds", "lasts", "left", "others", "rates", "splits")

    def __init__(self, kinds: tuple[int, ...], left: tuple[int, ...], rates: tuple[int, ...]) -> None:
        self.kinds, self.left, self.rates = kinds, left, rates
        # Rounded up: a flow ends at the next whole cycle after its last byte.
        self.lasts = lasts = min([-(-units // rate) for units, rate in zip(left, rates, strict=True)])
        left_at_end = self.left_after(lasts)
        self.ended = [place for place, units in enumerate(left_at_end) if units <= 0]
        self.others = [place for place, units in enumerate(left_at_end) if units > 0]
        self.after: Sharing | None = None
        self.splits: Cache[NetworkFlow, FlowSplit] = Cache(_SPLITS_KEPT)

    def left_after(self, cycles: int) -> tuple[int, ...]:
        """The units that the sends of each flow have still to move after ``cycles``, which are at most ``lasts``."""
        return tuple([units - rate * cycles for units, rate in zip(self.left, self.rates, strict=True)])

    def remaining(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Kinds of the flows that go on after the first have ended, and the units that they have still to move."""
        left_at_end = self.left_after(self.lasts)
        return tuple([self.kinds[place] for place in self.others]), tuple([left_at_end[place] for place in self.others])


class Sharings:
    """Computes the sharing of flows on resources of this ``capacity``, and remembers it."""

    def __init__(self, capacity: Sequence[int]) -> None:
        self._capacity = capacity
        self._kinds: dict[Resources, int] = {}
        self._resources: list[Resources] = []
        self._shares: Cache[tuple[int, ...], list[Shares]] = Cache(_RATES_KEPT)
        self._sharings: Cache[tuple[tuple[int, ...], tuple[int, ...]], Sharing] = Cache(_SHARINGS_KEPT)

    def kind(self, resources: Resources) -> int:
        """The number of flows whose sends occupy these resources."""
        number = self._kinds.get(resources)
        if number is None:
            number = self._kinds[resources] = len(self._resources)
            self._resources.append(resources)
        return number

    def of(self, kinds: tuple[int, ...], left: tuple[int, ...]) -> Sharing | None:
        """The sharing of these flows; None where the sends of a flow have different rates, so that it must be split."""
        sharing = self._sharings.get((kinds, left))
        if sharing is None:
            shares = self.shares(kinds)
            if max(map(len, shares)) > 1:
                return None
            rates = tuple([rate for ((rate, _),) in shares])
            sharing = self._sharings.put((kinds, left), Sharing(kinds, left, rates))
        return sharing

    def after(self, sharing: Sharing) -> Sharing | None:
        """As :meth:`of`, for the flows that go on after the first ones have ended."""
        if sharing.after is None:
            sharing.after = self.of(*sharing.remaining())
        return sharing.after

    def shares(self, kinds: tuple[int, ...]) -> list[Shares]:
        """The rates of each flow's sends."""
        shares = self._shares.get(kinds)
        if shares is None:
            # The rates belong to single sends, because sends of one flow may cross different links.
            flows = [self._resources[kind] for kind in kinds]
            rates = iter(fair_rates([route for flow in flows for route in flow], self._capacity))
            shares = []
            for flow in flows:
                places: dict[int, list[int]] = {}
                for place in range(len(flow)):
                    places.setdefault(next(rates), []).append(place)
                shares.append(list(places.items()))
            self._shares.put(kinds, shares)
        return shares
