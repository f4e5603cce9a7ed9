"""Tile cycles of the convolution vertices, vectorised over candidate splits.

Only plans have these vertices, as their cycles follow from the pieces of a plan; the vertices of ops are in
:mod:`ipuperf.ops`. The formulas are those of PopLibs ``lib/poplin/PerformanceEstimation.hpp`` (2023), summarised in
``docs/reference/cycles.md`` 7. A :class:`Kernel` is one kind of vertex with its channel grouping.
:func:`inner_cycles` covers the part that depends on the piece of the field only; :func:`vertex_cycles` adds the loops
over groups and kernel elements.
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
        """The largest number of multiply-accumulates of one tile in a cycle."""
        vector = 8 // self.in_size
        # An AMP unit multiplies four halves or one float in a cycle.
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
        """Whether the AMP vertex for one flat field and a kernel of one element can compute ``form``."""
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
    """Input channels that fill an AMP unit; also the grouping that the next layer is assumed to read."""
    return 16 if in_size == 2 else 8


@lru_cache(maxsize=64)
def amp_kernels(chip: Chip, in_size: int, partial_size: int) -> tuple[Kernel, ...]:
    """AMP vertices of a chip for the types, the widest first."""
    most_units, full = amp_units(chip, in_size, partial_size), grain(in_size)
    vertices: dict[Kernel, None] = {}
    # Chips with 16 units also have the vertices for 8.
    for units in dict.fromkeys((most_units, min(most_units, 8))):
        for in_grouping in [
            grouping for grouping in (full, full // 2, full // 4) if grouping * in_size % chip.data_path_bytes == 0
        ]:
            weights = full if in_grouping == full else full * units // most_units
            for out_grouping in dict.fromkeys((most_units, full, 8)):
                if (
                    out_grouping not in (units, full * units // most_units)
                    or out_grouping % units
                    or weights % in_grouping
                ):
                    continue
                vertices[
                    Kernel("AMP", units, 1, in_grouping, out_grouping, weights // in_grouping, in_size, partial_size)
                ] = None
    return tuple(vertices)


def _slic_kernels(chip: Chip, partial_size: int) -> list[Kernel]:
    most_units = amp_units(chip, 2, partial_size)
    chains = [2] if partial_size == 4 or most_units < 16 else [4, 2]
    groupings = [(1, 4), (2, 2), (4, 1)] + ([(8, 1), (16, 1)] if partial_size == 2 and most_units == 16 else [])
    return [
        Kernel("SLIC", chain_count, group_grouping, channels, channels, 1, 2, partial_size)
        for chain_count in chains
        for group_grouping, channels in groupings
    ]


def hmac_kernels(form: Form, chip: Chip, in_size: int, partial_size: int, out_size: int) -> list[Kernel]:
    """Horizontal MAC vertices with every input grouping (even in half precision) that changes the number of groups."""
    step = 1 if in_size == 4 else 2
    channels = -(-form.in_channels // step) * step
    out_grouping = 1 if partial_size == 4 else 2
    sizes = np.arange(step, channels + 1, step)
    # Only the smallest grouping for each number of groups: a larger one would only add padding.
    _, first_size = np.unique(-(-channels // sizes), return_index=True)
    return [Kernel("HMAC", 0, 1, int(size), out_grouping, 1, in_size, partial_size) for size in sizes[first_size]]


def kernels(form: Form, chip: Chip, in_size: int, partial_size: int, out_size: int) -> list[Kernel]:
    """The vertices without HMAC that can compute ``form`` with these bytes per input, partial sum and result."""
    vertices = [
        vertex
        for vertex in amp_kernels(chip, in_size, partial_size)
        if form.pass_ != "fcinf" or vertex.out_grouping == vertex.units
    ]
    only_one_term = form.in_channels <= grain(in_size) and all(axis.kernel == 1 for axis in form.axes)
    # A single load of channels leaves nothing to add up, so the sums may be as narrow as the result.
    if out_size < partial_size and only_one_term:
        narrow = amp_kernels(chip, in_size, out_size)
        vertices += [
            vertex
            for vertex in narrow
            if -(-form.in_channels // vertex.in_grouping) * vertex.in_grouping == grain(in_size)
        ]
    last_axis = form.axes[-1]
    undilated = all(axis.input_dilation == 1 and axis.kernel_dilation == 1 for axis in form.axes)
    # SLIC and VMAC vertices exist for halves, without dilation and with operands as they are.
    if in_size == 2 and undilated and not form.swapped and not form.is_product:
        # The SLIC vertex has strides of 1 and 2 only.
        if last_axis.stride <= 2:
            vertices += [
                vertex
                for vertex in _slic_kernels(chip, partial_size)
                if vertex.group_grouping == 1 or vertex.group_grouping <= form.groups
            ]
        groupings = (4, 8, 16) if partial_size == 2 else (4,)
        vertices += [
            Kernel("VMAC", 0, grouping, 1, 1, 1, 2, partial_size) for grouping in groupings if grouping <= form.groups
        ]
    if form.one_by_one and form.in_channels == 1 and (in_size >= partial_size or out_size == in_size):
        vertices.append(Kernel("OUTER", 0, 1, 1, 8 // in_size, 1, in_size, in_size))
    return vertices


def step_cycles(form: Form, kernel: Kernel) -> float:
    """A lower bound of the tile cycles of each step, at the full rate of the vertex.

    A step is one position, one kernel element and one grouping of groups, input and output channels.
    """
    if kernel.method == "HMAC":
        return (7 + _dot_cycles(kernel.in_grouping, kernel)) / math.prod(a.input_dilation for a in form.axes)
    macs = kernel.in_grouping * kernel.out_grouping
    if kernel.method in ("AMP", "OUTER"):
        macs *= kernel.group_grouping
    return macs / (kernel.macs_per_cycle * math.prod(a.worklist_stride for a in form.axes))


def loop_cycles(form: Form, kernel: Kernel, chip: Chip) -> float:
    """A lower bound of the tile cycles that the steps of all positions of a piece take besides :func:`step_cycles`.

    They start the workers and load AMP coefficients.
    """
    if kernel.method == "HMAC":
        elements = math.prod(a.kernel for a in form.axes)
        return chip.workers * (35 - 17 * _short_hmac(form, kernel)) + (10 + 16 * chip.workers) / elements
    if kernel.method == "AMP":
        return _amp_loop_cycles(form.one_by_one, kernel, chip)
    return 0.0


@lru_cache(maxsize=256)
def _amp_loop_cycles(flat: bool, kernel: Kernel, chip: Chip) -> float:
    """The minimum over all numbers of positions, cached.

    A dilated input needs fewer positions, so the minimum is the same.
    """
    form = Form(1 if flat else 2, 1, 1, 1, (POINT, POINT), "fwd")
    positions = np.arange(1, 65)
    ones = np.ones_like(positions)
    worker_cycles = _amp_inner(ones, (ones, positions), form, kernel, chip)
    passes = -(-kernel.out_grouping // kernel.units)
    rate = step_cycles(form, kernel) * kernel.height / passes
    load = kernel.units * chip.amp_unit_bytes // chip.weight_load_bytes_per_cycle
    return passes * (load + 3 + max(0.0, float((worker_cycles - rate * positions).min()))) / kernel.height


def turn_cycles(form: Form, kernel: Kernel) -> float:
    """A lower bound of the tile cycles that each step of all positions takes besides :func:`loop_cycles`.

    They are the loops around an AMP vertex and the shuffling of its coefficients.
    """
    if kernel.method != "AMP":
        return 0.0
    passes = -(-kernel.out_grouping // kernel.units)
    return 18.0 + 3 * passes if kernel.flat(form) else (12 + passes * _shuffle(kernel)) / kernel.height


def clear_cycles(form: Form, kernel: Kernel) -> float:
    """A lower bound of the tile cycles of clearing each partial sum."""
    return 0.5 if kernel.method == "HMAC" or (kernel.method == "AMP" and not kernel.flat(form)) else 0.0


def _shuffle(kernel: Kernel) -> int:
    """Cycles of shuffling the coefficients of the kernel rows that one AMP pass covers."""
    return {4: 60, 2: 46, 1: 15}.get(kernel.height, 20 * kernel.height)


def start_cycles(form: Form, kernel: Kernel, chip: Chip) -> float:
    """A lower bound of the tile cycles of a vertex besides its steps and loops."""
    if kernel.method == "HMAC":
        return 55.0 + chip.workers * 9
    if kernel.method == "AMP":
        return 73.0 if kernel.flat(form) else 320.0
    return 0.0


def least_cycles(form: Form, kernel: Kernel, chip: Chip) -> tuple[float, float]:
    """Lower bounds of any plan of ``form`` with ``kernel``: ``(cycles in all, cycles in each serial pass)``.

    The first are all padded steps at full rate on all tiles, and the exchange of all partial sums. The second are the
    start and a single loop of a vertex (HMAC: the start alone).
    """
    groups, in_groups, out_groups = (
        -(-count // grouping)
        for count, grouping in (
            (form.groups, kernel.group_grouping),
            (form.in_channels, kernel.in_grouping),
            (form.out_channels, kernel.out_grouping),
        )
    )
    outputs = form.batch * groups * out_groups * math.prod(a.output for a in form.axes)
    steps = outputs * in_groups * math.prod(a.kernel for a in form.axes)
    sums = outputs * kernel.group_grouping * kernel.out_grouping * kernel.partial_size
    spread = (steps * step_cycles(form, kernel) + sums / chip.exchange_bytes_per_cycle) / chip.tiles
    start = start_cycles(form, kernel, chip)
    if kernel.method == "AMP":
        return spread, loop_cycles(form, kernel, chip) * kernel.height + start
    return spread, start


def work_asked(form: Form, kernel: Kernel) -> int:
    """A lower bound of the cycles that the tiles of a plan compute together.

    It is all products, with padding of groups and channels, at the rate of the vertex. PopLibs calls the condition
    redundant (``lib/poplin/ConvModel.cpp`` addEstimates), but it is not for vertices whose estimate is faster than that
    rate. A horizontal MAC with half partial sums takes two output channels at once, eight products a cycle against
    four, so its plans with the least work drop out of the search.
    """
    groups, in_channels, out_channels = (
        -(-count // grouping) * grouping
        for count, grouping in (
            (form.groups, kernel.group_grouping),
            (form.in_channels, kernel.in_grouping),
            (form.out_channels, kernel.out_grouping),
        )
    )
    products = form.batch * groups * in_channels * out_channels * math.prod(axis.products for axis in form.axes)
    return products // kernel.macs_per_cycle


def mac_cycles(form: Form, chip: Chip, in_size: int) -> float:
    """A lower bound of the cycles of MAC vertices: one vector of products per cycle on every tile."""
    macs = form.batch * form.groups * form.in_channels * form.out_channels
    macs *= math.prod(a.output * a.kernel for a in form.axes)
    return macs // math.prod(a.worklist_stride for a in form.axes) * in_size / (8 * chip.tiles)


# -- how workers share a piece of the field --------------------------------------------------------------------------


def _spans(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, workers: int) -> tuple[np.ndarray, ...]:
    """``(first, middle, last, width)`` per worker and candidate.

    These are the length of the first row piece, the number of whole rows after it, the length of the last row piece,
    and the width of whole rows. A worker takes consecutive outputs of the flat piece.
    """
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


def _slowest(worker: np.ndarray, workers: int, tail: int) -> np.ndarray:
    """Tile cycles of the slowest worker; the supervisor needs ``tail`` cycles more than the fastest."""
    return np.maximum(workers * worker.max(axis=0), workers * worker.min(axis=0) + tail)


# -- AMP -------------------------------------------------------------------------------------------------------------

# The constants of this and the next sections are those of PopLibs' PerformanceEstimation.hpp.


def _amp_1x1_worker(positions: np.ndarray, kernel: Kernel, zero: int) -> np.ndarray:
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


def _amp_nx1_piece(length: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Worker cycles of one worklist item; nothing where there is no item."""
    wide = kernel.in_size == 4
    full = kernel.units == (16 if kernel.partial_size == 2 else 8)
    one_position, two_positions, more_positions, per_position = (33, 44, 45, 8) if wide else (29, 33 + int(full), 34, 4)
    cycles = np.where(
        length == 1, one_position, np.where(length == 2, two_positions, more_positions + per_position * (length - 3))
    )
    return np.where(length == 0, 0, cycles + 3 - 9)


def _amp_inner(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
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


def _zero_partials(piece: Piece, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Tile cycles of clearing the partial sums, two elements per cycle and worker."""
    per_worker = ceil(product(piece.field) * piece.batch * kernel.out_grouping, chip.workers)
    return (ceil(per_worker, 2) + 5) * chip.workers * piece.out_groups * piece.groups


def _amp_cycles(piece: Piece, inner_loops: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    workers, groups, in_groups, out_groups = chip.workers, piece.groups, piece.in_groups, piece.out_groups
    load = kernel.units * chip.amp_unit_bytes // chip.weight_load_bytes_per_cycle
    passes = -(-kernel.out_grouping // kernel.units)
    if kernel.flat(form):
        half_wide = kernel.in_size == 2 and (kernel.partial_size == 4 or kernel.units == 16)
        common = int(half_wide or kernel.partial_size == 4)
        retained = workers * (7 + 3 * (in_groups * groups - 1)) if half_wide else 0
        later = (in_groups - 1) * (16 - common + out_groups * (19 + passes * (6 + load + inner_loops[0])))
        begin = 11 + out_groups * (19 - common + passes * (7 + load + inner_loops[1]))
        return 50 + retained + groups * (12 + common + later + begin)
    outer_rows = ceil(piece.kernel[0], kernel.height)
    inner_kernel = product(piece.kernel[1:])
    loops = outer_rows * (14 + inner_kernel * (12 + passes * (load + _shuffle(kernel) + 3)))
    loops = loops + inner_loops[0] * passes * outer_rows * inner_kernel
    fixed = 109 + workers * 9 + workers * (9 if kernel.partial_size == 4 else 10)
    clear = groups * (17 * out_groups + 6 * (out_groups - 1) + 1) + (groups - 1) * 6 + 1
    return (
        fixed
        + clear
        + groups * (16 + in_groups * (14 + out_groups * (14 + loops)))
        + _zero_partials(piece, kernel, chip)
    )


# -- SLIC ------------------------------------------------------------------------------------------------------------


def _slic_row(length: np.ndarray, kernel: Kernel, stride: int, zero: bool) -> np.ndarray:
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


def _slic_inner(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
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


def _slic_cycles(piece: Piece, inner_loops: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
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
    return supervisor + groups * (inner_loops[1] + (blocks - 1) * inner_loops[0] * strides)


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
    """Whether the HMAC vertex for 1x1 kernels, half inputs and float partial sums can compute ``form``.

    It takes 17 cycles per worker and 10 supervisor cycles less: the difference that fits the four half-precision HMAC
    rows of ``docs/reference/cycles.md`` 8.2.
    """
    return form.one_by_one and kernel.in_size == 2 and kernel.partial_size == 4


def _hmac_inner(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
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
    position_cycles = 7 + (kernel.out_grouping if kernel.partial_size == 4 else kernel.out_grouping // 2) * _dot_cycles(
        kernel.in_grouping, kernel
    )
    worker = 16 + parts // split * (19 + width * position_cycles) + np.where(part > 0, 19 + part * position_cycles, 0)
    return (workers * (worker - (17 if _short_hmac(form, kernel) else 0)))[None]


def _hmac_cycles(piece: Piece, inner_loops: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    loop = inner_loops[0] * product(piece.kernel) + 16 * chip.workers
    fixed = 58 if kernel.in_size == 4 else 55 if _short_hmac(form, kernel) else 65
    group_cycles = 23 + piece.in_groups * (15 + piece.out_groups * (10 + loop))
    return fixed + 9 * chip.workers + piece.groups * group_cycles + _zero_partials(piece, kernel, chip)


def _vmac_inner(batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Rows: whole positions and parts of positions per worker, parts that make a position, positions in all."""
    positions = product(field) * batch
    # Positions are cut so that all workers get equally many parts.
    split = chip.workers // np.gcd(chip.workers, positions)
    parts = ceil(positions * split, chip.workers)
    return np.stack([parts // split, parts % split, split, positions])


def _vmac_cycles(piece: Piece, inner_loops: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    whole, parts, split, positions = inner_loops
    width, fast_loop = piece.kernel[-1], kernel.group_grouping >= 8 and kernel.partial_size == 2

    def row(size: np.ndarray) -> np.ndarray:
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
    return 76 + (chip.workers * (clear + merge) + loop) * piece.groups


def _outer_inner(
    batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip
) -> np.ndarray:
    """Row 0: positions of one worker."""
    return ceil(product(field) * batch, chip.workers)[None]


def _outer_cycles(piece: Piece, inner_loops: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
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
    return chip.workers * (25 + piece.out_groups * piece.groups * loop)


_INNER = {"AMP": _amp_inner, "SLIC": _slic_inner, "HMAC": _hmac_inner, "VMAC": _vmac_inner, "OUTER": _outer_inner}
_OUTER = {"AMP": _amp_cycles, "SLIC": _slic_cycles, "HMAC": _hmac_cycles, "VMAC": _vmac_cycles, "OUTER": _outer_cycles}


def inner_cycles(
    batch: np.ndarray, field: tuple[np.ndarray, ...], form: Form, kernel: Kernel, chip: Chip
) -> np.ndarray:
    """Cycles of the vertex's inner loop for pieces of the field, in the rows that :func:`vertex_cycles` reads."""
    return _INNER[kernel.method](batch, field, form, kernel, chip)


def vertex_cycles(piece: Piece, inner_loops: np.ndarray, form: Form, kernel: Kernel, chip: Chip) -> np.ndarray:
    """Tile cycles of one vertex for each candidate; ``inner_loops``: columns of :func:`inner_cycles`."""
    return _OUTER[kernel.method](piece, inner_loops, form, kernel, chip)
