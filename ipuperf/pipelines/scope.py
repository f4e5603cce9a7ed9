"""Graphs that use tensors of the graphs around them, by reference.

Graphs of the IR are closed: an outer tensor has to come in as an input. A :class:`Scope` fetches tensors of an
enclosing graph on first use, as inputs by reference, and makes the call or loop when it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from ipuperf.ir import CONTEXT, Builder, Constant, Graph, Op, Phase, Tensor
from ipuperf.ops import Loop


class Scope(Builder):
    """The op maker of a graph inside another; its ops run one after the other.

    Args:
        graph: the graph.
        outer: the scope that will call it, None for the main graph.
        phase: the phase of its ops, where all have the same.
        ipu: the IPU of its ops, where all run on one.
    """

    def __init__(
        self, graph: Graph, outer: Scope | None = None, phase: Phase | None = None, ipu: int | None = None
    ) -> None:
        super().__init__(graph)
        self.naming = "t"
        self.phase = phase
        graph.phase = phase or graph.phase
        self.outer = outer
        self.ipu = ipu
        self.captured: dict[Tensor, Tensor] = {}
        self._floats = False
        self._floating: set[Op] = set()

    def inner(self, stem: str) -> Scope:
        """A new graph inside this one."""
        return Scope(self.graph.ir.create_graph(stem), self)

    # -- where ops go ------------------------------------------------------------------------------------------------

    def on(self, ipu: int | None = None) -> AbstractContextManager[None]:
        """Within, make ops here on ``ipu`` (by default the scope's own). Order, names and places of the surrounding
        code are suspended."""
        return CONTEXT.detached(self.ipu if ipu is None else ipu, self, self.phase)

    def floating(self, when: bool = True) -> AbstractContextManager[None]:
        """Within, let ops run earlier than those made before them, if ``when``."""
        return self.set("_floats", when)

    def get(self, tensor: Tensor) -> Tensor:
        """The image here of ``tensor``, which belongs to this graph or one around it."""
        if tensor.graph is self.graph:
            return tensor
        image = self.captured.get(tensor)
        if image is None:
            # A slash would look like a name scope of this graph.
            name = tensor.name.replace("/", "_")
            # By reference, so that changes inside are seen outside; a constant never changes.
            image = self.graph.add_input(tensor.spec, name, by_ref=not isinstance(tensor, Constant))
            image.ipu = tensor.ipu
            self.captured[tensor] = image
        return image

    def taken(self, op_class: type[Op], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The operands as tensors of this graph; most are already."""
        graph, get = self.graph, self.get
        return [tensor if tensor.graph is graph else get(tensor) for tensor in inputs]

    def made(self, op: Op) -> None:
        """Put a new op after the last one."""
        if self._floats:
            self._floating.add(op)
            return
        ops, floating = self.graph.ops, self._floating
        # The new op is the last one already; floating ops order nothing.
        index = len(ops) - 2
        while index >= 0 and ops[index] in floating:
            index -= 1
        if index >= 0:
            self.graph.constrain(ops[index], op)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, trips: int) -> None:
        """Call this graph ``trips`` times from the outer one."""
        assert self.outer is not None
        with self.outer.on():
            self.outer.create(Loop, list(self.captured), [], callee=self.graph, trip_count=trips)


def place(graph: Graph, ipu: int) -> None:
    """Put every op and tensor of ``graph`` and of the graphs that it calls on ``ipu``."""
    for tensor in graph.tensors.values():
        tensor.ipu = ipu
    for op in graph.ops:
        op.ipu = ipu
        for callee in op.called_graphs():
            place(callee, ipu)
