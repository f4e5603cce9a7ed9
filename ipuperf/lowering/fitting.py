"""Whether a program fits into the tiles' memory, and what to say if not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipuperf.ir import IrError

from .program import MemoryReport

if TYPE_CHECKING:
    from ipuperf.machine import Machine


def memory_warnings(memory: MemoryReport, machine: Machine) -> list[str]:
    """One line per IPU that does not fit: which tile, how much over, the largest contributors."""
    lines = []
    for ipu, series in memory.max_tile.items():
        if not len(series):
            continue
        step = int(series.argmax())
        over = int(series[step]) - machine.chip.bytes_per_tile
        if over > 0:
            tile = int(memory.argmax_tile[ipu][step])
            lines.append(
                f"does not fit: IPU {ipu} tile {tile} needs {int(series[step]):,} bytes at program step {step} "
                f"({memory.step_names[ipu][step]}), {over:,} bytes over the {machine.chip.bytes_per_tile:,} there are; "
                f"largest: {', '.join(largest_contributors(memory, ipu, step, tile))}"
            )
    return lines


def largest_contributors(memory: MemoryReport, ipu: int, step: int, tile: int, count: int = 5) -> list[str]:
    """What takes most bytes on one tile at one step."""
    sizes: dict[str, int] = {}
    for variable in memory.variables:
        if variable.ipu == ipu and any(a <= step < b for a, b in variable.intervals):
            sizes[variable.name] = sizes.get(variable.name, 0) + variable.bytes.at(tile)
    for category, vector in memory.categories[ipu].items():
        sizes[category] = vector.at(tile)
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return [f"{name} {size:,}" for name, size in ranked[:count] if size]


class DoesNotFitError(IrError):
    """The program needs more In-Processor-Memory than a tile has, and ``strict_memory`` was asked for."""
