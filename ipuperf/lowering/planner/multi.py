"""Several convolutions planned together: side by side, each on tiles of its own, or one after the other.

The method is that of PopLibs (``lib/poplin/ConvPlan.cpp`` getParallelMultiPlan). The largest convolution is planned for
speed on all tiles but those reserved for the others, then again for few tiles with some cycles to spare. The others
follow from the smallest on, each on the tiles that are left. As far as possible, none of their steps takes longer than
that of the earlier plans; then few tiles count. The second largest comes last and gets all remaining tiles. The steps
of all convolutions are launched together, so all have the same number of serial passes. Without plans side by side, the
convolutions run one after the other.

Simplification: Where nothing fits into the memory proportion with that number of serial passes, there is no plan side
by side. PopLibs first looks for plans of less memory.
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
from .kernels import hmac_kernels
from .plan import BestSplit, ConvolutionPlan, Request, explained
from .search import Rank, Search, plan_once
from .works import plan_convolution, request_of

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Tiles that share an exchange bus; a convolution begins at a multiple of it.
_SHARED_BUS = 2

#: The terms that are steps of all convolutions at once: in each serial pass, and once.
_EACH, _ONCE = (
    ("transform_exchange", "transform", "tile_transform", "compute", "reduce", "dynamic_slice", "dynamic_update"),
    ("broadcast", "prepare", "finish"),
)

#: Exchanges are compared by their sum.
_EXCHANGES = ("exchange_operands", "exchange_partials")

#: Search limits above the reference, as shares of its cycles; they are tried in turn until there is a plan.
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
def plan_multi(chip: Chip, work: MultiConvolution) -> MultiPlan:
    """The plans of the convolutions of ``work``; the same work is planned once.

    Raises:
        ValueError: as :func:`~.works.plan_convolution`.
    """
    if work.plan_type == "parallel" and (placed_plans := _side_by_side(chip, work)) is not None:
        return MultiPlan(placed_plans, parallel=True)
    return MultiPlan(
        tuple(PlacedPlan(plan_convolution(chip, convolution)) for convolution in work.convolutions), parallel=False
    )


def _side_by_side(chip: Chip, work: MultiConvolution) -> tuple[PlacedPlan, ...] | None:
    """A plan on its own tiles for each convolution; None where there is none."""
    convolutions = work.convolutions
    order = sorted(range(len(convolutions)), key=lambda index: convolutions[index].flops)
    reserve = work.reserved_tiles
    if chip.tiles < len(order) * reserve:
        reserve = max(1, chip.tiles // len(order))
    placed: dict[int, PlacedPlan] = {}
    start, reserved_later = 0, (len(order) - 1) * reserve
    reference: Reference | None = None
    for index in (order[-1], *order[:-1]):
        tiles = chip.tiles - start - reserved_later
        if tiles < 1:
            return None
        # The planner sees a chip with as many tiles as are left, so the plan keeps to them.
        request = request_of(replace(chip, tiles=tiles), convolutions[index])
        is_last = len(placed) == len(order) - 1
        if reference is None:
            chosen = _frugal(request, 1 + (len(order) - 1) * work.cycle_back_off)
        else:
            chosen = reference.plan(request, by_tiles=not is_last)
        if chosen is None:
            return None
        reference = Reference.of(chosen) if reference is None else reference.with_plan(chosen)
        plan = explained(request, chosen)
        placed[index] = PlacedPlan(plan, start)
        start += -(-plan.tiles // _SHARED_BUS) * _SHARED_BUS
        reserved_later = max(0, reserved_later - reserve)
    return tuple(placed[index] for index in range(len(convolutions)))


def _search(request: Request, ways: Sequence[Passes], limit: float, bound: float) -> Search:
    """A search among every vertex, in some numbers of serial passes."""
    dots = candidates_among(request, forms_of(request), hmac_kernels, bound)
    return Search(request, [*every_candidate(request), *dots], ways, limit)


def _same_count(count: int) -> tuple[Passes, ...]:
    """All kinds of serial passes with this count."""
    if count == 1:
        return (ONCE,)
    return (Passes(count, ahead=True), Passes(count), Passes(inner=count))


def _by_tiles(terms: Mapping[str, np.ndarray], tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tiles, terms["total"], terms["temp_bytes"]


def _frugal(request: Request, slack: float) -> BestSplit | None:
    """The plan of fewest tiles that takes at most ``slack`` times the cycles of the fastest one."""
    fastest = plan_once(request)
    ways = dict.fromkeys((ONCE, *FEW_PASSES, *_same_count(fastest.serial)))
    # The fastest plan may already need more memory than the request allows.
    limit = max(request.limit, fastest.temp_bytes)
    bound = fastest.total * slack
    return _search(request, tuple(ways), limit, bound).first_by(_by_tiles, bound)


@dataclass(frozen=True)
class Reference:
    """Cycles of each step, the largest of any plan so far; ``count``: serial passes."""

    cycles: Mapping[str, int]
    count: int

    @classmethod
    def of(cls, best: BestSplit) -> Reference:
        """The reference that one plan gives."""
        steps = _steps(best.terms, best.passes.count)
        return cls({name: int(values[0]) for name, values in steps.items()}, best.passes.count)

    def with_plan(self, best: BestSplit) -> Reference:
        """This reference raised to the steps of a further plan that take longer."""
        added = self.of(best)
        return Reference({name: max(longest, added.cycles[name]) for name, longest in self.cycles.items()}, self.count)

    def plan(self, request: Request, *, by_tiles: bool) -> BestSplit | None:
        """The plan whose steps exceed these cycles the least in all, and among equals the fewest tiles or bytes."""
        total = sum(self.cycles.values())
        second = "tiles" if by_tiles else "temp_bytes"

        def rank(terms: Mapping[str, np.ndarray], tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return self.excess(terms), tiles if second == "tiles" else terms[second], terms["total"]

        chosen: Rank = rank
        # A plan that exceeds the reference by less than the bound does takes no more than the bound in all.
        for above in _ABOVE:
            bound = total * (1 + above)
            search = _search(request, _same_count(self.count), request.limit, bound)
            best = search.first_by(chosen, bound)
            if best is not None and total + best.cost[0] <= bound:
                return best
        return None

    def excess(self, terms: Mapping[str, np.ndarray]) -> np.ndarray:
        """Cycles by which the steps of some splits are longer."""
        steps = _steps(terms, self.count)
        longer = (np.maximum(0, values - self.cycles[name]) for name, values in steps.items())
        total: np.ndarray = sum(longer, np.int64(0))
        return total


def _steps(terms: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Cycles of the steps in all serial passes."""
    step_cycles = {name: count * terms[name] for name in _EACH} | {name: terms[name] for name in _ONCE}
    return step_cycles | {"exchange": count * sum((terms[name] for name in _EXCHANGES), np.int64(0))}
