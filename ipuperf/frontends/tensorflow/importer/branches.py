"""The place of a branch of a conditional: a graph that takes and gives values only.

Variables that the branch reads come in as values; what it assigns goes out as results, which the conditional's place
assigns afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from ipuperf.ir import CONTEXT, Constant, Op, Tensor
from ipuperf.ir.builder import OpT

from .place import Place
from .values import Resource, Value


class BranchPlace(Place):
    """A branch of a conditional of another place.

    Attributes:
        outer: the conditional's place.
        assigned: new values of variables, tensors of this graph.
    """

    def __init__(self, outer: Place, stem: str) -> None:
        super().__init__(outer.graph.ir.create_graph(stem))
        self.outer = outer
        self.executions = outer.executions
        self.differentiated = outer.differentiated
        self.captured: list[Tensor] = []
        self.assigned: dict[Resource, Tensor] = {}
        self._images: dict[Tensor, Tensor] = {}
        self._last: Op | None = None

    def get(self, tensor: Tensor) -> Tensor:
        """``tensor`` as one of this graph: one of a place around it comes in by value."""
        if tensor.graph is self.graph:
            return tensor
        if tensor not in self._images:
            name = tensor.name.rsplit("/", 1)[-1]
            if isinstance(tensor, Constant):
                self._images[tensor] = self.graph.constant(tensor, tensor.dtype, name)
            else:
                self.captured.append(self.outer.get(tensor))
                self._images[tensor] = self.graph.add_input(tensor.spec, name)
        return self._images[tensor]

    @property
    def unconditional(self) -> Place:
        """Where the outermost conditional stands."""
        return self.outer.unconditional

    def configured(self, op_class: type[Op]) -> dict[str, Any]:
        """As in the place around it."""
        return self.outer.configured(op_class)

    def create_with(
        self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], attributes: Mapping[str, Any]
    ) -> OpT:
        """A new op, with the configured options."""
        return super().create_with(op_class, inputs, names, {**self.configured(op_class), **attributes})

    def made(self, op: Op) -> None:
        """Ops run in the order in which they are made."""
        if self._last is not None:
            self.graph.constrain(self._last, op)
        self._last = op

    def surroundings(self, op: tf.Operation, operands: Sequence[Value]) -> AbstractContextManager[object]:
        """As in the place around it."""
        return self.outer.surroundings(op, operands)

    def read(self, resource: Resource) -> Tensor:
        """The value that the branch has assigned, or that the variable has before."""
        if resource in self.assigned:
            return self.assigned[resource]
        with CONTEXT.building(self.outer):
            value = self.outer.read(resource)
        return self.get(value)

    def assign(self, resource: Resource, value: Tensor) -> None:
        """A result of the conditional."""
        self.assigned[resource] = self.get(value)

    def in_place(self, resource: Resource) -> None:
        """Nothing is changed in place."""
        return None

    def seed(self) -> Tensor:
        """The seed of the place around it."""
        with CONTEXT.building(self.outer):
            seed = self.outer.seed()
        return self.get(seed)

    def random_key(self) -> int:
        """A number of the place around it."""
        return self.outer.random_key()

    def inner(self, stem: str, executions: int) -> BranchPlace:
        """The place of a loop's body in the branch: it takes and gives values, too."""
        return BranchPlace(self, stem)
