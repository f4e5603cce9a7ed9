"""Graphs: handles on :class:`ipuperf.ir.Graph`, used as context managers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ipuperf import ir as _ir
from ipuperf.base.kinds import told
from ipuperf.ir import Graph as _BaseGraph
from ipuperf.ir.errors import ForeignTensorError

from .arguments import checked_kinds
from .builder import Builder
from .handle import Constant, Tensor, Variable, wrap, wrap_all

if TYPE_CHECKING:
    from .ir import Ir

_HOOK_HANDLES = itertools.count()


class Graph:
    """A graph of a program; created by ``ir.create_graph``, ``ir.create_empty_graph`` or ``ir.main_graph``."""

    _base: _BaseGraph
    _entered: list[ExitStack]

    def __init__(self) -> None:
        raise TypeError(
            "popxl.Graph cannot be constructed; use ir.create_graph, ir.create_empty_graph or ir.main_graph"
        )

    @classmethod
    def _from_ir(cls, graph: _BaseGraph) -> Graph:
        self = cls.__new__(cls)
        self._base = graph
        self._entered = []
        return self

    # -- properties ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Unique name; empty for the main graph."""
        return self._base.name

    @property
    def id(self) -> str:
        """The name."""
        return self._base.name

    @property
    def ir(self) -> Ir:
        """The program."""
        from .ir import Ir

        return Ir._from_ir(self._base.ir)

    #: Programs reach the program by this name of upstream's, too.
    _ir = ir

    @property
    def main_graph(self) -> Graph:
        """The program's main graph."""
        return Graph._from_ir(self._base.ir.main_graph)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Inputs in order."""
        return wrap_all(self._base.inputs)

    @property
    def inputs_by_name(self) -> dict[str, Tensor]:
        """Inputs by name."""
        return {t.name: t for t in self.inputs}

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Outputs in order."""
        return wrap_all(self._base.outputs)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in creation order."""
        return wrap_all(self._base.tensors.values())

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Variables of the graph."""
        return tuple(t for t in self.tensors if isinstance(t, Variable))

    @property
    def constants(self) -> tuple[Constant, ...]:
        """Constants of the graph."""
        return tuple(t for t in self.tensors if isinstance(t, Constant))

    @property
    def called_graphs(self) -> tuple[Graph, ...]:
        """Subgraphs that ops of this graph call."""
        return tuple(Graph._from_ir(g) for g in self._base.called_graphs())

    @property
    def _by_ref_inputs(self) -> set[Tensor]:
        """Inputs whose changes the caller sees."""
        return {wrap(t) for t in self._base.inputs if t.by_ref}

    # -- methods ---------------------------------------------------------------------------------------------------

    @checked_kinds()
    def get_tensor(self, tensor_id: str) -> Tensor:
        """The tensor with this id; ForeignTensorError when there is none."""
        if tensor_id not in self._base.tensors:
            raise ForeignTensorError(f"graph {self.name or 'main'!r} has no tensor {tensor_id!r}")
        return wrap(self._base.tensors[tensor_id])

    @property
    def _pb_graph(self) -> _BaseGraph:
        """The graph that a :class:`~ipuperf.frontends.popxl.bindings.Binding` takes."""
        return self._base

    def _create_tensor_id(self, name: str) -> str:
        return self._base.tensor_id(name)

    def register_op_created_hook(self, fn: Callable[[Any], Any]) -> int:
        """Call ``fn`` with each op created in this graph from now on; returns a handle."""
        handle = next(_HOOK_HANDLES)
        self._base.created_hooks[handle] = fn
        return handle

    def remove_op_created_hook(self, handle: int) -> None:
        """Undo :meth:`register_op_created_hook`; ValueError for what is no handle of this graph's."""
        if handle not in self._base.created_hooks:
            raise ValueError(f"graph {self.name or 'main'!r}: {handle!r} is no handle of a hook")
        del self._base.created_hooks[handle]

    def print_schedule(self) -> str:
        """The graph's ops in execution order, as text."""
        return _ir.format_schedule(self._base)

    def __contains__(self, value: object) -> bool:
        if isinstance(value, Tensor):
            return value._ir_tensor.graph is self._base
        if isinstance(value, str):
            return value in self._base.tensors
        raise TypeError(f"{told(value)} in {self}: a popxl.Tensor is needed")

    def __enter__(self) -> Graph:
        stack = ExitStack()
        stack.enter_context(_ir.CONTEXT.building(Builder(self._base)))
        self._entered.append(stack)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().close()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            raise TypeError(f"{self} == {told(other)}: graphs are compared with graphs")
        return other._base is self._base

    def __hash__(self) -> int:
        return hash((self.name, id(self._base.ir)))

    def __repr__(self) -> str:
        return f"Graph[{self.name}]"
