"""Where new ops go and what they are for: graph, ordering (``in_sequence``), name scopes, IPU, tile set, phase.

One :class:`BuildContext` per thread. Ordering follows the upstream rule (``docs/reference/popxl.md`` 2.1): with
``in_sequence(True)`` a new op comes after all previous ops and becomes the previous op; with ``False`` it comes after
the last op of the enclosing sequence only and joins the set of previous ops, so a ``False`` block is one unit; with
``"pass"`` there is no edge. The state is kept per graph and is dropped when the outermost context ends and when a
``"pass"`` block begins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from .builder import Builder
from .errors import IrError

if TYPE_CHECKING:
    from .graph import Graph
    from .op import Op
    from .phase import Phase


class _Order:
    """Ordering state of one graph: ops that the next op must follow."""

    def __init__(self) -> None:
        self.anchor: list[Op] = []
        self.previous: list[Op] = []


class BuildContext(threading.local):
    """State of program construction in this thread."""

    def __init__(self) -> None:
        self.builders: list[Builder] = []
        self.modes: list[bool | str] = []
        self.scopes: list[str] = []
        self.ipus: list[int] = []
        self.tile_sets: list[str] = []
        self.phases: list[Phase] = []
        self._orders: dict[Graph, _Order] = {}

    @property
    def builder(self) -> Builder:
        """Where new ops go: the innermost builder; an error when there is none."""
        if not self.builders:
            raise IrError("no graph is active: create tensors and ops inside `with ir.main_graph:` or `with graph:`")
        return self.builders[-1]

    @property
    def graph(self) -> Graph:
        """The graph of :attr:`builder`."""
        return self.builder.graph

    def builder_of(self, graph: Graph) -> Builder:
        """The innermost builder, or one of ``graph`` where none is active."""
        return self.builders[-1] if self.builders else Builder(graph)

    def use_graph(self, graph: Graph) -> AbstractContextManager[Graph]:
        """Make ``graph`` current, see :meth:`building`."""
        return self.building(Builder(graph))

    @contextmanager
    def building(self, builder: Builder) -> Iterator[Graph]:
        """Make ``builder`` the innermost one; its graph. Graphs of different Irs cannot be nested (RuntimeError)."""
        graph = builder.graph
        if self.builders and self.graph.ir is not graph.ir:
            raise RuntimeError(
                f"graph {graph.name or 'main'!r} belongs to another Ir than the active graph "
                f"{self.graph.name or 'main'!r}; leave that context first"
            )
        self.builders.append(builder)
        try:
            yield graph
        finally:
            self.builders.pop()

    @contextmanager
    def sequence(self, mode: bool | str) -> Iterator[None]:
        """Order new ops by ``mode``: True, False or "pass"."""
        if mode not in (True, False, "pass"):
            raise TypeError(f"in_sequence({mode!r}): allowed are True, False and 'pass'")
        if mode == "pass":
            self._orders.clear()
        self.modes.append(mode)
        try:
            yield
        finally:
            self.modes.pop()
            if not self.modes:
                self._orders.clear()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix names of new tensors and ops with ``name/``."""
        self.scopes.append(name)
        try:
            yield
        finally:
            self.scopes.pop()

    @contextmanager
    def on_ipu(self, ipu: int) -> Iterator[int]:
        """Place new ops on IPU ``ipu`` of the replica."""
        self.ipus.append(ipu)
        try:
            yield ipu
        finally:
            self.ipus.pop()

    @contextmanager
    def on_tiles(self, tile_set: str) -> Iterator[None]:
        """Place new ops on the ``compute`` or ``io`` tiles."""
        self.tile_sets.append(tile_set)
        try:
            yield
        finally:
            self.tile_sets.pop()

    @contextmanager
    def phase(self, phase: Phase | None) -> Iterator[None]:
        """New ops are for ``phase`` (:mod:`.phase`), and so is what is added to new graphs later; None: no change."""
        if phase is None:
            yield
            return
        self.phases.append(phase)
        try:
            yield
        finally:
            self.phases.pop()

    @contextmanager
    def detached(self, ipu: int | None = None) -> Iterator[None]:
        """Suspend ordering, scopes and placement, for transforms that build ops on their own terms (on ``ipu``). What
        they are for stays."""
        saved = self.modes, self.scopes, self.ipus, self.tile_sets, self._orders
        ipus = [] if ipu is None else [ipu]
        self.modes, self.scopes, self.ipus, self.tile_sets, self._orders = [], [], ipus, [], {}
        try:
            yield
        finally:
            self.modes, self.scopes, self.ipus, self.tile_sets, self._orders = saved

    def place(self, op: Op) -> None:
        """Stamp a new op with scope, phase, IPU, tile set, and add the ordering edges that the active mode asks for."""
        op.scope = "/".join(self.scopes)
        op.phase = self._phase(op)
        if self.ipus:
            op.ipu = self.ipus[-1]
        if self.tile_sets:
            op.tile_set = self.tile_sets[-1]
        mode = self.modes[-1] if self.modes else None
        if mode is None or mode == "pass":
            return
        order = self._orders.setdefault(op.graph, _Order())
        before = order.previous if mode is True else order.anchor
        for other in before:
            if other.graph is op.graph and other is not op:
                op.graph.constrain(other, op)
        if mode is True:
            order.previous = [op]
            order.anchor = [op]
        else:
            order.previous = [p for p in order.previous if p not in order.anchor] + [op]

    def _phase(self, op: Op) -> Phase | None:
        """What is said of a new op: by its class about I/O, by the context, by its class, by its graph."""
        own = op.own_phase()
        if own != "io" and self.phases:
            return self.phases[-1]
        return own or op.graph.phase


CONTEXT = BuildContext()
