"""The kinds of convolution vertices that can compute a form, each with its channel grouping.

They are those of PopLibs ``lib/poplin``, summarised in ``docs/reference/cycles.md`` 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .form import Form

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
        # Groupings divide the inputs of an AMP unit and are at least a load wide (``docs/reference/planner.md`` 2).
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
    # With half partial sums a horizontal MAC takes two output channels at once.
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
    # An outer product adds nothing up, so its result keeps the type of its inputs.
    if form.one_by_one and form.in_channels == 1 and (in_size >= partial_size or out_size == in_size):
        vertices.append(Kernel("OUTER", 0, 1, 1, 8 // in_size, 1, in_size, in_size))
    return vertices
