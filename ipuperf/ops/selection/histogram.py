"""Counts of elements between levels.

Upstream: PopART ``willow/src/op/histogram.cpp``; popops ``histogram`` (``popops/GatherStatistics.hpp``).
"""

from __future__ import annotations

import numpy as np

from ipuperf.ir import UINT32, TensorSpec
from ipuperf.ir.attributes import FLAG, NUMBER, Attribute, many

from .. import vertices
from ..base import Arrays, Environment, Kernel, Op
from ..work import Vertices, Work


def _ascending(op: Op, levels: tuple[float, ...]) -> tuple[float, ...]:
    """Check that each of ``levels`` is above the one before."""
    rising = all(low < high for low, high in zip(levels, levels[1:], strict=False))
    op.require(len(levels) > 0 and rising, f"levels {levels} do not rise; at least one is needed, each above the last")
    return levels


class Histogram(Op):
    """Numbers of elements (uint32) between levels.

    The counts are of elements below the first of ``levels``, from each level to below the next, and from the last one
    on. With ``absolute_of_input`` absolute values are counted. Levels are rounded to the operand's type; NaN counts as
    below all levels. No gradient.
    """

    flat = True

    levels = Attribute(many(NUMBER), settle=_ascending)
    absolute_of_input = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """One count more than there are levels."""
        self.floating(self.inputs[0])
        return [TensorSpec((len(self.levels) + 1,), UINT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One search and count per replica."""
        source, out = inputs[0], outputs[0]
        levels, absolute = np.asarray(self.levels, source.dtype), self.absolute_of_input

        def run() -> None:
            for values, counts in zip(source, out, strict=True):
                flat = np.abs(values).reshape(-1) if absolute else np.asarray(values).reshape(-1)
                # A search would place NaN above all levels.
                bins = np.where(np.isnan(flat), 0, levels.searchsorted(flat, side="right"))
                counts[...] = np.bincount(bins, minlength=len(counts))

        return run

    def work(self) -> list[Work]:
        """Absolute values if needed, one comparison with each level, sums of the tiles' counts."""
        source, count = self.inputs[0].spec, len(self.levels)
        if not source.elements:
            return [vertices.fill(UINT32, count + 1)]
        works: list[Work] = [compare_with_levels(source, count)]
        if self.absolute_of_input:
            works.insert(0, vertices.unary("ABSOLUTE", source.dtype, source.elements))
        return [*works, vertices.reduction("ADD", UINT32, source.elements, count + 1)]


def compare_with_levels(source: TensorSpec, levels: int) -> Vertices:
    """popops Histogram1D. No estimate was found in public PopLibs. Assumed are two cycles for an element and level
    (comparison and count) on six workers, with low confidence."""
    cycles = vertices.tile_cycles(lambda m, chip: 50 + 2 * levels * m, 11)
    name = f"popops::HistogramSupervisor<{vertices.poplar_type(source.dtype)}>"
    return Vertices(name, source.elements, cycles, source.elements * levels, low_confidence=True)
