"""Tile cycles of the convolution vertices, vectorised over candidate splits.

Only plans have these vertices, as their cycles follow from the pieces of a plan; the vertices of ops are in
:mod:`ipuperf.ops`. The formulas are those of PopLibs ``lib/poplin/PerformanceEstimation.hpp`` (2023), summarised in
``docs/reference/cycles.md`` 7. :func:`inner_cycles` covers the part that depends on the piece of the field only;
:func:`vertex_cycles` adds the loops over groups and kernel elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ops.vertices import Counts

from .form import Form
from .kernels import SLIC_WIDTH, Kernel

if TYPE_CHECKING:
    from ipuperf.machine import Chip


@dataclass(frozen=True)
class Piece:
    """Sizes on the fullest tile, one entry per candidate.

    Attributes:
        batch: batch elements; ``field``: outputs per axis; ``kernel``: kernel elements per axis.
        groups, in_groups, out_groups: counted in groupings of the vertex.
    """

    batch: Counts
    field: tuple[Counts, ...]
    kernel: tuple[Counts, ...]
    groups: Counts
    in_groups: Counts
    out_groups: Counts


def ceil(a: Counts, b: Counts | int) -> Counts:
    """Integer division rounded up."""
    return -(-a // b)


def product(values: tuple[Counts, ...]) -> Counts:
    """Element-wise product of several vectors."""
    result = values[0]
    for value in values[1:]:
        result = result * value
    return result


# -- how workers share a piece of the field --------------------------------------------------------------------------


def _spans(batch: Counts, field: tuple[Counts, ...], form: Form, workers: int) -> tuple[Counts, ...]:
    """``(first, middle, last, width)`` per worker and candidate.

    These are the length of the first row piece, the number of whole rows after it, the length of the last row piece,
    and the width of whole rows. A worker takes consecutive outputs of the flat piece.
    """
    # With a dilated input one kernel element touches outputs that lie so far apart.
    steps = [axis.worklist_stride for axis in form.axes]
    width = ceil(field[-1], steps[-1])
    rows = batch
    for size, step in zip(field[:-1], steps[:-1], strict=True):
        rows = rows * ceil(size, step)
    total = rows * width
    index = np.arange(workers, dtype=np.int64)[:, None]
    begin, end = index * total // workers, (index + 1) * total // workers
    first_row, last_row = begin // width, (end - 1) // width
    outputs = end - begin
    # A worker whose outputs lie in one row has only a first piece.
    single = (first_row == last_row) | (outputs == 0)
    first_piece = np.where(single, outputs, (first_row + 1) * width - begin)
    last_piece = np.where(single, 0, end - last_row * width)
    whole_rows = np.where(single, 0, last_row - first_row - 1)
    return first_piece, whole_rows, last_piece, np.broadcast_to(width, first_piece.shape)


def _slowest(worker: Counts, workers: int, tail: int) -> Counts:
    """Tile cycles of the slowest worker; the supervisor needs ``tail`` cycles more than the fastest."""
    cycles: Counts = np.maximum(workers * worker.max(axis=0), workers * worker.min(axis=0) + tail)
    return cycles


# -- AMP -------------------------------------------------------------------------------------------------------------

# The constants of this and the next sections are those of PopLibs' PerformanceEstimation.hpp.


def _amp_1x1_worker(positions: Counts, kernel: Kernel, zero: int) -> Counts:
    count, wide = positions, kernel.in_size == 4
    if not wide and (kernel.units == 16 or kernel.partial_size == 4):
        short = np.where(count == 1, 31, 40) + (1 if zero else 2)
        return np.where(count == 0, 0, np.where(count < 3, short, (37 if zero else 38) + 4 * (count - 3)) - 7)
    clear = 8 if wide and kernel.units == 16 else 4 if kernel.partial_size == 4 else 2
    one_position, two_positions, more_positions, per_position = (47, 46, 46, 8) if wide else (39, 40, 41, 4)
    fixed = np.where(
        count == 1, one_position, np.where(count == 2, two_positions, more_positions + per_position * (count - 3))
    )
    return np.where(count == 0, 0, fixed + zero * (2 + clear * count))


def _amp_nx1_piece(length: Counts, kernel: Kernel) -> Counts:
    """Worker cycles of one worklist item; nothing where there is no item."""
    wide = kernel.in_size == 4
    full = kernel.units == (16 if kernel.partial_size == 2 else 8)
    one_position, two_positions, more_positions, per_position = (33, 44, 45, 8) if wide else (29, 33 + int(full), 34, 4)
    cycles = np.where(
        length == 1, one_position, np.where(length == 2, two_positions, more_positions + per_position * (length - 3))
    )
    return np.where(length == 0, 0, cycles + 3 - 9)


def amp_inner(batch: Counts, field: tuple[Counts, ...], form: Form, kernel: Kernel, chip: Chip) -> Counts:
    """Rows: 1x1 worker time without and with clearing; or nx1 worker time."""
    if kernel.flat(form):
        # Each worker has so many positions, or one more.
        fewest = field[-1] // chip.workers
        shares = np.stack([fewest, ceil(field[-1], chip.workers)])
        return np.stack([_slowest(_amp_1x1_worker(shares, kernel, zero), chip.workers, 14) for zero in (0, 1)])
    first_piece, whole_rows, last_piece, width = _spans(batch, field, form, chip.workers)
    worker = (
        17 + int(kernel.partial_size == 2) + _amp_nx1_piece(first_piece, kernel) + _amp_nx1_piece(last_piece, kernel)
    )
    worker = worker + whole_rows * _amp_nx1_piece(width, kernel)
    return _slowest(worker, chip.workers, 9)[None]


def shuffle_cycles(kernel: Kernel) -> int:
    """Cycles of shuffling the coefficients of the kernel rows that one AMP pass covers."""
    return {4: 60, 2: 46, 1: 15}.get(kernel.height, 20 * kernel.height)


def _zero_partials(piece: Piece, kernel: Kernel, chip: Chip) -> Counts:
    """Tile cycles of clearing the partial sums, two elements per cycle and worker."""
    per_worker = ceil(product(piece.field) * piece.batch * kernel.out_grouping, chip.workers)
    return (ceil(per_worker, 2) + 5) * chip.workers * piece.out_groups * piece.groups


def _amp_cycles(piece: Piece, inner_loops: Counts, form: Form, kernel: Kernel, chip: Chip) -> Counts:
    workers, groups, in_groups, out_groups = chip.workers, piece.groups, piece.in_groups, piece.out_groups
    load = kernel.units * chip.amp_unit_bytes // chip.weight_load_bytes_per_cycle
    passes = -(-kernel.out_grouping // kernel.units)
    if kernel.flat(form):
        half_wide = kernel.in_size == 2 and (kernel.partial_size == 4 or kernel.units == 16)
        # This is ``k`` in the formula of ``docs/reference/cycles.md`` 7.1.
        common = int(half_wide or kernel.partial_size == 4)
        retained = workers * (7 + 3 * (in_groups * groups - 1)) if half_wide else 0
        later = (in_groups - 1) * (16 - common + out_groups * (19 + passes * (6 + load + inner_loops[0])))
        begin = 11 + out_groups * (19 - common + passes * (7 + load + inner_loops[1]))
        flat_cycles: Counts = 50 + retained + groups * (12 + common + later + begin)
        return flat_cycles
    outer_rows = ceil(piece.kernel[0], kernel.height)
    inner_kernel = product(piece.kernel[1:])
    loops = outer_rows * (14 + inner_kernel * (12 + passes * (load + shuffle_cycles(kernel) + 3)))
    loops = loops + inner_loops[0] * passes * outer_rows * inner_kernel
    fixed = 109 + workers * 9 + workers * (9 if kernel.partial_size == 4 else 10)
    clear = groups * (17 * out_groups + 6 * (out_groups - 1) + 1) + (groups - 1) * 6 + 1
    cycles: Counts = (
        fixed
        + clear
        + groups * (16 + in_groups * (14 + out_groups * (14 + loops)))
        + _zero_partials(piece, kernel, chip)
    )
    return cycles


# -- SLIC ------------------------------------------------------------------------------------------------------------


def _slic_row(length: Counts, kernel: Kernel, stride: int, zero: bool) -> Counts:
    """Worker cycles of one row piece; nothing where there is none."""
    positions, narrow = length, kernel.units == 2 and kernel.partial_size == 2
    if stride == 1:
        if zero:
            short, full = 13 + np.where(positions > 1, positions, 0), 15 + (positions - 5)
        else:
            short, full = np.where(positions == 1, 13, 17 + positions), 15 + (positions - 5) + (3 if narrow else 0)
        cycles = np.where(positions < (6 if narrow else 5), short, full)
    else:
        cycles = np.where(positions < 3, 10 + np.where(positions == 1, 3, 5), 15 + 2 * (positions - 3))
    cycles = cycles - int(kernel.partial_size == 4)
    item = (9 if narrow else 10) + int(zero) + (3 if kernel.partial_size == 4 else 0)
    return np.where(positions == 0, 0, item + cycles * (1 if kernel.units == 4 else 2))


def _slic_inner(batch: Counts, field: tuple[Counts, ...], form: Form, kernel: Kernel, chip: Chip) -> Counts:
    """Rows: worker time of a later and of the first (clearing) kernel block."""
    first_piece, whole_rows, last_piece, width = _spans(batch, field, form, chip.workers)
    narrow = kernel.units == 2 and kernel.partial_size == 2
    start = 17 + (4 if kernel.group_grouping > 4 else 0)
    stride, result = form.axes[-1].stride, []
    for zero in (False, True):
        worker = start + _slic_row(first_piece, kernel, stride, zero) + _slic_row(last_piece, kernel, stride, zero)
        worker = worker + whole_rows * _slic_row(width, kernel, stride, zero) + (2 if narrow else 0)
        copied = 2 + 2 * product(field) * batch if narrow and zero else 0
        result.append(worker.max(axis=0) * chip.workers + copied)
    return np.stack(result)


def _slic_cycles(piece: Piece, inner_loops: Counts, form: Form, kernel: Kernel, chip: Chip) -> Counts:
    groups, blocks = piece.groups, ceil(piece.kernel[-1], SLIC_WIDTH) * product(piece.kernel[:-1])
    narrow = kernel.units == 2 and kernel.partial_size == 2
    if kernel.group_grouping == 1:
        load = 18 + 16
    else:
        load = 21 + ((12 if kernel.group_grouping == 2 else 10) + int(kernel.group_grouping > 4)) * chip.workers + 16
    body = 12 if narrow else 15
    strides = max(1, kernel.group_grouping // 4)
    if kernel.group_grouping <= 4:
        block = load + (0 if narrow else 4) + 16
    else:
        block = (load + 21) * strides + 6 * (strides - 1) + 1 + 15
        body += 8
    supervisor = (25 if narrow else 28) + body * groups + 6 * (groups - 1) + 1 + block * blocks + 6 * (blocks - 1) + 1
    cycles: Counts = supervisor + groups * (inner_loops[1] + (blocks - 1) * inner_loops[0] * strides)
    return cycles


# -- MAC vertices ----------------------------------------------------------------------------------------------------


def dot_cycles(size: int, kernel: Kernel) -> int:
    """Cycles of a dot product of ``size`` elements in one worker (two output channels at once for half partials)."""
    wide, both = 8 // kernel.in_size, 2 if kernel.partial_size == 2 else 1
    fixed = 3 * both + int(both == 2) + 4
    step = wide
    while size % step:
        step //= 2
    short = step < wide
    return fixed + (both if short else 0) + size // step * (2 if short else 1)


def short_hmac(form: Form, kernel: Kernel) -> bool:
    """Whether the HMAC vertex for 1x1 kernels, half inputs and float partial sums can compute ``form``.

    It takes 17 cycles per worker and 10 supervisor cycles less: the difference that fits the four half-precision HMAC
    rows of ``docs/reference/cycles.md`` 8.2.
    """
    return form.one_by_one and kernel.in_size == 2 and kernel.partial_size == 4


def _hmac_inner(batch: Counts, field: tuple[Counts, ...], form: Form, kernel: Kernel, chip: Chip) -> Counts:
    """Worker time for one kernel element: whole rows and a part of a row."""
    workers = chip.workers
    rows = batch
    for size, axis in zip(field[:-1], form.axes[:-1], strict=True):
        rows = rows * ceil(size, axis.input_dilation)
    # Rows are cut so that all workers get equally many parts.
    split = workers // np.gcd(workers, rows)
    parts = ceil(rows * split, workers)
    width = ceil(field[-1], form.axes[-1].input_dilation)
    part = parts % split * (width + split - 1) // split
    position_cycles = 7 + (kernel.out_grouping if kernel.partial_size == 4 else kernel.out_grouping // 2) * dot_cycles(
        kernel.in_grouping, kernel
    )
    worker = 16 + parts // split * (19 + width * position_cycles) + np.where(part > 0, 19 + part * position_cycles, 0)
    cycles: Counts = (workers * (worker - (17 if short_hmac(form, kernel) else 0)))[None]
    return cycles


def _hmac_cycles(piece: Piece, inner_loops: Counts, form: Form, kernel: Kernel, chip: Chip) -> Counts:
    loop = inner_loops[0] * product(piece.kernel) + 16 * chip.workers
    fixed = 58 if kernel.in_size == 4 else 55 if short_hmac(form, kernel) else 65
    group_cycles = 23 + piece.in_groups * (15 + piece.out_groups * (10 + loop))
    cycles: Counts = fixed + 9 * chip.workers + piece.groups * group_cycles + _zero_partials(piece, kernel, chip)
    return cycles


def _vmac_inner(batch: Counts, field: tuple[Counts, ...], form: Form, kernel: Kernel, chip: Chip) -> Counts:
    """Rows: whole positions and parts of positions per worker, parts that make a position, positions in all."""
    positions = product(field) * batch
    # Positions are cut so that all workers get equally many parts.
    split = chip.workers // np.gcd(chip.workers, positions)
    parts = ceil(positions * split, chip.workers)
    return np.stack([parts // split, parts % split, split, positions])


def _vmac_cycles(piece: Piece, inner_loops: Counts, form: Form, kernel: Kernel, chip: Chip) -> Counts:
    whole, parts, split, positions = inner_loops
    width, fast_loop = piece.kernel[-1], kernel.group_grouping >= 8 and kernel.partial_size == 2

    def row(size: Counts) -> Counts:
        if fast_loop:
            return 25 + 3 * (size - 1)
        return 7 + (5 if kernel.partial_size == 4 else 3) + 3 + 2 * (size - 1)

    rows = product(piece.kernel[:-1])
    terms = rows * (whole * row(width) + parts * row(ceil(width, split)))
    if fast_loop:
        worker = (13 if kernel.group_grouping == 8 else 25) + terms * (1 if kernel.group_grouping == 8 else 2)
    else:
        worker = (19 if kernel.partial_size == 4 else 18) + terms
    outputs = positions * kernel.group_grouping
    wide = int(kernel.partial_size == 4)
    clear = 4 + ceil(outputs, 2 if wide else 4)
    share = ceil(outputs, chip.workers)
    merge = 10 - wide + (7 + 2 * wide + (1 + wide) * (chip.workers - 1)) * share // kernel.group_grouping
    loop = 32 + piece.in_groups * (24 + chip.workers * worker)
    cycles: Counts = 76 + (chip.workers * (clear + merge) + loop) * piece.groups
    return cycles


def _outer_inner(batch: Counts, field: tuple[Counts, ...], form: Form, kernel: Kernel, chip: Chip) -> Counts:
    """Row 0: positions of one worker."""
    return ceil(product(field) * batch, chip.workers)[None]


def _outer_cycles(piece: Piece, inner_loops: Counts, form: Form, kernel: Kernel, chip: Chip) -> Counts:
    """Tile cycles of an outer product (``docs/reference/cycles.md`` 7.5).

    A grouping of one vector is shorter than the fast loop needs. The update of a joint plan has the grouping of its
    forward pass.
    """
    size, wide = kernel.out_grouping, kernel.in_size == 4
    vector, smallest_fast = (2, 6) if wide else (4, 12)
    if size >= smallest_fast and size % vector == 0 and size // vector + 1 < 512:
        position_cycles = 6 + (size - smallest_fast) // vector
    else:
        position_cycles = 10 + (size * 2 if wide else size * 5 // 2)
    loop = (11 if wide else 10) + inner_loops[0] * position_cycles
    cycles: Counts = chip.workers * (25 + piece.out_groups * piece.groups * loop)
    return cycles


_INNER = {"AMP": amp_inner, "SLIC": _slic_inner, "HMAC": _hmac_inner, "VMAC": _vmac_inner, "OUTER": _outer_inner}
_OUTER = {"AMP": _amp_cycles, "SLIC": _slic_cycles, "HMAC": _hmac_cycles, "VMAC": _vmac_cycles, "OUTER": _outer_cycles}


def inner_cycles(batch: Counts, field: tuple[Counts, ...], form: Form, kernel: Kernel, chip: Chip) -> Counts:
    """Cycles of the vertex's inner loop for pieces of the field, in the rows that :func:`vertex_cycles` reads."""
    return _INNER[kernel.method](batch, field, form, kernel, chip)


def vertex_cycles(piece: Piece, inner_loops: Counts, form: Form, kernel: Kernel, chip: Chip) -> Counts:
    """Tile cycles of one vertex for each candidate; ``inner_loops``: columns of :func:`inner_cycles`."""
    return _OUTER[kernel.method](piece, inner_loops, form, kernel, chip)
