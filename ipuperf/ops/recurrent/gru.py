"""Cells of GRUs. The reset gate comes after the product of the state, or before it."""

from __future__ import annotations

import numpy as np

from .. import vertices
from ..work import Vertices
from .activations import expression, row_reduction
from .cell import Product, RecurrentCell, Scores, States, StepSize


class _GatedUnit(RecurrentCell):
    """Base of both GRUs: ``h = n + u (h - n)`` with ``u = z (1 - score)``. The saved values begin with reset gate,
    update gate (without scores) and candidate."""

    gates = 3
    scored = True

    def _split(self, array: np.ndarray, parts: int) -> list[np.ndarray]:
        """Reset gate, update gate and, of three parts, the candidate."""
        left_gate, right_gate, *candidate = np.split(array, parts, axis=-1)
        return [right_gate, left_gate, *candidate] if self.update_first else [left_gate, right_gate, *candidate]

    def _joined(self, reset: np.ndarray, update: np.ndarray, *candidates: np.ndarray) -> np.ndarray:
        """The parts in the order of the weights."""
        gates = [update, reset] if self.update_first else [reset, update]
        return np.concatenate([*gates, *candidates], axis=-1)

    def _after(self, state: np.ndarray, update: np.ndarray, candidate: np.ndarray, scores: Scores) -> States:
        update = update if scores is None else update * (1 - scores)
        # This form needs one product with the gate instead of two.
        return (candidate + update * (state - candidate),)

    def _through_update(
        self, grad: np.ndarray, state: np.ndarray, saved: list[np.ndarray], scores: Scores
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Scores]:
        """Gradients of the sums of the candidate and of the update gate, of the state through the update gate, and
        of the scores."""
        _, update, candidate, *_ = saved
        # The update gate weighs the old state against the candidate.
        update_grad, score_grad, update_used = grad * (state - candidate), None, update
        if scores is not None:
            # The score is one value per sequence, so its gradient is summed over the units.
            score_grad = -(update_grad * update).sum(axis=-1, keepdims=True)
            update_grad, update_used = update_grad * (1 - scores), update * (1 - scores)
        candidates = self.activation.gradient(candidate, grad * (1 - update_used))
        return candidates, self.gate.gradient(update, update_grad), grad * update_used, score_grad

    def _begin_back(self, size: StepSize, scored: bool) -> list[Vertices]:
        """Add the result's gradient to the state's, then pass it through the new state, the scores and two
        activations."""
        dtype, units = size.dtype, size.units
        work = [
            vertices.binary("ADD", dtype, units),
            vertices.binary("SUBTRACT", dtype, units),
            vertices.binary("SUBTRACT", dtype, units),
            vertices.binary("MULTIPLY", dtype, 2 * units),
        ]
        if scored:
            work += [
                expression("UpdateScores", dtype, units, 2, 1, 2),
                expression("AttentionsGrad", dtype, units, 2, 0, 2),
                row_reduction("ADD", dtype, units),
                expression("UpdateGateGrad", dtype, units, 2, 0, 2),
            ]
        return [*work, *self.activated(size, 1, 1, backward=True)]

    def _end(self, size: StepSize, scored: bool) -> list[Vertices]:
        """The scores, then the new state."""
        weakened = [expression("UpdateScores", size.dtype, size.units, 2, 0, 2)] if scored else []
        return [*weakened, expression("CalcNextOutput", size.dtype, size.units, 3, 0, 3)]

    def masking(self, size: StepSize, trains: bool) -> list[Vertices]:
        """Mask the result; in training also both gates and the candidate, one after the other."""
        masked = vertices.broadcast_outer("MULTIPLY", size.dtype, size.units, size.row, in_place=True)
        # In training the saved gates and the candidate must be zero as well.
        return [masked] * (4 if trains else 1)

    def gradient_masking(self, size: StepSize) -> list[Vertices]:
        """Mask the candidate."""
        return [vertices.broadcast_outer("MULTIPLY", size.dtype, size.units, size.row, in_place=True)]


class GruCell(_GatedUnit):
    """The reset gate comes after the product (PopLibs ``lib/popnn/Gru.cpp`` with ``resetAfter``). The product has a
    bias of its own."""

    kept = 4
    alike = False
    sides = ((3, "x"), (3, "h"))

    def forward(
        self, x: np.ndarray, states: States, product: Product, scores: Scores
    ) -> tuple[States, np.ndarray | None]:
        """``n = a(x_n + r h_n)``."""
        x_reset, x_update, x_candidate = self._split(x, 3)
        h_reset, h_update, h_candidate = self._split(product(states[0], 0, 3), 3)
        reset, update = self.gate.value(x_reset + h_reset), self.gate.value(x_update + h_update)
        candidate = self.activation.value(x_candidate + reset * h_candidate)
        return self._after(states[0], update, candidate, scores), np.concatenate(
            [reset, update, candidate, h_candidate], axis=-1
        )

    def backward(
        self, grads: States, states: States, saved: np.ndarray, product: Product, scores: Scores
    ) -> tuple[np.ndarray, np.ndarray, States, Scores]:
        """Pass the gradients through the candidate and the gates."""
        parts = np.split(saved, 4, axis=-1)
        candidate, update, state_grad, score_grad = self._through_update(grads[0], states[0], parts, scores)
        reset_gate, h_candidate = parts[0], parts[3]
        reset = self.gate.gradient(reset_gate, candidate * h_candidate)
        # The state's product was multiplied by the reset
        # gate, the input's was not: two different gradients.
        h = self._joined(reset, update, candidate * reset_gate)
        return self._joined(reset, update, candidate), h, (state_grad + product(h, 0, 3),), score_grad

    def forward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """``gruCellForwardPassCalcUnitsResetAfter``: biases, gates, the candidate from the reset sum, the new
        state."""
        dtype, units = size.dtype, size.units
        return [
            # Both products have three gates, and each gate has a bias.
            vertices.binary("ADD", dtype, 6 * units, in_place=True),
            vertices.binary("ADD", dtype, 2 * units, in_place=True),
            *self.gate.work(dtype, 2 * units, size.row),
            vertices.binary("MULTIPLY", dtype, units, in_place=True),
            vertices.binary("ADD", dtype, units, in_place=True),
            *self.activation.work(dtype, units, size.row),
            *self._end(size, scored),
        ]

    def backward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """``backwardStepImplResetAfter``: the reset gate and the candidate's gradient for the product, then the
        previous state's gradient through the update gate."""
        dtype, units = size.dtype, size.units
        return [
            *self._begin_back(size, scored),
            vertices.binary("MULTIPLY", dtype, units),
            *self.gate.gradient_work(dtype, units, size.row),
            vertices.binary("MULTIPLY", dtype, units),
            expression("PrevStepGrad", dtype, units, 3, 0, 2),
        ]


class ResetFirstGruCell(_GatedUnit):
    """The reset gate comes before the product (PopLibs ``lib/popnn/Gru.cpp`` without ``resetAfter``)."""

    kept = 3
    sides = ((2, "both"), (1, "both"))

    def forward(
        self, x: np.ndarray, states: States, product: Product, scores: Scores
    ) -> tuple[States, np.ndarray | None]:
        """``n = a(x_n + (r h) W)``."""
        x_reset, x_update, x_candidate = self._split(x, 3)
        # Only two gates: the candidate's product needs the reset state first.
        h_reset, h_update = self._split(product(states[0], 0, 2), 2)
        reset, update = self.gate.value(x_reset + h_reset), self.gate.value(x_update + h_update)
        candidate = self.activation.value(x_candidate + product(reset * states[0], 2, 3))
        return self._after(states[0], update, candidate, scores), np.concatenate([reset, update, candidate], axis=-1)

    def backward(
        self, grads: States, states: States, saved: np.ndarray, product: Product, scores: Scores
    ) -> tuple[np.ndarray, np.ndarray, States, Scores]:
        """Pass the gradients through the candidate, the reset state and the gates."""
        parts = np.split(saved, 3, axis=-1)
        candidate, update, state_grad, score_grad = self._through_update(grads[0], states[0], parts, scores)
        reset_state = product(candidate, 2, 3)
        # The reset state is a product, so its gradient goes to the gate and to the state, each times the other.
        reset = self.gate.gradient(parts[0], reset_state * states[0])
        state = state_grad + reset_state * parts[0] + product(self._joined(reset, update), 0, 2)
        sums = self._joined(reset, update, candidate)
        return sums, sums, (state,), score_grad

    def forward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """``gruCellForwardPassCalcUnits``, twice: bias and gates; the reset state; bias and candidate; the new
        state."""
        dtype, units = size.dtype, size.units
        return [
            vertices.binary("ADD", dtype, 2 * units, in_place=True),
            *self.gate.work(dtype, 2 * units, size.row),
            vertices.binary("MULTIPLY", dtype, units, in_place=True),
            vertices.binary("ADD", dtype, units, in_place=True),
            *self.activation.work(dtype, units, size.row),
            *self._end(size, scored),
        ]

    def backward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """``backwardStepImpl``: the reset gate, then the previous state."""
        dtype, units = size.dtype, size.units
        return [
            *self._begin_back(size, scored),
            vertices.binary("MULTIPLY", dtype, units),
            *self.gate.gradient_work(dtype, units, size.row),
            expression("PrevStepGrad", dtype, units, 5, 0, 4),
        ]
