"""Tile cycles of the convolution vertices, vectorised over candidate splits.

These are the vertices that only a plan has, as their cycles follow from its pieces; vertices that ops have too stand in
:mod:`ipuperf.ops`. Formulas: PopLibs ``lib/poplin/PerformanceEstimation.hpp`` (2023), of which
``docs/reference/cycles.md`` 7 is the summary. A :class:`Kernel` is one kind of vertex with its channel
grouping; :func:`inner_cycles` is what depends on the piece of the field only, :func:`vertex_cycles` adds the loops over
groups and kernel elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .form import POINT, Form

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Kernel width of the SLIC vertex (the 4 of its name, ConvPartial1x4SLIC).
SLIC_WIDTH = 4

_TYPE = {2: "half", 4: "float"}


@dataclass(frozen=True)
class Kernel:
    """A kind of vertex.

    Attributes:
        method: ``AMP``, ``SLIC``, ``HMAC``, ``VMAC`` or ``OUTER``.
        units: AMP units, or convolution chains for SLIC.
        group_grouping, in_grouping, out_grouping: groups, input and output channels that one vertex takes at once.
        height: kernel rows that one AMP pass covers (above 1 when the input channels do not fill the units).
        in_size, partial_size: bytes per element.
    """

    method: str
    units: int
    group_grouping: int
    in_grouping: int
    out_grouping: int
    height: int
    in_size: int
    partial_size: int

    @property
    def macs_per_cycle(self) -> int:
        """The most multiply-accumulates one tile does in a cycle."""
        vector = 8 // self.in_size
        if self.method == "AMP":
            return self.units * (4 if self.in_size == 2 else 1)
        return vector * SLIC_WIDTH * 2 if self.method == "SLIC" else 2 * vector if self.method == "VMAC" else vector

    def name(self, form: Form) -> str:
        """The vertex type as PopLibs calls it, for the pieces of ``form``."""
        types = f"{_TYPE[self.in_size]},{_TYPE[self.partial_size]}"
        if self.method == "AMP":
            return f"poplin::ConvPartial{'1x1Out' if self.flat(form) else 'nx1'}<{types},{self.units}>"
        return {
            "SLIC": f"poplin::ConvPartial1x4SLIC<{types},{self.units}>",
            "HMAC": f"poplin::ConvPartialHorizontalMac<{types}>",
            "VMAC": f"poplin::ConvPartialVerticalMac<{types}>",
            "OUTER": f"poplin::OuterProduct<{_TYPE[self.in_size]}>",
        }[self.method]

    def flat(self, form: Form) -> bool:
        """Whether the AMP vertex for one flat field and a kernel of one element does it."""
        return form.one_by_one and self.height == 1


@dataclass(frozen=True)
class Piece:
    """Sizes on the fullest tile, one entry per candidate.

    Attributes:
        batch: batch elements; ``field``: outputs per axis; ``kernel``: kernel elements per axis.
        groups, in_groups, out_groups: counted in groupings of the vertex.
    """

    batch: np.ndarray
    field: tuple[np.ndarray, ...]
    kernel: tuple[np.ndarray, ...]
    groups: np.ndarray
    in_groups: np.ndarray
    out_groups: np.ndarray


def ceil(a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
    """Integer division rounded up."""
    return -(-a // b)


def product(values: tuple[np.ndarray, ...]) -> np.ndarray:
    """Element-wise product of several vectors."""
    result = values[0]
    for value in values[1:]:
        result = result * value
    return result


# -- which vertices there are ----------------------------------------------------------------------------------------


def amp_units(chip: Chip, in_size: int, partial_size: int) -> int:
    """AMP units of a tile for the types."""
    if in_size == 4:
        return chip.amp_units_f32_f32
    return chip.amp_units_f16_f16 if partial_size == 2 else chip.amp_units_f16_f32


def grain(in_size: int) -> int:
    """Input channels that fill an AMP unit; also the grouping that the next layer is assumed to want."""
    return 16 if in_size == 2 else 8


@lru_cache(maxsize=64)
def amp_kernels(chip: Chip, in_size: int, partial_size: int) -> tuple[Kernel, ...]:
    """AMP vertices of a chip for the types, the widest first."""
    most, full = amp_units(chip, in_size, partial_size), grain(in_size)
    found: dict[Kernel, None] = {}
    for units in dict.fromkeys((most, min(most, 8))):
        for inner in [n for n in (full, full // 2, full // 4) if n * in_size % chip.data_path_bytes == 0]:
            weights = full if inner == full else full * units // most
            for outer in dict.fromkeys((most, full, 8)):
                if outer not in (units, full * units // most) or outer % units or weights % inner:
                    continue
                found[Kernel("AMP", units, 1, inner, outer, weights // inner, in_size, partial_size)] = None
    return tuple(found)


def _slic_kernels(chip: Chip, partial_size: int) -> list[Kernel]:
    most = amp_units(chip, 2, partial_size)
    chains = [2] if partial_size == 4 or most < 16 else [4, 2]
    groupings = [(1, 4), (2, 2), (4, 1)] + ([(8, 1), (16, 1)] if partial_size == 2 and most == 16 else [])
    return [Kernel("SLIC", c, g, n, n, 1, 2, partial_size) for c in chains for g, n in groupings]


def hmac_kernels(form: Form, chip: Chip, in_size: int, partial_size: int, out_size: int) -> list[Kernel]:
    """Horizontal MAC vertices: any input grouping that changes the number of groups (even in half precision)."""
    step = 1 if in_size == 4 else 2
    channels = -(-form.in_channels // step) * step
    outer = 1 if partial_size == 4 else 2
    sizes = np.arange(step, channels + 1, step)
    _, first = np.unique(-(-channels // sizes), return_index=True)
    return [Kernel("HMAC", 0, 1, int(size), outer, 1, in_size, partial_size) for size in sizes[first]]


def kernels(form: Form, chip: Chip, in_size: int, partial_size: int, out_size: int) -> list[Kernel]:
    """The vertices but HMAC that can compute ``form`` with these bytes per input, partial sum and result element."""
    found = [k for k in amp_kernels(chip, in_size, partial_size) if form.pass_ != "fcinf" or k.out_grouping == k.units]
    only_one_term = form.in_channels <= grain(in_size) and all(a.kernel == 1 for a in form.axes)
    if out_size < partial_size and only_one_term:
        narrow = amp_kernels(chip, in_size, out_size)
        found += [k for k in narrow if -(-form.in_channels // k.in_grouping) * k.in_grouping == grain(in_size)]
    last = form.axes[-1]
    undilated = all(a.input_dilation == 1 and a.kernel_dilation == 1 for a in form.axes)
    if in_size == 2 and undilated and not form.swapped and not form.is_product:
        if last.stride <= 2:
            found += [
                k for k in _slic_kernels(chip, partial_size) if k.group_grouping == 1 or k.group_grouping <= form.groups
            ]
        groupings = (4, 8, 16) if partial_size == 2 else (4,)
        found += [Kernel("VMAC", 0, g, 1, 1, 1, 2, partial_size) for g in groupings if g <= form.groups]
    if form.one_by_one and form.in_channels == 1 and (in_size >= partial_size or out_size == in_size):
        found.append(Kernel("OUTER", 0, 1, 1, 8 // in_size, 1, in_size, in_size))
    return found


def step_cycles(form: Form, kernel: Kernel) -> float:
    """Tile cycles that each step takes at least: one position, one kernel element and one grouping of groups, input and
    output channels, at the full rate of the vertex."""
    if kernel.method == "HMAC":
        return (7 + _dot_cycles(kernel.in_grouping, kernel)) / math.prod(a.input_dilation for a in form.axes)
    macs = kernel.in_grouping * kernel.out_grouping
    if kernel.method in ("AMP", "OUTER"):
        macs *= kernel.group_grouping
    return macs / (kernel.macs_per_cycle * math.prod(a.worklist_stride for a in form.axes))


def loop_cycles(form: Form, kernel: Kernel, chip: Chip) -> float:
    """Tile cycles that the steps of all positions of a piece take at least besides :func:`step_cycles`: starting the
    workers and loading AMP coefficients."""
    if kernel.method == "HMAC":
        elements = math.prod(a.kernel for a in form.axes)
        return chip.workers * (35 - 17 * _short_hmac(form, kernel)) + (10 + 16 * chip.workers) / elements
    if kernel.method == "AMP":
        return _amp_loop_cycles(form.one_by_one, kernel, chip)
    return 0.0


@lru_cache(maxsize=256)
def _amp_loop_cycles(flat: bool, kernel: Kernel, chip: Chip) -> float:
    """Over all numbers of positions; a dilated input does with fewer of them, so that the least is the same."""
    form = Form(1 if flat else 2, 1, 1, 1, (POINT, POINT), "fwd")
    positions = np.arange(1, 65)
    one = np.ones_like(positions)
    inner = _amp_inner(one, (one, positions), form, kernel, chip)
    passes = -(-kernel.out_grouping // kernel.units)
    rate = step_cycles(form, kernel) * kernel.height / passes
    load = kernel.units * chip.amp_unit_bytes // chip.weight_load_bytes_per_cycle
    return passes * (load + 3 + max(0.0, float((inner - rate * positions).min()))) / kernel.height


def turn_cycles(form: Form, kernel: Kernel) -> float:
    """Tile cycles that each step of all positions takes at least besides :func:`loop_cycles`: the loops around an AMP
    vertex and the shuffling of its coefficients."""
    if kernel.method != "AMP":
        return 0.0
    passes = -(-kernel.out_grouping // kernel.units)
    return 18.0 + 3 * passes if kernel.flat(form) else (12 + passes * _shuffle(kernel)) / kernel.height


def clear_cycles(form: Form, kernel: Kernel) -> float:
    """Tile cycles of clearing each partial sum, at least."""
    return 0.5 if kernel.method == "HMAC" or (kernel.method == "AMP" and not kernel.flat(form)) else 0.0


def _shuffle(kernel: Kernel) -> int:
    """Cycles of shuffling the coefficients of so many kernel rows."""
    return {4: 60, 2: 46, 1: 15}.get(kernel.height, 20 * kernel.height)


def start_cycles(form: Form, kernel: Kernel, chip: Chip) -> float:
    """Tile cycles that a vertex takes at least besides its steps and loops."""
    if kernel.method == "HMAC":
        return 55.0 + chip.workers * 9
    if kernel.method == "AMP":
        return 73.0 if kernel.flat(form) else 320.0
    return 0.0


def least_cycles(form: Form, kernel: Kernel, chip: Chip) -> tuple[float, float]:
    """No plan of ``form`` with ``kernel`` is faster: (cycles of all padded steps at full rate on all tiles and of the
    exchange of all partial sums, cycles of the start and of a single loop of a vertex in each serial pass; HMAC: of the
    start alone)."""
    groups, inner, outer = (-(-n // g) for n, g in ((form.groups, kernel.group_grouping),
                                                   (form.in_channels, kernel.in_grouping),
                                                   (form.out_channels, kernel.out_grouping)))  # fmt: skip
    outputs = form.batch * groups * outer * math.prod(a.output for a in form.axes)
    steps = outputs * inner * math.prod(a.kernel for a in form.axes)
    sums = outputs * kernel.group_grouping * kernel.out_grouping * kernel.partial_size
    spread = (steps * step_cycles(form, kernel) + sums / chip.exchange_bytes_per_cycle) / chip.tiles
    start = start_cycles(form, kernel, chip)
    if kernel.method == "AMP":
        return spread, loop_cycles(form, kernel, chip) * kernel.height + start
    return spread, start


def work_asked(form: Form, kernel: Kernel) -> int:
    """Cycles that the tiles of a plan have to compute together, at least: all products, padding of groups and channels
    included, at the rate of the vertex.

    PopLibs calls the condition redundant (``lib/poplin/ConvModel.cpp`` addEstimates). For vertices whose estimate is
    faster than that rate it is not: a horizontal MAC with half partial sums takes two output channels at once, eight
    products a cycle against four, so that its plans with the least work drop out of the search.
    """
    groups, inner, outer = (-(-n // g) * g for n, g in ((form.groups, kernel.group_grouping),
                                                       (form.in_channels, kernel.in_grouping),
                                                       (form.out_channels, kernel.out_grouping)))  # fmt: skip
    products = form.batch * groups * inner * outer * math.prod(axis.products for axis in form.axes)
    return products // kernel.macs_per_cycle


def mac_cycles(form: Form, chip: Chip, in_size: int) -> float:
    """What the MAC vertices need at least: one vector of products per cycle on every tile."""
    macs = form.batch * form.groups * form.in_channels * form.out_channels
    macs *= math.prod(a.output * a.kernel for a in form.axes)
    return macs // math.prod(a.worklist_stride for a in form.axes) * in_size / (8 * chip.tiles)


# -- how workers share a piece of the field --------------------------------------------------------------------------


def _spans(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, workers: int) -> tuple[np.ndarray, ...]:
    """(first, middle, last, width) per worker and candidate: lengths of the first and last row piece, number of whole
    rows between them, and their width. A worker takes consecutive outputs of the flat piece."""
    steps = [axis.worklist_stride for axis in form.axes]
    width = ceil(field[-1], steps[-1])
    rows = batch
    for size, step in zip(field[:-1], steps[:-1], strict=True):
        rows = rows * ceil(size, step)
    total = rows * width
    index = np.arange(workers, dtype=np.int64)[:, None]
    begin, end = index * total // workers, (index + 1) * total // workers
    first_row, last_row = begin // width, (end - 1) // width
    whole = end - begin
    single = (first_row == last_row) | (whole == 0)
    first = np.where(single, whole, (first_row + 1) * width - begin)
    last = np.where(single, 0, end - last_row * width)
    middle = np.where(single, 0, last_row - first_row - 1)
    return first, middle, last, np.broadcast_to(width, first.shape)


def _slowest(worker: np.ndarray, workers: int, tail: int) -> np.ndarray:
    """Tile cycles of the slowest worker; the supervisor needs ``tail`` cycles more than the fastest."""
    return np.maximum(workers * worker.max(axis=0), workers * worker.min(axis=0) + tail)


# -- AMP -------------------------------------------------------------------------------------------------------------


def _amp_1x1_worker(positions: np.ndarray, kernel: Kernel, zero: int) -> np.ndarray:
    p, wide = positions, kernel.in_size == 4
    if not wide and (kernel.units == 16 or kernel.partial_size == 4):
        short = np.where(p == 1, 31, 40) + (1 if zero else 2)
        return np.where(p == 0, 0, np.where(p < 3, short, (37 if zero else 38) + 4 * (p - 3)) - 7)
    clear = 8 if wide and kernel.units == 16 else 4 if kernel.partial_size == 4 else 2
    one, two, more, core = (47, 46, 46, 8) if wide else (39, 40, 41, 4)
    fixed = np.where(p == 1, one, np.where(p == 2, two, more + core * (p - 3)))
    return np.where(p == 0, 0, fixed + zero * (2 + clear * p))


def _amp_nx1_piece(length: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Worker cycles of one worklist item; nothing where there is no item."""
    wide = kernel.in_size == 4
    full = kernel.units == (16 if kernel.partial_size == 2 else 8)
    one, two, more, core = (33, 44, 45, 8) if wide else (29, 33 + int(full), 34, 4)
    cycles = np.where(length == 1, one, np.where(length == 2, two, more + core * (length - 3)))
    return np.where(length == 0, 0, cycles + 3 - 9)


def _amp_inner(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Rows: 1x1 worker time without and with clearing; or nx1 worker time."""
    if kernel.flat(form):
        few = field[-1] // chip.workers  # so many positions or one more for each worker
        shares = np.stack([few, ceil(field[-1], chip.workers)])
        return np.stack([_slowest(_amp_1x1_worker(shares, kernel, zero), chip.workers, 14) for zero in (0, 1)])
    first, middle, last, width = _spans(batch, field, form, chip.workers)
    worker = 17 + int(kernel.partial_size == 2) + _amp_nx1_piece(first, kernel) + _amp_nx1_piece(last, kernel)
    worker = worker + middle * _amp_nx1_piece(width, kernel)
    return _slowest(worker, chip.workers, 9)[None]


def _zero_partials(piece: Piece, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Clearing the partial sums, counted in two elements per cycle and worker."""
    each = ceil(product(piece.field) * piece.batch * kernel.out_grouping, chip.workers)
    return (ceil(each, 2) + 5) * chip.workers * piece.out_groups * piece.groups


def _amp_cycles(piece: Piece, inner: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    workers, c, i, o = chip.workers, piece.groups, piece.in_groups, piece.out_groups
    load = kernel.units * chip.amp_unit_bytes // chip.weight_load_bytes_per_cycle
    passes = -(-kernel.out_grouping // kernel.units)
    if kernel.flat(form):
        half_wide = kernel.in_size == 2 and (kernel.partial_size == 4 or kernel.units == 16)
        common = int(half_wide or kernel.partial_size == 4)
        retained = workers * (7 + 3 * (i * c - 1)) if half_wide else 0
        later = (i - 1) * (16 - common + o * (19 + passes * (6 + load + inner[0])))
        begin = 11 + o * (19 - common + passes * (7 + load + inner[1]))
        return 50 + retained + c * (12 + common + later + begin)
    outer_rows = ceil(piece.kernel[0], kernel.height)
    inner_kernel = product(piece.kernel[1:])
    loops = outer_rows * (14 + inner_kernel * (12 + passes * (load + _shuffle(kernel) + 3)))
    loops = loops + inner[0] * passes * outer_rows * inner_kernel
    fixed = 109 + workers * 9 + workers * (9 if kernel.partial_size == 4 else 10)
    clear = c * (17 * o + 6 * (o - 1) + 1) + (c - 1) * 6 + 1
    return fixed + clear + c * (16 + i * (14 + o * (14 + loops))) + _zero_partials(piece, kernel, chip)


# -- SLIC ------------------------------------------------------------------------------------------------------------


def _slic_row(length: np.ndarray, kernel: Kernel, stride: int, zero: bool) -> np.ndarray:
    """Worker cycles of one row piece; nothing where there is none."""
    n, narrow = length, kernel.units == 2 and kernel.partial_size == 2
    if stride == 1:
        if zero:
            short, full = 13 + np.where(n > 1, n, 0), 15 + (n - 5)
        else:
            short, full = np.where(n == 1, 13, 17 + n), 15 + (n - 5) + (3 if narrow else 0)
        cycles = np.where(n < (6 if narrow else 5), short, full)
    else:
        cycles = np.where(n < 3, 10 + np.where(n == 1, 3, 5), 15 + 2 * (n - 3))
    cycles = cycles - int(kernel.partial_size == 4)
    item = (9 if narrow else 10) + int(zero) + (3 if kernel.partial_size == 4 else 0)
    return np.where(n == 0, 0, item + cycles * (1 if kernel.units == 4 else 2))


def _slic_inner(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Rows: worker time of a later and of the first (clearing) kernel block."""
    first, middle, last, width = _spans(batch, field, form, chip.workers)
    narrow = kernel.units == 2 and kernel.partial_size == 2
    start = 17 + (4 if kernel.group_grouping > 4 else 0)
    stride, result = form.axes[-1].stride, []
    for zero in (False, True):
        worker = start + _slic_row(first, kernel, stride, zero) + _slic_row(last, kernel, stride, zero)
        worker = worker + middle * _slic_row(width, kernel, stride, zero) + (2 if narrow else 0)
        copied = 2 + 2 * product(field) * batch if narrow and zero else 0
        result.append(worker.max(axis=0) * chip.workers + copied)
    return np.stack(result)


def _slic_cycles(piece: Piece, inner: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
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
    return supervisor + groups * (inner[1] + (blocks - 1) * inner[0] * strides)


# -- MAC vertices ----------------------------------------------------------------------------------------------------


def _dot_cycles(size: int, kernel: Kernel) -> int:
    """Cycles of a dot product of ``size`` elements in one worker (two output channels at once for half partials)."""
    wide, both = 8 // kernel.in_size, 2 if kernel.partial_size == 2 else 1
    fixed = 3 * both + int(both == 2) + 4
    step = wide
    while size % step:
        step //= 2
    short = step < wide
    return fixed + (both if short else 0) + size // step * (2 if short else 1)


def _short_hmac(form: Form, kernel: Kernel) -> bool:
    """Whether the HMAC vertex for 1x1 kernels, half inputs and float partial sums does it (17 cycles per worker and 10
    supervisor cycles less: the difference that fits the four half-precision HMAC rows of
    ``docs/reference/cycles.md`` 8.2)."""
    return form.one_by_one and kernel.in_size == 2 and kernel.partial_size == 4


def _hmac_inner(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Worker time for one kernel element: whole rows and a part of a row."""
    workers = chip.workers
    rows = batch
    for size, axis in zip(field[:-1], form.axes[:-1], strict=True):
        rows = rows * ceil(size, axis.input_dilation)
    split = workers // np.gcd(workers, rows)
    parts = ceil(rows * split, workers)
    width = ceil(field[-1], form.axes[-1].input_dilation)
    part = parts % split * (width + split - 1) // split
    each = 7 + (kernel.out_grouping if kernel.partial_size == 4 else kernel.out_grouping // 2) * _dot_cycles(
        kernel.in_grouping, kernel
    )
    worker = 16 + parts // split * (19 + width * each) + np.where(part > 0, 19 + part * each, 0)
    return (workers * (worker - (17 if _short_hmac(form, kernel) else 0)))[None]


def _hmac_cycles(piece: Piece, inner: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    loop = inner[0] * product(piece.kernel) + 16 * chip.workers
    fixed = 58 if kernel.in_size == 4 else 55 if _short_hmac(form, kernel) else 65
    each = 23 + piece.in_groups * (15 + piece.out_groups * (10 + loop))
    return fixed + 9 * chip.workers + piece.groups * each + _zero_partials(piece, kernel, chip)


def _vmac_inner(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Rows: whole positions and parts of positions per worker, parts that make a position, positions in all."""
    positions = product(field) * batch
    split = chip.workers // np.gcd(chip.workers, positions)
    parts = ceil(positions * split, chip.workers)
    return np.stack([parts // split, parts % split, split, positions])


def _vmac_cycles(piece: Piece, inner: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    whole, parts, split, positions = inner
    width, many = piece.kernel[-1], kernel.group_grouping >= 8 and kernel.partial_size == 2

    def row(size: np.ndarray) -> np.ndarray:
        if many:
            return 25 + 3 * (size - 1)
        return 7 + (5 if kernel.partial_size == 4 else 3) + 3 + 2 * (size - 1)

    rows = product(piece.kernel[:-1])
    terms = rows * (whole * row(width) + parts * row(ceil(width, split)))
    if many:
        worker = (13 if kernel.group_grouping == 8 else 25) + terms * (1 if kernel.group_grouping == 8 else 2)
    else:
        worker = (19 if kernel.partial_size == 4 else 18) + terms
    outputs = positions * kernel.group_grouping
    wide = int(kernel.partial_size == 4)
    clear = 4 + ceil(outputs, 2 if wide else 4)
    share = ceil(outputs, chip.workers)
    merge = 10 - wide + (7 + 2 * wide + (1 + wide) * (chip.workers - 1)) * share // kernel.group_grouping
    loop = 32 + piece.in_groups * (24 + chip.workers * worker)
    return 76 + (chip.workers * (clear + merge) + loop) * piece.groups


def _outer_inner(
    batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip
) -> np.ndarray:
    """Row 0: positions of one worker."""
    return ceil(product(field) * batch, chip.workers)[None]


def _outer_cycles(piece: Piece, inner: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    """``docs/reference/cycles.md`` 7.5. A grouping of one vector is shorter than the fast loop needs; the update of a
    joint plan has the grouping of its forward pass."""
    size, wide = kernel.out_grouping, kernel.in_size == 4
    vector, least = (2, 6) if wide else (4, 12)
    if size >= least and size % vector == 0 and size // vector + 1 < 512:
        each = 6 + (size - least) // vector
    else:
        each = 10 + (size * 2 if wide else size * 5 // 2)
    loop = (11 if wide else 10) + inner[0] * each
    return chip.workers * (25 + piece.out_groups * piece.groups * loop)


_INNER = {"AMP": _amp_inner, "SLIC": _slic_inner, "HMAC": _hmac_inner, "VMAC": _vmac_inner, "OUTER": _outer_inner}
_OUTER = {"AMP": _amp_cycles, "SLIC": _slic_cycles, "HMAC": _hmac_cycles, "VMAC": _vmac_cycles, "OUTER": _outer_cycles}


def inner_cycles(
    batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip
) -> np.ndarray:
    """What the vertex's inner loop takes for pieces of the field: rows that :func:`vertex_cycles` understands."""
    return _INNER[kernel.method](batch, field, form, kernel, chip)


def vertex_cycles(piece: Piece, inner: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Tile cycles of one vertex for each candidate; ``inner`` are the candidates' columns of :func:`inner_cycles`."""
    return _OUTER[kernel.method](piece, inner, form, kernel, chip)
