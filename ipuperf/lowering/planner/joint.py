"""Joint plans of a fully connected layer: one layout of weights and activations for its three passes.

PopLibs plans the forward product of a layer in training twice: alone, and together with the gradient of its input
(backward) and of its weights (update), whose splits then follow from those of the forward pass; the cheaper way for all
three is taken (PopLibs ``lib/poplin/ConvPlan.cpp`` createPlan, ``ConvModel.cpp`` addBwdEstimates and addWuEstimates).

A joint plan exchanges the operands, so that the weights are the convolution's input: ``n`` the field, ``k`` the input
and ``m`` the output channels. Each weight lies on one tile only, therefore the output channels are split in serial
passes at most. Backward, field and input channels change places; in the update, input and output channels do. Their
groupings change places too, which leaves few vertices.

Rearrangements that fall away: of the gradient backward, of the result in the update, of weights before serial slices.
The inputs of the derived passes do not share the exchange bus of two tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .bounds import least_bytes, least_reduction
from .candidates import serial_counts
from .form import ONCE, POINT, Axis, Form, Passes, Types, flatten_field, swap
from .splits import Grid, parallel_rows
from .terms import least_transform, operand_terms, slices_at_least, with_reduction
from .vertices import (
    Kernel,
    Piece,
    amp_units,
    inner_cycles,
    kernels,
    least_cycles,
    loop_cycles,
    start_cycles,
    step_cycles,
    turn_cycles,
    vertex_cycles,
    work_asked,
)

if TYPE_CHECKING:
    from ipuperf.machine import Chip


@dataclass(frozen=True)
class LayerPass:
    """One pass of a joint plan: its form and vertex; ``cut`` has the groupings in which channels go to the tiles."""

    form: Form
    kernel: Kernel
    cut: Kernel


@dataclass(frozen=True)
class Layer:
    """The cheapest joint plan: its passes in the order of ``TRAINING``, with a grid of one candidate and its terms
    each; ``total``: cycles of all three, ``temp_bytes``: the most on a tile in any."""

    total: int
    temp_bytes: int
    passes: Passes
    parts: tuple[LayerPass, ...]
    grids: tuple[Grid, ...]
    terms: tuple[dict[str, np.ndarray], ...]


def _forward_kernels(form: Form, chip: Chip, types: Types, limit: float) -> Iterator[Kernel]:
    """Vertices of the forward pass whose input grouping can be the output grouping of the update: AMP and HMAC with
    whole numbers of AMP units, HMAC with single channels, outer products. No HMAC where nothing of it fits."""
    for kernel in kernels(form, chip, types.input, types.partial, types.output):
        if kernel.method == "OUTER" or (kernel.method == "AMP" and kernel.in_grouping % kernel.units == 0):
            yield kernel
    outer = 1 if types.partial == 4 else 2
    unpadded = Kernel("HMAC", 0, 1, 1, outer, 1, types.input, types.partial)
    if least_bytes(form, unpadded, types, ONCE, chip.tiles) > limit:
        return
    units, step = amp_units(chip, types.input, types.partial), 4 // types.input
    channels, before = -(-form.in_channels // step) * step, 0
    whole = math.lcm(units, step)
    for size in (*((1,) if step == 1 < units else ()), *range(whole, channels + 1, whole)):
        groups = -(-channels // size)
        if groups != before:
            before = groups
            yield replace(unpadded, in_grouping=size)


def _best_amp(form: Form, chip: Chip, types: Types, groupings: tuple[int, int] | None) -> Kernel | None:
    """The most promising AMP vertex (most products per cycle that are no padding), of certain groupings or any."""

    def useful(kernel: Kernel) -> float:
        inner = -(-form.in_channels // kernel.in_grouping) * kernel.in_grouping
        outer = -(-form.out_channels // kernel.out_grouping) * kernel.out_grouping
        return form.in_channels * form.out_channels / (inner * outer)

    found = [
        kernel
        for kernel in kernels(form, chip, types.input, types.partial, types.output)
        if kernel.method == "AMP" and groupings in (None, (kernel.in_grouping, kernel.out_grouping))
    ]
    return max(
        found, key=lambda k: (k.macs_per_cycle * useful(k), useful(k), -k.partial_size, -k.in_grouping), default=None
    )


def layer_passes(form: Form, kernel: Kernel, chip: Chip, types: Types) -> tuple[LayerPass, ...] | None:
    """The three passes for a forward vertex, or ``None`` when a derived pass has no vertex."""
    inner, outer = kernel.in_grouping, kernel.out_grouping
    size = -(-form.in_channels // inner) * inner
    forward = replace(form, grain=inner, joint=True)
    backward = replace(
        forward, in_channels=form.axes[-1].output, axes=(POINT, Axis(size, 1, size)), pass_="fcbwd"
    )  # fmt: skip
    update = replace(forward, in_channels=form.out_channels, out_channels=form.in_channels, pass_="fcwu")
    dots = Kernel("HMAC", 0, 1, inner, outer, 1, types.input, types.partial)
    back = _best_amp(backward, chip, types, (inner, outer)) if kernel.method == "AMP" else dots
    weights: Kernel | None
    if update.in_channels == 1 and outer == 1:
        weights = Kernel("OUTER", 0, 1, 1, inner, 1, types.input, types.input)
    elif inner != 1:
        weights = _best_amp(update, chip, types, (outer, inner) if kernel.method == "AMP" else None)
    else:
        weights = replace(dots, in_grouping=outer, out_grouping=1)
    if back is None or weights is None:
        return None
    return (
        LayerPass(forward, kernel, kernel),
        LayerPass(backward, back, back),
        LayerPass(update, weights, replace(weights, in_grouping=outer, out_grouping=inner)),
    )


@dataclass(frozen=True)
class _LeastCycles:
    """Cycles that a pass takes at least but for rearrangements and slices, one entry per candidate: of vertices and
    partial sums (``work``), of the exchange of its weights and of its inputs."""

    work: np.ndarray
    weights: np.ndarray
    inputs: np.ndarray


@dataclass(frozen=True)
class _Splits:
    """Splits of a layer, one entry per candidate: of groups, forward input channels and field, the largest pieces of
    the three in groupings and grains, and the tiles used; ``outer``: groupings of output channels in a serial pass."""

    groups: np.ndarray
    inner: np.ndarray
    field: np.ndarray
    held: np.ndarray
    rows: np.ndarray
    places: np.ndarray
    tiles: np.ndarray
    outer: int

    def take(self, chosen: np.ndarray) -> _Splits:
        """The candidates with these indices."""
        return _Splits(self.groups[chosen], self.inner[chosen], self.field[chosen], self.held[chosen],
                       self.rows[chosen], self.places[chosen], self.tiles[chosen], self.outer)  # fmt: skip

    def least(self, number: int, part: LayerPass, types: Types, chip: Chip) -> _LeastCycles:
        """What a pass (by its number in ``TRAINING``) takes at least in each serial pass."""
        form, kernel, cut, rate = part.form, part.kernel, part.cut, chip.exchange_bytes_per_cycle
        one = np.ones_like(self.tiles)
        across, field, out, depth, rows, columns = (
            (self.places, self.field, 1, self.inner, self.rows, self.outer),
            (self.rows, self.inner, 1, self.field, self.places, self.outer),
            (self.places, self.field, self.inner, one, self.outer, self.rows),
        )[number]
        positions, groups = across * float(form.grain), self.held * cut.group_grouping
        inputs, outputs = groups * (rows * cut.in_grouping), columns * cut.out_grouping
        steps = self.held * rows * columns
        each = loop_cycles(form, kernel, chip) + turn_cycles(form, kernel)
        vertex = steps * (positions * step_cycles(form, kernel) + each)
        sums = positions * groups * (outputs * kernel.partial_size / rate)
        reduction = least_reduction(depth, kernel, types, ONCE, chip)
        weights = inputs * outputs * (1 - 1 / field) * (types.input / rate)
        reads = np.minimum(positions, form.axes[-1].whole) * inputs
        shared = reads * (1 - 1 / out) * (types.input / rate)
        return _LeastCycles(vertex + sums + reduction + start_cycles(form, kernel, chip), weights, shared)

    def grid(self, number: int, part: LayerPass, chip: Chip) -> Grid:
        """The candidates as a grid of a pass (by its number in ``TRAINING``)."""
        one, grain = np.ones_like(self.tiles), part.form.grain
        outer = one * self.outer
        across, field, inner, out, in_groups, out_groups = (
            (self.places, self.field, self.inner, one, self.rows, outer),
            (self.rows, self.inner, self.field, one, self.places, outer),
            (self.places, self.field, one, self.inner, outer, self.rows),
        )[number]
        around = inner_cycles(one, (one, across * grain), part.form, part.kernel, chip)
        piece = Piece(one, (one, across * grain), (one, one), self.held, in_groups, out_groups)
        return Grid(one, (one, field), self.groups, (one, one), out, inner, self.tiles, piece, around, field, inner)


def _splits(part: LayerPass, passes: Passes, chip: Chip) -> _Splits | None:
    """Every useful split of a layer by its forward pass."""
    form, kernel = part.form, part.kernel
    outer = -(-form.out_channels // kernel.out_grouping)
    share = -(-outer // passes.out)
    if -(-outer // share) != passes.out:
        return None
    sizes = (form.groups, -(-form.in_channels // kernel.in_grouping), form.positions(1) // form.grain)
    (groups, inner, field), (held, rows, places), tiles = parallel_rows(sizes, chip.tiles)
    return _Splits(groups, inner, field, held, rows, places, tiles, share)


def _least(parts: tuple[LayerPass, ...], types: Types, chip: Chip) -> float:
    """No joint plan of these vertices takes less for all three passes."""
    return _least_exchange(parts, types, chip) + sum(
        sum(least_cycles(part.form, part.kernel, chip))
        + least_transform(part.form, part.kernel, types, chip, part.cut)[0]
        for part in parts
    )


def _least_exchange(parts: tuple[LayerPass, ...], types: Types, chip: Chip) -> float:
    """Cycles that activations and partial sums of the forward and backward pass travel at least.

    The rows M of the batch are not split, so with f parts of the outputs N and i of the inputs K a tile gets M K / i
    elements (half of them at least, unless f is 1) and sends M N / f partial sums; f i is at most the number of tiles,
    so the sum is least at the geometric mean of the two. The backward pass is the same with N and K exchanged.
    """
    form, rate = parts[0].form, chip.exchange_bytes_per_cycle
    rows, inner, outer = form.out_channels, form.in_channels, form.positions(1)
    share = form.groups / chip.tiles
    found = 0.0
    for part, whole in zip(parts[:2], (outer, inner), strict=True):
        both = types.input * part.kernel.partial_size / 2
        split = 2 * rows * math.sqrt(inner * outer * both * share)
        found += min(split, rows * whole * part.kernel.partial_size * max(1.0, share)) / rate
    return found


def _least_of_splits(
    splits: _Splits, parts: tuple[LayerPass, ...], passes: Passes, types: Types, chip: Chip
) -> tuple[np.ndarray, np.ndarray]:
    """Cycles that each candidate takes at least for all three passes: with and without the operands of the update."""
    least: np.ndarray | float = 0.0
    operands: np.ndarray | float = 0.0
    for number, part in enumerate(parts):
        total, later, _ = least_transform(part.form, part.kernel, types, chip, part.cut)
        taken = splits.least(number, part, types, chip)
        operands = passes.count * taken.weights + (1 if passes.ahead else passes.count) * taken.inputs
        moved = passes.count * later + (1 if passes.ahead else passes.count) * (total - later)
        slices = passes.count * slices_at_least(chip) if passes.count > 1 else 0
        least = least + passes.count * taken.work + operands + (moved + slices)
    return np.asarray(least), np.asarray(least - operands)


def cheapest_splits(
    parts: tuple[LayerPass, ...], passes: Passes, types: Types, limit: float, bound: tuple[float, float], chip: Chip
) -> tuple[float, Layer | None]:
    """(least cycles whatever the memory, but for the operands of the update; the cheapest splits that fit and are
    better than ``bound`` (cycles, bytes)). Splits that cannot keep to the bound are dropped; where serial passes cannot
    either, the least cycles are a lower bound of them."""
    splits = _splits(parts[0], passes, chip)
    if splits is None:
        return np.inf, None
    least, free = _least_of_splits(splits, parts, passes, types, chip)
    first = float(free.min())
    serial = passes == ONCE and parts[0].kernel.method == "AMP" and first + 6 * slices_at_least(chip) <= bound[0]
    if not serial:
        near = np.flatnonzero(least <= bound[0] * (1 + 1e-9))
        if not len(near):
            return first, None
        splits = splits.take(near)
    grids = [splits.grid(number, part, chip) for number, part in enumerate(parts)]
    work = [vertex_cycles(grid.piece, grid.inner, part.form, part.kernel, chip)
            for grid, part in zip(grids, parts, strict=True)]  # fmt: skip
    taken = passes.count * (work[0] + work[1] + work[2])
    asked = [passes.count * each * splits.tiles >= work_asked(part.form, part.kernel)
             for each, part in zip(work, parts, strict=True)]  # fmt: skip
    kept = np.flatnonzero((taken <= bound[0]) & asked[0] & asked[1] & asked[2])
    if not len(kept):
        return float(taken.min()) if serial else first, None
    grids, work = [grid.take(kept) for grid in grids], [each[kept] for each in work]
    every = [operand_terms(part.form, part.kernel, grid, compute, types, passes, chip, part.cut)
             for part, grid, compute in zip(parts, grids, work, strict=True)]  # fmt: skip
    if not serial:
        total, most = _all_three(every)
        kept = np.flatnonzero((total <= bound[0]) & (most <= limit))
        if not len(kept):
            return first, None
        grids = [grid.take(kept) for grid in grids]
        every = [{name: values[kept] for name, values in terms.items()} for terms in every]
    every = [with_reduction(terms, part.kernel, grid, types, passes, chip)
             for part, grid, terms in zip(parts, grids, every, strict=True)]  # fmt: skip
    total, most = _all_three(every)
    if serial:
        first = float((total - every[-1]["exchange_operands"]).min())
    fitting = np.flatnonzero(most <= limit)
    if not len(fitting):
        return first, None
    order = np.lexsort((grids[0].tiles[fitting], most[fitting], total[fitting]))
    only = fitting[order[:1]]
    cost = (int(total[only[0]]), int(most[only[0]]))
    chosen = tuple({name: values[only] for name, values in terms.items()} for terms in every)
    layer = Layer(*cost, passes, parts, tuple(grid.take(only) for grid in grids), chosen)
    return first, layer if cost < bound else None


def _all_three(every: Sequence[dict[str, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(cycles of all passes, the most temporary bytes in any)."""
    one, two, three = every
    most = np.maximum(np.maximum(one["temp_bytes"], two["temp_bytes"]), three["temp_bytes"])
    return one["total"] + two["total"] + three["total"], most


def joint_plan(chip: Chip, product: Form, types: Types, limit: float, bound: float = np.inf) -> Layer | None:
    """The joint plan of the fully connected layer whose forward pass is ``product`` that takes the fewest cycles in
    ``limit`` bytes on a tile; ``None`` when none of at most ``bound`` cycles fits, or when result and operands differ
    in type (PopLibs has no joint plan then).

    Serial passes, of which not every number is tried and those of AMP vertices only, pay where memory is short, else
    hardly: the weights are on their tiles anyway, so that only operands of the update arrive in less time (once, when
    ahead of the passes).
    """
    if types.input != types.output:
        return None
    form = flatten_field(swap(product))
    layers = [
        (_least(parts, types, chip), parts)
        for kernel in _forward_kernels(form, chip, types, limit)
        if sum(least_cycles(form, kernel, chip)) <= bound and (parts := layer_passes(form, kernel, chip, types))
    ]
    layers.sort(key=lambda layer: layer[0])
    serial = serial_counts(form.out_channels)
    best: Layer | None = None
    least: tuple[float, float] = (bound, np.inf)
    later: list[tuple[float, int]] = []
    for number, (cycles, parts) in enumerate(layers):
        if cycles > least[0]:
            break
        free, found = cheapest_splits(parts, ONCE, types, limit, least, chip)
        best, least = (found, (found.total, found.temp_bytes)) if found else (best, least)
        if parts[0].kernel.method == "AMP":
            later.append((free, number))
    for free, number in sorted(later):
        for count in serial:
            if free + 3 * count * slices_at_least(chip) > least[0]:
                break
            for ahead in (True, False):
                _, found = cheapest_splits(layers[number][1], Passes(out=count, ahead=ahead), types, limit, least, chip)
                best, least = (found, (found.total, found.temp_bytes)) if found else (best, least)
    return best
