"""What a time step of a recurrent layer is asked: its values, its backward step and its vertices.

Arrays are ``(R, batch, units)`` times the number of gates. A cell gets the sums ``x`` of its step's input, bias
included, and multiplies states by weights itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from ipuperf.ir import DType

from .recurrent_activations import ACTIVATIONS
from .work import Vertices

States = tuple[np.ndarray, ...]
#: ``product(operand, first, last)``: with the weights of the gates from ``first`` to ``last``.
Product = Callable[[np.ndarray, int, int], np.ndarray]
#: Scores of the step's sequences ``(R, batch, 1)``.
Scores: TypeAlias = "np.ndarray | None"


@dataclass(frozen=True)
class StepSize:
    """What vertices of a step work on: ``batch`` rows of ``row`` units."""

    dtype: DType
    batch: int
    row: int

    @property
    def units(self) -> int:
        """Of all sequences."""
        return self.batch * self.row


class RecurrentCell:
    """Base of the cells.

    Args:
        activation: of the candidate (of an LSTM also of the cell): a name of :data:`ACTIVATIONS`.
        gate: of the gates, another.
        update_first: the gates of a GRU are update, reset, candidate (Keras), not reset, update, candidate.

    Class attributes:
        gates: sums of products for each unit.
        states: values of a unit that go from step to step, the result first.
        kept: values of a unit that the backward step needs besides the states.
        alike: the gradients of the sums of inputs and states are the same; else those of states have a bias of their
            own.
        sides: the products of a step: gates, and what they multiply: ``x`` (the input), ``h`` (a state) or ``both``.
        scored: an attention's scores weaken its update gate.
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
        """The states after a step, and what the backward step needs."""
        raise NotImplementedError

    def backward(
        self, grads: States, states: States, kept: np.ndarray, product: Product, scores: Scores
    ) -> tuple[np.ndarray, np.ndarray, States, Scores]:
        """From gradients of the states after a step: those of the sums of inputs and of states, of the ``states``
        before it, and of the scores. ``kept``: what :meth:`forward` gave; the result, where that is nothing."""
        raise NotImplementedError

    # -- cost ------------------------------------------------------------------------------------------------------

    def forward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """Compute sets of :meth:`forward` but for products."""
        raise NotImplementedError

    def backward_work(self, size: StepSize, scored: bool) -> list[Vertices]:
        """Compute sets of :meth:`backward`."""
        raise NotImplementedError

    def masking(self, size: StepSize, trains: bool) -> list[Vertices]:
        """Compute sets that make what ended sequences computed nothing, in a forward step."""
        raise NotImplementedError

    def gradient_masking(self, size: StepSize) -> list[Vertices]:
        """The same of a backward step."""
        raise NotImplementedError

    def activated(self, size: StepSize, gates: int, candidates: int, *, backward: bool = False) -> list[Vertices]:
        """So many gates and candidates through their functions: one compute set of the gates' vertices where popnn has
        them in one (PopLibs ``isCSNotSupported``)."""
        dtype, units, row = size.dtype, size.units, size.row
        if self.gate.shares and self.activation.shares:
            both, made = (gates + candidates) * units, self.gate
            return made.gradient_work(dtype, both, row) if backward else made.work(dtype, both, row)
        found = []
        for count, function in ((gates, self.gate), (candidates, self.activation)):
            if count:
                work = function.gradient_work if backward else function.work
                found += work(dtype, count * units, row)
        return found
