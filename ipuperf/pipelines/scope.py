"""Graphs that use tensors of the graphs around them, by reference.

Graphs of the IR are closed: what they use comes in as an input. A :class:`Scope` fetches tensors of an enclosing graph
on first use, as inputs by reference, and makes the call or loop when it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ipuperf.ir import CONTEXT, Constant, Graph, Op, Tensor
from ipuperf.ops import Call, Loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipuperf.ir import Phase


class Scope:
    """A graph under construction inside another.

    Args:
        graph: the graph.
        outer: the scope that will call it, None for the main graph.
        phase: what all its ops are for, where one can say.
    """

    def __init__(self, graph: Graph, outer: Scope | None = None, phase: Phase | None = None) -> None:
        self.graph = graph
        self.phase = phase
        graph.phase = phase or graph.phase
        self.outer = outer
        self.captured: dict[Tensor, Tensor] = {}
        self._free: set[Op] = set()

    def inner(self, stem: str) -> Scope:
        """A new graph inside this one."""
        return Scope(self.graph.ir.create_graph(stem), self)

    def get(self, tensor: Tensor) -> Tensor:
        """``tensor`` of this graph or of one around it, here."""
        if tensor.graph is self.graph:
            return tensor
        if tensor not in self.captured:
            name = tensor.name.replace("/", "_")
            image = self.graph.add_input(tensor.spec, name, by_ref=not isinstance(tensor, Constant))
            image.ipu = tensor.ipu
            self.captured[tensor] = image
        return self.captured[tensor]

    @contextmanager
    def ordered(self, ipu: int) -> Iterator[None]:
        """Within, new ops of this graph come one after the other, on ``ipu``, after all there are."""
        first = max(0, len(self.graph.ops) - 1)
        with CONTEXT.detached(ipu), CONTEXT.phase(self.phase), CONTEXT.use_graph(self.graph):
            yield
        for one, other in zip(self.graph.ops[first:], self.graph.ops[first + 1 :]):
            self.graph.constrain(one, other)

    def op(
        self,
        op_class: type[Op],
        inputs: Sequence[Tensor],
        name: str = "t",
        ipu: int | None = None,
        *,
        tile_set: str = "compute",
        free: bool = False,
        phase: Phase | None = None,
        **kw: Any,
    ) -> Op:
        """A new last op of this graph on ``tile_set`` of ``ipu`` (``free``: it may come earlier), for ``phase`` (by
        default what the scope is for); operands may be of graphs around it."""
        operands = [self.get(t) for t in inputs]
        outputs = kw.pop("outputs", 1)
        names = [name] * outputs if isinstance(outputs, int) else list(outputs)
        before = None if free else next((op for op in reversed(self.graph.ops) if op not in self._free), None)
        with CONTEXT.detached(ipu), CONTEXT.phase(phase or self.phase):
            op = self.graph.create(op_class, operands, names, **kw)
        op.tile_set = tile_set
        if free:
            self._free.add(op)
        elif before is not None:
            self.graph.constrain(before, op)
        return op

    def close(self, *, trips: int | None = None, ipu: int | None = None) -> list[Tensor]:
        """Call this graph from the outer one (``trips`` times when given); the results, tensors of the outer graph."""
        assert self.outer is not None
        operands = [self.outer.get(t) for t in self.captured]
        if trips is None:
            names = [t.name for t in self.graph.outputs]
            return self.outer.op(Call, operands, ipu=ipu, outputs=names, callee=self.graph).outputs
        return self.outer.op(Loop, operands, ipu=ipu, outputs=0, callee=self.graph, trip_count=trips).outputs


def place(graph: Graph, ipu: int) -> None:
    """Put every op and tensor of ``graph`` and of the graphs that it calls on ``ipu``."""
    for tensor in graph.tensors.values():
        tensor.ipu = ipu
    for op in graph.ops:
        op.ipu = ipu
        for callee in op.called_graphs():
            place(callee, ipu)
