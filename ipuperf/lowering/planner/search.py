"""The search of the convolution planner for the cheapest plan of one pass: a branch and bound.

Lower bounds of a form, a vertex, a row of splits or a pair of rows are compared with the best plan so far. Until there
is one, they are compared with a guess of its cycles, which grows. No plan within the bound is skipped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from .bounds import least_spread
from .candidates import (
    FEW_PASSES,
    Candidate,
    candidates_among,
    every_candidate,
    forms_of,
    passes_near,
    serial_passes,
)
from .form import ONCE, TRAINING, Passes
from .kernels import hmac_kernels
from .plan import BestSplit, ConvolutionPlan, Request, explained
from .splits import Grid, Space, candidate_splits, split_space
from .terms import operand_terms, with_reduction
from .vertex_bounds import mac_cycles, work_asked
from .vertices import vertex_cycles

#: Number of splits that are priced fully before the others are compared with the best of them.
_FIRST = 64

#: Guesses of the total, tried in turn until a plan is found: factors on the lower bound known at that time, plus
#: ``_GUESS_CYCLES`` cycles.
_GUESSES, _GUESS_CYCLES = (1.25, 1.5, 2.0, 4.0, math.inf), 500

#: Factor by which the limit of bytes grows until the plan of least memory is found.
_GROWTH = 1.2

#: Gives the three keys by which splits are compared, the first key first, from their terms and the tiles they use.
Rank = Callable[[Mapping[str, np.ndarray], np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def by_cycles(terms: Mapping[str, np.ndarray], tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fastest plan."""
    return terms["total"], terms["temp_bytes"], tiles


def by_memory(terms: Mapping[str, np.ndarray], tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The plan of least memory."""
    return terms["temp_bytes"], terms["total"], tiles


class Search:
    """The search for one request among some candidates and numbers of serial passes, in ``limit`` bytes on a tile."""

    def __init__(
        self,
        request: Request,
        candidates: Sequence[Candidate],
        ways: Sequence[Passes],
        limit: float,
        bound: float = math.inf,
    ) -> None:
        self.request = request
        self.limit = limit
        options = [
            (least, c, passes)
            for c in candidates
            if c.transform_bytes <= limit
            for passes in ways
            if c.possible(passes, request)
            and (least := c.least(passes)) <= bound
            and c.least_bytes(passes, request) <= limit
        ]
        # The sort is stable: options of equal bounds keep their order, which decides between equal plans.
        self.options = sorted(options, key=lambda option: option[0])
        self.spaces: dict[int, Space | None] = {}

    def cheapest(self, bound: float = math.inf, best: BestSplit | None = None, owner: int = -1) -> BestSplit | None:
        """The best of ``best`` and every plan of at most ``bound`` cycles (at times a dearer one).

        The option with the smallest lower bound comes next. The bound is first that of its form and vertex, then that
        of its splits, then the cycles up to which its splits have been searched. As long as there is no plan, that
        search goes up to a guess, which grows. Of plans of the same cost, the one of the option with the smaller number
        counts. ``owner``: the option whose best plan is ``best``.
        """
        # (lower bound of cycles, number, bounds known); the options are sorted, so this already is a heap.
        queue = [(least, n, 0) for n, (least, _, _) in enumerate(self.options) if n != owner]
        guess, guesses = 0.0, 0
        while queue:
            least, number, bounds_known = heapq.heappop(queue)
            current_bound = min(bound, best.cost[0]) if best else bound
            if least > current_bound or least == math.inf:
                break
            if bounds_known < 2:
                heapq.heappush(queue, (max(least, self.least(number, bounds_known)), number, bounds_known + 1))
                continue
            if best is None and least >= guess:
                guess = _GUESSES[guesses] * least + _GUESS_CYCLES
                # The last guess is infinite, so the guesses never run out.
                guesses += 1
            searched = current_bound if best else min(current_bound, guess)
            option_best = self.best(number, searched, least_memory=False)
            if option_best and (best is None or (option_best.cost, number) <= (best.cost, owner)):
                best, owner = option_best, number
            # The splits beyond the guess are still open.
            if searched < bound and (best is None or best.cost[0] > searched):
                heapq.heappush(queue, (searched, number, 2))
        return best

    def option_of(self, split: BestSplit) -> int:
        """The number of the option that ``split`` belongs to (-1: none)."""
        options = enumerate((c.form is split.form and c.kernel is split.kernel, p) for _, c, p in self.options)
        return next((number for number, same in options if same == (True, split.passes)), -1)

    def least(self, index: int, known: int) -> float:
        """A lower bound of the cycles of an option: by form and vertex (``known``: 0), or by its splits (1)."""
        _, candidate, passes = self.options[index]
        if known:
            space = self.space(index)
            return float(space.least.min()) * (1 - 1e-9) + candidate.moved(passes) if space else math.inf
        request = self.request
        spread = least_spread(candidate.form, candidate.kernel, request.types, passes, request.chip)
        return spread + candidate.moved(passes)

    def smallest(self) -> BestSplit | None:
        """The plan of least memory.

        The option with the smallest lower bound of bytes comes next. The bound is first that of its form and vertex,
        then that of its splits, then the bytes up to which its splits have been searched: a guess that grows as long as
        there is no plan, afterwards those of the best plan. Of plans of the same cost, the one of the option with the
        smaller number counts.
        """
        queue = [(c.least_bytes(passes, self.request), n, False) for n, (_, c, passes) in enumerate(self.options)]
        heapq.heapify(queue)
        best, owner = None, -1
        while queue:
            least, number, refined = heapq.heappop(queue)
            if least > (best.cost[0] if best else self.limit) or least == math.inf:
                break
            if not refined:
                heapq.heappush(queue, (max(least, self._least_held(number)), number, True))
                continue
            limit = best.cost[0] if best else max(least * _GROWTH, least + 1)
            option_best = self.best(number, math.inf, least_memory=True, limit=limit)
            if option_best and (best is None or (option_best.cost, number) < (best.cost, owner)):
                best, owner = option_best, number
            elif best is None:
                heapq.heappush(queue, (limit, number, True))
        return best

    def _least_held(self, index: int) -> float:
        """A lower bound of the bytes of an option by its splits."""
        space = self.space(index)
        return self._aside(index) + float(space.held.min()) * (1 - 1e-9) if space else math.inf

    def _aside(self, index: int) -> int:
        _, candidate, passes = self.options[index]
        return candidate.set_aside(passes, self.request)

    def space(self, index: int) -> Space | None:
        """The splits of an option that may fit; worked out once."""
        if index not in self.spaces:
            _, candidate, passes = self.options[index]
            form, kernel, types, chip = candidate.form, candidate.kernel, self.request.types, self.request.chip
            self.spaces[index] = split_space(form, kernel, types, passes, self.limit - self._aside(index), chip)
        return self.spaces[index]

    def best(self, index: int, bound: float, *, least_memory: bool, limit: float = math.inf) -> BestSplit | None:
        """The best plan of an option: the cheapest one below ``bound`` cycles, or the one of least memory.

        ``limit``: bytes within which it is looked for, where these are fewer than the search's.
        """
        rank = by_memory if least_memory else by_cycles
        space = self.space(index)
        if space and limit < self.limit:
            space = space.within(limit - self._aside(index))
        priced = self._priced(index, bound, space)
        if priced is None:
            return None
        grid, terms = priced
        possible = np.flatnonzero((terms["total"] <= bound) & (terms["temp_bytes"] <= min(limit, self.limit)))
        if len(possible) > _FIRST and not least_memory:
            # Reductions are expensive to price. The best of a few splits rules most others out first.
            nearest = possible[np.argpartition(terms["total"][possible], _FIRST)[:_FIRST]]
            near_best = self.reduced(index, grid, terms, nearest, rank)
            if near_best is not None:
                possible = possible[terms["total"][possible] <= near_best.cost[0]]
        return self.reduced(index, grid, terms, possible, rank)

    def first_by(self, rank: Rank, bound: float) -> BestSplit | None:
        """The first by ``rank`` of all plans of at most ``bound`` cycles that fit."""
        best: BestSplit | None = None
        for index, (least, _, _) in enumerate(self.options):
            # Options are sorted by their bound, so all later ones are beyond it too.
            if least > bound:
                break
            if self.least(index, 0) > bound or (priced := self._priced(index, bound, self.space(index))) is None:
                continue
            grid, terms = priced
            possible = np.flatnonzero((terms["total"] <= bound) & (terms["temp_bytes"] <= self.limit))
            option_best = self.reduced(index, grid, terms, possible, rank, bound)
            if option_best and (best is None or option_best.cost < best.cost):
                best = option_best
        return best

    def _priced(self, index: int, bound: float, space: Space | None) -> tuple[Grid, dict[str, np.ndarray]] | None:
        """The splits in ``space`` that may take ``bound`` cycles or fewer, with all terms but the reduction."""
        chip, types = self.request.chip, self.request.types
        _, candidate, passes = self.options[index]
        left = bound - candidate.moved(passes)
        grid = candidate_splits(space, left, chip) if space else None
        if grid is None:
            return None
        form, kernel = candidate.form, candidate.kernel
        compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
        compute_cycles = compute * passes.count
        # PopLibs' condition on the work of all tiles decides between plans, so it is no mere cut (``work_asked``).
        chosen = np.flatnonzero((compute_cycles <= left) & (compute_cycles * grid.tiles >= work_asked(form, kernel)))
        if not len(chosen):
            return None
        grid, compute = grid.take(chosen), compute[chosen]
        return grid, operand_terms(form, kernel, grid, compute, types, passes, chip)

    def reduced(
        self,
        index: int,
        grid: Grid,
        terms: dict[str, np.ndarray],
        chosen: np.ndarray,
        rank: Rank,
        bound: float = math.inf,
    ) -> BestSplit | None:
        """The best of the ``chosen`` splits of an option, with the reduction priced too."""
        if not len(chosen):
            return None
        _, candidate, passes = self.options[index]
        form, kernel, grid = candidate.form, candidate.kernel, grid.take(chosen)
        terms = {name: values[chosen] for name, values in terms.items()}
        terms = with_reduction(terms, kernel, grid, self.request.types, passes, self.request.chip)
        fitting = np.flatnonzero((terms["temp_bytes"] <= self.limit) & (terms["total"] <= bound))
        if not len(fitting):
            return None
        keys = rank({name: values[fitting] for name, values in terms.items()}, grid.tiles[fitting])
        # ``lexsort`` takes its main key last.
        at = int(np.lexsort(keys[::-1])[0])
        cost = (int(keys[0][at]), int(keys[1][at]), int(keys[2][at]))
        best_index = fitting[at : at + 1]
        return BestSplit(
            cost, form, kernel, passes, grid.take(best_index), {name: v[best_index] for name, v in terms.items()}
        )


def _plan(request: Request, excluded: tuple[str, tuple[object, ...]] | None = None) -> BestSplit | None:
    """The cheapest plan that fits.

    Every vertex in one pass and in serial passes is searched within the limit, as one search does in PopLibs
    (``lib/poplin/ConvPlan.cpp`` createPlan). If nothing fits, the limit is doubled up to twice the tile. If that does
    not help, it is the plan of least memory.

    ``excluded``: a vertex, with the changes of its form, that must not be used.
    """

    def without_excluded(candidates: Iterable[Candidate]) -> list[Candidate]:
        return [c for c in candidates if excluded is None or excluded != (c.kernel.name(c.form), c.form.changes)]

    found: dict[float, list[Candidate]] = {}

    def dots(bound: float) -> list[Candidate]:
        # HMAC has many groupings, so its candidates are made only for forms that could still beat the plan.
        if bound not in found:
            chip, size = request.chip, request.types.input
            reachable = [form for form in forms_of(request) if mac_cycles(form, chip, size) <= bound]
            found[bound] = without_excluded(candidates_among(request, reachable, hmac_kernels, bound))
        return found[bound]

    candidates, limit = without_excluded(every_candidate(request)), float(request.limit)
    # A good plan at the start rules out much of the search.
    quick = quick_plan(request) if request.form.pass_ in TRAINING and excluded is None else None
    while True:
        if best := _within(request, candidates, dots, limit, quick):
            return best
        # Beyond twice the tile only the plan of least memory is left.
        if limit >= 2 * request.chip.bytes_per_tile:
            return _smallest_plan(request, candidates + dots(math.inf), (ONCE, *serial_passes(request.form)))
        # A proportion of less than one byte begins at one.
        limit = max(2 * limit, 1)


def _within(
    request: Request,
    candidates: list[Candidate],
    dots: Callable[[float], list[Candidate]],
    limit: float,
    quick: BestSplit | None,
) -> BestSplit | None:
    """The cheapest plan in ``limit`` bytes on a tile; ``dots`` makes the candidates with HMAC for a bound.

    ``quick``: a plan that fits in one pass. Of the numbers of serial passes some are tried with every vertex, those
    near the best of them with its own.
    """
    best, serial = quick, serial_passes(request.form)
    for ways in ((ONCE,), serial):
        search = Search(request, candidates, ways, limit, best.cost[0] if best else math.inf)
        best = search.cheapest(best.cost[0] if best else math.inf, best, search.option_of(best) if best else -1)
    bound = best.cost[0] if best else math.inf
    dot_candidates = dots(bound)
    best = Search(request, dot_candidates, (ONCE, *serial), limit, bound).cheapest(bound, best)
    if best is None:
        return None
    same = [c for c in (*candidates, *dot_candidates) if c.form is best.form and c.kernel is best.kernel]
    near = FEW_PASSES if best.passes == ONCE else passes_near(request.form, best.passes.count)
    last = Search(request, same, near, limit, best.cost[0]).cheapest(best.cost[0], best)
    assert last is not None, "at least the plan that it began with"
    # With less memory there are fewer plans and no other ones, so the best of them stays as long as it fits. The last
    # search begins at the best one before it, so that one has to fit too.
    return replace(last, needed=max(float(split.terms["temp_bytes"][0]) for split in (best, last)))


def _smallest_plan(request: Request, candidates: list[Candidate], passes: Sequence[Passes]) -> BestSplit | None:
    """The plan of least memory."""
    return Search(request, candidates, passes, math.inf).smallest()


def likeliest(request: Request) -> list[Candidate]:
    """The vertex with exchanged operands that has the smallest lower bound, if there is one."""
    turned = [candidate for candidate in every_candidate(request) if candidate.form.swapped]
    return sorted(turned, key=lambda candidate: candidate.least(ONCE))[:1]


@lru_cache(maxsize=256)
def quick_plan(request: Request) -> BestSplit | None:
    """The best plan of the likeliest vertex in one pass."""
    return Search(request, likeliest(request), (ONCE,), request.limit).cheapest()


@lru_cache(maxsize=4096)
def cheapest(request: Request) -> BestSplit:
    """The split that the search chooses for a request by itself, not for a layer in training."""
    best = _plan(request)
    if best is None:
        raise ValueError(f"no plan at all for {request.form}")
    return best


@lru_cache(maxsize=4096)
def plan_once(request: Request) -> ConvolutionPlan:
    """:func:`cheapest` as a plan."""
    return explained(request, cheapest(request))


def plan_without(
    request: Request, vertex: str, changes: tuple[object, ...], ample: float = 0.0
) -> ConvolutionPlan | None:
    """The best plan without this vertex on a form with these changes; None when nothing else fits.

    ``ample`` is a proportion of memory for which the same is asked. If that search needs no more memory than the
    request has, its plan is the answer to both.
    """
    best = _split_without(replace(request, proportion=max(ample, request.proportion)), vertex, changes)
    if best and best.needed > request.limit:
        best = _split_without(request, vertex, changes)
    return explained(request, best) if best and best.terms["temp_bytes"][0] <= request.limit else None


@lru_cache(maxsize=512)
def _split_without(request: Request, vertex: str, changes: tuple[object, ...]) -> BestSplit | None:
    return _plan(request, (vertex, changes))
