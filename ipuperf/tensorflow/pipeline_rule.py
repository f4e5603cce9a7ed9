"""An optimiser as the update rule of a pipeline (:class:`ipuperf.pipelines.UpdateRule`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf import ir as _ir

from .accumulation import innermost
from .array import Array
from .optimizer import Hyper, Optimizer
from .tracing import Frame, use_frame

if TYPE_CHECKING:
    from .program import TracedProgram
    from .variables import Variable


class BoundVariable:
    """A variable as an optimiser sees it in the weight update: with sharded state it is the replica's shard."""

    def __init__(self, handle: Variable, weight: _ir.Tensor) -> None:
        self.name, self.op_name = handle.name, handle.op_name
        self.trainable = handle.trainable
        self.shape, self.dtype = weight.shape, weight.dtype
        self._weight = weight

    def as_array(self) -> Array:
        """The value."""
        return Array(self._weight)


@dataclass
class VariableUpdate:
    """What an optimiser needs to update one variable.

    Attributes:
        variable: the weight in the update graph.
        state: its state.
        scalars: hyper-parameters by name.
        used: whether the update has been made.
    """

    variable: _ir.Tensor
    state: Mapping[str, _ir.Tensor]
    scalars: Mapping[str, _ir.Tensor]
    used: bool = False

    def hyper(self, optimizer: Optimizer) -> dict[str, Hyper]:
        """The optimiser's hyper-parameters."""
        return {name: self.scalars[name] for name in optimizer.hyper_parameters()}


class PipelineRule:
    """The update rule of ``optimizer``.

    Args:
        values: functions that give the present value of each hyper-parameter.
        arguments: further arguments of ``apply_gradients``.
    """

    def __init__(
        self,
        program: TracedProgram,
        optimizer: Optimizer,
        values: Mapping[str, Callable[[], float]],
        arguments: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {}),
    ) -> None:
        self._program = program
        self._optimizer = optimizer
        self._values = values
        self._arguments = arguments

    def state(self, variable: _ir.Variable) -> Mapping[str, np.ndarray]:
        """The optimiser's initial slots."""
        return innermost(self._optimizer).slot_values(variable)

    def scalars(self) -> Mapping[str, float]:
        """The hyper-parameters' present values."""
        return {name: value() for name, value in self._values.items()}

    def build(
        self,
        parameter: _ir.Variable,
        weight: _ir.Tensor,
        gradient: _ir.Tensor,
        state: Mapping[str, _ir.Tensor],
        scalars: Mapping[str, _ir.Tensor],
    ) -> None:
        """Let the optimiser apply the gradient.

        Raises:
            ValueError: it does not update the variable.
        """
        frame = Frame(self._program, weight.graph)
        frame.update = VariableUpdate(weight, state, scalars)
        variable = BoundVariable(self._program.handle(parameter), weight)
        positional, named = self._arguments
        with use_frame(frame):
            self._optimizer.apply_gradients([(Array(gradient), variable)], *positional, **named)
        if not frame.update.used:
            raise ValueError(f"optimizer {self._optimizer.name!r}: apply_gradients did not update {variable.name!r}")
