"""Cycle formulas of the vertices of variable updates: scaled additions and fused expressions.

Sources: ``docs/reference/cycles.md`` 2.7 (PopLibs ``lib/popops/ExpressionGenerator.cpp``) and 3.1 (PopLibs
``lib/popops/PerformanceEstimation.cpp``); PopLibs' own values in its section 8.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ir import DType

from ..work import TileCycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip

_SHORT = {"float16": "half", "float32": "float"}


def scaled_add_cycles(
    a: DType, b: DType, tensor_factor: bool, both_scaled: bool = False, *, apart: bool = False
) -> TileCycles:
    """Tile cycles of ``ScaledAddSupervisor`` (``both_scaled``: ``aXPlusbYSupervisor``) for ``A`` of type ``a`` and
    ``B`` of type ``b``.

    ``apart``: the operands are constrained to different memory elements; there is such a vertex for equal types only.
    Otherwise they may share one, as the lowering assumes.

    The supervisor takes 51 cycles, +6 for a factor read from memory, +6 when elements remain beyond whole vectors, +12
    for a second factor. Then comes six times the slowest worker: prologue and epilogue 25, an inner loop, and the
    remaining elements on one worker. The loop takes 3 cycles per vector, 4 for mixed types, 5 for half A with float B;
    with ``apart`` 1 for 16 vectors or more on a worker, else 2.

    Raises:
        ValueError: ``apart`` with different types.
    """
    if apart and a.size != b.size:
        raise ValueError(f"no constrained ScaledAdd for {a} and {b}; the types have to be equal")
    size, mixed_up = a.size, a.size == 2 and b.size == 4

    def cycles(elements: np.ndarray, chip: Chip) -> np.ndarray:
        n = np.asarray(elements, dtype=np.int64)
        width, workers = chip.vector_width(size), chip.workers
        vectors, remainder = n // width, n % width
        # Spare vectors go to one worker each, so some workers have one more.
        worker_vectors, spare_vectors = vectors // workers, vectors % workers
        supervisor = 51 + 6 * tensor_factor + 6 * (remainder > 0)
        if both_scaled and tensor_factor:
            supervisor = supervisor + 12
        if mixed_up:
            longest = worker_vectors + (spare_vectors > 0)
            loop = np.where(longest > 0, 9 + 5 * (longest - 1), 0)
            tail = np.where(remainder > 0, 4 + 5 * (remainder >= 2) + 7 * (remainder % 2), 0)
            worker = 16 + loop + 3 + (spare_vectors == 0) + tail
        else:
            per_vector = np.where(worker_vectors >= 16, 1, 2) if apart else 3 if size == b.size else 4
            loop = np.where(worker_vectors > 0, 6 + per_vector * (worker_vectors - 1), 0)
            odd = (
                np.where(remainder > 0, 8, 0)
                if size == 4
                else np.where(remainder > 0, 5 + 7 * (remainder >= 2) + 6 * (remainder == 3), 0)
            )
            worker = 15 + loop + 2 + 1 + odd + 1
        return np.where(n > 0, supervisor + workers * worker, 0)

    return cycles


def fused_cycles(dtype: DType, tensors: int, scalars: int, operations: int) -> TileCycles:
    """Tile cycles of a vertex generated from an expression: 20, plus ``operations`` for each whole vector and each
    remaining element of each of its ``tensors``, plus ``operations`` per scalar operand, rounded up to whole worker
    turns. The vector width is that of ``dtype``, the first operand's type."""

    def cycles(elements: np.ndarray, chip: Chip) -> np.ndarray:
        n = np.asarray(elements, dtype=np.int64)
        width, workers = chip.vector_width(dtype.size), chip.workers
        total = 20 + operations * (tensors * (n // width + n % width) + scalars)
        # The workers take turns, so a vertex ends with a whole turn.
        return np.where(n > 0, -(-total // workers) * workers, 0)

    return cycles


def type_names(*dtypes: DType) -> str:
    """Element types as in vertex names."""
    return ",".join(_SHORT.get(d.name, d.name) for d in dtypes)
