"""Ops of the micro-benchmarks: vertices placed by hand, with a stated number of elements on each tile.

Library ops choose their own tiles; these benchmarks do not. On every tile that a tensor is to occupy, it has the 32
elements of a linear mapping, and the vertex is priced for ``elements`` of them. So cycles and tiles are those of the
measured program; bytes of memory are not.
"""

from __future__ import annotations

import numpy as np

from ipuperf import ops
from ipuperf.ir import TensorSpec
from ipuperf.ir.attributes import INTEGER, Attribute
from ipuperf.machine import Chip
from ipuperf.ops import vertices
from ipuperf.ops.work import TileCycles, Vertices, Work

GRAIN = 32
"""Elements of float on a tile of a linear mapping (128 bytes)."""


def on_each_tile(formula: TileCycles, elements: int) -> TileCycles:
    """Price ``formula`` for ``elements`` elements on every tile that has any."""

    def cycles(counts: np.ndarray, chip: Chip) -> np.ndarray:
        # The linear mapping decides which tiles have a vertex; its counts are not the priced ones.
        there = np.asarray(counts, dtype=np.int64) > 0
        return np.where(there, formula(np.full(there.shape, elements, dtype=np.int64), chip), 0)

    return cycles


def triad_cycles(counts: np.ndarray, chip: Chip) -> np.ndarray:
    """Tile cycles of ``a = b + s c`` in float with operands in different memory elements.

    This is PopLibs' scaled addition with memory constraints (``docs/reference/cycles.md`` 3.1; anchors "memC=1" of
    8.1): 51, then six times 15 + 6 + the loop + 5. The loop takes one cycle for each further vector of two elements, or
    two cycles if a worker has fewer than 16 vectors.
    """
    n = np.asarray(counts, dtype=np.int64)
    vectors = n // chip.vector_width(4)
    vectors_per_worker = vectors // chip.workers
    loop = np.where(vectors_per_worker >= 16, 1, 2) * np.maximum(vectors_per_worker - 1, 0)
    return np.where(n > 0, 51 + chip.workers * (15 + 6 + loop + 5), 0)


class HandPlacedAdd(ops.Add):
    """``a + b``; attribute ``elements``: floats on each tile. PopLibs' BinaryOp1D vertex."""

    type = "Add"

    elements = Attribute(INTEGER)

    def work(self) -> list[Work]:
        """One compute set."""
        out = self.outputs[0]
        elements = self.elements
        vertex = vertices.binary("ADD", out.dtype, out.spec.elements)
        tiles = out.spec.elements // GRAIN
        return [Vertices(vertex.vertex, out.spec.elements, on_each_tile(vertex.cycles, elements), elements * tiles)]


class HandPlacedTriad(ops.Add):
    """``a + s b``; attribute ``elements``: floats on each tile. See :func:`triad_cycles`."""

    type = "Triad"

    elements = Attribute(INTEGER)

    def infer(self) -> list[TensorSpec]:
        """Floats only: that is what was measured."""
        self.require(self.inputs[0].dtype.name == "float32", f"operands are {self.inputs[0].dtype.name}, not float32")
        return super().infer()

    def work(self) -> list[Work]:
        """One compute set, two operations an element."""
        total, elements = self.outputs[0].spec.elements, self.elements
        flops = 2 * elements * (total // GRAIN)
        return [Vertices("Triad<float>", total, on_each_tile(triad_cycles, elements), flops)]
