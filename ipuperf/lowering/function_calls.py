"""Which code of a program is shared, and which tensors the calls of outlined functions copy.

A call copies its operands in, and its results and changed operands out. Each tensor is copied once per call, and views
of one tensor count as one. All copies in are one compute set before the first op, all copies out one after the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ipuperf.ir import Graph, Tensor
from ipuperf.machine import Machine

from .liveness import shared_outputs
from .outlining import FunctionCall, Outlinable, SharedCode, function_bodies, ops_with_own_code, value_of
from .supersteps import on_tile_copies

if TYPE_CHECKING:
    from .compilation import Compilation
    from .layout import Layout
    from .lowered import LoweredGraph, LoweredOp
    from .steps import Step


class _Readers(NamedTuple):
    """Who reads the tensors of a graph.

    Attributes:
        roots: the tensor whose memory each sharing tensor uses.
        of: for each tensor, its views included, the identity of each op that reads it, and whether the op does nothing
            but where a call runs it (a view). 0 stands for the caller, who reads the outputs.
    """

    roots: Mapping[Tensor, Tensor]
    of: Mapping[Tensor, Sequence[tuple[int, bool]]]


def share_code(program: Compilation) -> Compilation:
    """The pass that finds out which code is shared, and adds the copies of calls to the steps of their ops."""
    ops: dict[tuple[int, str], list[Outlinable]] = {}
    for graph, lowered in program.graphs.items():
        # Code from Streaming Memory is not shared.
        for lowered_op in lowered.ops if graph not in program.loaded else ():
            worth = _value(lowered_op, program)
            # Ops without code have nothing to share; those that end a stretch are still needed.
            if worth is None or lowered_op.steps.code.parts:
                place = (lowered_op.ipu, lowered_op.tile_set)
                ops.setdefault(place, []).append(Outlinable(lowered_op, lowered.layouts, worth))
    tile_sets = program.places.tile_sets
    readers: dict[Graph, _Readers] = {}
    program.shared_code = {
        place: _shared_code(place_ops, program, readers, tile_sets.chip(place[1]).tiles)
        for place, place_ops in ops.items()
    }
    for (_, tile_set), code in program.shared_code.items():
        _add_copies(code.calls, tile_sets.machines[tile_set])
    return program


def _value(lowered_op: LoweredOp, program: Compilation) -> float | None:
    """Value of an op to the outliner; None for an op that ends a stretch, such as a call."""
    if program.outlining is None:
        return 0.0
    if lowered_op.calls:
        return None
    return value_of(lowered_op.op.type, program.cache.work(lowered_op.op), program.ir.replication_factor)


def _shared_code(
    ops: Sequence[Outlinable], program: Compilation, readers: dict[Graph, _Readers], tiles: int
) -> SharedCode:
    """The code of the ops of a tile set of ``tiles`` tiles."""
    # Recomputed ops repeat each other, so their stretches are looked for among themselves.
    recomputed: dict[bool, list[Outlinable]] = {False: [], True: []}
    for op in ops:
        recomputed[program.phases[op.lowered_op.op] == "recompute"].append(op)
    bodies = [body for part in recomputed.values() for body in function_bodies(part, program.outlining)]
    calls = function_calls(bodies, program.graphs, readers, tiles)
    return SharedCode(ops_with_own_code(ops, program.outlining), tuple(calls))


def function_calls(
    bodies: Sequence[Sequence[Outlinable]],
    graphs: Mapping[Graph, LoweredGraph],
    readers: dict[Graph, _Readers],
    tiles: int,
) -> list[FunctionCall]:
    """The calls that run ``bodies``, with the tensors that each copies on a tile set of ``tiles`` tiles.

    ``readers``: of graphs that were looked at before, which are many IPUs' alike; others are added.
    """
    number = {id(op.lowered_op): call for call, body in enumerate(bodies) for op in body}
    calls = []
    for call, body in enumerate(bodies):
        graph = body[0].lowered_op.op.graph
        if graph not in readers:
            readers[graph] = _readers(graphs[graph])
        calls.append(_call(body, call, readers[graph], number))
    return [call.of(tiles) for call in calls]


def _add_copies(calls: Iterable[FunctionCall], machine: Machine) -> None:
    """Put the copies of the calls among the steps of their first and last ops."""
    known: dict[tuple[tuple[Layout, int], ...], list[Step]] = {}

    def copies(call: FunctionCall, tensors: Iterable[Tensor], op_id: int) -> list[Step]:
        pieces = tuple([(call.layout(tensor), tensor.dtype.size) for tensor in tensors])
        # Calls of one function copy equal tensors.
        if pieces not in known:
            known[pieces] = on_tile_copies(op_id, pieces, machine)
        return [step.for_op(op_id) for step in known[pieces]]

    for call in calls:
        # A body of one op has one list for both, so the copies in go to the front after the others.
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


def _readers(lowered: LoweredGraph) -> _Readers:
    """Who reads the tensors of a graph. Views count as the tensor whose memory they share."""
    roots = _roots(lowered)
    readers: dict[Tensor, list[tuple[int, bool]]] = {}
    for lowered_op in lowered.ops:
        works = lowered_op.steps.steps or lowered_op.shared is not None or lowered_op.joined or lowered_op.calls
        reader = id(lowered_op), not works
        for tensor in dict.fromkeys(lowered_op.op.inputs):
            readers.setdefault(roots.get(tensor, tensor), []).append(reader)
    # The caller is outside of all calls.
    for tensor in lowered.graph.outputs:
        readers.setdefault(roots.get(tensor, tensor), []).append((0, False))
    return _Readers(roots, readers)


def _call(ops: Sequence[Outlinable], call: int, readers: _Readers, number: Mapping[int, int]) -> FunctionCall:
    roots = readers.roots
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
        # A result in an operand's memory is no result of its own: it is copied out as a change.
        produced.update({root: None for tensor in op.outputs if (root := roots.get(tensor, tensor)) not in read})
    # A view outside of all calls reads nothing itself; its readers do.
    results = [
        tensor
        for tensor in produced
        if any(number[reader] != call if reader in number else not idle for reader, idle in readers.of.get(tensor, ()))
    ]
    return FunctionCall(ops, tuple(read), (*changed, *results))
