"""Ops that are alike are lowered once: the layers of a network differ in names only.

The steps of an op follow from its class and attributes, the specs and layouts of its operands (and which of them are
the same tensor), and the layouts that its results already have. Its :meth:`~ipuperf.ops.base.Op.work`, cycle formulas
included, depends only on class, attributes, specs and :meth:`~ipuperf.ops.base.Op.circumstances`. Work is therefore
computed once for ops that agree in these.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from ipuperf.ir import Graph, Tensor, schedule
from ipuperf.ir import Op as Operation
from ipuperf.ops.base import Op
from ipuperf.ops.work import CallGraph, Work

from .collective_merging import NO_MERGING, CollectiveMerging, contiguous
from .layout import Layout
from .supersteps import OpSteps, Superstepper
from .tile_sets import TileSets


@dataclass(frozen=True)
class _Pattern:
    """Steps that equal ops share, and the layouts of their results."""

    steps: OpSteps
    results: tuple[Layout, ...]


class Facts(NamedTuple):
    """Facts that follow from an op alone.

    Attributes:
        works, calls, flops: its work, and the calls and floating-point operations in that work.
        kind: a number that ops share when they differ in layouts only; -1 for a call, or if an attribute has no hash.
    """

    works: tuple[Work, ...]
    calls: tuple[CallGraph, ...]
    flops: int
    kind: int


class OpCache:
    """Facts, steps and orders of a program's ops, shared by the draft and the final lowering.

    Args:
        tile_sets: how the tiles of an IPU are divided.
        merging: which collectives become one; when they are to be moved together, the order of ops follows it.
    """

    def __init__(self, tile_sets: TileSets, merging: CollectiveMerging = NO_MERGING) -> None:
        self._tile_sets = tile_sets
        self._merging = merging
        self._patterns: dict[tuple[int | Layout | None, ...], _Pattern] = {}
        self._alike: dict[Hashable, Facts] = {}
        self._facts: dict[Op, Facts] = {}
        self._orders: dict[Graph, list[Operation]] = {}

    def order(self, graph: Graph) -> list[Operation]:
        """Ops of ``graph`` in execution order."""
        # A frozen graph keeps its schedule itself; only the regrouped order is kept here.
        if not self._merging.contiguous:
            return schedule(graph)
        if graph not in self._orders:
            self._orders[graph] = contiguous(graph, schedule(graph), self._merging, self.work)
        return self._orders[graph]

    def work(self, op: Op) -> tuple[Work, ...]:
        """The work of ``op``."""
        return self.facts(op).works

    def steps(self, op: Op, facts: Facts, layouts: dict[Tensor, Layout]) -> OpSteps:
        """Steps of ``op`` or of an equal one, and the layouts of its results in ``layouts``.

        The steps are shared, so callers must not change them. ``facts`` are those of the op.
        """
        if facts.kind < 0:
            return self._superstepper(op, layouts).run(facts.works)
        # Results may have layouts before their op is lowered, so these count too.
        key = (facts.kind, *map(layouts.get, op.inputs), *map(layouts.get, op.outputs))
        pattern = self._patterns.get(key)
        if pattern is None:
            steps = self._superstepper(op, layouts).run(facts.works)
            pattern = self._patterns[key] = _Pattern(steps, tuple([layouts[tensor] for tensor in op.outputs]))
        else:
            for tensor, layout in zip(op.outputs, pattern.results):
                layouts[tensor] = layout
        return pattern.steps

    def facts(self, op: Op) -> Facts:
        """Facts that follow from ``op`` alone, computed once."""
        facts = self._facts.get(op)
        if facts is None:
            facts = self._facts[op] = self._new_facts(op)
        return facts

    def _new_facts(self, op: Op) -> Facts:
        if op.called_graphs():
            return _facts(op, -1)
        signature = _signature(op)
        try:
            facts = self._alike.get(signature)
        except TypeError:  # an attribute has no hash
            return _facts(op, -1)
        if facts is None:
            facts = self._alike[signature] = _facts(op, len(self._alike))
        return facts

    def _superstepper(self, op: Op, layouts: dict[Tensor, Layout]) -> Superstepper:
        # Shared steps have no number yet; each op numbers its own copy (``OpSteps.for_op``).
        return Superstepper(op, -1, layouts, self._tile_sets.machines[self._tile_sets.of(op)])


def _facts(op: Op, kind: int) -> Facts:
    works = tuple(op.work())
    calls = tuple([work for work in works if isinstance(work, CallGraph)])
    flops = sum([int(work.flops) for work in works])
    return Facts(works, calls, flops, kind)


def _signature(op: Op) -> Hashable:
    """A key that is equal for ops with the same steps, if their operands lie alike; see the module docstring."""
    inputs, values = op.inputs, tuple(op.attributes.values())
    specs = [tensor.spec for tensor in inputs]
    return (
        type(op),
        op.tile_set,
        values,
        # The types count too, as 1, 1.0 and True are equal and hash alike.
        tuple(map(type, values)) if values else (),
        tuple([(spec.shape, spec.dtype.name, spec.meta_shape) for spec in specs]),  # hash and compare faster than specs
        tuple([inputs.index(tensor) for tensor in inputs]) if len(set(inputs)) < len(inputs) else (),
        op.modified_inputs(),
        op.circumstances(),
        tuple(aliases.items()) if (aliases := op.aliases()) else (),
    )
