"""The interface of a time step of a recurrent layer: its values, its backward step and its vertices.

Arrays are ``(R, batch, units)`` times the number of gates. A cell is given the sums ``x`` of its step's input, bias
included, and multiplies the states by the weights itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from ipuperf.ir import DType

from ..work import Vertices
from .activations import ACTIVATIONS

States = tuple[np.ndarray, ...]
#: ``product(operand, first, last)``: with the weights of the gates from ``first`` to ``last``.
Product = Callable[[np.ndarray, int, int], np.ndarray]
#: Scores of the step's sequences ``(R, batch, 1)``.
Scores: TypeAlias = "np.ndarray | None"


@dataclass(frozen=True)
class StepSize:
    """The size of a step's vertices: ``batch`` rows of ``row`` units."""

    dtype: DType
    batch: int
    row: int

    @property
    def units(self) -> int:
        """Units of all sequences together."""
        return self.batch * self.row


class RecurrentCell:
    """Base of the cells.

    Args:
        activation: the function of the candidate (and of an LSTM's cell): a name of :data:`ACTIVATIONS`.
        gate: the function of the gates, a name of the same table.
        update_first: the gates of a GRU are in Keras' order update, reset, candidate instead of reset, update,
            candidate.

    Class attributes:
        gates: sums of products for each unit.
        states: values of a unit that pass from step to step; the result is the first of them.
        kept: values of a unit that the backward step needs besides the states.
        alike: the sums of inputs and of states have the same gradients; otherwise the states have a bias of their own.
        sides: the products of a step, each as its gates and its operand: ``x`` (the input), ``h`` (a state) or
            ``both``.
        scored: the scores of an attention weaken the update gate.
    """

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    kept: ClassVar[int] = 0
    alike: ClassVar[bool] = True
    sides: ClassVar[tuple[tuple[int, str], ...]]
    scored: ClassVar[bool] = False

    def __init__(self, activation: str = "tanh", gate: str = "sigmoid", update_first: bool = False) -> None:
        self.activation = ACTIVATIONS[activation]
        self.gate = ACTIVATIONS[gate]
        self.update_first = update_first

    # -- values ----------------------------------------------------------------------------------------------------

    def forward(
        self, x: np.ndarray, states: States, product: Product, scores: Scores
    ) -> tuple[States, np.ndarray | None]:
        """The states after a step, and the values that the backward step needs."""
        raise NotImplementedError

    def backward(
        self, grads: States, states: States, saved: np.ndarray, product: Product, scores: Scores
    ) -> tuple[np.ndarray, np.ndarray, States, Scores]:
        """The backward step.

        It takes the gradients of the states after a step. It gives the gradients of the sums of inputs, of the sums of
        states, of the ``states`` before the step, and of the scores. ``saved`` is what :meth:`forward` returned for
        it, or the result where that was None.
        """
        raise NotImplementedError

    # -- cost ------------------------------------------------------------------------------------------------------

    def forward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """Compute sets of :meth:`forward`, without its products."""
        raise NotImplementedError

    def backward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """Compute sets of :meth:`backward`, without its products."""
        raise NotImplementedError

    def masking(self, size: StepSize, trains: bool) -> list[Vertices]:
        """Compute sets of a forward step that set the values of ended sequences to zero."""
        raise NotImplementedError

    def gradient_masking(self, size: StepSize) -> list[Vertices]:
        """Compute sets of a backward step that set the values of ended sequences to zero."""
        raise NotImplementedError

    def activated(self, size: StepSize, gates: int, candidates: int, *, backward: bool = False) -> list[Vertices]:
        """Compute sets that apply the functions to this many gates and candidates.

        Where popnn puts both functions into one compute set (PopLibs ``isCSNotSupported``), it is one of the gates'
        vertices.
        """
        dtype, units, row = size.dtype, size.units, size.row
        if self.gate.shares and self.activation.shares:
            both, shared = (gates + candidates) * units, self.gate
            return shared.gradient_work(dtype, both, row) if backward else shared.work(dtype, both, row)
        compute_sets = []
        for count, function in ((gates, self.gate), (candidates, self.activation)):
            if count:
                work = function.gradient_work if backward else function.work
                compute_sets += work(dtype, count * units, row)
        return compute_sets
