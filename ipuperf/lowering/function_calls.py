"""Which code of a program is shared, and which tensors the calls of outlined functions copy.

A call copies its operands in, and its results and changed operands out. Each tensor is copied once per call, and views
of one tensor count as one. All copies in are one compute set before the first op, all copies out one after the last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipuperf.ir import Graph, Tensor

from .liveness import shared_outputs
from .outlining import Outlinable, function_bodies, ops_with_own_code
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
        ops: the ops it runs.
        operands: tensors that are copied in.
        results: tensors that are copied out.
    """

    ops: Sequence[Outlinable]
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    def layout(self, tensor: Tensor) -> Layout:
        """The layout of an operand or result."""
        return self.ops[0].layouts[tensor]

    def of(self, tiles: int) -> FunctionCall:
        """The same call without tensors that do not lie on a tile set of ``tiles`` tiles."""
        layouts = self.ops[0].layouts
        elsewhere = [
            tensor
            for tensor in (*self.operands, *self.results)
            if tensor not in layouts or layouts[tensor].elements.tiles != tiles
        ]
        if not elsewhere:
            return self
        operands, results = (
            tuple(tensor for tensor in tensors if tensor not in elsewhere) for tensors in (self.operands, self.results)
        )
        return FunctionCall(self.ops, operands, results)


@dataclass(frozen=True)
class SharedCode:
    """The code of one tile set of an IPU: ops with code of their own (``kept``), and calls of functions."""

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
        loaded: graphs whose code comes from Streaming Memory; they share none.
        value: gives the value of an op to the outliner; None ends a stretch. It is not called without a threshold.
        recomputed: whether an op repeats one of the forward pass.
        threshold: see :func:`.outlining.ops_with_own_code`.
        tile_sets: of the IPUs.
    """
    ops: dict[tuple[int, str], list[Outlinable]] = {}
    for graph, lowered in graphs.items():
        for lowered_op in lowered.ops if graph not in loaded else ():
            worth = value(lowered_op) if threshold is not None else 0.0
            # Ops without code have nothing to share; those that end a stretch are still needed.
            if worth is None or lowered_op.steps.code.parts:
                ops.setdefault((lowered_op.ipu, lowered_op.tile_set), []).append(
                    Outlinable(lowered_op, lowered.layouts, worth)
                )
    shared = {}
    for place, set_ops in ops.items():
        # Recomputed ops repeat each other, so their stretches are looked for among themselves.
        parts = (
            [op for op in set_ops if not recomputed(op.lowered_op)],
            [op for op in set_ops if recomputed(op.lowered_op)],
        )
        bodies = [body for part in parts for body in function_bodies(part, threshold)]
        calls = function_calls(bodies, graphs, tile_sets.chip(place[1]).tiles)
        shared[place] = SharedCode(ops_with_own_code(set_ops, threshold), tuple(calls))
    return shared


def function_calls(
    bodies: Sequence[Sequence[Outlinable]], graphs: Mapping[Graph, LoweredGraph], tiles: int
) -> list[FunctionCall]:
    """The calls that run ``bodies``, with the tensors that each copies on a tile set of ``tiles`` tiles."""
    number = {id(op.lowered_op): call for call, body in enumerate(bodies) for op in body}
    roots: dict[Graph, dict[Tensor, Tensor]] = {}
    users: dict[Tensor, set[int | None]] = {}
    for graph in dict.fromkeys(body[0].lowered_op.op.graph for body in bodies):
        # Views count as the tensor whose memory they share.
        roots[graph] = _roots(graphs[graph])
        _note_users(graphs[graph], roots[graph], number, users)
    calls = [_call(body, call, roots[body[0].lowered_op.op.graph], users) for call, body in enumerate(bodies)]
    return [call.of(tiles) for call in calls]


def add_copies(calls: Iterable[FunctionCall], machine: Machine) -> None:
    """Put the copies of the calls among the steps of their first and last ops."""
    known: dict[tuple[tuple[Layout, int], ...], list[Step]] = {}

    def copies(call: FunctionCall, tensors: Iterable[Tensor], op_id: int) -> list[Step]:
        pieces = tuple([(call.layout(tensor), tensor.dtype.size) for tensor in tensors])
        # Calls of one function copy equal tensors.
        if pieces not in known:
            known[pieces] = on_tile_copies(op_id, pieces, machine)
        return [step.for_op(op_id) for step in known[pieces]]

    for call in calls:
        first_steps, last_steps = call.ops[0].lowered_op.steps.steps, call.ops[-1].lowered_op.steps.steps
        copies_in = copies(call, call.operands, first_steps[0].op_id)
        last_steps += copies(call, call.results, last_steps[-1].op_id)
        first_steps[:0] = copies_in


def _roots(lowered: LoweredGraph) -> dict[Tensor, Tensor]:
    """The tensor whose memory each sharing tensor uses."""
    roots: dict[Tensor, Tensor] = {}
    for lowered_op in lowered.ops:
        if lowered_op.calls:
            continue
        for index, source in shared_outputs(lowered_op).items():
            operand = lowered_op.op.inputs[source]
            roots[lowered_op.op.outputs[index]] = roots.get(operand, operand)
    return roots


def _note_users(
    lowered: LoweredGraph,
    roots: Mapping[Tensor, Tensor],
    number: Mapping[int, int],
    users: dict[Tensor, set[int | None]],
) -> None:
    """Enter for each tensor of a graph the calls that read it; None stands for ops outside of all calls."""
    for lowered_op in lowered.ops:
        call = number.get(id(lowered_op))
        if call is None and not (
            lowered_op.steps.steps or lowered_op.shared is not None or lowered_op.joined or lowered_op.calls
        ):
            continue  # a view reads nothing itself; its readers do
        for tensor in lowered_op.op.inputs:
            users.setdefault(roots.get(tensor, tensor), set()).add(call)
    for tensor in lowered.graph.outputs:
        users.setdefault(roots.get(tensor, tensor), set()).add(None)


def _call(
    ops: Sequence[Outlinable], call: int, roots: Mapping[Tensor, Tensor], users: Mapping[Tensor, set[int | None]]
) -> FunctionCall:
    read: dict[Tensor, None] = {}
    changed: dict[Tensor, None] = {}
    produced: dict[Tensor, None] = {}
    for op in (outlinable.lowered_op.op for outlinable in ops):
        modified = op.modified_inputs()
        for index, tensor in enumerate(op.inputs):
            root = roots.get(tensor, tensor)
            if root not in produced:
                read[root] = None
                if index in modified:
                    changed[root] = None
        produced.update({root: None for tensor in op.outputs if (root := roots.get(tensor, tensor)) not in read})
    results = [tensor for tensor in produced if users.get(tensor, set()) - {call}]
    return FunctionCall(ops, tuple(read), (*changed, *results))
