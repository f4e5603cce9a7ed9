"""The bodies of ``poptorch.cond`` while a program is lowered.

A trace goes through both bodies, one after the other; what each of them makes says so (:data:`BODY`) and is lowered
into a graph of its own, whose operands are the values from around it that it uses. A conditional then executes one of
the two (:class:`ipuperf.ops.If`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ipuperf.functions.making import make_all
from ipuperf.ir import Graph, Tensor, TensorSpec, prune
from ipuperf.ops import Identity, If

from ..aten.lowering import Lowering, ir_dtype
from ..errors import Error

if TYPE_CHECKING:
    from .parts import Flow, Part

#: Annotation of a node: the bodies that it is in, from the outside in, such as ``0.then/1.else``.
BODY = "ipuperf_body"


@dataclass(eq=False)
class Body:
    """A graph that may be executed.

    Attributes:
        outer: what the conditional stands in.
        graph: what is executed.
        operands: tensors of ``outer`` that stand for the inputs of the graph, in order.
    """

    outer: Part | Body
    graph: Graph
    operands: list[Tensor] = field(default_factory=list)
    lowering: Lowering = field(init=False)

    def __post_init__(self) -> None:
        around = self.outer.lowering
        # Keys come from around, so that random ops of both bodies differ from all others.
        self.lowering = Lowering(
            self.graph, training=around.training, seed=self._seed, next_key=around.next_key, norms=around.norms
        )

    def _seed(self) -> Tensor:
        return self._input(self.outer.lowering.seed())

    def _input(self, tensor: Tensor) -> Tensor:
        """A tensor from outside in this graph."""
        if tensor not in self.operands:
            self.operands.append(tensor)
            self.graph.add_input(TensorSpec(tensor.shape, tensor.dtype), tensor.name)
        return self.graph.inputs[self.operands.index(tensor)]

    def get(self, flow: Flow) -> Tensor:
        """A value in this graph."""
        origin = flow.origin
        if origin is self:
            assert flow.tensor is not None
            return flow.tensor
        if isinstance(origin, np.ndarray):
            return self.lowering.constant(origin, ir_dtype(torch.from_numpy(origin).dtype, flow.name))
        return self._input(self.outer.get(flow))

    def add_result(self, value: Any) -> None:
        """One more result: a value, or a constant."""
        tensor = self.lowering.tensor(value) if isinstance(value, torch.Tensor) else self.get(value)
        # Each output of a graph is a tensor of its own that an op of the graph makes.
        if tensor.producer is None or tensor in self.graph.outputs:
            tensor = self.lowering.op(Identity, [tensor])
        self.graph.add_output(tensor)

    def prune(self) -> None:
        """Remove what no result needs."""
        self.operands = prune(self.graph, self.operands)


def conditional(low: Lowering, condition: Tensor, then_body: Body, else_body: Body) -> list[Tensor]:
    """The results of one of two bodies, which become graphs of an op that reads ``condition``."""
    for body in (then_body, else_body):
        body.prune()
    names = [low.naming] * len(then_body.graph.outputs)
    # The op reads the operands of both bodies: a static program brings them whichever body runs.
    operands = [condition, *then_body.operands, *else_body.operands]
    return make_all(If, operands, names, then_branch=then_body.graph, else_branch=else_body.graph)


def refuse(flow: Flow, location: str | None) -> None:
    """``Error``: a value of a body is used outside of it, other than as its result."""
    name = "" if flow.tensor is None else f" ({flow.tensor.name!r})"
    raise Error(
        f"{location or ''}: what a body of poptorch.cond made{name} is used outside of it; "
        "a body cannot change tensors from outside in place: return the new value"
    )
