"""Which splits of a convolution are worth looking at: all that may still beat a known plan, and no others.

A candidate is a pair of a *field row* (splits of batch and output axes) and a *channel row* (splits of groups, input
and output channels and kernel axes). Rows come sorted by the tiles they use, so that the partners of a field row are
one range of channel rows; bounds on cycles and memory that are products of one number per row cut the ranges further
before a single pair is made. No plan within the bounds is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .convolution_form import Axis, Form
from .convolution_vertices import Kernel, Piece, ceil, inner_cycles, loop_cycles, product, start_cycles, step_cycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip


@dataclass(frozen=True)
class Types:
    """Bytes per element of inputs, partial sums and result."""

    input: int
    partial: int
    output: int


@dataclass(frozen=True)
class Passes:
    """Serial passes over parts of the output (``out``) or of the input channels (``inner``); one of the two is 1.

    ``ahead``: the inputs are brought to the tiles once, before the passes over output channels.
    """

    out: int = 1
    inner: int = 1
    ahead: bool = False

    @property
    def count(self) -> int:
        """Passes in all."""
        return self.out * self.inner


#: All in one pass.
ONCE = Passes()


@dataclass(frozen=True)
class Grid:
    """Candidate splits of one form for one vertex, flat: pairs of a field row and a channel row."""

    batch: np.ndarray
    field: tuple[np.ndarray, ...]
    groups: np.ndarray
    kernel: tuple[np.ndarray, ...]
    out_split: np.ndarray
    in_split: np.ndarray
    tiles: np.ndarray
    piece: Piece
    inner: np.ndarray

    def take(self, chosen: np.ndarray) -> Grid:
        """The candidates with these indices."""

        def cut(values: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            return tuple(v[chosen] for v in values)

        piece = self.piece
        part = Piece(piece.batch[chosen], cut(piece.field), cut(piece.kernel), piece.groups[chosen],
                     piece.in_groups[chosen], piece.out_groups[chosen])  # fmt: skip
        return Grid(self.batch[chosen], cut(self.field), self.groups[chosen], cut(self.kernel),
                    self.out_split[chosen], self.in_split[chosen], self.tiles[chosen], part,
                    self.inner[:, chosen])  # fmt: skip


@lru_cache(maxsize=512)
def useful_splits(size: int, limit: int) -> np.ndarray:
    """Splits of ``size`` worth trying: the smallest split for each distinct ``ceil(size / split)``."""
    splits = np.arange(1, min(size, limit) + 1, dtype=np.int64)
    _, first = np.unique(ceil(np.full_like(splits, size), splits), return_index=True)
    return np.sort(splits[first])


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
            tuple(s[chosen] for s in self.splits), tuple(p[chosen] for p in self.parts), self.used[chosen],
            self.size[chosen],
        )  # fmt: skip


@lru_cache(maxsize=256)
def _rows(sizes: tuple[int, ...], tiles: int) -> _Rows:
    """Every useful combination of splits of axes of these sizes on at most ``tiles`` tiles."""
    used = np.ones(1, dtype=np.int64)
    splits: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    for size in sizes:
        split = useful_splits(size, tiles)
        part = ceil(np.full_like(split, size), split)
        if size == 1:
            splits, parts = [*splits, np.ones_like(used)], [*parts, np.ones_like(used)]
            continue
        old, new = np.nonzero(used[:, None] * split[None, :] <= tiles)
        splits = [s[old] for s in splits] + [split[new]]
        parts = [p[old] for p in parts] + [part[new]]
        used = used[old] * split[new]
    rows = _Rows(tuple(splits), tuple(parts), used, product(tuple(parts)))
    return rows.take(np.argsort(used, kind="stable"))


def parallel_rows(
    sizes: tuple[int, ...], tiles: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
    """(splits of each axis, largest pieces, tiles used) of every useful combination on at most ``tiles`` tiles."""
    rows = _rows(sizes, tiles)
    return rows.splits, rows.parts, rows.used


@dataclass(frozen=True)
class _Fields:
    """Field rows of a form: ``positions`` and inputs read (``reads``, at least) of a piece, as floats; the least of
    both on all tiles together (``all_positions``, ``all_reads``)."""

    rows: _Rows
    positions: np.ndarray
    reads: np.ndarray
    whole: np.ndarray
    all_positions: float
    all_reads: float


@lru_cache(maxsize=256)
def _field_rows(batch: int, axes: tuple[Axis, ...], grain: int, tiles: int) -> _Fields:
    rows = _rows((batch, *(a.output for a in axes[:-1]), -(-axes[-1].output // grain)), tiles)
    if grain > 1:
        rows = replace(rows, parts=(*rows.parts[:-1], rows.parts[-1] * grain), size=rows.size * grain)
    reads = rows.parts[0].astype(np.float64)
    for axis, part in zip(axes, rows.parts[1:], strict=True):
        reads = reads * axis.reads(part, np.full_like(part, axis.kernel if axis is axes[-1] else 1))
    positions = rows.size.astype(np.float64)
    whole = positions * rows.used
    return _Fields(rows, positions, reads, whole, float(whole.min()), float((reads * rows.used).min()))


def _channel_rows(form: Form, kernel: Kernel, passes: Passes, tiles: int) -> _Rows | None:
    """Rows of groups, input channels, output channels (counted in groupings) and all kernel axes but the last.

    SLIC takes one grouping of channels, VMAC one of output channels. Serial times parallel splits are useful splits.
    """
    groups = -(-form.groups // kernel.group_grouping)
    inner, outer = -(-form.in_channels // kernel.in_grouping), -(-form.out_channels // kernel.out_grouping)
    if outer < passes.out or inner < passes.inner or (kernel.method == "SLIC" and inner * outer > tiles):
        return None
    sizes = (-(-inner // passes.inner), -(-outer // passes.out))
    rows = _rows((groups, *sizes, *(a.kernel for a in form.axes[:-1])), tiles)
    for axis, size, serial in ((1, inner, passes.inner), (2, outer, passes.out)):
        if serial > 1:
            rows = rows.take(np.flatnonzero(-(-size // rows.parts[axis]) == serial * rows.splits[axis]))
    legal = {"SLIC": (1, 2), "VMAC": (2,)}.get(kernel.method, ())
    for axis in legal:
        rows = rows.take(np.flatnonzero(rows.parts[axis] == 1))
    return rows


@dataclass(frozen=True)
class Space:
    """All splits of ``form`` for ``kernel`` in some ``passes`` that may fit into ``limit`` bytes, not yet paired.

    A piece holds at least ``reads[f] * inputs[c] + positions[f] * sums[c] + weights[c]`` bytes and takes at least
    ``positions[f] * work[c] + reads[f] * arrive[c] + (1 - 1 / used[f]) * moved[c] + fixed[c]`` cycles in all passes
    (but for rearrangements and slices): the vertex and the exchange of partial sums, of inputs, and of weights; starts,
    loops and reductions. ``least[c]``: no pair with the row takes less.
    """

    form: Form
    kernel: Kernel
    passes: Passes
    limit: float
    fields: _Fields
    channels: _Rows
    inputs: np.ndarray
    sums: np.ndarray
    weights: np.ndarray
    work: np.ndarray
    arrive: np.ndarray
    moved: np.ndarray
    fixed: np.ndarray
    least: np.ndarray


def field_grain(form: Form, kernel: Kernel, types: Types) -> int:
    """Positions that stay together: two of an even number when the results of one position are an odd number of half
    floats (an odd number of them on a tile makes later rearrangements dear; PopLibs ``ConvPlan.cpp`` createPlan)."""
    return 2 if types.output == 2 and kernel.out_grouping % 2 and form.axes[-1].output % 2 == 0 else 1


def least_bytes(form: Form, kernel: Kernel, types: Types, passes: Passes, tiles: int) -> float:
    """No piece on a tile holds less: the arithmetic mean of inputs, weights and partial sums is at least the geometric
    one, and that falls with the number of tiles however they are split."""
    padded = -(-form.groups // kernel.group_grouping) * kernel.group_grouping
    padded *= -(-form.in_channels // kernel.in_grouping) * kernel.in_grouping
    padded *= -(-form.out_channels // kernel.out_grouping) * kernel.out_grouping
    work = form.batch * padded * math.prod(a.output for a in form.axes) / (tiles * passes.count)
    apart = math.prod(a.input_dilation for a in form.axes)
    window = math.prod(a.kernel for a in form.axes)
    cut = math.prod(min(1.0, a.size / a.output) for a in form.axes)
    sizes = types.input**2 * kernel.partial_size * window * cut / apart
    return 3 * float(np.cbrt(work**2 * sizes))


def _least_reduction(depth: np.ndarray, kernel: Kernel, types: Types, passes: Passes, chip: Chip) -> np.ndarray:
    """Cycles that reducing (or casting) ``depth`` partial sums takes at least, whatever there is to reduce: the start
    of the vertex and one loop, once below 16 of them, else twice with 4 each (:func:`.convolution_terms.reduce_depths`).
    """
    cast = 27 * chip.workers if kernel.partial_size != types.output and passes.inner == 1 else 0
    return np.where(depth > 1, 33 + chip.workers * (24 + 2 * np.minimum(depth, 16)), cast)


def split_space(form: Form, kernel: Kernel, types: Types, passes: Passes, limit: float, chip: Chip) -> Space | None:
    """The :class:`Space`, or ``None`` when nothing in it is legal or fits into ``limit`` bytes."""
    rows, serial = _channel_rows(form, kernel, passes, chip.tiles), passes.count
    if rows is None or not len(rows.used):
        return None
    fields = _field_rows(form.batch, form.axes, form.grain, chip.tiles)
    last, rate = float(form.axes[-1].kernel), chip.exchange_bytes_per_cycle
    groups = rows.parts[0] * float(kernel.group_grouping)
    inner, outer = rows.parts[1] * kernel.in_grouping, rows.parts[2] * kernel.out_grouping
    inputs, sums = groups * inner * types.input, groups * outer * kernel.partial_size
    weights = inputs * outer * last
    for part in rows.parts[3:]:
        weights = weights * part
    if limit < np.inf:
        spread = fields.all_reads * inputs + fields.all_positions * sums
        keep = np.flatnonzero(weights + spread * rows.used / chip.tiles <= limit * (1 + 1e-9))
        if not len(keep):
            return None
        if len(keep) < len(weights):
            rows = rows.take(keep)
            inputs, sums, weights = inputs[keep], sums[keep], weights[keep]
    steps, depth, out = rows.size * last, rows.splits[1], rows.splits[2]
    for split in rows.splits[3:]:
        depth = depth * split
    work = serial * (steps * step_cycles(form, kernel) + sums / rate)
    fixed = serial * (
        steps * loop_cycles(form, kernel, chip)
        + start_cycles(form, kernel, chip)
        + _least_reduction(depth, kernel, types, passes, chip)
    )
    arrive = (1 if passes.ahead else serial) * inputs * (1 - 1 / out) / np.where(out % 2 == 0, 2 * rate, rate)
    moved = weights * (serial / rate)
    alone = fields.all_positions * work + fields.all_reads * arrive
    least = np.minimum(alone, moved + (alone - moved) * rows.used / chip.tiles) + fixed
    return Space(
        form, kernel, passes, limit, fields, rows, inputs, sums, weights, work, arrive, moved, fixed, least
    )  # fmt: skip


def _pairs(space: Space, cycles: float, chip: Chip) -> tuple[np.ndarray, np.ndarray]:
    """(field row, channel row) of every pair that may take ``cycles`` or fewer and fit.

    What a pair takes times the tiles it uses is no less than the whole work, so that pairs on few tiles drop out as one
    range of the sorted channel rows.
    """
    fields, rows, tiles, allowed = space.fields, space.fields.rows, chip.tiles, cycles * (1 + 1e-9)
    keep_c = np.flatnonzero(space.least <= allowed)
    if not len(keep_c):
        return keep_c, keep_c
    used_c = space.channels.used[keep_c]
    whole_c = float((space.work[keep_c] * used_c).min())
    keep_f = np.flatnonzero(fields.whole * whole_c <= allowed * tiles)
    if not len(keep_f):
        return keep_f, keep_f
    used_f = rows.used[keep_f]
    fewest = fields.whole[keep_f] * whole_c / (allowed * used_f)
    low = np.searchsorted(used_c, np.ceil(fewest * (1 - 1e-9)), side="left")
    counts = np.maximum(0, np.searchsorted(used_c, tiles // used_f, side="right") - low)
    ends = np.cumsum(counts)
    f = np.repeat(keep_f, counts)
    c = keep_c[np.arange(len(f)) - np.repeat(ends - counts - low, counts)]
    at, reads = fields.positions[f], fields.reads[f]
    taken = at * space.work[c] + reads * space.arrive[c] + (1 - 1 / rows.used[f]) * space.moved[c] + space.fixed[c]
    good = taken <= allowed
    if space.limit < np.inf:
        good &= space.weights[c] + reads * space.inputs[c] + at * space.sums[c] <= space.limit
    return f[good], c[good]


def candidate_splits(space: Space, cycles: float, chip: Chip) -> Grid | None:
    """Every split in ``space`` that may take ``cycles`` or fewer, or ``None``."""
    f, c = _pairs(space, cycles, chip)
    if not len(f):
        return None
    fields, channels, form = space.fields.rows, space.channels, space.form
    new = np.ones(len(f), dtype=bool)
    np.not_equal(f[1:], f[:-1], out=new[1:])
    different = fields.take(f[new])
    inner = inner_cycles(different.parts[0], different.parts[1:], form, space.kernel, chip)
    last = np.full(len(c), form.axes[-1].kernel, dtype=np.int64)
    piece = Piece(
        batch=fields.parts[0][f],
        field=tuple(p[f] for p in fields.parts[1:]),
        kernel=(*(p[c] for p in channels.parts[3:]), last),
        groups=channels.parts[0][c],
        in_groups=channels.parts[1][c],
        out_groups=channels.parts[2][c],
    )
    return Grid(
        batch=fields.splits[0][f],
        field=tuple(s[f] for s in fields.splits[1:]),
        groups=channels.splits[0][c],
        kernel=(*(s[c] for s in channels.splits[3:]), np.ones_like(last)),
        out_split=channels.splits[2][c],
        in_split=channels.splits[1][c],
        tiles=fields.used[f] * channels.used[c],
        piece=piece,
        inner=inner[:, np.cumsum(new) - 1],
    )
