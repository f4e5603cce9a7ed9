"""Cells of recurrent layers: LSTM and plain ones, and all by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import numpy as np

from .. import vertices
from ..work import Vertices
from .cell import Product, RecurrentCell, Scores, States, StepSize
from .gru import GruCell, ResetFirstGruCell


class LstmCell(RecurrentCell):
    """Gates input, forget, candidate, output (PopLibs ``lib/popnn/Lstm.cpp``). Upstream applies the activations of
    several gates in one compute set; here it is counted as the gates'."""

    gates = 4
    states = 2
    kept = 5
    sides = ((4, "both"),)

    def forward(
        self, x: np.ndarray, states: States, product: Product, scores: Scores
    ) -> tuple[States, np.ndarray | None]:
        """``c = f c + i g``, ``h = o a(c)``."""
        i, f, g, o = np.split(x + product(states[0], 0, 4), 4, axis=-1)
        i, f, g, o = self.gate.value(i), self.gate.value(f), self.activation.value(g), self.gate.value(o)
        cell = f * states[1] + i * g
        t = self.activation.value(cell)
        return (o * t, cell), np.concatenate([i, f, g, o, t], axis=-1)

    def backward(
        self, grads: States, states: States, saved: np.ndarray, product: Product, scores: Scores
    ) -> tuple[np.ndarray, np.ndarray, States, Scores]:
        """Pass the gradients through the result, the cell and the gates."""
        i, f, g, o, t = np.split(saved, 5, axis=-1)
        gate, candidate = self.gate.gradient, self.activation.gradient
        # The cell's gradient comes from the next step and through the result.
        cell = grads[1] + candidate(t, grads[0] * o)
        # In the order of the weights: input, forget, candidate, output.
        parts = [gate(i, cell * g), gate(f, cell * states[1]), candidate(g, cell * i), gate(o, grads[0] * t)]
        sums = np.concatenate(parts, axis=-1)
        return sums, sums, (product(sums, 0, 4), cell * f), None

    def forward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """``basicLstmCellForwardPass``: the bias, the gates, two products, the cell, its activation, the result."""
        dtype, units = size.dtype, size.units
        return [
            vertices.binary("ADD", dtype, 4 * units, in_place=True),
            *self.activated(size, 3, 1),
            vertices.binary("MULTIPLY", dtype, 2 * units),
            vertices.binary("ADD", dtype, units, in_place=True),
            *self.activation.work(dtype, units, size.row, in_place=False),
            vertices.binary("MULTIPLY", dtype, units),
        ]

    def backward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """``backwardStepImpl``, in order: the result's gradient joins the state's; two products with it and their
        slopes; the cell's gradient; four products with that and the slopes of three gates."""
        dtype, units = size.dtype, size.units
        return [
            vertices.binary("ADD", dtype, units),
            vertices.binary("MULTIPLY", dtype, 2 * units),
            *self.activated(size, 1, 1, backward=True),
            vertices.binary("ADD", dtype, units, in_place=True),
            vertices.binary("MULTIPLY", dtype, 4 * units),
            *self.activated(size, 2, 1, backward=True),
        ]

    def masking(self, size: StepSize, trains: bool) -> list[Vertices]:
        """Mask all gates (``maskedGates``)."""
        return [vertices.broadcast_outer("MULTIPLY", size.dtype, 4 * size.units, size.row, in_place=True)]

    def gradient_masking(self, size: StepSize) -> list[Vertices]:
        """Nothing: the gates are masked in the forward step."""
        return []


class PlainCell(RecurrentCell):
    """``h = a(x + h)``."""

    gates = 1
    sides = ((1, "both"),)

    def forward(
        self, x: np.ndarray, states: States, product: Product, scores: Scores
    ) -> tuple[States, np.ndarray | None]:
        """Apply the function to the sum."""
        return (self.activation.value(x + product(states[0], 0, 1)),), None

    def backward(
        self, grads: States, states: States, saved: np.ndarray, product: Product, scores: Scores
    ) -> tuple[np.ndarray, np.ndarray, States, Scores]:
        """Multiply by the slope, which follows from the result."""
        sums = self.activation.gradient(saved, grads[0])
        return sums, sums, (product(sums, 0, 1),), None

    def forward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """The bias and the function."""
        return [
            vertices.binary("ADD", size.dtype, size.units, in_place=True),
            *self.activation.work(size.dtype, size.units, size.row),
        ]

    def backward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """Add the result's gradient to the state's, and multiply by the slope."""
        return [
            vertices.binary("ADD", size.dtype, size.units, in_place=True),
            *self.activation.gradient_work(size.dtype, size.units, size.row),
        ]

    def masking(self, size: StepSize, trains: bool) -> list[Vertices]:
        """Mask the result."""
        return [vertices.broadcast_outer("MULTIPLY", size.dtype, size.units, size.row, in_place=True)]

    def gradient_masking(self, size: StepSize) -> list[Vertices]:
        """Mask the slope."""
        return self.masking(size, True)


CELLS: Mapping[str, type[RecurrentCell]] = MappingProxyType(
    {"lstm": LstmCell, "gru": GruCell, "gru_reset_first": ResetFirstGruCell, "rnn": PlainCell}
)
"""The cells by name."""


@cache
def cell_of(name: str, activation: str, gate: str, update_first: bool) -> RecurrentCell:
    """The cell of this name with these functions."""
    return CELLS[name](activation, gate, update_first)
