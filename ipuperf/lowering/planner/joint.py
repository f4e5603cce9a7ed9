"""Joint plans of a fully connected layer: one layout of weights and activations for its three passes.

PopLibs plans the forward product of a layer in training twice: alone, and together with the gradient of its input
(backward) and of its weights (update), whose splits then follow from those of the forward pass; the cheaper way for all
three is taken (PopLibs ``lib/poplin/ConvPlan.cpp`` createPlan, ``ConvModel.cpp`` addBwdEstimates and addWuEstimates).

A joint plan exchanges the operands, so that the weights are the convolution's input: ``n`` the field, ``k`` the input
and ``m`` the output channels. Each weight lies on one tile only, therefore the output channels are split in serial
passes at most. Backward, field and input channels change places; in the update, input and output channels do. Their
groupings change places too, which leaves few vertices.

Some rearrangements are not needed: of the gradient in the backward pass, of the result in the update, and of weights
before serial slices. The inputs of the derived passes do not share the exchange bus of two tiles.
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
from .kernels import Kernel, amp_units, kernels
from .splits import Grid, parallel_rows
from .terms import least_transform, operand_terms, slices_at_least, with_reduction
from .vertex_bounds import least_cycles, loop_cycles, start_cycles, step_cycles, turn_cycles, work_asked
from .vertices import Piece, inner_cycles, vertex_cycles

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
    """A joint plan: its passes in the order of ``TRAINING``, each with a grid of one candidate and its terms.

    ``total``: cycles of all three passes; ``temp_bytes``: the largest of their temporary bytes on a tile.
    """

    total: int
    temp_bytes: int
    passes: Passes
    parts: tuple[LayerPass, ...]
    grids: tuple[Grid, ...]
    terms: tuple[dict[str, np.ndarray], ...]


def _forward_kernels(form: Form, chip: Chip, types: Types, limit: float) -> Iterator[Kernel]:
    """Vertices of the forward pass whose input grouping can be the output grouping of the update.

    These are AMP and HMAC with whole numbers of AMP units, HMAC with single channels, and outer products. HMAC is left
    out where none of its pieces fits.
    """
    for kernel in kernels(form, chip, types.input, types.partial, types.output):
        if kernel.method == "OUTER" or (kernel.method == "AMP" and kernel.in_grouping % kernel.units == 0):
            yield kernel
    out_grouping = 1 if types.partial == 4 else 2
    # A piece takes the fewest bytes with single channels, so this vertex stands for every HMAC.
    unpadded = Kernel("HMAC", 0, 1, 1, out_grouping, 1, types.input, types.partial)
    if least_bytes(form, unpadded, types, ONCE, chip.tiles) > limit:
        return
    units, step = amp_units(chip, types.input, types.partial), 4 // types.input
    channels, last_groups = -(-form.in_channels // step) * step, 0
    # The input grouping becomes the output grouping of an AMP vertex in the update, hence whole units.
    whole = math.lcm(units, step)
    for size in (*((1,) if step == 1 < units else ()), *range(whole, channels + 1, whole)):
        groups = -(-channels // size)
        # Of groupings with equal numbers of groups, the smallest pads least.
        if groups != last_groups:
            last_groups = groups
            yield replace(unpadded, in_grouping=size)


def _best_amp(form: Form, chip: Chip, types: Types, groupings: tuple[int, int] | None) -> Kernel | None:
    """The AMP vertex with the most products per cycle that are no padding, with given ``groupings`` or any."""

    def useful(kernel: Kernel) -> float:
        padded_inputs = -(-form.in_channels // kernel.in_grouping) * kernel.in_grouping
        padded_outputs = -(-form.out_channels // kernel.out_grouping) * kernel.out_grouping
        return form.in_channels * form.out_channels / (padded_inputs * padded_outputs)

    vertices = [
        kernel
        for kernel in kernels(form, chip, types.input, types.partial, types.output)
        if kernel.method == "AMP" and groupings in (None, (kernel.in_grouping, kernel.out_grouping))
    ]
    return max(
        vertices,
        key=lambda vertex: (
            vertex.macs_per_cycle * useful(vertex),
            useful(vertex),
            -vertex.partial_size,
            -vertex.in_grouping,
        ),
        default=None,
    )


def layer_passes(form: Form, kernel: Kernel, chip: Chip, types: Types) -> tuple[LayerPass, ...] | None:
    """The three passes for a forward vertex, or ``None`` when a derived pass has no vertex."""
    in_grouping, out_grouping = kernel.in_grouping, kernel.out_grouping
    size = -(-form.in_channels // in_grouping) * in_grouping
    # The backward pass has the field as input channels, so it goes to the tiles in that grouping.
    forward = replace(form, grain=in_grouping, joint=True)
    backward = replace(forward, in_channels=form.axes[-1].output, axes=(POINT, Axis(size, 1, size)), pass_="fcbwd")
    update = replace(forward, in_channels=form.out_channels, out_channels=form.in_channels, pass_="fcwu")
    dots = Kernel("HMAC", 0, 1, in_grouping, out_grouping, 1, types.input, types.partial)
    back = _best_amp(backward, chip, types, (in_grouping, out_grouping)) if kernel.method == "AMP" else dots
    weights: Kernel | None
    # With a single row the update is an outer product.
    if update.in_channels == 1 and out_grouping == 1:
        weights = Kernel("OUTER", 0, 1, 1, in_grouping, 1, types.input, types.input)
    # A forward AMP vertex fixes both groupings of the update; any other leaves them open.
    elif in_grouping != 1:
        weights = _best_amp(update, chip, types, (out_grouping, in_grouping) if kernel.method == "AMP" else None)
    else:
        weights = replace(dots, in_grouping=out_grouping, out_grouping=1)
    if back is None or weights is None:
        return None
    # The update reads what the forward pass laid out, so its channels are cut in that pass's groupings.
    return (
        LayerPass(forward, kernel, kernel),
        LayerPass(backward, back, back),
        LayerPass(update, weights, replace(weights, in_grouping=out_grouping, out_grouping=in_grouping)),
    )


@dataclass(frozen=True)
class _LeastCycles:
    """Lower bounds of the cycles of a pass without rearrangements and slices, one entry per candidate.

    ``work`` are those of vertices and partial sums, ``weights`` and ``inputs`` those of their exchange.
    """

    work: np.ndarray
    weights: np.ndarray
    inputs: np.ndarray


@dataclass(frozen=True)
class _Splits:
    """Splits of a layer, one entry per candidate.

    Attributes:
        groups, inner, field: splits of groups, forward input channels and field.
        group_size, rows, places: largest pieces of the three, in groupings and grains.
        tiles: tiles used.
        outer: groupings of output channels in a serial pass.
    """

    groups: np.ndarray
    inner: np.ndarray
    field: np.ndarray
    group_size: np.ndarray
    rows: np.ndarray
    places: np.ndarray
    tiles: np.ndarray
    outer: int

    def take(self, chosen: np.ndarray) -> _Splits:
        """The candidates with these indices."""
        return _Splits(
            self.groups[chosen],
            self.inner[chosen],
            self.field[chosen],
            self.group_size[chosen],
            self.rows[chosen],
            self.places[chosen],
            self.tiles[chosen],
            self.outer,
        )

    def least(self, number: int, part: LayerPass, types: Types, chip: Chip) -> _LeastCycles:
        """Lower bounds for a pass (by its number in ``TRAINING``) in each serial pass."""
        form, kernel, cut, rate = part.form, part.kernel, part.cut, chip.exchange_bytes_per_cycle
        ones = np.ones_like(self.tiles)
        # Backward, field and input channels change places; in the update, input and output channels do.
        across, field, out, depth, rows, columns = (
            (self.places, self.field, 1, self.inner, self.rows, self.outer),
            (self.rows, self.inner, 1, self.field, self.places, self.outer),
            (self.places, self.field, self.inner, ones, self.outer, self.rows),
        )[number]
        positions, groups = across * float(form.grain), self.group_size * cut.group_grouping
        inputs, outputs = groups * (rows * cut.in_grouping), columns * cut.out_grouping
        steps = self.group_size * rows * columns
        loop_and_turn_cycles = loop_cycles(form, kernel, chip) + turn_cycles(form, kernel)
        vertex = steps * (positions * step_cycles(form, kernel) + loop_and_turn_cycles)
        sums = positions * groups * (outputs * kernel.partial_size / rate)
        reduction = least_reduction(depth, kernel, types, ONCE, chip)
        weights = inputs * outputs * (1 - 1 / field) * (types.input / rate)
        reads = np.minimum(positions, form.axes[-1].whole) * inputs
        # Nothing is halved for a shared exchange bus: the derived passes do not share it.
        shared = reads * (1 - 1 / out) * (types.input / rate)
        return _LeastCycles(vertex + sums + reduction + start_cycles(form, kernel, chip), weights, shared)

    def grid(self, number: int, part: LayerPass, chip: Chip) -> Grid:
        """The candidates as a grid of a pass (by its number in ``TRAINING``)."""
        ones, grain = np.ones_like(self.tiles), part.form.grain
        outer = ones * self.outer
        across, field, in_split, out, in_groups, out_groups = (
            (self.places, self.field, self.inner, ones, self.rows, outer),
            (self.rows, self.inner, self.field, ones, self.places, outer),
            (self.places, self.field, ones, self.inner, outer, self.rows),
        )[number]
        around = inner_cycles(ones, (ones, across * grain), part.form, part.kernel, chip)
        piece = Piece(ones, (ones, across * grain), (ones, ones), self.group_size, in_groups, out_groups)
        return Grid(
            ones, (ones, field), self.groups, (ones, ones), out, in_split, self.tiles, piece, around, field, in_split
        )


def _splits(part: LayerPass, passes: Passes, chip: Chip) -> _Splits | None:
    """Every useful split of a layer by its forward pass."""
    form, kernel = part.form, part.kernel
    outer = -(-form.out_channels // kernel.out_grouping)
    share = -(-outer // passes.out)
    # The channels cannot be divided into so many passes.
    if -(-outer // share) != passes.out:
        return None
    sizes = (form.groups, -(-form.in_channels // kernel.in_grouping), form.positions(1) // form.grain)
    (groups, in_split, field), (group_size, rows, places), tiles = parallel_rows(sizes, chip.tiles)
    return _Splits(groups, in_split, field, group_size, rows, places, tiles, share)


def _least(parts: tuple[LayerPass, ...], types: Types, chip: Chip) -> float:
    """A lower bound of the cycles of all three passes in any joint plan of these vertices."""
    return _least_exchange(parts, types, chip) + sum(
        sum(least_cycles(part.form, part.kernel, chip))
        + least_transform(part.form, part.kernel, types, chip, part.cut)[0]
        for part in parts
    )


def _least_exchange(parts: tuple[LayerPass, ...], types: Types, chip: Chip) -> float:
    """A lower bound of the exchange cycles of activations and partial sums in the forward and backward pass.

    The rows M of the batch are not split. With f parts of the outputs N and i parts of the inputs K, a tile receives
    M K / i elements (at least half of them, unless f is 1) and sends M N / f partial sums. As f i is at most the number
    of tiles, the sum is least at the geometric mean of the two. The backward pass is the same with N and K exchanged.
    """
    form, rate = parts[0].form, chip.exchange_bytes_per_cycle
    rows, in_channels, outputs = form.out_channels, form.in_channels, form.positions(1)
    share = form.groups / chip.tiles
    cycles = 0.0
    for part, whole in zip(parts[:2], (outputs, in_channels), strict=True):
        both = types.input * part.kernel.partial_size / 2
        split = 2 * rows * math.sqrt(in_channels * outputs * both * share)
        cycles += min(split, rows * whole * part.kernel.partial_size * max(1.0, share)) / rate
    return cycles


def _least_of_splits(
    splits: _Splits, parts: tuple[LayerPass, ...], passes: Passes, types: Types, chip: Chip
) -> tuple[np.ndarray, np.ndarray]:
    """Lower bounds of all three passes for each candidate: with and without the operands of the update."""
    least: np.ndarray | float = 0.0
    operands: np.ndarray | float = 0.0
    for number, part in enumerate(parts):
        total, later, *_ = least_transform(part.form, part.kernel, types, chip, part.cut)
        pass_cycles = splits.least(number, part, types, chip)
        operands = passes.count * pass_cycles.weights + (1 if passes.ahead else passes.count) * pass_cycles.inputs
        moved = passes.count * later + (1 if passes.ahead else passes.count) * (total - later)
        slices = passes.count * slices_at_least(chip) if passes.count > 1 else 0
        least = least + passes.count * pass_cycles.work + operands + (moved + slices)
    return np.asarray(least), np.asarray(least - operands)


def cheapest_splits(
    parts: tuple[LayerPass, ...], passes: Passes, types: Types, limit: float, bound: tuple[float, float], chip: Chip
) -> tuple[float, Layer | None]:
    """``(least cycles, cheapest splits)`` of a joint plan.

    The least cycles hold for any memory and leave out the operands of the update; they are a lower bound where serial
    passes stay above ``bound`` (cycles, bytes) too. The cheapest splits fit and are below it; None if there are none.
    """
    splits = _splits(parts[0], passes, chip)
    if splits is None:
        return np.inf, None
    least, free = _least_of_splits(splits, parts, passes, types, chip)
    least_cycles_free = float(free.min())
    # Serial passes are judged by the least cycles of one pass, so these are worked out fully where they may still pay.
    serial = (
        # Two serial passes, the fewest there are, slice in three products each: six slices.
        passes == ONCE and parts[0].kernel.method == "AMP" and least_cycles_free + 6 * slices_at_least(chip) <= bound[0]
    )
    if not serial:
        near = np.flatnonzero(least <= bound[0] * (1 + 1e-9))
        if not len(near):
            return least_cycles_free, None
        splits = splits.take(near)
    grids = [splits.grid(number, part, chip) for number, part in enumerate(parts)]
    pairs = zip(grids, parts, strict=True)
    work = [vertex_cycles(grid.piece, grid.inner, part.form, part.kernel, chip) for grid, part in pairs]
    work_cycles = passes.count * (work[0] + work[1] + work[2])
    # PopLibs' condition on the work of all tiles decides between plans, so it is no mere cut (``work_asked``).
    enough_work = [
        passes.count * pass_work * splits.tiles >= work_asked(part.form, part.kernel)
        for pass_work, part in zip(work, parts, strict=True)
    ]
    remaining = np.flatnonzero((work_cycles <= bound[0]) & enough_work[0] & enough_work[1] & enough_work[2])
    if not len(remaining):
        return float(work_cycles.min()) if serial else least_cycles_free, None
    grids, work = [grid.take(remaining) for grid in grids], [pass_work[remaining] for pass_work in work]
    pass_terms = [
        operand_terms(part.form, part.kernel, grid, compute, types, passes, chip, part.cut)
        for part, grid, compute in zip(parts, grids, work, strict=True)
    ]
    if not serial:
        total, temp_bytes = _all_three(pass_terms)
        remaining = np.flatnonzero((total <= bound[0]) & (temp_bytes <= limit))
        if not len(remaining):
            return least_cycles_free, None
        grids = [grid.take(remaining) for grid in grids]
        pass_terms = [{name: values[remaining] for name, values in terms.items()} for terms in pass_terms]
    pass_terms = [
        with_reduction(terms, part.kernel, grid, types, passes, chip)
        for part, grid, terms in zip(parts, grids, pass_terms, strict=True)
    ]
    total, temp_bytes = _all_three(pass_terms)
    if serial:
        least_cycles_free = float((total - pass_terms[-1]["exchange_operands"]).min())
    cheapest = _cheapest(total, temp_bytes, grids[0].tiles, limit)
    if cheapest is None or (cost := (int(total[cheapest[0]]), int(temp_bytes[cheapest[0]]))) >= bound:
        return least_cycles_free, None
    chosen = tuple({name: values[cheapest] for name, values in terms.items()} for terms in pass_terms)
    return least_cycles_free, Layer(*cost, passes, parts, tuple(grid.take(cheapest) for grid in grids), chosen)


def _cheapest(total: np.ndarray, temp_bytes: np.ndarray, tiles: np.ndarray, limit: float) -> np.ndarray | None:
    """The index, in a vector, of the fewest cycles that fit, then bytes, then tiles; None if nothing fits."""
    fitting = np.flatnonzero(temp_bytes <= limit)
    if not len(fitting):
        return None
    order = np.lexsort((tiles[fitting], temp_bytes[fitting], total[fitting]))
    return fitting[order[:1]]


def _all_three(pass_terms: Sequence[dict[str, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """``(cycles of all passes, largest temporary bytes of any pass)``."""
    forward, backward, update = pass_terms
    temp_bytes = np.maximum(np.maximum(forward["temp_bytes"], backward["temp_bytes"]), update["temp_bytes"])
    return forward["total"] + backward["total"] + update["total"], temp_bytes


def joint_plan(chip: Chip, product: Form, types: Types, limit: float, bound: float = np.inf) -> Layer | None:
    """The joint plan with the fewest cycles, in ``limit`` bytes on a tile, of the layer with forward pass ``product``.

    It is ``None`` when none of at most ``bound`` cycles fits, or when result and operands differ in type (PopLibs has
    no joint plan then).

    Serial passes are tried for AMP vertices only, and not in every number. They pay where memory is short and hardly
    elsewhere. The weights are on their tiles anyway, so only the operands of the update arrive in less time (once, when
    ahead of the passes).
    """
    # PopLibs has no joint plan then.
    if types.input != types.output:
        return None
    form = flatten_field(swap(product))
    # Vertices that are too slow in the forward pass alone are left out at once.
    layers = [
        (_least(parts, types, chip), parts)
        for kernel in _forward_kernels(form, chip, types, limit)
        if sum(least_cycles(form, kernel, chip)) <= bound and (parts := layer_passes(form, kernel, chip, types))
    ]
    # The most promising vertices first, so that the others are soon out of reach.
    layers.sort(key=lambda option: option[0])
    serial = serial_counts(form.out_channels)
    best: Layer | None = None
    # A plan of exactly ``bound`` cycles may still win, whatever its bytes.
    least: tuple[float, float] = (bound, np.inf)
    later: list[tuple[float, int]] = []
    for number, (cycles, parts) in enumerate(layers):
        # The options are sorted by this bound, so no later one is better.
        if cycles > least[0]:
            break
        free, layer_plan = cheapest_splits(parts, ONCE, types, limit, least, chip)
        best, least = (layer_plan, (layer_plan.total, layer_plan.temp_bytes)) if layer_plan else (best, least)
        if parts[0].kernel.method == "AMP":
            later.append((free, number))
    for free, number in sorted(later):
        for count in serial:
            # Each of the three passes slices in every serial pass.
            if free + 3 * count * slices_at_least(chip) > least[0]:
                break
            for ahead in (True, False):
                _, layer_plan = cheapest_splits(
                    layers[number][1], Passes(out=count, ahead=ahead), types, limit, least, chip
                )
                best, least = (layer_plan, (layer_plan.total, layer_plan.temp_bytes)) if layer_plan else (best, least)
    return best
