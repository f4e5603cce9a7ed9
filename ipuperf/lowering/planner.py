"""The matmul planner: how a matrix product is split over the tiles of one IPU, and what it costs.

A product ``[G, M, K] x [G, K, N]`` is planned as PopLibs plans it (``../shared/reference/cost-model.md`` 2.8 and 3): a
1x1 convolution with operands swapped, so that the field has N positions, the output channels are the M rows and the
input channels are K, computed by AMP vertices. The search runs over AMP units, channel grouping and the splits of
groups, field, output channels and input channels; the objective is the cycles of one product under the temporary
memory that ``availableMemoryProportion`` allows.

Simplifications (``docs/accuracy.md``): only the swapped AMP method (no HMAC, SLIC or outer-product vertices), no joint
training plans, serial splits only of the output channels and only when nothing else fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ipuperf.machine import Chip


@dataclass(frozen=True)
class MatMulPlan:
    """A plan and its price on one IPU.

    Attributes:
        groups, field, out_split, in_split: parallel splits; ``serial`` output-channel passes.
        units, in_grouping, out_grouping: AMP units and channel grouping (``icpg`` / ``pcpg``).
        tiles: tiles used.
        exchange_operands, compute, exchange_partials, reduce, transform: cycles of the terms, per pass.
        bytes_operands: bytes per tile that the operand exchange brings in.
        bytes_partials: bytes per tile that the partials exchange brings in.
        temp_bytes: bytes of operands and partials on a tile, what ``availableMemoryProportion`` limits.
        extra_bytes: the part of them that comes on top of operands and result, which live anyway: operands brought in
            and, with a split of the input channels, the partials and their copies on the tiles that reduce them.
        reduce_stages: how many reduction stages there are (0: none).
        total: cycles of all terms and passes.
    """

    groups: int
    field: int
    out_split: int
    in_split: int
    serial: int
    units: int
    in_grouping: int
    out_grouping: int
    tiles: int
    exchange_operands: int
    compute: int
    exchange_partials: int
    reduce: int
    transform: int
    bytes_operands: int
    bytes_partials: int
    temp_bytes: int
    extra_bytes: int
    reduce_stages: int
    total: int
    vertex: str


@dataclass(frozen=True)
class _Method:
    units: int
    in_grouping: int
    out_grouping: int
    in_size: int
    partial_size: int
    out_size: int


def _methods(chip: Chip, in_size: int, partial_size: int, out_size: int) -> list[_Method]:
    """AMP variants for the types: units by chip, channel groupings by units."""
    if in_size == 2:
        units = chip.amp_units_f16_f16 if partial_size == 2 else chip.amp_units_f16_f32
        in_grouping = 16
    else:
        units = chip.amp_units_f32_f32
        in_grouping = 8
    choices = {u for u in (units, 8) if u <= units}
    return [
        _Method(u, in_grouping, grouping, in_size, partial_size, out_size)
        for u in sorted(choices, reverse=True)
        for grouping in sorted({u, max(u, in_grouping)})
    ]


def useful_splits(size: int, limit: int) -> np.ndarray:
    """Splits of ``size`` worth trying: the smallest split for each distinct ``ceil(size / split)``."""
    splits = []
    last = 0
    for split in range(1, min(size, limit) + 1):
        part = -(-size // split)
        if part != last:
            splits.append(split)
            last = part
    return np.asarray(splits, dtype=np.int64)


def _ceil(a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
    return -(-a // b)


def amp_worker_cycles(positions: np.ndarray, method: _Method, zero: bool) -> np.ndarray:
    """Cycles of one worker for ``positions`` output positions of a 1x1 AMP vertex (``zero``: first, clearing pass).

    PopLibs ``lib/poplin/PerformanceEstimation.hpp:397-690`` as given in the reference, section 2.8.
    """
    p = positions
    full = p - 3
    if method.in_size == 2 and not (method.units == 8 and method.partial_size == 2):
        table = np.where(p == 0, 21 + (not zero), np.where(p == 1, 32 + (not zero), 41 + (not zero)))
        cycles = np.where(p >= 3, (37 if zero else 38) + 4 * full, table)
        saved = 7 if method.units == 16 or method.partial_size == 4 else 0
        return cycles - saved
    if method.in_size == 2:
        return np.where(p == 0, 21, 41 + (2 + 2 * p) * int(zero) + 4 * np.maximum(full, 0))
    clear = 8 if method.units == 16 else 4
    long = 46 + (2 + clear * p) * int(zero) + 8 * full
    return np.where(p == 0, 24, np.where(p == 1, 47, np.where(p == 2, 46, long)))


def amp_vertex_cycles(
    positions: np.ndarray, in_groups: np.ndarray, out_groups: np.ndarray, method: _Method, chip: Chip
) -> np.ndarray:
    """Tile cycles of a 1x1 AMP vertex over ``positions`` field positions and the given channel groups."""
    workers = chip.workers
    most, least = _ceil(positions, workers), positions // workers
    inner = {}
    for zero in (False, True):
        busy = workers * amp_worker_cycles(most, method, zero)
        floor = workers * amp_worker_cycles(least, method, zero) + 14
        inner[zero] = np.where(positions >= workers, np.maximum(busy, floor), busy)
    load = method.units * 32 // chip.weight_load_bytes_per_cycle
    passes = max(1, method.out_grouping // method.units)
    common = method.in_size == 2 and not (method.units == 8 and method.partial_size == 2)
    setup = 50 + (workers * (7 + 3 * (in_groups - 1)) if common else 0)
    kappa = 1
    further = (in_groups - 1) * (16 - kappa + out_groups * (19 + passes * (6 + load + inner[False])))
    first = 11 + out_groups * (19 - kappa + passes * (7 + load + inner[True]))
    return setup + 12 + kappa + further + first


def reduce_cycles(outputs: np.ndarray, depth: np.ndarray, method: _Method, chip: Chip) -> np.ndarray:
    """Tile cycles of one ConvReduce of ``depth`` partials to ``outputs`` elements (single-input form where it fits)."""
    width = 8 if method.partial_size == 2 else 4
    per_worker = _ceil(_ceil(outputs, width), chip.workers)
    tail = {(4, 4): 8, (4, 2): 7, (2, 4): 10, (2, 2): 9}[(method.partial_size, method.out_size)]
    single = 33 + chip.workers * (20 + (2 * (depth - 1) + tail) * per_worker)
    extra = {(4, 4): 7, (4, 2): 6, (2, 4): 9, (2, 2): 8}[(method.partial_size, method.out_size)]
    multi = chip.workers * (32 + (3 * depth + extra) * per_worker)
    element = chip.memory_element_bytes
    partial_bytes = _ceil(outputs * depth * method.partial_size, element) * element
    return np.where(partial_bytes * 16 <= chip.bytes_per_tile, single, multi)


def _stage_depths(depth: int) -> tuple[int, ...]:
    """Fan-in of each reduction stage: one below 16 partials, two below 125, else three."""
    if depth <= 1:
        return ()
    stages = 1 if depth < 16 else 2 if depth < 125 else 3
    rest, depths = depth, []
    for left in range(stages, 0, -1):
        fan = math.ceil(rest ** (1 / left) - 1e-9)
        depths.append(fan)
        rest = -(-rest // fan)
    return tuple(depths)


@lru_cache(maxsize=4096)
def plan_matmul(
    chip: Chip,
    groups: int,
    m: int,
    k: int,
    n: int,
    in_size: int,
    partial_size: int,
    out_size: int,
    available_memory_proportion: float = 0.6,
) -> MatMulPlan:
    """The cheapest plan for ``[groups, m, k] x [groups, k, n]`` on ``chip``.

    Sizes are bytes per element of the inputs, the partial sums and the result. When no plan fits into
    ``available_memory_proportion`` of a tile the output channels are computed in serial passes; when that does not help
    either, the plan with the least temporary memory is returned.

    Raises:
        ValueError: a dimension below 1 or a proportion outside (0, 1].
    """
    if min(groups, m, k, n) < 1:
        raise ValueError(f"matmul [{groups}, {m}, {k}] x [{groups}, {k}, {n}]: every dimension has to be at least 1")
    if not 0 < available_memory_proportion <= 1:
        raise ValueError(f"availableMemoryProportion is {available_memory_proportion}; allowed: above 0, at most 1")
    limit = int(available_memory_proportion * chip.bytes_per_tile)
    serial = 1
    best: MatMulPlan | None = None
    while True:
        rows = -(-m // serial)
        candidates = [
            _search(chip, groups, rows, k, n, method, serial, limit)
            for method in _methods(chip, in_size, partial_size, out_size)
        ]
        fitting = [p for p in candidates if p.temp_bytes <= limit]
        if fitting:
            return min(fitting, key=lambda p: (p.total, p.temp_bytes, p.tiles))
        smallest = min(candidates, key=lambda p: (p.temp_bytes, p.total))
        best = smallest if best is None or smallest.temp_bytes < best.temp_bytes else best
        if serial >= m:
            return best
        serial *= 2


def _search(chip: Chip, groups: int, m: int, k: int, n: int, method: _Method, serial: int, limit: int) -> MatMulPlan:
    """Best splits for one method: everything is computed on the grid (groups, field, out, in) at once."""
    out_groups, in_groups = -(-m // method.out_grouping), -(-k // method.in_grouping)
    grid = np.meshgrid(
        useful_splits(groups, chip.tiles),
        useful_splits(n, chip.tiles),
        useful_splits(out_groups, chip.tiles),
        useful_splits(in_groups, chip.tiles),
        indexing="ij",
        sparse=False,
    )
    g, f, o, i = (axis.ravel() for axis in grid)
    legal = g * f * o * i <= chip.tiles
    g, f, o, i = g[legal], f[legal], o[legal], i[legal]
    per_tile_groups = _ceil(np.full_like(g, groups), g)
    positions = _ceil(np.full_like(f, n), f)
    go, gi = _ceil(np.full_like(o, out_groups), o), _ceil(np.full_like(i, in_groups), i)
    inputs = per_tile_groups * positions * gi * method.in_grouping
    weights = per_tile_groups * gi * method.in_grouping * go * method.out_grouping
    partials = per_tile_groups * positions * go * method.out_grouping
    rate = chip.exchange_bytes_per_cycle
    moved_inputs = (inputs - inputs // o) * method.in_size
    moved_weights = (weights - weights // f) * method.in_size
    exchange_in = _ceil(moved_inputs, np.where(o % 2 == 0, 2 * rate, rate)) + _ceil(moved_weights, rate)
    compute = per_tile_groups * amp_vertex_cycles(positions, gi, go, method, chip)
    exchange_out, reduce, stages = _reduction(partials, i, method, chip)
    transform = _transform(groups, m, k, n, g * f * o * i, method, chip)
    total = serial * (exchange_in + compute + exchange_out + reduce + transform)
    extra = moved_inputs + moved_weights + np.where(i > 1, 2, 0) * partials * method.partial_size
    temp = (inputs + weights) * method.in_size + np.where(i > 1, 2, 1) * partials * method.partial_size
    order = np.lexsort((g * f * o * i, temp, np.where(temp <= limit, total, np.iinfo(np.int64).max)))
    best = int(order[0])
    if temp[best] > limit:
        best = int(np.lexsort((total, temp))[0])

    def pick(values: np.ndarray) -> int:
        return int(values[best])

    return MatMulPlan(
        groups=pick(g),
        field=pick(f),
        out_split=pick(o),
        in_split=pick(i),
        serial=serial,
        units=method.units,
        in_grouping=method.in_grouping,
        out_grouping=method.out_grouping,
        tiles=pick(g * f * o * i),
        exchange_operands=pick(exchange_in),
        compute=pick(compute),
        exchange_partials=pick(exchange_out),
        reduce=pick(reduce),
        transform=pick(transform),
        bytes_operands=pick(moved_inputs + moved_weights),
        bytes_partials=pick(np.where(i > 1, partials, 0)) * method.partial_size,
        temp_bytes=pick(temp),
        extra_bytes=pick(extra),
        reduce_stages=pick(stages),
        total=pick(total),
        vertex=f"poplin::ConvPartial1x1Out<{_TYPE[method.in_size]},{_TYPE[method.partial_size]},{method.units}>",
    )


_TYPE = {2: "half", 4: "float"}


def _reduction(
    partials: np.ndarray, in_split: np.ndarray, method: _Method, chip: Chip
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(exchange cycles, reduce cycles, stages) for each candidate; the first exchange is charged at any depth."""
    exchange = _ceil(partials * method.partial_size, chip.exchange_bytes_per_cycle)
    reduce = np.zeros_like(partials)
    stages = np.zeros_like(partials)
    for depth in np.unique(in_split):
        where = in_split == depth
        left = partials[where]
        done = 1
        for stage, fan in enumerate(_stage_depths(int(depth))):
            if stage:
                exchange[where] += _ceil(left * method.partial_size, chip.exchange_bytes_per_cycle)
            done *= fan
            outputs = _ceil(partials[where], min(done, int(depth)))
            reduce[where] += reduce_cycles(outputs, np.full_like(outputs, fan), method, chip)
            stages[where] += 1
            left = outputs
    return exchange, reduce, stages


def _transform(groups: int, m: int, k: int, n: int, tiles: np.ndarray, method: _Method, chip: Chip) -> np.ndarray:
    """Rearrangement when channels have to be padded to their grouping (copy and exchange of the padded operand)."""
    cycles = np.zeros_like(tiles)
    padded: list[tuple[int, int]] = []
    if k % method.in_grouping:
        padded += [(groups * k * n, method.in_size), (groups * m * k, method.in_size)]
    if m % method.out_grouping:
        padded.append((groups * m * n, method.partial_size))
    for elements, size in padded:
        per_tile = _ceil(np.full_like(tiles, elements * size), tiles)
        cycles += _ceil(per_tile * 5, 4 * min(8, size)) + _ceil(per_tile, chip.exchange_bytes_per_cycle)
    return cycles
