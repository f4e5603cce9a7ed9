"""Several convolutions planned together: side by side, each on tiles of its own, or one after the other.

The way of PopLibs (``lib/poplin/ConvPlan.cpp`` getParallelMultiPlan): the largest convolution is planned for speed on
all tiles but those reserved for the others, then again for few tiles with some cycles to spare. The others follow from
the smallest on, each on what is left: no step of theirs may take longer than that of the plans before as far as
possible, then few tiles count. The second largest comes last and has all the rest. As the steps of all are launched
together, all have the same number of serial passes. Where a plan side by side is not found, they run one after the
other.

Simplified: where nothing fits into the memory proportion with that number of serial passes, there is no plan side by
side (PopLibs looks for plans of less memory first).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ops.work import MultiConvolution

from .candidates import FEW_PASSES, candidates_among, every_candidate, forms_of
from .form import ONCE, Passes
from .plan import ConvolutionPlan, Found, Request, explained
from .search import Rank, Search, plan_once
from .vertices import hmac_kernels
from .works import plan_convolution, request_of

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Tiles that share an exchange bus: a convolution begins at a multiple of it.
_SHARED_BUS = 2

#: The terms that are steps of all convolutions at once: in each serial pass, and once.
_EACH, _ONCE = (
    ("transform_exchange", "transform", "tile_transform", "compute", "reduce", "dynamic_slice", "dynamic_update"),
    ("broadcast", "prepare", "finish"),
)

#: Exchanges are compared in all.
_EXCHANGES = ("exchange_operands", "exchange_partials")

#: How far above the reference plans are looked for, one after the other until there is one: so much of its cycles.
_ABOVE = (0.0, 0.25, 1.0, 4.0, 16.0, math.inf)


@dataclass(frozen=True)
class PlacedPlan:
    """A plan and the tile at which it begins."""

    plan: ConvolutionPlan
    start: int = 0


@dataclass(frozen=True)
class MultiPlan:
    """Plans of several convolutions in their order; ``parallel``: they run at once, each on tiles of its own."""

    plans: tuple[PlacedPlan, ...]
    parallel: bool


@lru_cache(maxsize=512)
def plan_multi(chip: Chip, item: MultiConvolution) -> MultiPlan:
    """The plans of the convolutions of ``item``; the same work is planned once.

    Raises:
        ValueError: as :func:`~.works.plan_convolution`.
    """
    if item.plan_type == "parallel" and (found := _side_by_side(chip, item)) is not None:
        return MultiPlan(found, parallel=True)
    return MultiPlan(tuple(PlacedPlan(plan_convolution(chip, each)) for each in item.convolutions), parallel=False)


def _side_by_side(chip: Chip, item: MultiConvolution) -> tuple[PlacedPlan, ...] | None:
    """A plan on tiles of its own for each convolution; None where there is none."""
    convolutions = item.convolutions
    order = sorted(range(len(convolutions)), key=lambda index: convolutions[index].flops)
    reserve = item.reserved_tiles
    if chip.tiles < len(order) * reserve:
        reserve = max(1, chip.tiles // len(order))
    found: dict[int, PlacedPlan] = {}
    start, kept = 0, (len(order) - 1) * reserve
    reference: Reference | None = None
    for index in (order[-1], *order[:-1]):
        tiles = chip.tiles - start - kept
        if tiles < 1:
            return None
        request = request_of(replace(chip, tiles=tiles), convolutions[index])
        last = len(found) == len(order) - 1
        if reference is None:
            chosen = _frugal(request, 1 + (len(order) - 1) * item.cycle_back_off)
        else:
            chosen = reference.plan(request, by_tiles=not last)
        if chosen is None:
            return None
        reference = Reference.of(chosen) if reference is None else reference.with_plan(chosen)
        plan = explained(request, chosen)
        found[index] = PlacedPlan(plan, start)
        start += -(-plan.tiles // _SHARED_BUS) * _SHARED_BUS
        kept = max(0, kept - reserve)
    return tuple(found[index] for index in range(len(convolutions)))


def _search(request: Request, ways: Sequence[Passes], limit: float, bound: float) -> Search:
    """A search among every vertex, in some numbers of serial passes."""
    dots = candidates_among(request, forms_of(request), hmac_kernels, bound)
    return Search(request, [*every_candidate(request), *dots], ways, limit)


def _same_count(count: int) -> tuple[Passes, ...]:
    """Every way to have so many serial passes."""
    if count == 1:
        return (ONCE,)
    return (Passes(count, ahead=True), Passes(count), Passes(inner=count))


def _by_tiles(terms: Mapping[str, np.ndarray], tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tiles, terms["total"], terms["temp_bytes"]


def _frugal(request: Request, slack: float) -> Found | None:
    """The plan of fewest tiles that takes at most ``slack`` times the cycles of the fastest one."""
    fastest = plan_once(request)
    ways = dict.fromkeys((ONCE, *FEW_PASSES, *_same_count(fastest.serial)))
    limit = max(request.limit, fastest.temp_bytes)
    bound = fastest.total * slack
    return _search(request, tuple(ways), limit, bound).first_by(_by_tiles, bound)


@dataclass(frozen=True)
class Reference:
    """What the plans so far take: ``cycles`` of each step, the most of any plan; ``count``: serial passes."""

    cycles: Mapping[str, int]
    count: int

    @classmethod
    def of(cls, found: Found) -> Reference:
        """That of one plan."""
        steps = _steps(found.terms, found.passes.count)
        return cls({name: int(values[0]) for name, values in steps.items()}, found.passes.count)

    def with_plan(self, found: Found) -> Reference:
        """With what a further plan takes longer."""
        other = self.of(found)
        return Reference({name: max(taken, other.cycles[name]) for name, taken in self.cycles.items()}, self.count)

    def plan(self, request: Request, *, by_tiles: bool) -> Found | None:
        """The plan whose steps exceed these by the fewest cycles in all, then of fewest tiles or bytes."""
        total = sum(self.cycles.values())
        second = "tiles" if by_tiles else "temp_bytes"

        def rank(terms: Mapping[str, np.ndarray], tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return self.excess(terms), tiles if second == "tiles" else terms[second], terms["total"]

        chosen: Rank = rank
        for above in _ABOVE:  # a plan that exceeds the reference by less takes no more than this in all
            bound = total * (1 + above)
            search = _search(request, _same_count(self.count), request.limit, bound)
            found = search.first_by(chosen, bound)
            if found is not None and total + found.cost[0] <= bound:
                return found
        return None

    def excess(self, terms: Mapping[str, np.ndarray]) -> np.ndarray:
        """Cycles by which the steps of some splits are longer."""
        steps = _steps(terms, self.count)
        return sum((np.maximum(0, values - self.cycles[name]) for name, values in steps.items()), np.int64(0))


def _steps(terms: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Cycles of the steps in all serial passes."""
    found = {name: count * terms[name] for name in _EACH} | {name: terms[name] for name in _ONCE}
    return found | {"exchange": count * sum((terms[name] for name in _EXCHANGES), np.int64(0))}
