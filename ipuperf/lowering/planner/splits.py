"""The splits of a convolution that are worth pricing: all that may still beat a known plan, and no others.

A candidate is a pair of a *field row* (splits of batch and output axes) and a *channel row* (splits of groups, input
and output channels and kernel axes). Rows come sorted by the tiles they use, so that the partners of a field row are
one range of channel rows; bounds on cycles and memory that are products of one number per row cut the ranges further
before a single pair is made. No plan within the bounds is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .bounds import least_reduction
from .form import Axis, Form, Passes, Types
from .kernels import Kernel
from .vertex_bounds import clear_cycles, loop_cycles, start_cycles, step_cycles, turn_cycles
from .vertices import Piece, inner_cycles, product

if TYPE_CHECKING:
    from ipuperf.machine import Chip


@dataclass(frozen=True)
class Grid:
    """Candidate splits of one form for one vertex, flat: pairs of a field row and a channel row.

    ``sharers`` tiles use the same weights, ``depth`` tiles have partial sums of the same results.
    """

    batch: np.ndarray
    field: tuple[np.ndarray, ...]
    groups: np.ndarray
    kernel: tuple[np.ndarray, ...]
    out_split: np.ndarray
    in_split: np.ndarray
    tiles: np.ndarray
    piece: Piece
    inner: np.ndarray
    sharers: np.ndarray
    depth: np.ndarray

    def take(self, chosen: np.ndarray) -> Grid:
        """The candidates with these indices."""

        def cut(values: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            return tuple(v[chosen] for v in values)

        piece = self.piece
        part = Piece(
            piece.batch[chosen],
            cut(piece.field),
            cut(piece.kernel),
            piece.groups[chosen],
            piece.in_groups[chosen],
            piece.out_groups[chosen],
        )
        return Grid(
            self.batch[chosen],
            cut(self.field),
            self.groups[chosen],
            cut(self.kernel),
            self.out_split[chosen],
            self.in_split[chosen],
            self.tiles[chosen],
            part,
            self.inner[:, chosen],
            self.sharers[chosen],
            self.depth[chosen],
        )


@lru_cache(maxsize=512)
def useful_splits(size: int, limit: int) -> np.ndarray:
    """Splits of ``size`` worth trying: the smallest split for each distinct ``ceil(size / split)``."""
    splits = np.arange(1, min(size, limit) + 1, dtype=np.int64)
    parts = -(-size // splits)
    new = np.ones(len(splits), dtype=bool)
    np.not_equal(parts[1:], parts[:-1], out=new[1:])
    return splits[new]


@dataclass(frozen=True)
class _Rows:
    """Splits of several axes at once, sorted by the tiles that they use.

    ``splits`` and ``parts`` (the largest piece): one vector per axis; ``used``: product of the splits; ``size``:
    product of the parts.
    """

    splits: tuple[np.ndarray, ...]
    parts: tuple[np.ndarray, ...]
    used: np.ndarray
    size: np.ndarray

    def take(self, chosen: np.ndarray) -> _Rows:
        return _Rows(
            tuple(s[chosen] for s in self.splits),
            tuple(p[chosen] for p in self.parts),
            self.used[chosen],
            self.size[chosen],
        )


@lru_cache(maxsize=256)
def _rows(sizes: tuple[int, ...], tiles: int) -> _Rows:
    """Every useful combination of splits of axes of these sizes on at most ``tiles`` tiles."""
    used = np.ones(1, dtype=np.int64)
    axis_splits: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for axis, size in enumerate(sizes):
        # Axes of one element have one split, so they would only make the tables wider.
        if size > 1:
            split = useful_splits(size, tiles)
            old_row, new_split = np.nonzero(used[:, None] * split <= tiles)
            axis_splits = {earlier_axis: (s[old_row], p[old_row]) for earlier_axis, (s, p) in axis_splits.items()}
            axis_splits[axis] = split[new_split], (-(-size // split))[new_split]
            used = used[old_row] * axis_splits[axis][0]
    # Stable, so that rows of equal tiles keep their order and plans do not depend on the sort.
    order = np.argsort(used, kind="stable")
    ones = np.ones(len(order), dtype=np.int64)
    ordered_splits = {axis: (s[order], p[order]) for axis, (s, p) in axis_splits.items()}
    splits, parts = zip(*(ordered_splits.get(axis, (ones, ones)) for axis in range(len(sizes))), strict=True)
    return _Rows(splits, parts, used[order], product(tuple(p for _, p in ordered_splits.values()) or (ones,)))


def parallel_rows(
    sizes: tuple[int, ...], tiles: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """``(splits of each axis, largest pieces, tiles used)`` of every useful combination on at most ``tiles`` tiles."""
    rows = _rows(sizes, tiles)
    return rows.splits, rows.parts, rows.used


@dataclass(frozen=True)
class _Fields:
    """Field rows of a form.

    Attributes:
        positions, reads: positions of a piece, and a lower bound of the inputs it reads, as floats.
        whole: positions of the pieces of all tiles.
        sent: share of the weights that is exchanged.
        all_positions, all_reads: least positions and reads of all tiles in any row.
    """

    rows: _Rows
    positions: np.ndarray
    reads: np.ndarray
    whole: np.ndarray
    sent: np.ndarray
    all_positions: float
    all_reads: float


@lru_cache(maxsize=256)
def _field_rows(batch: int, axes: tuple[Axis, ...], grain: int, tiles: int) -> _Fields:
    rows = _rows((batch, *(a.output for a in axes[:-1]), -(-axes[-1].output // grain)), tiles)
    if grain > 1:
        rows = replace(rows, parts=(*rows.parts[:-1], rows.parts[-1] * grain), size=rows.size * grain)
    reads = rows.parts[0].astype(np.float64)
    for axis, part in zip(axes, rows.parts[1:], strict=True):
        # A lower bound: a piece may have one element of each kernel axis but the last, which is not split.
        reads = reads * axis.reads(part, np.full_like(part, axis.kernel if axis is axes[-1] else 1))
    positions = rows.size.astype(np.float64)
    whole = positions * rows.used
    return _Fields(
        rows, positions, reads, whole, 1 - 1 / rows.used, float(whole.min()), float((reads * rows.used).min())
    )


@dataclass(frozen=True)
class _Channels:
    """Channel rows of a form.

    Attributes:
        depth: partial sums to add up.
        sent: share of the inputs that is exchanged, divided by the tiles that the exchange feeds at once.
        share: share of all tiles that a row uses.
    """

    rows: _Rows
    depth: np.ndarray
    sent: np.ndarray
    share: np.ndarray


def _channel_rows(form: Form, kernel: Kernel, passes: Passes, tiles: int) -> _Channels | None:
    """Rows of groups, input channels, output channels (counted in groupings) and all kernel axes but the last.

    SLIC takes one grouping of channels, VMAC one of output channels. Serial times parallel splits are useful splits.
    """
    groups = -(-form.groups // kernel.group_grouping)
    in_groups, out_groups = -(-form.in_channels // kernel.in_grouping), -(-form.out_channels // kernel.out_grouping)
    if (
        out_groups < passes.out
        or in_groups < passes.inner
        or (kernel.method == "SLIC" and in_groups * out_groups > tiles)
    ):
        return None
    legal = {"SLIC": (1, 2), "VMAC": (2,)}.get(kernel.method, ())
    axes = tuple(a.kernel for a in form.axes[:-1])
    return _legal_rows((groups, in_groups, out_groups, *axes), (passes.inner, passes.out), legal, tiles)


@lru_cache(maxsize=512)
def _legal_rows(
    sizes: tuple[int, ...], serial: tuple[int, int], alone: tuple[int, ...], tiles: int
) -> _Channels | None:
    """Rows of groups, channels and kernel axes.

    ``serial``: serial passes over input and output channels; ``alone``: axes of which a piece has one element.
    """
    cut = (-(-sizes[1] // serial[0]), -(-sizes[2] // serial[1]))
    rows = _rows((sizes[0], *cut, *sizes[3:]), tiles)
    for axis, count in zip((1, 2), serial, strict=True):
        if count > 1:
            rows = rows.take(np.flatnonzero(-(-sizes[axis] // rows.parts[axis]) == count * rows.splits[axis]))
    # The vertex takes a single grouping of these axes.
    for axis in alone:
        rows = rows.take(np.flatnonzero(rows.parts[axis] == 1))
    if not len(rows.used):
        return None
    out = rows.splits[2]
    # With an even split, two tiles with the same inputs share an exchange bus.
    sent = (1 - 1 / out) / (2 - (out & 1))
    return _Channels(rows, product((rows.splits[1], *rows.splits[3:])), sent, rows.used / tiles)


@dataclass(frozen=True)
class Space:
    """All splits of ``form`` for ``kernel`` in some ``passes`` that may fit into ``limit`` bytes, not yet paired.

    A piece holds at least ``reads[f] * inputs[c] + positions[f] * sums[c] + weights[c]`` bytes and takes at least
    ``positions[f] * work[c] + reads[f] * arrive[c] + (1 - 1 / used[f]) * moved[c] + fixed[c]`` cycles in all passes
    without rearrangements and slices. These are the vertex and the exchange of partial sums, of inputs, and of weights,
    then starts, loops and reductions. ``least[c]``: a lower bound of all pairs with the row; ``held[c]``: one of their
    bytes.
    """

    form: Form
    kernel: Kernel
    passes: Passes
    limit: float
    fields: _Fields
    channels: _Channels
    inputs: np.ndarray
    sums: np.ndarray
    weights: np.ndarray
    work: np.ndarray
    arrive: np.ndarray
    moved: np.ndarray
    fixed: np.ndarray
    least: np.ndarray
    held: np.ndarray

    def within(self, limit: float) -> Space | None:
        """The splits that may fit into ``limit`` bytes, or ``None`` when nothing does."""
        least = np.where(self.held > limit * (1 + 1e-9), np.inf, self.least) if limit < np.inf else self.least
        return None if least.min() == np.inf else replace(self, limit=limit, least=least)


def field_grain(form: Form, kernel: Kernel, types: Types) -> int:
    """Number of positions that stay together.

    It is two where the number of positions is even and one position has an odd number of half floats. An odd number of
    them on a tile would make later rearrangements expensive (PopLibs ``ConvPlan.cpp`` createPlan).
    """
    return 2 if types.output == 2 and kernel.out_grouping % 2 and form.axes[-1].output % 2 == 0 else 1


def split_space(form: Form, kernel: Kernel, types: Types, passes: Passes, limit: float, chip: Chip) -> Space | None:
    """The :class:`Space`, or ``None`` when nothing in it is legal or fits into ``limit`` bytes."""
    channels, serial = _channel_rows(form, kernel, passes, chip.tiles), passes.count
    if channels is None:
        return None
    fields, rows = _field_rows(form.batch, form.axes, form.grain, chip.tiles), channels.rows
    window, rate = form.axes[-1].kernel, chip.exchange_bytes_per_cycle
    groups = rows.parts[0] * float(kernel.group_grouping) if form.groups > 1 else float(kernel.group_grouping)
    inputs = rows.parts[1] * (groups * (kernel.in_grouping * types.input))
    outputs = rows.parts[2] * float(kernel.out_grouping)
    sums, weights = outputs * (groups * kernel.partial_size), inputs * outputs
    for axis, part in zip(form.axes[:-1], rows.parts[3:], strict=True):
        weights = weights * part if axis.kernel > 1 else weights
    weights = weights * float(window)
    steps = rows.size * float(serial * window)
    cleared = clear_cycles(form, kernel) / kernel.partial_size
    work = steps * step_cycles(form, kernel) + sums * (serial * (1 / rate + cleared))
    fixed = steps * (loop_cycles(form, kernel, chip) + turn_cycles(form, kernel))
    fixed = fixed + serial * start_cycles(form, kernel, chip)
    fixed = fixed + serial * least_reduction(channels.depth, kernel, types, passes, chip)
    arrive = inputs * channels.sent * ((1 if passes.ahead else serial) / rate)
    moved = weights * (serial / rate)
    # Passes over input channels also hold the sums of the passes before.
    if passes.inner > 1:
        sums = sums * (1 + 1 / channels.depth)
    alone = fields.all_positions * work + fields.all_reads * arrive
    # The bound is linear in one over the field row's tiles, so it is least with one tile or with all that remain.
    least = np.minimum(alone, moved + (alone - moved) * channels.share) + fixed
    held = weights + (fields.all_reads * inputs + fields.all_positions * sums) * channels.share
    whole = Space(
        form, kernel, passes, np.inf, fields, channels, inputs, sums, weights, work, arrive, moved, fixed, least, held
    )
    return whole.within(limit)


def _pairs(space: Space, cycles: float, chip: Chip) -> tuple[np.ndarray, np.ndarray]:
    """(field row, channel row) of every pair that may take ``cycles`` or fewer and fit.

    The cycles of a pair times its tiles are no less than the whole work. So pairs on few tiles drop out as one range of
    the sorted channel rows.
    """
    # The bounds are floats, so they leave room for rounding.
    fields, rows, tiles, allowed = space.fields, space.fields.rows, chip.tiles, cycles * (1 + 1e-9)
    # Rows that no partner can bring within the bounds go before pairs are made.
    keep_c = np.flatnonzero(space.least <= allowed)
    if not len(keep_c):
        return keep_c, keep_c
    used_c = space.channels.rows.used[keep_c]
    whole_c = float((space.work[keep_c] * used_c).min())
    keep_f = np.flatnonzero(fields.whole * whole_c <= allowed * tiles)
    if not len(keep_f):
        return keep_f, keep_f
    used_f = rows.used[keep_f]
    fewest = fields.positions[keep_f] * (whole_c / allowed)
    low = np.searchsorted(used_c, np.ceil(fewest * (1 - 1e-9)), side="left")
    counts = np.maximum(0, np.searchsorted(used_c, tiles // used_f, side="right") - low)
    ends = np.cumsum(counts)
    field_rows = np.repeat(keep_f, counts)
    # Counts up from ``low`` in each range at once, without a loop over the ranges.
    channel_rows = keep_c[np.arange(len(field_rows)) - np.repeat(ends - counts - low, counts)]
    positions, reads, weights = fields.positions[field_rows], fields.reads[field_rows], space.weights[channel_rows]
    pair_cycles = (
        positions * space.work[channel_rows]
        + reads * space.arrive[channel_rows]
        + fields.sent[field_rows] * space.moved[channel_rows]
        + space.fixed[channel_rows]
    )
    possible = pair_cycles <= allowed
    if space.limit < np.inf:
        possible &= weights + reads * space.inputs[channel_rows] + positions * space.sums[
            channel_rows
        ] <= space.limit * (1 + 1e-9)
    return field_rows[possible], channel_rows[possible]


@lru_cache(maxsize=256)
def _flat_cycles(axes: tuple[Axis, ...], grain: int, kernel: Kernel, chip: Chip) -> np.ndarray:
    """:func:`~.vertices.inner_cycles` of an AMP vertex for every field row of a form that is one flat field.

    The channel grouping of the vertex does not matter, so the cache serves all of them.
    """
    parts = _field_rows(1, axes, grain, chip.tiles).rows.parts
    return inner_cycles(parts[0], parts[1:], Form(1, 1, 1, 1, axes, "fwd"), kernel, chip)


def _cycles_of(space: Space, field_rows: np.ndarray, chip: Chip) -> np.ndarray:
    """:func:`~.vertices.inner_cycles` of these field rows, which are sorted."""
    form, kernel = space.form, space.kernel
    if kernel.method == "AMP" and kernel.flat(form):
        return _flat_cycles(form.axes, form.grain, replace(kernel, in_grouping=1, out_grouping=1), chip)[:, field_rows]
    # Equal neighbours are worked out once.
    is_new = np.ones(len(field_rows), dtype=bool)
    np.not_equal(field_rows[1:], field_rows[:-1], out=is_new[1:])
    distinct_rows = field_rows[is_new]
    parts = tuple(p[distinct_rows] for p in space.fields.rows.parts)
    return inner_cycles(parts[0], parts[1:], form, kernel, chip)[:, np.cumsum(is_new) - 1]


def candidate_splits(space: Space, cycles: float, chip: Chip) -> Grid | None:
    """Every split in ``space`` that may take ``cycles`` or fewer, or ``None``."""
    field_rows, channel_rows = _pairs(space, cycles, chip)
    if not len(field_rows):
        return None
    fields, channels, form = space.fields.rows, space.channels.rows, space.form
    # The last kernel axis is never split, so every piece has all of it.
    last_kernel = np.full(len(channel_rows), form.axes[-1].kernel, dtype=np.int64)
    piece = Piece(
        batch=fields.parts[0][field_rows],
        field=tuple(p[field_rows] for p in fields.parts[1:]),
        kernel=(*(p[channel_rows] for p in channels.parts[3:]), last_kernel),
        groups=channels.parts[0][channel_rows],
        in_groups=channels.parts[1][channel_rows],
        out_groups=channels.parts[2][channel_rows],
    )
    return Grid(
        batch=fields.splits[0][field_rows],
        field=tuple(s[field_rows] for s in fields.splits[1:]),
        groups=channels.splits[0][channel_rows],
        kernel=(*(s[channel_rows] for s in channels.splits[3:]), np.ones_like(last_kernel)),
        out_split=channels.splits[2][channel_rows],
        in_split=channels.splits[1][channel_rows],
        tiles=fields.used[field_rows] * channels.used[channel_rows],
        piece=piece,
        inner=_cycles_of(space, field_rows, chip),
        sharers=fields.used[field_rows],
        depth=space.channels.depth[channel_rows],
    )
