"""The convolution planner: how one pass of a convolution is split over the tiles of an IPU, and what it costs.

As PopLibs plans it (``../shared/reference/cost-model.md`` 3; ``lib/poplin/ConvModel.cpp``): every transformed form
(:mod:`convolution_form`) is tried with every vertex (:mod:`convolution_vertices`) and every useful split of batch,
field, groups, kernel and channels; the cheapest plan whose temporary memory fits wins.

Simplifications (``docs/accuracy.md``): the output channels are computed in serial passes only when nothing fits in one,
the input channels never; the passes of a layer are planned one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ops.work import Convolution, MatMul

from .convolution_form import Form, describe, form_of, forms, product_form
from .convolution_vertices import (
    SLIC_WIDTH,
    Kernel,
    Piece,
    ceil,
    grain,
    hmac_kernels,
    inner_cycles,
    kernels,
    least_cycles,
    mac_cycles,
    product,
    vertex_cycles,
)
from .planner import useful_splits

if TYPE_CHECKING:
    from ipuperf.machine import Chip


@dataclass(frozen=True)
class ConvolutionPlan:
    """A plan and its price on one IPU. Cycles and bytes are those of one serial pass; bytes are those on one tile.

    Attributes:
        pass_: ``fwd``, ``bwd`` or ``wu``; ``vertex``: the vertex type; ``method``: its family.
        swapped: operands exchanged; ``expanded``, ``flattened``: spatial axes turned into input and output channels;
            ``combined``: groups put into one.
        field, batch, groups, kernel, out_split, in_split: parallel splits (``field``, ``kernel``: one per axis).
        serial: passes over parts of the output channels.
        units, group_grouping, in_grouping, out_grouping: of the vertex (AMP units, or SLIC chains).
        tiles: tiles used.
        transform_exchange, transform: cycles of rearranging operands and result before and after: exchange, copies.
        exchange_operands, tile_transform, compute, exchange_partials, reduce: cycles of the terms; ``tile_transform``
            is the exchange that pads pieces with zeros, ``exchange_partials`` is charged at any depth as PopLibs does.
        dynamic_slice, dynamic_update: cycles of taking the weights of a serial pass and of writing its result.
        broadcast: cycles of bringing the inputs to the tiles once before the serial passes (else part of
            ``exchange_operands``); not per pass.
        bytes_transform, bytes_broadcast, bytes_operands, bytes_zeros, bytes_partials: what the exchanges bring in.
        temp_bytes: what ``availableMemoryProportion`` limits; ``extra_bytes``: the part that comes on top of operands
            and result, which live anyway.
        reduce_stages: reduction stages (0: none).
        total: cycles of all terms and passes.
    """

    pass_: str
    vertex: str
    method: str
    swapped: bool
    expanded: tuple[int, ...]
    flattened: tuple[int, ...]
    combined: int
    field: tuple[int, ...]
    batch: int
    groups: int
    kernel: tuple[int, ...]
    out_split: int
    in_split: int
    serial: int
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
    bytes_transform: int
    bytes_broadcast: int
    bytes_operands: int
    bytes_zeros: int
    bytes_partials: int
    temp_bytes: int
    extra_bytes: int
    reduce_stages: int
    total: int

    def explain(self) -> str:
        """Form, splits and terms in one line."""
        shape = ["operands exchanged"] if self.swapped else []
        shape += [f"kernel axes {self.expanded} in the input channels"] if self.expanded else []
        shape += [f"axes {self.flattened} in the output channels"] if self.flattened else []
        shape += [f"{self.combined} groups in one"] if self.combined > 1 else []
        return (
            f"{self.vertex} ({', '.join(shape) or 'as it is'}), channels {self.group_grouping}x{self.in_grouping}x"
            f"{self.out_grouping}, field {self.field} batch {self.batch} groups {self.groups} kernel {self.kernel} "
            f"out {self.out_split} in {self.in_split} serial {self.serial}: {self.tiles} tiles; cycles: transform "
            f"{self.transform_exchange}+{self.transform}, operands {self.exchange_operands}, zeros "
            f"{self.tile_transform}, compute {self.compute}, partials {self.exchange_partials}, reduce {self.reduce}, "
            f"slice {self.dynamic_slice}+{self.dynamic_update}, once {self.broadcast}; "
            f"total {self.total}; {self.temp_bytes} bytes on a tile"
        )


@dataclass(frozen=True)
class _Types:
    """Bytes per element of inputs, partial sums and result."""

    input: int
    partial: int
    output: int


@dataclass(frozen=True)
class _Grid:
    """Candidate splits of one form for one vertex, flat: pairs of a field split and a channel split."""

    batch: np.ndarray
    field: tuple[np.ndarray, ...]
    groups: np.ndarray
    kernel: tuple[np.ndarray, ...]
    out_split: np.ndarray
    in_split: np.ndarray
    tiles: np.ndarray
    piece: Piece
    inner: np.ndarray

    def take(self, chosen: np.ndarray) -> _Grid:
        """The candidates with these indices."""

        def cut(values: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            return tuple(v[chosen] for v in values)

        piece = self.piece
        part = Piece(piece.batch[chosen], cut(piece.field), cut(piece.kernel), piece.groups[chosen],
                     piece.in_groups[chosen], piece.out_groups[chosen])  # fmt: skip
        return _Grid(self.batch[chosen], cut(self.field), self.groups[chosen], cut(self.kernel),
                     self.out_split[chosen], self.in_split[chosen], self.tiles[chosen], part,
                     self.inner[:, chosen])  # fmt: skip


# -- candidates ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _splits(size: int, tiles: int) -> tuple[np.ndarray, np.ndarray]:
    """(split, largest part) worth trying for ``size``."""
    split = useful_splits(size, tiles)
    return split, ceil(np.full_like(split, size), split)


@lru_cache(maxsize=512)
def _together(sizes: tuple[int, ...], tiles: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """Splits of several axes at once: splits and parts, one vector per axis, and the product of the splits, which is at
    most ``tiles``."""
    used = np.ones(1, dtype=np.int64)
    splits: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    for size in sizes:
        split, part = _splits(size, tiles)
        old, new = np.nonzero(used[:, None] * split[None, :] <= tiles)
        splits = [s[old] for s in splits] + [split[new]]
        parts = [p[old] for p in parts] + [part[new]]
        used = used[old] * split[new]
    return tuple(splits), tuple(parts), used


def _grid(form: Form, kernel: Kernel, chip: Chip, serial: int, fewest: float) -> _Grid | None:
    """Every split of ``form`` on at least ``fewest`` tiles that is worth trying and legal for ``kernel``."""
    dims = len(form.axes)
    field_splits, field_parts, fields = _together((form.batch, *(a.output for a in form.axes)), chip.tiles)
    groups = -(-form.groups // kernel.group_grouping)
    inner, outer = (-(-n // g) for n, g in ((form.in_channels, kernel.in_grouping),
                                           (form.out_channels, kernel.out_grouping)))  # fmt: skip
    if outer < serial or (kernel.method == "SLIC" and inner * outer > chip.tiles):
        return None
    sizes = (groups, inner, -(-outer // serial), *(a.kernel for a in form.axes[:-1]))
    channel_splits, channel_parts, channels = _together(sizes, chip.tiles)
    legal = np.ones(len(channel_parts[0]), dtype=bool)
    if kernel.method == "SLIC":
        legal = (channel_parts[1] == 1) & (channel_parts[2] == 1)
    elif kernel.method == "VMAC":
        legal = channel_parts[2] == 1
    used = fields[:, None] * np.where(legal, channels, 0)[None, :]
    f, c = np.nonzero((used <= chip.tiles) & (used >= max(1, math.floor(fewest))))
    if not len(f):
        return None
    positions = inner_cycles(field_parts[0], tuple(field_parts[1:]), form, kernel, chip)
    last = np.full(len(c), form.axes[-1].kernel, dtype=np.int64)
    piece = Piece(
        batch=field_parts[0][f],
        field=tuple(p[f] for p in field_parts[1:]),
        kernel=(*(p[c] for p in channel_parts[3:]), last),
        groups=channel_parts[0][c],
        in_groups=channel_parts[1][c],
        out_groups=channel_parts[2][c],
    )
    return _Grid(
        batch=field_splits[0][f],
        field=tuple(s[f] for s in field_splits[1 : dims + 1]),
        groups=channel_splits[0][c],
        kernel=(*(s[c] for s in channel_splits[3:]), np.ones_like(last)),
        out_split=channel_splits[2][c],
        in_split=channel_splits[1][c],
        tiles=fields[f] * channels[c],
        piece=piece,
        inner=positions[:, f],
    )


# -- terms -----------------------------------------------------------------------------------------------------------


def _transform(form: Form, kernel: Kernel, tiles: np.ndarray, types: _Types, chip: Chip) -> tuple[np.ndarray, ...]:
    """(exchange cycles, copy cycles, exchanged bytes, temporary bytes) of rearranging operands and result.

    Rearranged are operands whose channels are padded to the grouping or whose form was changed, and the result
    likewise; a result in another grouping than the next layer wants is only regrouped on its tiles.
    """
    update, turned = form.pass_ == "wu", form.swapped != form.is_product
    pad_in, pad_out = form.in_channels % kernel.in_grouping > 0, form.out_channels % kernel.out_grouping > 0
    both = bool(form.expanded) or turned or form.combined > 1 or pad_in or update
    inputs_too = both or form.pass_ in ("fcbwd", "fcwu")
    weights_too = both or bool(form.flattened) or pad_out
    result = form.swapped != update if not form.is_product else turned
    result = result or bool(form.flattened) or form.combined > 1 or pad_out or form.pass_ == "fcwu"
    full = grain(kernel.in_size)
    regroup = not result and kernel.out_grouping != full and not form.pass_.startswith("fc")
    regroup_weights = form.pass_ == "fwd" and not (inputs_too or weights_too) and kernel.out_grouping % full > 0
    groups = -(-form.groups // kernel.group_grouping) * kernel.group_grouping
    inner = -(-form.in_channels // kernel.in_grouping) * kernel.in_grouping
    outer = -(-form.out_channels // kernel.out_grouping) * kernel.out_grouping
    inputs, weights, outputs = form.batch * inner * groups, inner * outer * groups, form.batch * outer * groups
    for axis in form.axes:
        inputs, weights, outputs = inputs * axis.whole, weights * axis.kernel, outputs * axis.output
    exchange, copy, moved, most = (np.zeros_like(tiles) for _ in range(4))

    def add(elements: int, size: int, rate: int, channels: int, *, far: bool) -> None:
        nonlocal exchange, copy, moved, most
        share = ceil(np.full_like(tiles, elements), tiles) * size
        copy = copy + ceil(share * 5, min(chip.memcpy_bytes_per_cycle, rate) * _factor(channels, kernel.in_size))
        if far:
            exchange, moved = exchange + ceil(share, chip.exchange_bytes_per_cycle), moved + share
        most = np.maximum(most, share)

    if inputs_too or weights_too:
        channels = form.in_channels * form.out_channels
        add(inputs * inputs_too + weights * weights_too, types.input, types.input, channels, far=True)
    elif regroup_weights:
        add(weights, types.input, kernel.out_grouping * types.input, form.out_channels, far=False)
    if result or regroup:
        rate = types.output * (1 if result else kernel.out_grouping)
        add(outputs, types.output, rate, form.out_channels, far=result)
    return exchange, copy, moved, 2 * most


def _factor(channels: int, size: int) -> int:
    """4 when whole vectors of channels can be moved, 3 when not (the copy is then a third slower)."""
    return 4 if channels % (8 // size) == 0 else 3


def _zero_padding(form: Form, kernel: Kernel, grid: _Grid) -> tuple[np.ndarray, np.ndarray]:
    """Zeros per tile that are exchanged to fill up (kernel, input): kernel rows of an AMP pass, SLIC windows."""
    piece, none = grid.piece, np.zeros_like(grid.tiles)
    extra_kernel, extra_input = [none] * len(form.axes), [none] * len(form.axes)
    if kernel.method == "AMP" and kernel.height > 1:
        dim, multiple = 0, kernel.height
    elif kernel.method == "SLIC":
        dim, multiple = len(form.axes) - 1, SLIC_WIDTH
    else:
        return none, none
    size, split = form.axes[dim].kernel, grid.kernel[dim]
    rest = np.maximum(size // split % multiple, ceil(np.full_like(split, size), split) % multiple)
    extra_kernel[dim] = (multiple - rest) % multiple
    extra_input[dim] = extra_kernel[dim] * form.axes[dim].kernel_dilation
    if kernel.method == "SLIC":
        extra_input = [e + max(0, a.padding) for e, a in zip(extra_input, form.axes, strict=True)]
    padded_kernel = product(tuple(k + e for k, e in zip(piece.kernel, extra_kernel, strict=True)))
    padded_field = product(tuple(f + e for f, e in zip(piece.field, extra_input, strict=True)))
    groups = piece.groups * kernel.group_grouping
    inner, outer = piece.in_groups * kernel.in_grouping, piece.out_groups * kernel.out_grouping
    weights = groups * (padded_kernel - product(piece.kernel)) * inner * outer
    inputs = groups * piece.batch * (padded_field - product(piece.field)) * inner
    return weights, inputs


@lru_cache(maxsize=4096)
def reduce_depths(depth: int) -> tuple[int, ...]:
    """Partial sums added in each stage: one stage below 16, two below 125, else three, of as equal depths as can be
    (PopLibs ``lib/poplin/ConvReducePlan.cpp``)."""
    stages = 3 if depth >= 125 else 2 if depth >= 16 else 1
    left, depths = depth, []
    for goal in (*_stage_goals(depth, stages)[0], 1):
        now = -(-left // goal)
        if now > 1:
            depths.append(now)
        left = -(-left // now)
    return tuple(depths)


def _stage_goals(depth: int, stages: int) -> tuple[tuple[int, ...], float]:
    """(partial sums left after each stage but the last, average messages per tile)."""
    if stages == 1:
        return (), float(depth)
    low = int(float(depth) ** ((stages - 1) / stages))
    plans = []
    for left in (low, low + 1):
        goals, cost = _stage_goals(left, stages - 1)
        plans.append(((left, *goals), cost + depth / left))
    return plans[0] if plans[0][1] < plans[1][1] else plans[1]


#: Cycles per loop of ConvReduce besides the sums, by bytes of partial sums and result: (single input, several inputs).
_REDUCE_LOOP = {(4, 4): (8, 7), (4, 2): (7, 6), (2, 4): (10, 9), (2, 2): (9, 8)}


def _reduce_vertex(outputs: np.ndarray, depth: np.ndarray, types: tuple[int, int], chip: Chip) -> np.ndarray:
    """Tile cycles of one ConvReduce of ``depth`` partial sums to ``outputs`` elements; ``types``: bytes in and out.

    The partial sums come as one input where they fit into a sixteenth of the memory in whole elements, else as many.
    """
    size, workers = types[0], chip.workers
    width, (one, many) = (4 if size == 4 else 8), _REDUCE_LOOP[types]
    loops, rest = outputs // width, outputs % width
    single = 33 + workers * (20 + (2 * (depth - 1) + one) * ceil(loops, workers))
    loops = loops + (rest & 1) + (rest >> 1 & 1) + (rest >> 2)
    tail = np.where(rest > 0, 2 * depth + (13 if size == 4 else 11), 3 * depth + many)
    shares = loops // workers
    multi = workers * (32 + shares * (3 * depth + many) + np.where(loops > shares * workers, tail, 0))
    element = chip.memory_element_bytes
    moved = ceil((depth - 1) * outputs * size, element) * element
    return np.where((rest == 0) & (moved * 16 < chip.bytes_per_tile), single, multi)


def _reduction(partials: np.ndarray, depths: np.ndarray, kernel: Kernel, out_size: int, chip: Chip) -> np.ndarray:
    """Rows: exchange cycles of later stages, reduce (or cast) cycles, temporary bytes, stages."""
    size, rate = kernel.partial_size, chip.exchange_bytes_per_cycle
    result = np.zeros((4, len(partials)), dtype=np.int64)
    several = depths > 1
    if size != out_size:
        vectors = ceil(ceil(partials, chip.workers), 8 // max(size, out_size))
        result[1] = np.where(several, 0, chip.workers * (26 + vectors))
    result[2] = np.where(several, partials * size, 0)
    values, which = np.unique(depths, return_inverse=True)
    plans = [reduce_depths(int(depth)) for depth in values]
    stages = np.array([len(plan) for plan in plans])[which]
    result[3] = stages
    sent, left = partials, ceil(partials, depths) * depths
    for stage in range(max(len(plan) for plan in plans)):
        fan = np.array([plan[stage] if stage < len(plan) else 1 for plan in plans])[which]
        active = stages > stage
        if stage:
            result[0] += np.where(active, ceil(sent * size, rate), 0)
        sent, left = ceil(sent, fan), ceil(left, fan)
        final = _reduce_vertex(left, fan, (size, out_size), chip)
        between = final if size == out_size else _reduce_vertex(left, fan, (size, size), chip)
        result[1] += np.where(active, np.where(stages == stage + 1, final, between), 0)
    return result


def _slice_cycles(elements: np.ndarray, size: int, chip: Chip) -> np.ndarray:
    """A dynamic slice or update of ``elements`` on a tile (reference 2.4; whole vectors only)."""
    each = ceil(elements, chip.workers)
    return 25 + chip.workers * (39 + 24 + 2 * (each // chip.vector_width(size)))


#: From so many cycles on every tile at least, a plan that leaves half of the tiles idle is not looked at.
_MUCH = 8192

#: How many candidates, the most promising, are tried in serial passes.
_SERIAL = 8

#: How many candidates are worked out fully before the others are compared with the best of them.
_FIRST = 64


# -- the search ------------------------------------------------------------------------------------------------------


def _tile_elements(form: Form, kernel: Kernel, piece: Piece) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, weights and partial sums of the piece on the fullest tile."""
    groups = piece.groups * kernel.group_grouping
    inner, outer = piece.in_groups * kernel.in_grouping, piece.out_groups * kernel.out_grouping
    reads = product(tuple(a.reads(f, k) for a, f, k in zip(form.axes, piece.field, piece.kernel, strict=True)))
    inputs = reads * piece.batch * inner * groups
    weights = product(piece.kernel) * inner * outer * groups
    return inputs, weights, product(piece.field) * piece.batch * outer * groups


def _held_bytes(form: Form, kernel: Kernel, grid: _Grid, types: _Types) -> np.ndarray:
    inputs, weights, partials = _tile_elements(form, kernel, grid.piece)
    return (inputs + weights) * types.input + partials * kernel.partial_size


def _operand_terms(
    form: Form, kernel: Kernel, grid: _Grid, compute: np.ndarray, types: _Types, serial: int, chip: Chip
) -> dict[str, np.ndarray]:
    """Every term but the reduction, by the names of :class:`ConvolutionPlan`; ``total`` and the temporary bytes are
    therefore least values."""
    rate, none = chip.exchange_bytes_per_cycle, np.zeros_like(compute)
    inputs, weights, partials = _tile_elements(form, kernel, grid.piece)
    sharers = product(grid.field) * grid.batch
    moved_inputs = (inputs - inputs // grid.out_split) * types.input
    moved_weights = (weights - weights // sharers) * types.input
    paired = np.where(grid.out_split % 2 == 0, 2 * rate, rate)
    zero_weights, zero_inputs = (z * types.input for z in _zero_padding(form, kernel, grid))
    shift, copy, shifted, shift_bytes = _transform(form, kernel, grid.tiles, types, chip)
    arrive, depth = ceil(moved_inputs, paired), product(grid.kernel) * grid.in_split
    once, each = (arrive, none) if serial > 1 else (none, arrive)
    bytes_once, bytes_each = (moved_inputs, none) if serial > 1 else (none, moved_inputs)
    own = partials * kernel.partial_size
    extra = shift_bytes // 2 + moved_inputs + moved_weights + np.where(depth > 1, 2 * own, 0)
    if kernel.method == "SLIC":
        own = own + ceil(own, grid.piece.groups) + 200
    zeros = zero_weights + zero_inputs
    terms = {
        "transform_exchange": shift,
        "transform": copy,
        "exchange_operands": ceil(moved_weights, rate) + each,
        "tile_transform": ceil(zero_weights, rate) + ceil(zero_inputs, paired),
        "compute": compute,
        "exchange_partials": ceil(partials * kernel.partial_size, rate),
    }
    if serial > 1:
        held = form.groups * form.in_channels * form.out_channels * math.prod(a.kernel for a in form.axes)
        share = ceil(ceil(np.full_like(none, held), grid.tiles), serial)
        terms["dynamic_slice"] = _slice_cycles(share, types.input, chip)
        written = ceil(ceil(partials, depth), serial)
        terms["dynamic_update"] = _slice_cycles(written, kernel.partial_size, chip)
    total = serial * np.sum(np.stack(list(terms.values())), axis=0) + once
    return {"dynamic_slice": none, "dynamic_update": none} | terms | {
        "broadcast": once,
        "bytes_transform": shifted,
        "bytes_broadcast": bytes_once,
        "bytes_operands": moved_weights + bytes_each,
        "bytes_zeros": zeros,
        "bytes_partials": np.where(depth > 1, partials * kernel.partial_size, 0),
        "temp_bytes": np.maximum(shift_bytes, zeros + (inputs + weights) * types.input + own),
        "extra_bytes": extra + zeros,
        "total": total,
    }  # fmt: skip


def _with_reduction(
    terms: dict[str, np.ndarray], form: Form, kernel: Kernel, grid: _Grid, types: _Types, serial: int, chip: Chip
) -> dict[str, np.ndarray]:
    """``terms`` with the reduction of the partial sums."""
    depth = product(grid.kernel) * grid.in_split
    partials = _tile_elements(form, kernel, grid.piece)[2]
    exchange, reduce, held, stages = _reduction(partials, depth, kernel, types.output, chip)
    return terms | {
        "exchange_partials": terms["exchange_partials"] + exchange,
        "reduce": reduce,
        "temp_bytes": np.maximum(terms["temp_bytes"], held),
        "reduce_stages": stages,
        "total": terms["total"] + serial * (exchange + reduce),
    }


@dataclass(frozen=True)
class _Found:
    """The best candidate so far."""

    cost: tuple[int, int, int]
    form: Form
    kernel: Kernel
    serial: int
    grid: _Grid
    terms: dict[str, np.ndarray]


def _best(
    form: Form, kernel: Kernel, types: _Types, serial: int, limit: int | None, bound: int, chip: Chip
) -> _Found | None:
    """The cheapest plan below ``bound`` cycles for one form and vertex, or (no ``limit``) the one of least memory."""
    least = least_cycles(form, kernel, chip)
    fewest = max(chip.tiles * least / bound, chip.tiles / 2 if least > _MUCH else 0)
    grid = _grid(form, kernel, chip, serial, fewest)
    if grid is None:
        return None
    chosen = np.arange(len(grid.tiles))
    if limit is not None and least > _MUCH:
        chosen = np.nonzero(_held_bytes(form, kernel, grid, types) <= limit)[0]
        if not len(chosen):
            return None
        grid = grid.take(chosen)
    compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
    if limit is not None:
        chosen = np.nonzero(compute * serial <= bound)[0]
        if not len(chosen):
            return None
        grid, compute = grid.take(chosen), compute[chosen]
    terms = _operand_terms(form, kernel, grid, compute, types, serial, chip)
    if limit is None:
        return _best_of(np.arange(len(compute)), terms, form, kernel, grid, types, serial, limit, chip)
    possible = np.nonzero((terms["total"] <= bound) & (terms["temp_bytes"] <= limit))[0]
    if len(possible) > _FIRST:
        nearest = possible[np.argpartition(terms["total"][possible], _FIRST)[:_FIRST]]
        first = _best_of(nearest, terms, form, kernel, grid, types, serial, limit, chip)
        if first is not None:
            possible = possible[terms["total"][possible] <= first.cost[0]]
    return _best_of(possible, terms, form, kernel, grid, types, serial, limit, chip)


def _best_of(
    chosen: np.ndarray, terms: dict[str, np.ndarray], form: Form, kernel: Kernel, grid: _Grid, types: _Types,
    serial: int, limit: int | None, chip: Chip,
) -> _Found | None:  # fmt: skip
    """The best of the ``chosen`` candidates when all terms are known."""
    if not len(chosen):
        return None
    grid = grid.take(chosen)
    terms = {name: values[chosen] for name, values in terms.items()}
    terms = _with_reduction(terms, form, kernel, grid, types, serial, chip)
    total, temp = terms["total"], terms["temp_bytes"]
    if limit is None:
        index = int(np.lexsort((total, temp))[0])
        cost = (int(temp[index]), int(total[index]), int(grid.tiles[index]))
    else:
        index = int(np.lexsort((grid.tiles, temp, np.where(temp <= limit, total, np.iinfo(np.int64).max)))[0])
        if temp[index] > limit:
            return None
        cost = (int(total[index]), int(temp[index]), int(grid.tiles[index]))
    only = np.array([index])
    return _Found(cost, form, kernel, serial, grid.take(only), {name: v[only] for name, v in terms.items()})


def _search(
    candidates: Iterable[tuple[float, Form, Kernel]], types: _Types, serials: Sequence[int], limit: int | None,
    best: _Found | None, chip: Chip,
) -> _Found | None:  # fmt: skip
    """The best of ``best`` and all candidates (sorted, the most promising first) with all serial splits."""
    for least, form, kernel in candidates:
        for serial in serials:
            if form.out_channels % serial:
                continue
            bound = best.cost[0] if best and limit is not None else int(np.iinfo(np.int64).max)
            if least > bound:
                return best
            found = _best(form, kernel, types, serial, limit, bound, chip)
            if found and (best is None or found.cost < best.cost):
                best = found
    return best


def _candidates(
    changed: Iterable[Form], types: _Types, chip: Chip, bound: float, *, mac: bool
) -> list[tuple[float, Form, Kernel]]:
    """(cycles that it takes at least, form, vertex) of what may take ``bound`` cycles or fewer, the most promising
    first; ``mac``: the HMAC vertices, else all others."""
    find, tiles, found = hmac_kernels if mac else kernels, np.array([chip.tiles]), []
    for form in changed:
        for kernel in find(form, chip, types.input, types.partial, types.output):
            least = least_cycles(form, kernel, chip)
            if least > bound:
                continue
            exchange, copy, *_ = _transform(form, kernel, tiles, types, chip)
            found.append((least + int(exchange[0]) + int(copy[0]), form, kernel))
    return sorted(found, key=lambda candidate: candidate[0])


def _serial_plan(candidates: list[tuple[float, Form, Kernel]], types: _Types, limit: int, chip: Chip) -> _Found | None:
    """The cheapest plan in serial passes that fits; else with a limit doubled up to twice the tile; else the plan of
    least memory."""
    serials, few = [2**n for n in range(1, 11)], candidates[:_SERIAL]
    found = _search(few, types, serials, limit, None, chip) or _search(candidates, types, serials, limit, None, chip)
    while found is None and limit < 2 * chip.bytes_per_tile:
        limit *= 2
        found = _search(few, types, (1, *serials), limit, None, chip)
    return found or _search(few, types, (1, *serials), None, None, chip)


def _plan(form: Form, types: _Types, proportion: float, chip: Chip) -> ConvolutionPlan:
    """The cheapest plan that fits: first in one pass, then in serial passes, then with more and more memory."""
    changed = forms(form, types.input)
    candidates = _candidates(changed, types, chip, math.inf, mac=False)
    limit = int(proportion * chip.bytes_per_tile)
    found = _search(candidates, types, (1,), limit, None, chip)
    bound = found.cost[0] if found else math.inf
    reachable = [form for form in changed if mac_cycles(form, chip, types.input) <= bound]
    dots = _candidates(reachable, types, chip, bound, mac=True)
    found = _search(dots, types, (1,), limit, found, chip)
    if found is None:
        found = _serial_plan([c for c in candidates if c[2].method == "AMP"], types, limit, chip)
    if found is None:
        raise ValueError(f"no plan at all for {form}")
    return _explained(found)


def _explained(found: _Found) -> ConvolutionPlan:
    """The one candidate of ``found`` as a plan."""
    grid, form, kernel = found.grid, found.form, found.kernel
    return ConvolutionPlan(
        pass_=form.pass_,
        vertex=kernel.name,
        method=kernel.method,
        swapped=form.swapped,
        expanded=form.expanded,
        flattened=form.flattened,
        combined=form.combined,
        field=tuple(int(s[0]) for s in grid.field),
        batch=int(grid.batch[0]),
        groups=int(grid.groups[0]),
        kernel=tuple(int(s[0]) for s in grid.kernel),
        out_split=int(grid.out_split[0]),
        in_split=int(grid.in_split[0]),
        serial=found.serial,
        units=kernel.units,
        group_grouping=kernel.group_grouping,
        in_grouping=kernel.in_grouping,
        out_grouping=kernel.out_grouping,
        tiles=int(grid.tiles[0]),
        **{name: int(values[0]) for name, values in found.terms.items()},
    )


@lru_cache(maxsize=4096)
def _plan_once(
    chip: Chip, form: Form, in_size: int, partial_size: int, out_size: int, proportion: float
) -> ConvolutionPlan:
    return _plan(form, _Types(in_size, partial_size, out_size), proportion, chip)


def plan_convolution(chip: Chip, convolution: Convolution) -> ConvolutionPlan:
    """The cheapest plan for one pass of a convolution on ``chip``; the same shape is planned once.

    When nothing fits into ``available_memory_proportion`` of a tile, the output channels are computed in serial passes;
    when that does not help, the limit is doubled up to twice the tile, and then the plan of least memory is taken.

    Raises:
        ValueError: an unknown pass, a dimension below 1, groups that do not divide the channels, a kernel larger than
            the padded input, a proportion outside (0, 1], half-precision partial sums of float inputs.
    """
    proportion = convolution.available_memory_proportion
    if not 0 < proportion <= 1:
        raise ValueError(f"availableMemoryProportion is {proportion}; allowed: above 0, at most 1")
    sizes = (convolution.input_dtype.size, convolution.partials_dtype.size, convolution.output_dtype.size)
    if sizes[0] not in (2, 4) or sizes[1] not in (2, 4) or sizes[1] < sizes[0] or sizes[2] not in (2, 4):
        raise ValueError(
            f"convolution {describe(convolution)}: inputs {convolution.input_dtype}, partials "
            f"{convolution.partials_dtype} and result {convolution.output_dtype} are not possible; allowed: 16 or 32 "
            "bit floats, partials at least as wide as the inputs"
        )
    return _plan_once(chip, form_of(convolution), *sizes, proportion)


def plan_product(chip: Chip, item: MatMul) -> ConvolutionPlan:
    """The cheapest plan for a matrix product by the search for convolutions, of which it is the 1x1 case.

    Unlike :func:`~ipuperf.lowering.planner.plan_matmul` it knows the MAC vertices, the rearrangements of operands and
    result and serial passes with the inputs in place; no joint plans of the passes of a layer either.

    Raises:
        ValueError: an unknown pass, a dimension below 1, a proportion outside (0, 1].
    """
    form = product_form(item.groups, item.m, item.k, item.n, item.pass_)
    sizes = (item.input_dtype.size, item.partials_dtype.size, item.output_dtype.size)
    proportion = item.available_memory_proportion
    if not 0 < proportion <= 1:
        raise ValueError(f"availableMemoryProportion is {proportion}; allowed: above 0, at most 1")
    return _plan_once(chip, form, *sizes, proportion)
