"""The convolution planner: how one pass of a convolution, or a matrix product, is split over the tiles of an IPU.

As PopLibs plans it (``../shared/reference/cost-model.md`` 3; ``lib/poplin/ConvModel.cpp``): every transformed form
(:mod:`convolution_form`) is tried with every vertex (:mod:`convolution_vertices`) and every useful split of batch,
field, groups, kernel and channels (:mod:`convolution_splits`); the cheapest plan whose temporary memory fits wins
(:mod:`convolution_terms` says what it costs).

The search is a branch and bound: what a form, a vertex, a row of splits or a pair of rows costs at least is compared
with the best plan so far, or with a guess of it that grows until a plan is found. No plan within the bound is skipped.

Serial passes go over output or input channels. Passes of a fully connected layer in training are planned jointly when
that is cheaper for all three (:mod:`convolution_joint`).

Simplifications (``docs/accuracy.md``): of the numbers of serial passes those near to the best power of two are tried,
with the likeliest vertices; where one pass fits, up to four with the vertex of that plan.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ops.work import Convolution, MatMul

from .convolution_form import Form, describe, form_of, forms, product_form
from .convolution_joint import TRAINING, Layer, joint_plan
from .convolution_splits import (
    ONCE,
    Grid,
    Passes,
    Space,
    Types,
    candidate_splits,
    field_grain,
    least_bytes,
    least_spread,
    split_space,
    useful_splits,
)
from .convolution_terms import (
    SLICES_AT_LEAST,
    least_reductions,
    least_transform,
    operand_terms,
    set_aside,
    with_reduction,
)
from .convolution_vertices import Kernel, hmac_kernels, kernels, least_cycles, loop_cycles, mac_cycles, vertex_cycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip


@dataclass(frozen=True)
class Request:
    """What is planned: a form with its types on a chip, in ``proportion`` of the memory of a tile."""

    chip: Chip
    form: Form
    types: Types
    proportion: float

    @property
    def limit(self) -> int:
        """Temporary bytes that a tile may hold."""
        return int(self.proportion * self.chip.bytes_per_tile)


@dataclass(frozen=True)
class ConvolutionPlan:
    """A plan and its price on one IPU. Cycles and bytes are those of one serial pass; bytes are those on one tile.

    Attributes:
        pass_: ``fwd``, ``bwd`` or ``wu``; ``vertex``: the vertex type; ``method``: its family.
        swapped: operands exchanged; ``expanded``, ``flattened``: spatial axes turned into input and output channels;
            ``combined``: groups put into one.
        joint: planned together with the other passes of a fully connected layer.
        field, batch, groups, kernel, out_split, in_split: parallel splits (``field``, ``kernel``: one per axis).
        serial: passes over parts of the output channels, or with ``serial_inputs`` of the input channels.
        units, group_grouping, in_grouping, out_grouping: of the vertex (AMP units, or SLIC chains).
        tiles: tiles used.
        transform_exchange, transform: cycles of rearranging operands and result before and after: exchange, copies.
        exchange_operands, tile_transform, compute, exchange_partials, reduce: cycles of the terms; ``tile_transform``
            is the exchange that pads pieces with zeros, ``exchange_partials`` is charged at any depth as PopLibs does.
        dynamic_slice, dynamic_update: cycles of taking the operands of a serial pass and of writing its result (or
            adding it to the sums of the passes before).
        broadcast: cycles of bringing the inputs to the tiles once before the serial passes (else part of
            ``exchange_operands``); not per pass. So are ``prepare`` (lay the weights of a fully connected layer out for
            slicing) and ``finish`` (cast the sums of serial input channels).
        bytes_transform, bytes_broadcast, bytes_operands, bytes_zeros, bytes_partials: what the exchanges bring in.
        temp_bytes: what ``availableMemoryProportion`` limits; ``extra_bytes``: what comes on top of operands and
            result, which live anyway: the most of rearranging (with its exchange buffer), of bringing in the operands
            (rearranged ones still there), of computing, and of adding up partial sums (operands gone).
        reduce_stages: reduction stages (0: none).
        total: cycles of all terms and passes.
        request: what was planned; ``form``: what it became; ``unit``: the vertex.
    """

    pass_: str
    vertex: str
    method: str
    swapped: bool
    expanded: tuple[int, ...]
    flattened: tuple[int, ...]
    combined: int
    joint: bool
    field: tuple[int, ...]
    batch: int
    groups: int
    kernel: tuple[int, ...]
    out_split: int
    in_split: int
    serial: int
    serial_inputs: bool
    units: int
    group_grouping: int
    in_grouping: int
    out_grouping: int
    tiles: int
    transform_exchange: int
    transform: int
    exchange_operands: int
    tile_transform: int
    compute: int
    exchange_partials: int
    reduce: int
    dynamic_slice: int
    dynamic_update: int
    broadcast: int
    prepare: int
    finish: int
    bytes_transform: int
    bytes_broadcast: int
    bytes_operands: int
    bytes_zeros: int
    bytes_partials: int
    temp_bytes: int
    extra_bytes: int
    reduce_stages: int
    total: int
    request: Request = dataclasses.field(repr=False, compare=False)
    form: Form = dataclasses.field(repr=False, compare=False)
    unit: Kernel = dataclasses.field(repr=False, compare=False)

    @property
    def exchange(self) -> int:
        """Cycles of bringing operands to the tiles and partial sums together, per serial pass."""
        return self.exchange_operands + self.exchange_partials

    @property
    def rearrangement(self) -> int:
        """Cycles of rearranging operands and result, per serial pass."""
        return self.transform_exchange + self.transform

    def next_best(self) -> ConvolutionPlan | None:
        """The cheapest plan with another vertex or form (None: no other fits); searched when asked. That of a joint
        plan is the plan of the pass alone."""
        if self.joint:
            return _plan_once(self.request)
        return _next_best(self.request, self.vertex, self._changes())

    def layer_cost(self) -> LayerCost | None:
        """What the layer costs jointly and apart (None: not a pass of a fully connected layer in training); searched
        when asked."""
        return _layer_cost(_forward_of(self.request)) if self.pass_ in TRAINING else None

    def values(self) -> dict[str, object]:
        """Everything but request, form and vertex, by name; splits per axis as lists."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    def _changes(self) -> tuple[object, ...]:
        return (self.swapped, self.expanded, self.flattened, self.combined)

    def explain(self) -> str:
        """Form, splits and terms in one line."""
        shape = ["operands exchanged"] if self.swapped else []
        shape += [f"kernel axes {self.expanded} in the input channels"] if self.expanded else []
        shape += [f"axes {self.flattened} in the output channels"] if self.flattened else []
        shape += [f"{self.combined} groups in one"] if self.combined > 1 else []
        shape += ["jointly with the other passes"] if self.joint else []
        return (
            f"{self.vertex} ({', '.join(shape) or 'as it is'}), channels {self.group_grouping}x{self.in_grouping}x"
            f"{self.out_grouping}, field {self.field} batch {self.batch} groups {self.groups} kernel {self.kernel} "
            f"out {self.out_split} in {self.in_split} serial {self.serial}"
            f"{' over inputs' if self.serial_inputs else ''}: {self.tiles} tiles; cycles: transform "
            f"{self.transform_exchange}+{self.transform}, operands {self.exchange_operands}, zeros "
            f"{self.tile_transform}, compute {self.compute}, partials {self.exchange_partials}, reduce {self.reduce}, "
            f"slice {self.dynamic_slice}+{self.dynamic_update}, once {self.broadcast}+{self.prepare}+{self.finish}; "
            f"total {self.total}; {self.temp_bytes} bytes on a tile"
        )


# -- the search ------------------------------------------------------------------------------------------------------

#: Serial passes over output channels that are tried first.
_SERIAL_PASSES = tuple(Passes(out=2**n, ahead=True) for n in range(1, 11))

#: Serial passes that are tried when none of those fits: inputs brought in anew, or over input channels.
_SMALLER_PASSES = tuple(passes for n in range(1, 11) for passes in (Passes(out=2**n), Passes(inner=2**n)))


#: Serial passes that are tried although one pass fits.
_FEW = tuple(passes for n in (2, 3, 4) for passes in (Passes(n, ahead=True), Passes(inner=n)))


def _passes_near(count: int) -> tuple[Passes, ...]:
    """Serial passes around a number of passes over output channels: in finer steps, with the inputs brought to the
    tiles in each of them, or over input channels."""
    step = max(1, count // 4)
    counts = range(max(2, count // 2), 2 * count, step)
    return tuple(
        passes
        for n in counts
        for passes in (Passes(n, ahead=True), Passes(n), Passes(inner=n))
        if passes != Passes(count, ahead=True)
    )


#: Vertices (that of the best plan first) with which finer steps of serial passes are tried.
_FINER = 1

#: The most rows (batch) of a fully connected layer for which a joint plan is looked for.
_JOINT_ROWS = 512

#: How many candidates are worked out fully before the others are compared with the best of them.
_FIRST = 64

#: Guesses of the total, one after the other until a plan is found: so much more than what is known of it at that time,
#: and so many cycles.
_GUESSES, _GUESS_CYCLES = (1.25, 1.5, 2.0, 4.0, math.inf), 500

#: The limit of bytes grows by so much until the plan of least memory is found.
_GROWTH = 1.2


@dataclass(frozen=True)
class _Found:
    """The best candidate so far; ``cost``: what is compared, ``(total, temporary bytes, tiles)`` or, where memory
    counts, ``(temporary bytes, total, tiles)``."""

    cost: tuple[int, int, int]
    form: Form
    kernel: Kernel
    passes: Passes
    grid: Grid
    terms: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Candidate:
    """A form with a vertex: cycles that it takes at least in all (``whole``), on top in each serial pass (``each``),
    for rearrangements in each pass (``transform``; but for the inputs: ``later``), and the bytes of those on a tile
    (``held``)."""

    whole: float
    each: float
    transform: int
    later: int
    held: int
    form: Form
    kernel: Kernel

    def moved(self, passes: Passes) -> float:
        """Cycles that rearrangements and slices take at least: each pass of several cuts out its weights and writes its
        result (or adds it)."""
        slices = SLICES_AT_LEAST if passes.count > 1 else 0
        return passes.count * ((self.later if passes.ahead else self.transform) + slices)

    def least(self, passes: Passes) -> float:
        """No plan in these passes takes less."""
        return self.whole + passes.count * self.each + self.moved(passes)

    def possible(self, passes: Passes) -> bool:
        """Serial passes over input channels are all of one size (PopLibs repeats one convolution)."""
        return self.form.in_channels % passes.inner == 0 and self.form.out_channels >= passes.out

    def least_bytes(self, passes: Passes, request: Request) -> float:
        """No plan in these passes holds fewer bytes on a tile."""
        held, form, tiles = self.held if passes.ahead else 2 * self.held, self.form, request.chip.tiles
        if passes.count > 1 and form.pass_.startswith("fc"):  # the weights, laid out for slicing
            share = form.groups * form.in_channels * form.out_channels * request.types.input // tiles
            held = share + max(share, held)
        if passes.inner > 1:  # the sums so far
            outputs = form.batch * form.groups * form.out_channels * math.prod(axis.output for axis in form.axes)
            held = max(held, 2 * outputs * self.kernel.partial_size // tiles)
        aside = set_aside(form, self.kernel, request.types, passes, request.chip)
        return max(held, aside + least_bytes(form, self.kernel, request.types, passes, tiles))


class _Search:
    """The search for one request among some candidates and numbers of serial passes, in ``limit`` bytes on a tile."""

    def __init__(
        self,
        request: Request,
        candidates: Sequence[_Candidate],
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
            if c.possible(passes) and (least := c.least(passes)) <= bound and c.least_bytes(passes, request) <= limit
        ]
        self.options = sorted(options, key=lambda option: option[0])
        self.spaces: dict[int, Space | None] = {}

    def cheapest(self, bound: float = math.inf, best: _Found | None = None, owner: int = -1) -> _Found | None:
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

    def option_of(self, found: _Found) -> int:
        """The number of the option that ``found`` belongs to (-1: none)."""
        every = enumerate((c.form is found.form and c.kernel is found.kernel, p) for _, c, p in self.options)
        return next((number for number, same in every if same == (True, found.passes)), -1)

    def least(self, index: int, known: int) -> float:
        """No plan of an option takes less: by shape and vertex (``known``: 0), by the splits that there are (1)."""
        _, candidate, passes = self.options[index]
        if known:
            space = self.space(index)
            return float(space.least.min()) + candidate.moved(passes) if space else math.inf
        request = self.request
        spread = least_spread(candidate.form, candidate.kernel, request.types, passes, request.chip)
        return spread + candidate.moved(passes)

    def smallest(self) -> _Found | None:
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

    def best(self, index: int, bound: float, *, least_memory: bool) -> _Found | None:
        """The best plan of an option: the cheapest one below ``bound`` cycles, or the one of least memory."""
        space, chip, types = self.space(index), self.request.chip, self.request.types
        _, candidate, passes = self.options[index]
        left = bound - candidate.moved(passes)
        grid = candidate_splits(space, left, chip) if space else None
        if grid is None:
            return None
        form, kernel = candidate.form, candidate.kernel
        compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
        chosen = np.flatnonzero(compute * passes.count <= left)
        if not len(chosen):
            return None
        grid, compute = grid.take(chosen), compute[chosen]
        terms = operand_terms(form, kernel, grid, compute, types, passes, chip)
        possible = np.flatnonzero((terms["total"] <= bound) & (terms["temp_bytes"] <= self.limit))
        if len(possible) > _FIRST and not least_memory:
            nearest = possible[np.argpartition(terms["total"][possible], _FIRST)[:_FIRST]]
            first = self.reduced(candidate, passes, grid, terms, nearest, least_memory=False)
            if first is not None:
                possible = possible[terms["total"][possible] <= first.cost[0]]
        return self.reduced(candidate, passes, grid, terms, possible, least_memory=least_memory)

    def reduced(
        self, candidate: _Candidate, passes: Passes, grid: Grid, terms: dict[str, np.ndarray], chosen: np.ndarray,
        *, least_memory: bool,
    ) -> _Found | None:  # fmt: skip
        """The best of the ``chosen`` splits when the reduction is known too."""
        if not len(chosen):
            return None
        form, kernel, grid = candidate.form, candidate.kernel, grid.take(chosen)
        terms = {name: values[chosen] for name, values in terms.items()}
        terms = with_reduction(terms, form, kernel, grid, self.request.types, passes, self.request.chip)
        fitting = np.flatnonzero(terms["temp_bytes"] <= self.limit)
        if not len(fitting):
            return None
        total, temp, tiles = terms["total"][fitting], terms["temp_bytes"][fitting], grid.tiles[fitting]
        keys = (temp, total, tiles) if least_memory else (total, temp, tiles)
        index = int(np.lexsort(keys[::-1])[0])
        cost = (int(keys[0][index]), int(keys[1][index]), int(keys[2][index]))
        only = fitting[index : index + 1]
        return _Found(cost, form, kernel, passes, grid.take(only), {name: v[only] for name, v in terms.items()})


_Finder = Callable[[Form, "Chip", int, int, int], Iterable[Kernel]]


def _candidates(request: Request, changed: Iterable[Form], find: _Finder, bound: float) -> list[_Candidate]:
    """What may take ``bound`` cycles or fewer."""
    chip, types, found = request.chip, request.types, []
    for plain in changed:
        for kernel in find(plain, chip, types.input, types.partial, types.output):
            grain = field_grain(plain, kernel, types)
            form = replace(plain, grain=grain) if grain > 1 else plain
            whole, each = least_cycles(form, kernel, chip)
            if kernel.method == "HMAC" and whole + each <= bound:
                if least_spread(form, kernel, types, ONCE, chip) > bound:
                    continue
                each += _least_hmac(form, kernel, types, chip)
            if whole + each <= bound:
                total, later, held = least_transform(form, kernel, types, chip)
                found.append(_Candidate(whole, each, total, later, held, form, kernel))
    return found


@lru_cache(maxsize=256)
def _forms(request: Request) -> tuple[Form, ...]:
    return tuple(forms(request.form, request.types.input))


@lru_cache(maxsize=256)
def _every_candidate(request: Request) -> tuple[_Candidate, ...]:
    """Every form with every vertex but HMAC."""
    return tuple(_candidates(request, _forms(request), kernels, math.inf))


def _least_hmac(form: Form, kernel: Kernel, types: Types, chip: Chip) -> float:
    """Cycles that the loops over input channels on a tile and the reduction of their partial sums take at least,
    whichever way the channels are split: few tiles loop long, many have much to reduce."""
    inner = -(-form.in_channels // kernel.in_grouping)
    split = useful_splits(inner, chip.tiles)
    loops = loop_cycles(form, kernel, chip) * form.axes[-1].kernel
    return float((-(-inner // split) * loops + least_reductions(kernel.partial_size, types.output, chip)[split]).min())


def _serial_plan(request: Request, candidates: list[_Candidate]) -> _Found | None:
    """The cheapest plan in serial passes that fits; else with a limit doubled up to twice the tile; else the plan of
    least memory."""
    limit, found = request.limit, None
    while True:
        for ways in (_SERIAL_PASSES if limit == request.limit else (ONCE, *_SERIAL_PASSES), _SMALLER_PASSES):
            found = found or _Search(request, candidates, ways, limit).cheapest()
        if found:
            return _finer(request, candidates, found, limit)
        if limit >= 2 * request.chip.bytes_per_tile:
            return _smallest_plan(request, candidates, (ONCE, *_SERIAL_PASSES, *_SMALLER_PASSES))
        limit *= 2


def _finer(request: Request, candidates: list[_Candidate], found: _Found, limit: float) -> _Found | None:
    """The best of ``found`` and the plans in serial passes near to its own, with its vertex and the likeliest."""
    bound, passes = found.cost[0], found.passes
    likely = sorted(
        candidates, key=lambda c: (c.form is not found.form or c.kernel is not found.kernel, c.least(passes))
    )
    return _Search(request, likely[:_FINER], _passes_near(passes.count), limit, bound).cheapest(bound, found)


def _smallest_plan(request: Request, candidates: list[_Candidate], passes: Sequence[Passes]) -> _Found | None:
    """The plan of least memory: searched below a guess of its bytes, which grows until there is one."""
    limit = min((c.least_bytes(p, request) for c in candidates for p in passes), default=0.0)
    found = None
    while candidates and found is None:
        limit *= _GROWTH
        found = _Search(request, candidates, passes, limit).smallest()
    return found


def _plan(request: Request, taken: tuple[str, tuple[object, ...]] | None = None) -> _Found | None:
    """The cheapest plan that fits: first in one pass, then in serial passes, then with more and more memory.

    ``taken``: a vertex with the changes of a form that are not to be used.
    """

    def others(candidates: Iterable[_Candidate]) -> list[_Candidate]:
        return [c for c in candidates if taken is None or taken != (c.kernel.name(c.form), _changes_of(c.form))]

    candidates = others(_every_candidate(request))
    search = _Search(request, candidates, (ONCE,), request.limit)
    quick = _quick(request) if request.form.pass_ in TRAINING and taken is None else None
    found = search.cheapest(math.inf, quick, search.option_of(quick) if quick else -1)
    bound = found.cost[0] if found else math.inf
    reachable = [form for form in _forms(request) if mac_cycles(form, request.chip, request.types.input) <= bound]
    dots = _Search(request, others(_candidates(request, reachable, hmac_kernels, bound)), (ONCE,), request.limit)
    found = dots.cheapest(bound, found)
    if found is not None:
        same = [c for c in candidates if c.form is found.form and c.kernel is found.kernel]
        return _Search(request, same, _FEW, request.limit, found.cost[0]).cheapest(found.cost[0], found)
    return _serial_plan(request, [c for c in candidates if c.kernel.method == "AMP"])


def _changes_of(form: Form) -> tuple[object, ...]:
    return (form.swapped, form.expanded, form.flattened, form.combined)


# -- fully connected layers in training --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerCost:
    """Cycles of the three passes of a fully connected layer in training, planned jointly (None: no joint plan fits)
    and one by one, and which way is taken."""

    jointly: int | None
    apart: int
    joint: bool


def _passes_of(forward: Request) -> tuple[Request, Request, Request]:
    """The forward, backward and update pass of the layer, each as a product of its own."""
    form = forward.form
    m, k, n = form.batch, form.in_channels, form.out_channels
    sizes = ((m, k, n), (m, n, k), (k, m, n))
    first, second, third = (replace(forward, form=product_form(form.groups, *each, name))
                            for each, name in zip(sizes, TRAINING, strict=True))  # fmt: skip
    return first, second, third


def _forward_of(request: Request) -> Request:
    """The forward pass of the layer that ``request`` is a pass of."""
    form = request.form
    m, k, n = form.batch, form.in_channels, form.out_channels
    sizes = {"fcfwd": (m, k, n), "fcbwd": (m, n, k), "fcwu": (k, m, n)}[form.pass_]
    return replace(request, form=product_form(form.groups, *sizes, "fcfwd"))


def _likeliest(request: Request) -> list[_Candidate]:
    """The vertex that promises most with exchanged operands (none when there is none)."""
    turned = [candidate for candidate in _every_candidate(request) if candidate.form.swapped]
    return sorted(turned, key=lambda candidate: candidate.least(ONCE))[:1]


@lru_cache(maxsize=256)
def _quick(request: Request) -> _Found | None:
    """The best plan of the likeliest vertex in one pass."""
    return _Search(request, _likeliest(request), (ONCE,), request.limit).cheapest()


def _quick_total(request: Request) -> float:
    """Cycles of a plan that fits, found quickly; infinite when there is none among the likely ones."""
    if found := _quick(request):
        return found.cost[0]
    for ways in (_SERIAL_PASSES, _SMALLER_PASSES):
        if found := _Search(request, _likeliest(request), ways, request.limit).cheapest():
            return found.cost[0]
    return math.inf


def _least_total(request: Request) -> float:
    """Cycles that no plan of a pass goes below, whatever the memory."""
    return min((candidate.least(ONCE) for candidate in _every_candidate(request)), default=0.0)


@lru_cache(maxsize=4096)
def _joint_layer(forward: Request) -> Layer | None:
    """The joint plan of the layer with this forward pass, when that is the way to take (PopLibs ``ConvPlan.cpp``
    createPlan): it fits, and the passes one by one do not or are not cheaper in all. The other passes are planned only
    while bounds leave that open.

    Simplifications: where neither fits, the passes are planned one by one (PopLibs takes the way of fewer bytes); and
    layers of more than :data:`_JOINT_ROWS` rows are: a joint plan does not split the rows, so it pays for few of them
    (of 377 random layers of up to 2,048 rows 8 were joint, all where memory was short).
    """
    limit = float(forward.limit)
    if forward.form.batch > _JOINT_ROWS:
        return None
    own, others = _plan_once(forward), _passes_of(forward)[1:]
    apart = own.total
    most = apart + sum(_quick_total(each) for each in others) if own.temp_bytes <= limit else math.inf
    layer = joint_plan(forward.chip, forward.form, forward.types, limit, most)
    if layer is None or own.temp_bytes > limit:
        return layer
    for number, each in enumerate(others):
        if layer.total <= apart + sum(_least_total(rest) for rest in others[number:]):
            return layer
        plan = _plan_once(each)
        if plan.temp_bytes > limit:
            return layer
        apart += plan.total
    return layer if layer.total <= apart else None


@lru_cache(maxsize=512)
def _layer_cost(forward: Request) -> LayerCost:
    layer = _joint_layer(forward)
    jointly = layer or joint_plan(forward.chip, forward.form, forward.types, float(forward.limit))
    apart = sum(_plan_once(each).total for each in _passes_of(forward))
    return LayerCost(jointly.total if jointly else None, apart, layer is not None)


@lru_cache(maxsize=4096)
def _training_plan(request: Request) -> ConvolutionPlan:
    """The plan of one pass of a fully connected layer in training."""
    layer = _joint_layer(_forward_of(request))
    if layer is None:
        return _plan_once(request)
    index = TRAINING.index(request.form.pass_)
    part, terms, grid = layer.parts[index], layer.terms[index], layer.grids[index]
    cost = (int(terms["total"][0]), int(terms["temp_bytes"][0]), int(grid.tiles[0]))
    return _explained(request, _Found(cost, part.form, part.kernel, layer.passes, grid, terms))


@lru_cache(maxsize=4096)
def _plan_once(request: Request) -> ConvolutionPlan:
    found = _plan(request)
    if found is None:
        raise ValueError(f"no plan at all for {request.form}")
    return _explained(request, found)


@lru_cache(maxsize=512)
def _next_best(request: Request, vertex: str, changes: tuple[object, ...]) -> ConvolutionPlan | None:
    found = _plan(request, (vertex, changes))
    return _explained(request, found) if found and found.terms["temp_bytes"][0] <= request.limit else None


def _explained(request: Request, found: _Found) -> ConvolutionPlan:
    """The one candidate of ``found`` as a plan."""
    grid, form, kernel = found.grid, found.form, found.kernel
    return ConvolutionPlan(
        pass_=form.pass_,
        vertex=kernel.name(form),
        method=kernel.method,
        swapped=form.swapped,
        expanded=form.expanded,
        flattened=form.flattened,
        combined=form.combined,
        joint=form.joint,
        field=tuple(int(s[0]) for s in grid.field),
        batch=int(grid.batch[0]),
        groups=int(grid.groups[0]),
        kernel=tuple(int(s[0]) for s in grid.kernel),
        out_split=int(grid.out_split[0]),
        in_split=int(grid.in_split[0]),
        serial=found.passes.count,
        serial_inputs=found.passes.inner > 1,
        units=kernel.units,
        group_grouping=kernel.group_grouping,
        in_grouping=kernel.in_grouping,
        out_grouping=kernel.out_grouping,
        tiles=int(grid.tiles[0]),
        request=request,
        form=form,
        unit=kernel,
        **{name: int(values[0]) for name, values in found.terms.items() if name != "fixed_bytes"},
    )


def _check_proportion(proportion: float) -> None:
    if not 0 < proportion <= 1:
        raise ValueError(f"availableMemoryProportion is {proportion}; allowed: above 0, at most 1")


def plan_convolution(chip: Chip, convolution: Convolution) -> ConvolutionPlan:
    """The cheapest plan for one pass of a convolution on ``chip``; the same shape is planned once.

    When nothing fits into ``available_memory_proportion`` of a tile, output or input channels are computed in serial
    passes; when that does not help, the limit is doubled up to twice the tile, and then the plan of least memory is
    taken.

    Raises:
        ValueError: an unknown pass, a dimension below 1, groups that do not divide the channels, a kernel larger than
            the padded input, a proportion outside (0, 1], half-precision partial sums of float inputs.
    """
    _check_proportion(convolution.available_memory_proportion)
    sizes = (convolution.input_dtype.size, convolution.partials_dtype.size, convolution.output_dtype.size)
    if sizes[0] not in (2, 4) or sizes[1] not in (2, 4) or sizes[1] < sizes[0] or sizes[2] not in (2, 4):
        raise ValueError(
            f"convolution {describe(convolution)}: inputs {convolution.input_dtype}, partials "
            f"{convolution.partials_dtype} and result {convolution.output_dtype} are not possible; allowed: 16 or 32 "
            "bit floats, partials at least as wide as the inputs"
        )
    return _plan_once(Request(chip, form_of(convolution), Types(*sizes), convolution.available_memory_proportion))


def plan_product(chip: Chip, item: MatMul) -> ConvolutionPlan:
    """The cheapest plan for a matrix product, the 1x1 case of a convolution (memory as in :func:`plan_convolution`).

    The passes ``fcfwd``, ``fcbwd`` and ``fcwu`` of a fully connected layer are parts of its joint plan when all three
    together take no longer so. The cycles are then those of the one pass, which alone may be faster.

    Types that no vertex has are priced as the nearest ones: 64 bits as 32, 8 bits as 16, partial sums at least as wide
    as the operands.

    Raises:
        ValueError: an unknown pass, a dimension below 1, a proportion outside (0, 1].
    """
    _check_proportion(item.available_memory_proportion)
    inputs, sums, result = (
        min(max(dtype.size, 2), 4) for dtype in (item.input_dtype, item.partials_dtype, item.output_dtype)
    )
    form = product_form(item.groups, item.m, item.k, item.n, item.pass_)
    types = Types(inputs, max(inputs, sums), result)
    request = Request(chip, form, types, item.available_memory_proportion)
    return _training_plan(request) if item.pass_ in TRAINING else _plan_once(request)
