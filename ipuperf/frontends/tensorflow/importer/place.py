"""Where imported ops go: what the importer asks of the front end's frames."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from ipuperf.ir import Builder, Op, Tensor

from .values import Resource, Value

if TYPE_CHECKING:
    from .node import Node


class Place(Builder):
    """The op maker of a graph that TensorFlow's ops are imported into.

    Ops run in the order in which they are made. Tensors of places around this one are captured (:meth:`Builder.get`).

    Attributes:
        executions: how often its graph runs in one run of the program.
        captured: tensors of places around this one that became inputs, in order of these inputs.
        differentiated: gradients of this graph are made by ipuperf afterwards (stages of a pipeline): loops are
            unrolled, as the IR's loop has no gradient, and nothing is changed in place.
    """

    executions: int
    captured: list[Tensor]
    differentiated: bool = False

    @property
    def unconditional(self) -> Place:
        """This place; of a branch that in which its conditional stands."""
        return self

    def configured(self, op_class: type[Op]) -> dict[str, Any]:
        """Attributes that the program's configuration gives new ops of a class."""
        return {}

    def surroundings(self, op: tf.Operation, operands: Sequence[Value]) -> AbstractContextManager[object]:
        """What is in force while ops for ``op`` are made: its IPU, what it is for."""
        return nullcontext()

    def imported(self, graph: tf.Graph, start: int) -> None:
        """Called when ``graph`` has been imported; its ops are those from number ``start`` on."""

    def read(self, resource: Resource) -> Tensor:
        """The present value of a variable, as a tensor of this graph (it may be the variable itself, which changes when
        it is assigned to)."""
        raise NotImplementedError

    def assign(self, resource: Resource, value: Tensor) -> None:
        """Give a variable another value of the same shape and type from here on."""
        raise NotImplementedError

    def in_place(self, resource: Resource) -> Tensor | None:
        """The variable's tensor, for an op that changes it where it is; None where values are pure."""
        raise NotImplementedError

    def next_element(self, resource: Resource, specs: Sequence[tf.TensorSpec]) -> Sequence[Tensor]:
        """The next element of an iterator of the host."""
        raise NotImplementedError("an iterator of a data set feeds a program's main graph and its loops only")

    def seed(self) -> Tensor:
        """A random seed (``uint32``, shape (2,)) that is another one in each execution and on each replica."""
        raise NotImplementedError

    def random_key(self) -> int:
        """A number that tells random ops of the program apart."""
        raise NotImplementedError

    def custom_gradient(self, node: Node, operands: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        """The results of an op that has a gradient of the program's own, which the place's differentiation heeds."""
        raise node.error("a custom gradient has to stand in a pipeline stage itself, in no branch of a tf.cond")

    def inner(self, stem: str, executions: int) -> Place:
        """The place of a new graph that this one executes, ``executions`` times in a run."""
        raise NotImplementedError
