"""Which code of a program is shared, and what calls of outlined functions copy: operands in, results and changed
operands out.

A tensor is copied in once for each call, all of them in one compute set before the first op; out likewise after the
last. Tensors that are views of each other are one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipuperf.ir import Graph, Tensor

from .liveness import shared_outputs
from .outlining import Outlinable, function_bodies, kept
from .supersteps import on_tile_copies

if TYPE_CHECKING:
    from ipuperf.machine import Machine

    from .layout import Layout
    from .lowered import LoweredGraph, LoweredOp
    from .steps import Step
    from .tile_sets import TileSets


@dataclass(frozen=True)
class FunctionCall:
    """One call.

    Attributes:
        ops: what it runs.
        operands: tensors that are copied in.
        results: tensors that are copied out.
    """

    ops: Sequence[Outlinable]
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    def layout(self, tensor: Tensor) -> Layout:
        """Where an operand or result lies."""
        return self.ops[0].layouts[tensor]

    def of(self, tiles: int) -> FunctionCall:
        """The same without tensors that do not lie on a tile set of so many tiles."""
        here = self.ops[0].layouts
        there = [t for t in (*self.operands, *self.results) if t not in here or here[t].elements.tiles != tiles]
        if not there:
            return self
        operands, results = (tuple(t for t in own if t not in there) for own in (self.operands, self.results))
        return FunctionCall(self.ops, operands, results)


@dataclass(frozen=True)
class SharedCode:
    """The code of one tile set of an IPU: ops that have their own, and calls of functions."""

    kept: tuple[LoweredOp, ...]
    calls: tuple[FunctionCall, ...]


def shared_code(
    graphs: Mapping[Graph, LoweredGraph],
    loaded: Collection[Graph],
    value: Callable[[LoweredOp], float | None],
    recomputed: Callable[[LoweredOp], bool],
    threshold: float | None,
    tile_sets: TileSets,
) -> dict[tuple[int, str], SharedCode]:
    """The code of a program, by IPU and tile set.

    Args:
        graphs: its graphs, lowered.
        loaded: those whose code comes from Streaming Memory, which share none.
        value: of an op to the outliner; None: it ends a stretch. Not asked for without a threshold.
        recomputed: whether an op runs again what the forward pass ran.
        threshold: see :func:`.outlining.kept`.
        tile_sets: of the IPUs.
    """
    ops: dict[tuple[int, str], list[Outlinable]] = {}
    for graph, lowered in graphs.items():
        for item in lowered.ops if graph not in loaded else ():
            worth = value(item) if threshold is not None else 0.0
            if worth is None or item.steps.code.parts:  # what has no code is passed over
                ops.setdefault((item.ipu, item.tile_set), []).append(Outlinable(item, lowered.layouts, worth))
    found = {}
    for place, own in ops.items():
        parts = [op for op in own if not recomputed(op.item)], [op for op in own if recomputed(op.item)]
        bodies = [body for part in parts for body in function_bodies(part, threshold)]
        calls = function_calls(bodies, graphs, tile_sets.chip(place[1]).tiles)
        found[place] = SharedCode(kept(own, threshold), tuple(calls))
    return found


def function_calls(
    bodies: Sequence[Sequence[Outlinable]], graphs: Mapping[Graph, LoweredGraph], tiles: int
) -> list[FunctionCall]:
    """The calls that run ``bodies`` on an IPU's tile set of so many ``tiles``, and what each copies there."""
    number = {id(op.item): call for call, body in enumerate(bodies) for op in body}
    roots: dict[Graph, dict[Tensor, Tensor]] = {}
    users: dict[Tensor, set[int | None]] = {}
    for graph in dict.fromkeys(body[0].item.op.graph for body in bodies):
        roots[graph] = _roots(graphs[graph])
        _note_users(graphs[graph], roots[graph], number, users)
    found = [_call(body, call, roots[body[0].item.op.graph], users) for call, body in enumerate(bodies)]
    return [call.of(tiles) for call in found]


def add_copies(calls: Iterable[FunctionCall], machine: Machine) -> None:
    """Put the copies of the calls among the steps of their first and last ops."""
    known: dict[tuple[tuple[Layout, int], ...], list[Step]] = {}

    def copies(call: FunctionCall, tensors: Iterable[Tensor], op_id: int) -> list[Step]:
        pieces = tuple([(call.layout(tensor), tensor.dtype.size) for tensor in tensors])
        if pieces not in known:  # calls of a function are alike
            known[pieces] = on_tile_copies(op_id, pieces, machine)
        return [step.for_op(op_id) for step in known[pieces]]

    for call in calls:
        first, last = call.ops[0].item.steps.steps, call.ops[-1].item.steps.steps
        before = copies(call, call.operands, first[0].op_id)
        last += copies(call, call.results, last[-1].op_id)
        first[:0] = before


def _roots(lowered: LoweredGraph) -> dict[Tensor, Tensor]:
    """For tensors that share the memory of another one, which that is."""
    found: dict[Tensor, Tensor] = {}
    for item in lowered.ops:
        if item.calls:
            continue
        for index, source in shared_outputs(item).items():
            given = item.op.inputs[source]
            found[item.op.outputs[index]] = found.get(given, given)
    return found


def _note_users(
    lowered: LoweredGraph,
    roots: Mapping[Tensor, Tensor],
    number: Mapping[int, int],
    users: dict[Tensor, set[int | None]],
) -> None:
    """Enter for each tensor of a graph the calls that read it; None for what is outside of all calls."""
    for item in lowered.ops:
        call = number.get(id(item))
        if call is None and not (item.steps.steps or item.shared is not None or item.joined or item.calls):
            continue  # a view, whose reader counts
        for tensor in item.op.inputs:
            users.setdefault(roots.get(tensor, tensor), set()).add(call)
    for tensor in lowered.graph.outputs:
        users.setdefault(roots.get(tensor, tensor), set()).add(None)


def _call(
    ops: Sequence[Outlinable], call: int, roots: Mapping[Tensor, Tensor], users: Mapping[Tensor, set[int | None]]
) -> FunctionCall:
    read: dict[Tensor, None] = {}
    changed: dict[Tensor, None] = {}
    made: dict[Tensor, None] = {}
    for op in (each.item.op for each in ops):
        modified = op.modified_inputs()
        for index, tensor in enumerate(op.inputs):
            root = roots.get(tensor, tensor)
            if root not in made:
                read[root] = None
                if index in modified:
                    changed[root] = None
        made.update({root: None for tensor in op.outputs if (root := roots.get(tensor, tensor)) not in read})
    results = [tensor for tensor in made if users.get(tensor, set()) - {call}]
    return FunctionCall(ops, tuple(read), (*changed, *results))
