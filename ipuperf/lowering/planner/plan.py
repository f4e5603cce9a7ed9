"""Requests to the planner and its answers: a plan with its price, and the cost of a fully connected layer.

All are plain values; other plans than the chosen one are searched by :mod:`.alternatives`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from .form import Form, Passes, Types
from .kernels import Kernel
from .splits import Grid

if TYPE_CHECKING:
    from ipuperf.machine import Chip


@dataclass(frozen=True)
class Request:
    """A request for a plan: a form with its types on a chip, in ``proportion`` of the memory of a tile."""

    chip: Chip
    form: Form
    types: Types
    proportion: float

    @property
    def limit(self) -> int:
        """Temporary bytes that a tile may hold."""
        return int(self.proportion * self.chip.bytes_per_tile)


@dataclass(frozen=True)
class LayerCost:
    """Cycles of the three passes of a fully connected layer in training.

    ``jointly``: planned jointly (None: no joint plan fits); ``apart``: planned one by one; ``joint``: which is chosen.
    """

    jointly: int | None
    apart: int
    joint: bool


@dataclass(frozen=True)
class ConvolutionPlan:
    """A plan and its price on one IPU. Cycles and bytes are for one serial pass; bytes are per tile.

    Attributes:
        pass_: ``fwd``, ``bwd`` or ``wu``; ``vertex``: the vertex type; ``method``: its family.
        swapped: operands exchanged; ``expanded``, ``flattened``: spatial axes turned into input and output channels;
            ``combined``: groups put into one.
        joint: planned together with the other passes of a fully connected layer.
        field, batch, groups, kernel, out_split, in_split: parallel splits (``field``, ``kernel``: one per axis).
        serial: passes over parts of the output channels, or with ``serial_inputs`` of the input channels.
        units, group_grouping, in_grouping, out_grouping: of the vertex (AMP units, or SLIC chains).
        tiles: tiles used.
        transform_exchange, transform: cycles of rearranging operands and result before and after: exchange, copies.
        exchange_operands, tile_transform, compute, exchange_partials, reduce: cycles of the terms; ``tile_transform``
            is the exchange that pads pieces with zeros, ``exchange_partials`` is charged at any depth as PopLibs does.
        dynamic_slice, dynamic_update: cycles of taking the operands of a serial pass and of writing its result (or
            adding it to the sums of the passes before).
        broadcast: cycles of bringing the inputs to the tiles once before the serial passes (else part of
            ``exchange_operands``); not per pass. So are ``prepare`` (lay the weights of a fully connected layer out for
            slicing) and ``finish`` (cast the sums of serial input channels).
        bytes_transform, bytes_broadcast, bytes_operands, bytes_zeros, bytes_partials: bytes that exchanges bring in.
        temp_bytes: the bytes that ``availableMemoryProportion`` limits.
        extra_bytes: bytes on top of operands and result, which live anyway. They are the largest of rearranging (with
            its exchange buffer), of bringing in the operands (rearranged ones still there), of computing, and of adding
            up partial sums (operands gone).
        reduce_stages: reduction stages (0: none).
        total: cycles of all terms and passes.
        request: the request; ``form``: its transformed form; ``unit``: the vertex.
    """

    pass_: str
    vertex: str
    method: str
    swapped: bool
    expanded: tuple[int, ...]
    flattened: tuple[int, ...]
    combined: int
    joint: bool
    field: tuple[int, ...]
    batch: int
    groups: int
    kernel: tuple[int, ...]
    out_split: int
    in_split: int
    serial: int
    serial_inputs: bool
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
    prepare: int
    finish: int
    bytes_transform: int
    bytes_broadcast: int
    bytes_operands: int
    bytes_zeros: int
    bytes_partials: int
    temp_bytes: int
    extra_bytes: int
    reduce_stages: int
    total: int
    request: Request = dataclasses.field(repr=False, compare=False)
    form: Form = dataclasses.field(repr=False, compare=False)
    unit: Kernel = dataclasses.field(repr=False, compare=False)

    @property
    def exchange(self) -> int:
        """Cycles of bringing operands to the tiles and partial sums together, per serial pass."""
        return self.exchange_operands + self.exchange_partials

    @property
    def rearrangement(self) -> int:
        """Cycles of rearranging operands and result, per serial pass."""
        return self.transform_exchange + self.transform

    def values(self) -> dict[str, object]:
        """Everything but request, form and vertex, by name; splits per axis as lists."""
        # Request, form and vertex are the fields that do not compare.
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in columns.items()}

    def explain(self) -> str:
        """Form, splits and terms in one line."""
        shape = ["operands exchanged"] if self.swapped else []
        shape += [f"kernel axes {self.expanded} in the input channels"] if self.expanded else []
        shape += [f"axes {self.flattened} in the output channels"] if self.flattened else []
        shape += [f"{self.combined} groups in one"] if self.combined > 1 else []
        shape += ["jointly with the other passes"] if self.joint else []
        return (
            f"{self.vertex} ({', '.join(shape) or 'as it is'}), channels {self.group_grouping}x{self.in_grouping}x"
            f"{self.out_grouping}, field {self.field} batch {self.batch} groups {self.groups} kernel {self.kernel} "
            f"out {self.out_split} in {self.in_split} serial {self.serial}"
            f"{' over inputs' if self.serial_inputs else ''}: {self.tiles} tiles; cycles: transform "
            f"{self.transform_exchange}+{self.transform}, operands {self.exchange_operands}, zeros "
            f"{self.tile_transform}, compute {self.compute}, partials {self.exchange_partials}, reduce {self.reduce}, "
            f"slice {self.dynamic_slice}+{self.dynamic_update}, once {self.broadcast}+{self.prepare}+{self.finish}; "
            f"total {self.total}; {self.temp_bytes} bytes on a tile"
        )


@dataclass(frozen=True)
class BestSplit:
    """The best split that a search has found, with its terms.

    Attributes:
        cost: the key by which splits are compared: ``(total, temporary bytes, tiles)`` or that of another rank
            (:data:`~.search.Rank`).
        grid, terms: the split and its terms, with one entry each.
        cut: see :func:`~.terms.operand_terms`.
        needed: bytes on a tile with which the search comes to the same split, as all that decided it fit (infinite:
            unknown).
    """

    cost: tuple[int, int, int]
    form: Form
    kernel: Kernel
    passes: Passes
    grid: Grid
    terms: dict[str, np.ndarray]
    cut: Kernel | None = None
    needed: float = math.inf


def explained(request: Request, best: BestSplit) -> ConvolutionPlan:
    """The split ``best`` as a plan."""
    grid, form, kernel = best.grid, best.form, best.kernel
    return ConvolutionPlan(
        pass_=form.pass_,
        vertex=kernel.name(form),
        method=kernel.method,
        swapped=form.swapped,
        expanded=form.expanded,
        flattened=form.flattened,
        combined=form.combined,
        joint=form.joint,
        field=tuple(int(s[0]) for s in grid.field),
        batch=int(grid.batch[0]),
        groups=int(grid.groups[0]),
        kernel=tuple(int(s[0]) for s in grid.kernel),
        out_split=int(grid.out_split[0]),
        in_split=int(grid.in_split[0]),
        serial=best.passes.count,
        serial_inputs=best.passes.inner > 1,
        units=kernel.units,
        group_grouping=kernel.group_grouping,
        in_grouping=kernel.in_grouping,
        out_grouping=kernel.out_grouping,
        tiles=int(grid.tiles[0]),
        request=request,
        form=form,
        unit=kernel,
        # ``fixed_bytes`` only helps the search to add the reduction.
        **{name: int(values[0]) for name, values in best.terms.items() if name != "fixed_bytes"},
    )
