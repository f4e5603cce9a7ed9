"""The search of the convolution planner for the cheapest plan of one pass: a branch and bound.

What a form, a vertex, a row of splits or a pair of rows costs at least is compared with the best plan so far, or with a
guess of it that grows until a plan is found. No plan within the bound is skipped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from .bounds import least_spread
from .candidates import (
    FEW_PASSES,
    Candidate,
    candidates_among,
    every_candidate,
    forms_of,
    output_passes,
    passes_near,
    smaller_passes,
)
from .form import ONCE, TRAINING, Passes
from .plan import ConvolutionPlan, Found, Request, explained
from .splits import Grid, Space, candidate_splits, split_space
from .terms import operand_terms, set_aside, with_reduction
from .vertices import hmac_kernels, mac_cycles, vertex_cycles, work_asked

#: Vertices (that of the best plan first) with which finer steps of serial passes are tried.
_FINER = 1

#: How many candidates are worked out fully before the others are compared with the best of them.
_FIRST = 64

#: Guesses of the total, one after the other until a plan is found: so much more than what is known of it at that time,
#: and so many cycles.
_GUESSES, _GUESS_CYCLES = (1.25, 1.5, 2.0, 4.0, math.inf), 500

#: The limit of bytes grows by so much until the plan of least memory is found.
_GROWTH = 1.2

#: What plans are compared by, first things first: vectors over splits, of their terms and the tiles they use.
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
            if c.held <= limit
            for passes in ways
            if c.possible(passes, request)
            and (least := c.least(passes)) <= bound
            and c.least_bytes(passes, request) <= limit
        ]
        self.options = sorted(options, key=lambda option: option[0])
        self.spaces: dict[int, Space | None] = {}

    def cheapest(self, bound: float = math.inf, best: Found | None = None, owner: int = -1) -> Found | None:
        """The best of ``best`` and every plan of at most ``bound`` cycles (at times a dearer one).

        The option that promises most comes next: first by what its form and vertex take at least, then by what its
        splits do, then by what a search among the cheapest of them has left open. As long as there is no plan, that
        search goes up to a guess, which grows. Of plans of the same cost that of the option with the smaller number
        counts. ``owner``: the option that ``best`` is the best plan of.
        """
        # (cycles at least, number, what is known); sorted by the first, and therefore a heap
        queue = [(least, n, 0) for n, (least, _, _) in enumerate(self.options) if n != owner]
        guess, guesses = 0.0, 0
        while queue:
            least, number, known = heapq.heappop(queue)
            now = min(bound, best.cost[0]) if best else bound
            if least > now or least == math.inf:
                break
            if known < 2:
                heapq.heappush(queue, (max(least, self.least(number, known)), number, known + 1))
                continue
            if best is None and least >= guess:
                guess = _GUESSES[guesses] * least + _GUESS_CYCLES
                guesses += 1
            searched = now if best else min(now, guess)
            found = self.best(number, searched, least_memory=False)
            if found and (best is None or (found.cost, number) <= (best.cost, owner)):
                best, owner = found, number
            if searched < bound and (best is None or best.cost[0] > searched):
                heapq.heappush(queue, (searched, number, 2))
        return best

    def option_of(self, found: Found) -> int:
        """The number of the option that ``found`` belongs to (-1: none)."""
        every = enumerate((c.form is found.form and c.kernel is found.kernel, p) for _, c, p in self.options)
        return next((number for number, same in every if same == (True, found.passes)), -1)

    def least(self, index: int, known: int) -> float:
        """No plan of an option takes less: by shape and vertex (``known``: 0), by the splits that there are (1)."""
        _, candidate, passes = self.options[index]
        if known:
            space = self.space(index)
            return float(space.least.min()) * (1 - 1e-9) + candidate.moved(passes) if space else math.inf
        request = self.request
        spread = least_spread(candidate.form, candidate.kernel, request.types, passes, request.chip)
        return spread + candidate.moved(passes)

    def smallest(self) -> Found | None:
        """The plan of least memory."""
        every = (self.best(index, math.inf, least_memory=True) for index in range(len(self.options)))
        return min((found for found in every if found), key=lambda found: found.cost, default=None)

    def space(self, index: int) -> Space | None:
        """The splits of an option that may fit."""
        if index not in self.spaces:
            _, candidate, passes = self.options[index]
            form, kernel, types, chip = candidate.form, candidate.kernel, self.request.types, self.request.chip
            left = self.limit - set_aside(form, kernel, types, passes, chip)
            self.spaces[index] = split_space(form, kernel, types, passes, left, chip)
        return self.spaces[index]

    def best(self, index: int, bound: float, *, least_memory: bool) -> Found | None:
        """The best plan of an option: the cheapest one below ``bound`` cycles, or the one of least memory."""
        rank = by_memory if least_memory else by_cycles
        priced = self._priced(index, bound)
        if priced is None:
            return None
        grid, terms = priced
        possible = np.flatnonzero((terms["total"] <= bound) & (terms["temp_bytes"] <= self.limit))
        if len(possible) > _FIRST and not least_memory:
            nearest = possible[np.argpartition(terms["total"][possible], _FIRST)[:_FIRST]]
            first = self.reduced(index, grid, terms, nearest, rank)
            if first is not None:
                possible = possible[terms["total"][possible] <= first.cost[0]]
        return self.reduced(index, grid, terms, possible, rank)

    def first_by(self, rank: Rank, bound: float) -> Found | None:
        """Of all plans of at most ``bound`` cycles that fit the one that comes first by ``rank``."""
        best: Found | None = None
        for index, (least, _, _) in enumerate(self.options):
            if least > bound:
                break
            if self.least(index, 0) > bound or (priced := self._priced(index, bound)) is None:
                continue
            grid, terms = priced
            possible = np.flatnonzero((terms["total"] <= bound) & (terms["temp_bytes"] <= self.limit))
            found = self.reduced(index, grid, terms, possible, rank, bound)
            if found and (best is None or found.cost < best.cost):
                best = found
        return best

    def _priced(self, index: int, bound: float) -> tuple[Grid, dict[str, np.ndarray]] | None:
        """The splits of an option that may take ``bound`` cycles or fewer, with every term but the reduction."""
        space, chip, types = self.space(index), self.request.chip, self.request.types
        _, candidate, passes = self.options[index]
        left = bound - candidate.moved(passes)
        grid = candidate_splits(space, left, chip) if space else None
        if grid is None:
            return None
        form, kernel = candidate.form, candidate.kernel
        compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
        taken = compute * passes.count
        chosen = np.flatnonzero((taken <= left) & (taken * grid.tiles >= work_asked(form, kernel)))
        if not len(chosen):
            return None
        grid, compute = grid.take(chosen), compute[chosen]
        return grid, operand_terms(form, kernel, grid, compute, types, passes, chip)

    def reduced(
        self, index: int, grid: Grid, terms: dict[str, np.ndarray], chosen: np.ndarray, rank: Rank,
        bound: float = math.inf,
    ) -> Found | None:  # fmt: skip
        """The best of the ``chosen`` splits of an option when the reduction is known too."""
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
        at = int(np.lexsort(keys[::-1])[0])
        cost = (int(keys[0][at]), int(keys[1][at]), int(keys[2][at]))
        only = fitting[at : at + 1]
        return Found(cost, form, kernel, passes, grid.take(only), {name: v[only] for name, v in terms.items()})


def _serial_plan(request: Request, candidates: list[Candidate]) -> Found | None:
    """The cheapest plan in serial passes that fits; else with a limit doubled up to twice the tile; else the plan of
    least memory."""
    limit, found = request.limit, None
    serial, smaller = output_passes(request.form), smaller_passes(request.form)
    while True:
        for ways in (serial if limit == request.limit else (ONCE, *serial), smaller):
            found = found or Search(request, candidates, ways, limit).cheapest()
        if found:
            return _finer(request, candidates, found, limit)
        if limit >= 2 * request.chip.bytes_per_tile:
            return _smallest_plan(request, candidates, (ONCE, *serial, *smaller))
        limit = max(2 * limit, 1)  # a proportion that leaves less than a byte begins at one


def _finer(request: Request, candidates: list[Candidate], found: Found, limit: float) -> Found | None:
    """The best of ``found`` and the plans in serial passes near to its own, with its vertex and the likeliest."""
    bound, passes = found.cost[0], found.passes
    likely = sorted(
        candidates, key=lambda c: (c.form is not found.form or c.kernel is not found.kernel, c.least(passes))
    )
    return Search(request, likely[:_FINER], passes_near(request.form, passes.count), limit, bound).cheapest(
        bound, found
    )


def _smallest_plan(request: Request, candidates: list[Candidate], passes: Sequence[Passes]) -> Found | None:
    """The plan of least memory: searched below a guess of its bytes, which grows until there is one."""
    limit = min((c.least_bytes(p, request) for c in candidates for p in passes), default=0.0)
    found = None
    while candidates and found is None:
        limit *= _GROWTH
        found = Search(request, candidates, passes, limit).smallest()
    return found


def _plan(request: Request, taken: tuple[str, tuple[object, ...]] | None = None) -> Found | None:
    """The cheapest plan that fits: first in one pass, then in serial passes, then with more and more memory.

    ``taken``: a vertex with the changes of a form that are not to be used.
    """

    def others(candidates: Iterable[Candidate]) -> list[Candidate]:
        return [c for c in candidates if taken is None or taken != (c.kernel.name(c.form), c.form.changes)]

    candidates = others(every_candidate(request))
    search = Search(request, candidates, (ONCE,), request.limit)
    quick = quick_plan(request) if request.form.pass_ in TRAINING and taken is None else None
    found = search.cheapest(math.inf, quick, search.option_of(quick) if quick else -1)
    bound = found.cost[0] if found else math.inf
    reachable = [form for form in forms_of(request) if mac_cycles(form, request.chip, request.types.input) <= bound]
    dots = Search(request, others(candidates_among(request, reachable, hmac_kernels, bound)), (ONCE,), request.limit)
    found = dots.cheapest(bound, found)
    if found is not None:
        same = [c for c in candidates if c.form is found.form and c.kernel is found.kernel]
        return Search(request, same, FEW_PASSES, request.limit, found.cost[0]).cheapest(found.cost[0], found)
    return _serial_plan(request, [c for c in candidates if c.kernel.method == "AMP"])


def likeliest(request: Request) -> list[Candidate]:
    """The vertex that promises most with exchanged operands (none when there is none)."""
    turned = [candidate for candidate in every_candidate(request) if candidate.form.swapped]
    return sorted(turned, key=lambda candidate: candidate.least(ONCE))[:1]


@lru_cache(maxsize=256)
def quick_plan(request: Request) -> Found | None:
    """The best plan of the likeliest vertex in one pass."""
    return Search(request, likeliest(request), (ONCE,), request.limit).cheapest()


@lru_cache(maxsize=4096)
def cheapest(request: Request) -> Found:
    """What the search takes for a request by itself, not for a layer in training."""
    found = _plan(request)
    if found is None:
        raise ValueError(f"no plan at all for {request.form}")
    return found


@lru_cache(maxsize=4096)
def plan_once(request: Request) -> ConvolutionPlan:
    """:func:`cheapest` as a plan."""
    return explained(request, cheapest(request))


@lru_cache(maxsize=512)
def plan_without(request: Request, vertex: str, changes: tuple[object, ...]) -> ConvolutionPlan | None:
    """The best plan that does without this vertex on a form changed so; None when nothing else fits."""
    found = _plan(request, (vertex, changes))
    return explained(request, found) if found and found.terms["temp_bytes"][0] <= request.limit else None
