"""The cost of each candidate split of a convolution: rearrangement, exchange, vertices, reduction, slices, memory.

The terms are those of ``docs/reference/planner.md`` 3 (PopLibs ``lib/poplin/ConvModel.cpp``), vectorised over a
:class:`~.splits.Grid` of candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ir import FLOAT16, FLOAT32
from ipuperf.ops.selection.dynamic import planned_slice_cycles
from ipuperf.ops.vertices import binary, planned_cast_cycles

from .form import Form, Passes, Types
from .kernels import SLIC_WIDTH, Kernel, grain
from .reductions import reduction
from .splits import Grid
from .vertices import Piece, ceil, product

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Types of partial sums by their bytes.
_FLOATS = {2: FLOAT16, 4: FLOAT32}

# -- rearrangement of operands and result --------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """One rearrangement: ``elements`` of ``size`` bytes, spread over the tiles, copied ``rate`` bytes at a time.

    ``tensor``: ``inputs``, ``weights`` or ``result``; ``factor``: 4 when whole vectors of channels can be moved, 3 when
    not (the copy is then a third slower); ``far``: over the exchange too, not only on the tile.
    """

    tensor: str
    elements: int
    size: int
    rate: int
    factor: int
    far: bool

    def share(self, tiles: np.ndarray | int) -> np.ndarray | int:
        """Bytes on a tile: the bytes of an operand between tiles are divided, otherwise whole elements are."""
        if self.far and self.tensor != "result":
            return -(-self.elements * self.size // tiles)
        return -(-self.elements // tiles) * self.size


@dataclass(frozen=True)
class Needs:
    """Which rearrangements are needed.

    ``inputs``, ``weights`` and ``result`` move between tiles. The result (``regroup``) and the weights
    (``regroup_weights``) may also be regrouped on their tiles, because the next layer (or pass) is assumed to read
    another grouping.
    """

    inputs: bool
    weights: bool
    result: bool
    regroup: bool
    regroup_weights: bool


def needs(form: Form, kernel: Kernel) -> Needs:
    """The rearrangements of operands and result that ``kernel`` needs.

    Operands are rearranged if their channels are padded to the grouping or their form was changed; so is the result. A
    result in another grouping than the next layer reads is only regrouped on its tiles. Passes of a joint plan leave
    their operands where the forward pass had them.
    """
    # A product lies as exchanged operands do, so its plain form is the turned one (``docs/reference/planner.md`` 3.2).
    update, turned = form.pass_ == "wu", form.swapped != form.is_product
    pad_in, pad_out = form.in_channels % kernel.in_grouping > 0, form.out_channels % kernel.out_grouping > 0
    # Both operands have the input channels, so padding those moves both.
    both = bool(form.expanded) or turned or form.combined > 1 or pad_in or update
    inputs_too = both or form.pass_ == "fcwu" or (form.pass_ == "fcbwd" and not form.joint)
    weights_too = both or bool(form.flattened) or pad_out
    result = form.swapped != update if not form.is_product else turned
    result = result or bool(form.flattened) or form.combined > 1 or pad_out
    result = result or (form.pass_ == "fcwu" and not form.joint)
    full = grain(kernel.in_size)
    regroup = not result and kernel.out_grouping != full and not form.pass_.startswith("fc")
    regroup_weights = form.pass_ == "fwd" and not weights_too and kernel.out_grouping % full > 0
    return Needs(inputs_too, weights_too, result, regroup, regroup_weights)


def moves(form: Form, kernel: Kernel, types: Types, chip: Chip, cut: Kernel | None = None) -> tuple[Move, ...]:
    """The rearrangements of :func:`needs` as the planner prices them.

    ``cut``: the kernel in whose groupings the channels go to the tiles, when it is not ``kernel``.
    """
    need = needs(form, kernel)
    if not (need.inputs or need.weights or need.result or need.regroup or need.regroup_weights):
        return ()
    inputs, weights, outputs = padded_elements(form, cut or kernel)

    def move(tensor: str, elements: int, size: int, rate: int, channels: int, *, far: bool) -> Move:
        whole = channels % (chip.data_path_bytes // kernel.in_size) == 0
        return Move(tensor, elements, size, min(chip.memcpy_bytes_per_cycle, rate), 4 if whole else 3, far)

    rearrangements = []
    channels = form.in_channels * form.out_channels
    if need.inputs:
        rearrangements.append(move("inputs", inputs, types.input, types.input, channels, far=True))
    if need.weights:
        rearrangements.append(move("weights", weights, types.input, types.input, channels, far=True))
    elif need.regroup_weights:
        rate = kernel.out_grouping * types.input
        rearrangements.append(move("weights", weights, types.input, rate, form.out_channels, far=False))
    if need.result or need.regroup:
        # A rearrangement copies element by element, a mere change of grouping whole groupings.
        rate = types.output * (1 if need.result else kernel.out_grouping)
        rearrangements.append(move("result", outputs, types.output, rate, form.out_channels, far=need.result))
    return tuple(rearrangements)


def near_cycles(form: Form, kernel: Kernel, types: Types, tiles: int, chip: Chip) -> int:
    """Cycles of the rearrangements that stay on their tiles, spread over ``tiles``."""
    near = (move for move in moves(form, kernel, types, chip) if not move.far)
    return sum(int(_move_cycles(move, move.share(tiles), chip)[1]) for move in near)


def padded_elements(form: Form, kernel: Kernel) -> tuple[int, int, int]:
    """Numbers of inputs, weights and outputs, with groups, channels and field padded to groupings and grains."""
    groups = -(-form.groups // kernel.group_grouping) * kernel.group_grouping
    in_channels = -(-form.in_channels // kernel.in_grouping) * kernel.in_grouping
    out_channels = -(-form.out_channels // kernel.out_grouping) * kernel.out_grouping
    inputs, weights, outputs = (
        form.batch * in_channels * groups,
        in_channels * out_channels * groups,
        form.batch * out_channels * groups,
    )
    for index, axis in enumerate(form.axes):
        positions = form.positions(index)
        inputs *= positions if axis.plain and not _clipped(form) else axis.whole
        weights, outputs = weights * axis.kernel, outputs * positions
    return inputs, weights, outputs


def _clipped(form: Form) -> bool:
    """Whether inputs end with the field.

    The weight update of a joint plan keeps the grains of the forward pass, but reads nothing to fill them up.
    """
    return form.joint and form.pass_ == "fcwu"


def _move_cycles(move: Move, share: np.ndarray | int, chip: Chip) -> tuple[np.ndarray | int, np.ndarray | int]:
    """(exchange, copy) cycles of moving ``share`` bytes of each tile."""
    # A copy takes 1.25 times its bytes over the rate with whole vectors, a third more without.
    return -(-share // chip.exchange_bytes_per_cycle) if move.far else 0, -(-share * 5 // (move.rate * move.factor))


def least_transform(
    form: Form, kernel: Kernel, types: Types, chip: Chip, cut: Kernel | None = None
) -> tuple[int, int, int, int]:
    """Cycles of all rearrangements over all tiles, and the largest bytes on a tile.

    They are ``(cycles, cycles without the inputs, bytes, bytes without the inputs)``.
    """
    total = without_inputs = largest_share = largest_later = 0
    for move in moves(form, kernel, types, chip, cut):
        share = int(move.share(chip.tiles))
        cycles = sum(int(part_cycles) for part_cycles in _move_cycles(move, share, chip))
        total, without_inputs = total + cycles, without_inputs + cycles * (move.tensor != "inputs")
        largest_share = max(largest_share, share)
        largest_later = max(largest_later, share * (move.tensor != "inputs"))
    return total, without_inputs, largest_share, largest_later


@dataclass(frozen=True)
class _Transform:
    """Rearrangements per tile: cycles of exchange and of copies, bytes exchanged, largest share of bytes (0: none)."""

    exchange: np.ndarray | int
    copy: np.ndarray | int
    moved: np.ndarray | int
    most: np.ndarray | int


def _transform(rearrangements: Iterable[Move], tiles: np.ndarray, chip: Chip) -> _Transform:
    """The cost of some rearrangements."""
    exchange: np.ndarray | int = 0
    copy = moved = most = exchange
    for move in rearrangements:
        share = move.share(tiles)
        far, near = _move_cycles(move, share, chip)
        copy, most = copy + near, np.maximum(most, share)
        if move.far:
            exchange, moved = exchange + far, moved + share
    return _Transform(exchange, copy, moved, most)


def _zero_padding(
    form: Form, kernel: Kernel, grid: Grid, cut: Kernel | None = None
) -> tuple[np.ndarray, np.ndarray] | tuple[int, int]:
    """Zeros per tile that are exchanged to pad (kernel, input): kernel rows of an AMP pass, SLIC windows."""
    if kernel.method == "AMP" and kernel.height > 1:
        dim, multiple = 0, kernel.height
    elif kernel.method == "SLIC":
        dim, multiple = len(form.axes) - 1, SLIC_WIDTH
    else:
        return 0, 0
    piece, zeros = grid.piece, np.zeros_like(grid.tiles)
    extra_kernel, extra_input = [zeros] * len(form.axes), [zeros] * len(form.axes)
    size, split = form.axes[dim].kernel, grid.kernel[dim]
    # Pieces of an uneven split have two sizes, and either may leave a remainder.
    remainder = np.maximum(size // split % multiple, -(-size // split) % multiple)
    extra_kernel[dim] = (multiple - remainder) % multiple
    # Added kernel elements lie a dilation apart and reach that much further into the input.
    extra_input[dim] = extra_kernel[dim] * form.axes[dim].kernel_dilation
    if kernel.method == "SLIC":
        extra_input = [e + max(0, a.padding) for e, a in zip(extra_input, form.axes, strict=True)]
    padded_kernel = product(tuple(k + e for k, e in zip(piece.kernel, extra_kernel, strict=True)))
    padded_field = product(tuple(f + e for f, e in zip(piece.field, extra_input, strict=True)))
    grouping = cut or kernel
    groups = piece.groups * grouping.group_grouping
    in_channels, out_channels = piece.in_groups * grouping.in_grouping, piece.out_groups * grouping.out_grouping
    weights = groups * (padded_kernel - product(piece.kernel)) * in_channels * out_channels
    inputs = groups * piece.batch * (padded_field - product(piece.field)) * in_channels
    return weights, inputs


@lru_cache(maxsize=64)
def slices_at_least(chip: Chip) -> int:
    """A lower bound of the cycles of slicing the weights of a serial pass and of writing or adding its result.

    It is a slice and an ADD in place of one element.
    """
    one_element = np.ones(1, dtype=np.int64)
    adding = binary("ADD", FLOAT32, 1, in_place=True)
    return int(planned_slice_cycles(one_element, FLOAT32.size, chip)[0] + adding.cycles(one_element, chip)[0])


# -- all terms ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Elements:
    """Elements of the piece on the fullest tile; ``sums``: partial sums as the vertex writes them."""

    inputs: np.ndarray
    weights: np.ndarray
    partials: np.ndarray
    sums: np.ndarray


def _tile_elements(form: Form, kernel: Kernel, piece: Piece, cut: Kernel | None = None) -> _Elements:
    """Inputs, weights and partial sums of the piece on the fullest tile, with channels in the groupings of ``cut``."""
    grouping = cut or kernel
    groups = piece.groups * grouping.group_grouping
    in_channels, out_channels = piece.in_groups * grouping.in_grouping, piece.out_groups * grouping.out_grouping
    reads = product(tuple(a.reads(f, k) for a, f, k in zip(form.axes, piece.field, piece.kernel, strict=True)))
    if _clipped(form):
        reads = np.minimum(reads, math.prod(axis.whole for axis in form.axes))
    inputs = reads * piece.batch * in_channels * groups
    weights = product(piece.kernel) * in_channels * out_channels * groups
    outputs = product(piece.field) * piece.batch * groups
    sums = outputs * piece.out_groups * kernel.out_grouping
    return _Elements(inputs, weights, outputs * out_channels, sums)


def _partial_sums(kernel: Kernel, piece: Piece) -> np.ndarray:
    """Partial sums on the fullest tile."""
    outputs = product(piece.field) * piece.batch * piece.groups
    return outputs * piece.out_groups * (kernel.out_grouping * kernel.group_grouping)


def _whole_operands(form: Form, kernel: Kernel) -> tuple[int, int]:
    """Numbers of inputs and weights, with channels and groups padded."""
    _, weights, _ = padded_elements(form, kernel)
    groups = -(-form.groups // kernel.group_grouping) * kernel.group_grouping
    in_channels = -(-form.in_channels // kernel.in_grouping) * kernel.in_grouping
    return math.prod(axis.size for axis in form.axes) * form.batch * in_channels * groups, weights


def _transforms(
    rearrangements: Sequence[Move], passes: Passes, tiles: np.ndarray, chip: Chip
) -> tuple[_Transform, _Transform]:
    """``(rearrangements ahead of the serial passes, those of each pass)``."""
    ahead = [move for move in rearrangements if passes.ahead and move.tensor == "inputs"]
    return (
        _transform(ahead, tiles, chip),
        _transform([move for move in rearrangements if move not in ahead], tiles, chip),
    )


def _sum_bytes(elements: np.ndarray, kernel: Kernel, grid: Grid, types: Types) -> tuple[np.ndarray, np.ndarray]:
    """``(bytes of partial sums besides the result, bytes of partial sums while the vertex runs)`` on a tile."""
    sum_bytes = elements * kernel.partial_size
    # A single partial sum of the result's type is the result itself.
    sums = sum_bytes * (grid.depth > 1) if kernel.partial_size == types.output else sum_bytes
    if kernel.method == "SLIC":
        # SLIC keeps one more share of the sums and 200 bytes (``docs/reference/planner.md`` 3).
        sum_bytes = sum_bytes + ceil(sum_bytes, grid.piece.groups) + 200
    return sums, sum_bytes


def _input_rate(form: Form, grid: Grid, rate: int) -> np.ndarray | int:
    """Bytes of inputs per cycle that reach a tile whose exchange brings in ``rate``."""
    derived = form.joint and form.pass_ != "fcfwd"
    # Two tiles with the same inputs share an exchange bus, which brings them in at twice the rate.
    return rate if derived else rate * (2 - (grid.out_split & 1))


def _most_extra(
    arrived: np.ndarray, transformed: np.ndarray | int, sums: np.ndarray, several: np.ndarray
) -> np.ndarray:
    """Bytes besides those that live through a pass: while operands arrive, or while partial sums are exchanged."""
    extra: np.ndarray = np.maximum(arrived + np.maximum(transformed, sums), 2 * np.maximum(transformed, sums * several))
    return extra


def operand_terms(
    form: Form,
    kernel: Kernel,
    grid: Grid,
    compute: np.ndarray,
    types: Types,
    passes: Passes,
    chip: Chip,
    cut: Kernel | None = None,
) -> dict[str, np.ndarray]:
    """Every term but the reduction, by the names of :class:`ConvolutionPlan`.

    ``total`` and the temporary bytes are therefore lower bounds. ``cut``: the kernel in whose groupings channels go to
    the tiles, when it is not ``kernel`` (joint plans).
    """
    rate, zero_cycles = chip.exchange_bytes_per_cycle, np.zeros_like(compute)
    elements = _tile_elements(form, kernel, grid.piece, cut)
    # Of operands that several tiles read, each of them already has an equal share.
    moved_inputs = (elements.inputs - elements.inputs // grid.out_split) * types.input
    moved_weights = (elements.weights - elements.weights // grid.sharers) * types.input
    paired, several = _input_rate(form, grid, rate), grid.depth > 1
    zero_weights, zero_inputs = (z * types.input for z in _zero_padding(form, kernel, grid, cut))
    ahead_transform, pass_transform = _transforms(moves(form, kernel, types, chip, cut), passes, grid.tiles, chip)
    sums, sum_bytes = _sum_bytes(elements.sums, kernel, grid, types)
    arrive, zeros, input_bytes = ceil(moved_inputs, paired), zero_weights + zero_inputs, elements.inputs * types.input
    extra = _most_extra(moved_inputs + moved_weights + zeros, pass_transform.most, sums, several)
    partials = elements.partials * kernel.partial_size
    terms = {
        "transform_exchange": pass_transform.exchange,
        "transform": pass_transform.copy,
        "exchange_operands": ceil(moved_weights, rate) + (0 if passes.ahead else arrive),
        "tile_transform": -(-zero_weights // rate) + -(-zero_inputs // paired),
        "compute": compute,
        # PopLibs charges this for a single partial sum too (``docs/reference/planner.md`` 3.1).
        "exchange_partials": ceil(partials, rate),
    } | _serial_terms(form, kernel, grid, elements.sums, types, passes, chip)
    broadcast = arrive + ahead_transform.exchange + ahead_transform.copy if passes.ahead else 0
    prepare, sliced_bytes, finish, added_bytes = _serial_ends(form, kernel, grid, elements.sums, types, passes, chip)
    total = passes.count * sum(terms.values()) + (broadcast + prepare + finish)  # the last three come once in all
    live = zeros + elements.weights * types.input + sum_bytes + (0 if passes.ahead else input_bytes)
    # Bytes that live through all passes.
    fixed = sliced_bytes + added_bytes + (ahead_transform.most + input_bytes if passes.ahead else 0)
    plan_terms = {"dynamic_slice": 0, "dynamic_update": 0} | terms
    # Temporary bytes count a rearrangement twice: the rearranged bytes and their exchange buffer.
    plan_terms |= {
        "broadcast": broadcast,
        "prepare": prepare,
        "finish": finish,
        "bytes_transform": pass_transform.moved,
        "bytes_broadcast": ahead_transform.moved + moved_inputs if passes.ahead else 0,
        "bytes_operands": moved_weights + (0 if passes.ahead else moved_inputs),
        "bytes_zeros": zeros,
        "bytes_partials": partials * several,
        "temp_bytes": fixed + np.maximum(np.maximum(2 * pass_transform.most, sliced_bytes), live),
        "fixed_bytes": fixed,
        "extra_bytes": extra + (ahead_transform.most + sliced_bytes + added_bytes),
        "total": total,
    }
    # Every term becomes a vector, so that splits can be selected by index.
    return {name: value if isinstance(value, np.ndarray) else zero_cycles + value for name, value in plan_terms.items()}


def set_aside(form: Form, kernel: Kernel, types: Types, passes: Passes, chip: Chip) -> int:
    """A lower bound of the bytes on a tile that operands and partial sums of a serial pass cannot use.

    They hold the weights of a fully connected layer, laid out for slicing, and inputs rearranged ahead of the passes.
    """
    return sum(set_aside_by(form, kernel, types, chip, passes.count > 1, passes.ahead))


def set_aside_by(
    form: Form, kernel: Kernel, types: Types, chip: Chip, several: bool = True, ahead: bool = True
) -> tuple[int, int]:
    """:func:`set_aside` in two parts: for weights in ``several`` passes, and for inputs ``ahead`` of them."""
    weights = inputs = 0
    if several and _sliced(form):
        weights = -(-padded_elements(form, kernel)[1] // chip.tiles) * types.input
    if ahead:
        rearrangements = moves(form, kernel, types, chip)
        inputs = sum(int(move.share(chip.tiles)) for move in rearrangements if move.tensor == "inputs")
    return weights, inputs


def _sliced(form: Form) -> bool:
    """Whether weights are laid out for slicing, as in a fully connected layer that is not planned jointly."""
    return form.pass_.startswith("fc") and not form.joint


def _serial_terms(
    form: Form, kernel: Kernel, grid: Grid, sums: np.ndarray, types: Types, passes: Passes, chip: Chip
) -> dict[str, np.ndarray]:
    """Further terms of each of several serial passes.

    A pass slices weights (and inputs, with serial input channels). It writes its results, a tile's part of the
    ``sums``, or adds them to the sums so far.
    """
    if passes.count == 1:
        return {}
    results = ceil(sums, grid.depth)
    inputs, weights = _whole_operands(form, kernel)
    slice_cycles = planned_slice_cycles(ceil(-(-weights // grid.tiles), passes.count), types.input, chip)
    # Passes over output channels write their own part; passes over input channels add to all results.
    if passes.inner == 1:
        written = planned_slice_cycles(ceil(results, passes.out), kernel.partial_size, chip)
    else:
        slice_cycles = slice_cycles + planned_slice_cycles(
            ceil(-(-inputs // grid.tiles), passes.inner), types.input, chip
        )
        written = binary("ADD", _FLOATS[kernel.partial_size], 1, in_place=True).cycles(results, chip)
    return {"dynamic_slice": slice_cycles, "dynamic_update": written}


def _serial_ends(
    form: Form, kernel: Kernel, grid: Grid, sums: np.ndarray, types: Types, passes: Passes, chip: Chip
) -> tuple[np.ndarray | int, ...]:
    """Cycles and bytes that come once for all passes.

    These are cycles and bytes of laying the weights out for slicing (a fully connected layer that is not planned
    jointly), cycles of casting the sums of serial input channels, and bytes of those sums.
    """
    prepare: np.ndarray | int = 0
    sliced_bytes = finish = sum_bytes = prepare
    if passes.count > 1 and _sliced(form):
        share = -(-_whole_operands(form, kernel)[1] // grid.tiles)
        sliced_bytes = share * types.input
        # The exchange of the bytes, then a cycle for each element (``docs/reference/planner.md`` 3.3).
        prepare = ceil(sliced_bytes, chip.exchange_bytes_per_cycle) + share
    if passes.inner > 1:
        results = ceil(sums, grid.depth)
        finish = planned_cast_cycles(results, max(kernel.partial_size, types.output), chip)
        sum_bytes = results * kernel.partial_size
    return prepare, sliced_bytes, finish, sum_bytes


def with_reduction(
    terms: dict[str, np.ndarray], kernel: Kernel, grid: Grid, types: Types, passes: Passes, chip: Chip
) -> dict[str, np.ndarray]:
    """``terms`` with the reduction of the partial sums. With serial input channels a cast waits for the last pass."""
    depth, size = grid.depth, kernel.partial_size
    sums_reduction = reduction(_partial_sums(kernel, grid.piece), depth, size, types.output, chip)
    reduce = sums_reduction.cycles
    # The sums of all passes are cast together at the end.
    if passes.inner > 1 and size != types.output:
        # A single partial sum is only cast, which happens once, in ``finish``.
        reduce = reduce * (depth > 1)
    return terms | {
        "exchange_partials": terms["exchange_partials"] + sums_reduction.exchange,
        "reduce": reduce,
        "temp_bytes": np.maximum(terms["temp_bytes"], terms["fixed_bytes"] + sums_reduction.temp_bytes),
        "reduce_stages": sums_reduction.stages,
        "total": terms["total"] + passes.count * (sums_reduction.exchange + reduce),
    }
