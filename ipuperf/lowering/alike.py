"""Ops that are alike are lowered once: the layers of a network differ in names only.

What an op becomes follows from its class and attributes, the specs and layouts of its operands (and which of them are
the same tensor), the layouts that its results already have, and its :meth:`~ipuperf.ops.base.Op.work`. Cycle formulas
are functions and cannot be compared; they may depend on class, attributes and specs, and on nothing else that is not
also a figure of the work.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipuperf.ir import Graph, Tensor, schedule
from ipuperf.ir import Op as Operation
from ipuperf.ops.base import Op
from ipuperf.ops.control import modified_graph_inputs
from ipuperf.ops.work import CallGraph, Work

from .layout import Layout
from .supersteps import OpSteps, Superstepper
from .tile_sets import TileSets

if TYPE_CHECKING:
    from ipuperf.machine import Machine


@dataclass(frozen=True)
class _Pattern:
    """Steps of some op, for all like it, and the layouts of its results."""

    steps: OpSteps
    results: tuple[Layout | None, ...]


class Known:
    """What was found out about graphs and ops of a program, for the draft and the final lowering.

    Args:
        machine: where the program runs.
        io_tiles: tiles of each IPU set aside for I/O.
    """

    def __init__(self, machine: Machine, io_tiles: int = 0) -> None:
        self._tile_sets = TileSets(machine, io_tiles)
        self._patterns: dict[tuple[int, tuple[Layout | None, ...]], _Pattern] = {}
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: dict[Op, int] = {}
        self._orders: dict[Graph, list[Operation]] = {}
        self._works: dict[Op, tuple[Work, ...]] = {}
        self._changed: dict[Graph, set[int]] = {}

    def order(self, graph: Graph) -> list[Operation]:
        """Ops of ``graph`` in execution order."""
        if graph not in self._orders:
            self._orders[graph] = schedule(graph)
        return self._orders[graph]

    def changed_inputs(self, graph: Graph) -> set[int]:
        """Indices of the inputs that ``graph`` changes."""
        if graph not in self._changed:
            self._changed[graph] = modified_graph_inputs(graph)
        return self._changed[graph]

    def work(self, op: Op) -> tuple[Work, ...]:
        """What ``op`` asks of the machine."""
        works = self._works.get(op)
        if works is None:
            works = self._works[op] = tuple(op.work())
        return works

    def calls(self, op: Op) -> tuple[CallGraph, ...]:
        """The calls that ``op`` makes."""
        return tuple([item for item in self.work(op) if isinstance(item, CallGraph)])

    def flops(self, op: Op) -> int:
        """Floating-point operations of all of the op's work."""
        return sum([int(getattr(item, "flops", 0)) for item in self.work(op)])

    def steps(self, op: Op, op_id: int, layouts: dict[Tensor, Layout]) -> OpSteps:
        """Steps of ``op``, which is number ``op_id`` of the program; ``layouts`` gets those of its results."""
        return self.draft(op, layouts).for_op(op_id)

    def draft(self, op: Op, layouts: dict[Tensor, Layout]) -> OpSteps:
        """Steps of ``op`` or one like it, not to be changed; ``layouts`` gets those of the op's results."""
        kind = self._kind(op)
        if kind < 0:
            return self._superstepper(op, layouts).run(self.work(op))
        key = (kind, tuple([layouts.get(tensor) for tensor in (*op.inputs, *op.outputs)]))
        pattern = self._patterns.get(key)
        if pattern is None:
            steps = self._superstepper(op, layouts).run(self.work(op))
            pattern = _Pattern(steps, tuple(layouts.get(tensor) for tensor in op.outputs))
            self._patterns[key] = pattern
        else:
            for tensor, layout in zip(op.outputs, pattern.results, strict=True):
                if layout is not None:
                    layouts[tensor] = layout
        return pattern.steps

    def _superstepper(self, op: Op, layouts: dict[Tensor, Layout]) -> Superstepper:
        return Superstepper(op, -1, layouts, self._tile_sets.machines[self._tile_sets.of(op)])

    def _kind(self, op: Op) -> int:
        """A number that ops have in common when they differ in nothing but layouts; -1: an attribute has no hash."""
        kind = self._kind_of.get(op)
        if kind is None:
            try:
                kind = self._kinds.setdefault(_signature(op, self.work(op)), len(self._kinds))
            except TypeError:
                kind = -1
            self._kind_of[op] = kind
        return kind


def _signature(op: Op, works: tuple[Work, ...]) -> Hashable:
    """Equal for ops that become the same steps when their operands lie alike; see the module docstring."""
    first: dict[Tensor, int] = {}
    return (
        type(op),
        op.tile_set,
        tuple([(name, type(value), value) for name, value in op.attributes.items()]),
        tuple([(tensor.spec, first.setdefault(tensor, index)) for index, tensor in enumerate(op.inputs)]),
        tuple([tensor.spec for tensor in op.outputs]),
        op.modified_inputs(),
        tuple(op.aliases().items()),
        tuple([(type(item), *[value for value in vars(item).values() if not callable(value)]) for item in works]),
    )
