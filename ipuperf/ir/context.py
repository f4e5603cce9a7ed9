"""Where new ops go and what they are for: graph, ordering (``in_sequence``), name scopes, IPU, tile set, phase.

Each thread has one :class:`BuildContext`. Ordering follows the upstream rule (``docs/reference/popxl.md`` 2.1). With
``in_sequence(True)`` a new op comes after all previous ops and becomes the previous op. With ``False`` it comes after
the last op of the enclosing sequence only and joins the set of previous ops, so a ``False`` block is one unit. With
``"pass"`` there is no edge. The state is kept per graph. It is dropped when the outermost context ends and when a
``"pass"`` block begins.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .builder import Builder
from .errors import IrError
from .op import Op

if TYPE_CHECKING:
    from .graph import Graph
    from .phase import Phase


T = TypeVar("T")


def module_path(*names: str) -> str:
    """The names of modules and name scopes (``a/b`` for nested ones) as one path with dots; empty ones are left out."""
    return ".".join([name for name in names if name]).replace("/", ".")


class _Pushed(ContextDecorator, Generic[T]):
    """Keeps ``value`` on a stack of the context within a ``with`` block; ``entered`` is what ``with`` gives.

    This is a class because programs enter such contexts for every few ops, and generators take three times as long.
    """

    def __init__(self, context: BuildContext, stack: str, value: Any, entered: T) -> None:
        self._context = context
        self._stack = stack
        self._value = value
        self._entered = entered

    def __enter__(self) -> T:
        getattr(self._context, self._stack).append(self._value)
        return self._entered

    def __exit__(self, *error: object) -> None:
        getattr(self._context, self._stack).pop()


class _Detached:
    """See :meth:`BuildContext.detached`."""

    def __init__(self, context: BuildContext, ipu: int | None, builder: Builder | None, phase: Phase | None) -> None:
        self._context = context
        self._ipus: list[int | None] = [] if ipu is None else [ipu]
        self._builder = builder
        self._phase = phase

    def __enter__(self) -> None:
        context = self._context
        # Saved by reference: the suspended lists are put back unchanged.
        self._saved = context.modes, context.scopes, context.ipus, context.tile_sets, context._orders
        context.modes, context.scopes, context.ipus, context.tile_sets, context._orders = [], [], self._ipus, [], {}
        if self._builder is not None:
            context.builders.append(self._builder)
        if self._phase is not None:
            context.phases.append(self._phase)

    def __exit__(self, *error: object) -> None:
        context = self._context
        context.modes, context.scopes, context.ipus, context.tile_sets, context._orders = self._saved
        if self._builder is not None:
            context.builders.pop()
        if self._phase is not None:
            context.phases.pop()


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
        self.ipus: list[int | None] = []
        self.tile_sets: list[str] = []
        self.phases: list[Phase] = []
        self._orders: dict[Graph, _Order] = {}

    @property
    def builder(self) -> Builder:
        """The innermost builder, which receives new ops; an error when there is none."""
        builders = self.builders
        if not builders:
            raise IrError("no graph is active: create tensors and ops inside `with ir.main_graph:` or `with graph:`")
        return builders[-1]

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

    def building(self, builder: Builder) -> AbstractContextManager[Graph]:
        """Make ``builder`` the innermost one; ``with`` gives its graph. Graphs of different Irs cannot be nested
        (RuntimeError)."""
        self._check_ir(builder.graph)
        return _Pushed(self, "builders", builder, builder.graph)

    def _check_ir(self, graph: Graph) -> None:
        if self.builders and self.graph.ir is not graph.ir:
            raise RuntimeError(
                f"graph {graph.name or 'main'!r} belongs to another Ir than the active graph "
                f"{self.graph.name or 'main'!r}; leave that context first"
            )

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

    def scope(self, name: str) -> _Pushed[None]:
        """Prefix names of new tensors and ops with ``name/``."""
        return _Pushed(self, "scopes", name, None)

    def on_ipu(self, ipu: int | None) -> _Pushed[int | None]:
        """Place new ops on IPU ``ipu`` of the replica; None places them as without any ``on_ipu``."""
        return _Pushed(self, "ipus", ipu, ipu)

    def on_tiles(self, tile_set: str) -> _Pushed[None]:
        """Place new ops on the ``compute`` or ``io`` tiles."""
        return _Pushed(self, "tile_sets", tile_set, None)

    def phase(self, phase: Phase | None) -> AbstractContextManager[None]:
        """Make new ops, and later ops of new graphs, part of ``phase`` (:mod:`.phase`); None changes nothing."""
        return nullcontext() if phase is None else _Pushed(self, "phases", phase, None)

    def detached(
        self, ipu: int | None = None, builder: Builder | None = None, phase: Phase | None = None
    ) -> AbstractContextManager[None]:
        """Suspend ordering, scopes and placement, for transforms that place their ops themselves (on ``ipu``).

        ``builder`` and ``phase``, where given, act as in :meth:`building` and :meth:`phase`.
        """
        if builder is not None:
            self._check_ir(builder.graph)
        return _Detached(self, ipu, builder, phase)

    def place(self, op: Op) -> None:
        """Stamp a new op with scope, module, phase, IPU, tile set, and add the edges that the active mode asks for."""
        op.module = op.graph.module
        if scopes := self.scopes:
            op.scope = "/".join(scopes)
            op.module = module_path(op.module, op.scope)
        class_phase = op.own_phase  # for I/O the class decides, for everything else the context
        op.phase = phases[-1] if class_phase != "io" and (phases := self.phases) else class_phase or op.graph.phase
        if ipus := self.ipus:
            op.ipu = ipus[-1]
        if tile_sets := self.tile_sets:
            op.tile_set = tile_sets[-1]
        modes = self.modes
        if not modes or modes[-1] == "pass":
            return
        mode = modes[-1]
        # Each graph has its own order, as ops of different graphs cannot be ordered against each other.
        order = self._orders.setdefault(op.graph, _Order())
        predecessors = order.previous if mode is True else order.anchor
        for predecessor in predecessors:
            if predecessor.graph is op.graph and predecessor is not op:
                op.graph.constrain(predecessor, op)
        if mode is True:
            order.previous = [op]
            order.anchor = [op]
        else:
            # The anchor is before this op anyway, so it need not be named again.
            order.previous = [previous_op for previous_op in order.previous if previous_op not in order.anchor] + [op]


CONTEXT = BuildContext()
