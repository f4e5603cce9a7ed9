"""Whether a program fits into the tiles' memory. If not, a warning says where, by how much, and what would help.

The advice (:data:`REMEDIES`) depends on what lies on the fullest tile at the fullest step. Contributors that take less
than a twentieth of the tile get no advice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ipuperf.ir import IrError
from ipuperf.machine import Machine

from .program import MemoryReport, ProgramWarning, VariableInfo

#: A group of contributors smaller than this share of a tile gets no advice.
WORTH_NAMING = 0.05

#: Remedies for each group of contributors.
REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "temporaries": "a lower availableMemoryProportion for {op}",
        "variables": "fewer layers on this IPU (more stages or another split), or variables or optimiser state in "
        "Streaming Memory, sharded over the replicas (RTS)",
        "gradient accumulators": "fewer layers on this IPU, accumulators of half precision or in Streaming Memory",
        "stashed activations": "recomputation with fewer checkpoints, fewer stages after this one, a smaller "
        "micro-batch, or stashes in Streaming Memory",
        "activations": "a smaller micro-batch, or recomputation with more checkpoints",
        "code": "{outlining}",
    }
)
_OUTLINED = "fewer different layers on this IPU: those that are equal share their code already"
_NOT_OUTLINED = "outlining: equal layers as one graph that is called, or PopART's enableOutlining"


def memory_warnings(memory: MemoryReport, machine: Machine, *, outlined: bool = False) -> list[ProgramWarning]:
    """One warning per IPU that does not fit.

    It names the tile, step and op, the excess, the largest contributors by category and by tensor, and what would help.

    Args:
        outlined: repeated stretches share their code already.
    """
    limit, warnings = machine.chip.bytes_per_tile, list[ProgramWarning]()
    for ipu, series in memory.max_tile.items():
        if not len(series):
            continue
        step = int(series.argmax())
        demand = int(series[step])
        if demand <= limit:
            continue
        tile = int(memory.argmax_tile[ipu][step])
        op = memory.op_of_step(ipu, step)
        moment = Moment(memory, ipu, step, tile)
        over = int((moment.on_tiles() > limit).sum())
        tiles = "all tiles" if over == machine.chip.tiles else f"{over:,} of {machine.chip.tiles:,} tiles"
        text = (
            f"does not fit: IPU {ipu} tile {tile} needs {demand:,} bytes at program step {step} "
            f"({memory.step_names[ipu][step]}{f' of {op}' if op else ''}), {demand - limit:,} bytes over the {limit:,} "
            f"there are ({tiles} are over); "
            f"by category: {_listed(moment.by_category())}; "
            f"largest: {', '.join(moment.largest_contributors())}; "
            f"would help: {'; '.join(moment.advice(outlined=outlined))}"
        )
        warnings.append(ProgramWarning("does not fit", text))
    return warnings


class Moment:
    """The content of one tile of an IPU at one program step.

    Attributes:
        live: tensors and temporaries that are live then (on any tile).
        sizes: bytes of each of them on the tile.
    """

    def __init__(self, memory: MemoryReport, ipu: int, step: int, tile: int) -> None:
        self.memory, self.ipu, self.step, self.tile = memory, ipu, step, tile
        self.live = [v for v in memory.variables if v.ipu == ipu and v.intervals.live_at(step)]
        self.sizes = [v.bytes.at(tile) for v in self.live]

    def on_tiles(self) -> np.ndarray:
        """Bytes on every tile at the step."""
        always = sum(vector.dense() for vector in self.memory.categories[self.ipu].values())
        # Many tensors have equal vectors; each distinct one is expanded once.
        counts = Counter([v.bytes for v in self.live])
        return np.asarray(always + sum(vector.dense() * count for vector, count in counts.items()))

    def by_category(self) -> dict[str, int]:
        """Bytes by category, the largest first."""
        sizes: dict[str, int] = {}
        for variable, size in zip(self.live, self.sizes, strict=True):
            sizes[variable.category] = sizes.get(variable.category, 0) + size
        for category, vector in self.memory.categories[self.ipu].items():
            sizes[category] = sizes.get(category, 0) + vector.at(self.tile)
        return dict(sorted(sizes.items(), key=lambda category_size: (-category_size[1], category_size[0])))

    def largest_contributors(self, count: int = 5) -> list[str]:
        """The largest contributors: tensors, temporaries, categories of code."""
        sizes: dict[str, int] = {}
        for variable, size in zip(self.live, self.sizes, strict=True):
            sizes[variable.name] = sizes.get(variable.name, 0) + size
        for category, vector in self.memory.categories[self.ipu].items():
            sizes[category] = vector.at(self.tile)
        ranked = sorted(sizes.items(), key=lambda name_size: (-name_size[1], name_size[0]))
        return [f"{name} {size:,}" for name, size in ranked[:count] if size]

    def groups(self) -> dict[str, int]:
        """Bytes by the groups of :data:`REMEDIES`, the largest first."""
        sizes = dict.fromkeys(REMEDIES, 0)
        for variable, size in zip(self.live, self.sizes, strict=True):
            sizes[group_of(variable)] += size
        for category, vector in self.memory.categories[self.ipu].items():
            # Constants are data, and no remedy of the table makes them smaller.
            if category != "constant":
                sizes["code"] += vector.at(self.tile)
        return dict(sorted(sizes.items(), key=lambda group_size: -group_size[1]))

    def advice(self, *, outlined: bool) -> list[str]:
        """Remedies, for the largest group first."""
        temporaries = [v for v in self.live if v.category == "temporary"]
        largest = max(temporaries, key=lambda v: v.bytes.at(self.tile), default=None)
        # Without an op at the step, the largest temporary tells which op it belongs to.
        op = self.memory.op_of_step(self.ipu, self.step) or (largest.name.rsplit("/", 1)[0] if largest else "")
        words = {"op": op, "outlining": _OUTLINED if outlined else _NOT_OUTLINED}
        return [
            f"{REMEDIES[name].format(**words)} ({name} take {size:,} bytes)"
            for name, size in self.groups().items()
            if size >= WORTH_NAMING * self.memory.bytes_per_tile
        ]


def _listed(sizes: Mapping[str, int], count: int = 5) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in list(sizes.items())[:count] if size)


def group_of(variable: VariableInfo) -> str:
    """The group of :data:`REMEDIES` that a variable belongs to."""
    if variable.category == "temporary":
        return "temporaries"
    if variable.category == "variable":
        return "variables"
    name = variable.name.rsplit("/", 1)[-1]
    if name.startswith("accumulator_"):
        return "gradient accumulators"
    return "stashed activations" if "_stash_" in name else "activations"


class DoesNotFitError(IrError):
    """The program needs more In-Processor-Memory than a tile has, and ``strict_memory`` was asked for."""
