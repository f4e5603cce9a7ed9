"""On which IPU and tile set of the replica tensors and ops are when the program does not say so.

An op created outside of ``popxl.ipu(n)`` is on IPU 0 (upstream's default). Where a tensor without IPU is follows from
the graph around it, in the order of PopART's ``Tensor::getVirtualGraphIdAndTileSetUnsafe``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ipuperf import ir as _ir
from ipuperf import ops as _k

from .pb_ir import ConfiguredIr


class Place(NamedTuple):
    """IPU of the replica and tile set (``compute``, ``io``); None where nothing says."""

    ipu: int | None = None
    tile_set: str | None = None


_NOWHERE = Place()


def _call_sites(graph: _ir.Graph) -> Iterator[_ir.Op]:
    return (op for caller in graph.ir.all_graphs() for op in caller.ops if graph in op.called_graphs())


def _passed(tensor: _ir.Tensor) -> Iterator[_ir.Tensor]:
    """What callers pass for a graph input; nothing for another tensor."""
    graph = tensor.graph
    for site in _call_sites(graph) if tensor in graph.inputs else ():
        for callee, operands in site.calls():
            pairs = zip(callee.inputs, operands, strict=False)
            yield from (outer for operand, outer in pairs if operand is tensor)


def _reading_place(op: _ir.Op, tensor: _ir.Tensor, seen: set[_ir.Tensor]) -> Place:
    """Where ``op`` reads ``tensor``; for calls, where the graph input is."""
    if isinstance(op, _k.IpuCopy):
        return Place(op.source if op.inputs[0] is tensor else op.destination, op.tile_set)
    if not op.called_graphs():
        if isinstance(op, _k.IoTileCopy) and op.inputs[0] is tensor:
            return Place(op.ipu or 0, op.source)
        return Place(op.ipu or 0, _result_set(op))
    passed = (pair for graph, operands in op.calls() for pair in zip(graph.inputs, operands, strict=False))
    return next((_find(operand, seen) for operand, outer in passed if outer is tensor), _NOWHERE)


def _result_set(op: _ir.Op) -> str:
    """The tile set on which an op leaves its results."""
    return op.destination if isinstance(op, _k.IoTileCopy) else op.tile_set


def _runs_on(op: _ir.Op) -> int | None:
    """The IPU of an op that is no call: 0 where nothing is said, None inside ``popxl.ipu(None)``."""
    if op.ipu is None:
        program = op.graph.ir
        return None if isinstance(program, ConfiguredIr) and op in program.unplaced else 0
    return op.ipu


def _made_at(op: _ir.Op, tensor: _ir.Tensor, seen: set[_ir.Tensor]) -> Place:
    """Where ``op`` leaves its result ``tensor``."""
    if isinstance(op, _k.IpuCopy):
        return Place(op.destination, op.tile_set)
    callees = op.called_graphs()
    if not callees:
        return Place(_runs_on(op), _result_set(op))
    index = op.outputs.index(tensor)
    outputs = callees[0].outputs
    return _find(outputs[index], seen) if index < len(outputs) else _NOWHERE


def _find(tensor: _ir.Tensor, seen: set[_ir.Tensor]) -> Place:
    """Where a tensor is; its own ``ipu`` counts before what the graph around it says."""
    if tensor in seen:
        return Place(tensor.ipu)
    seen.add(tensor)
    place = _from_graph(tensor, seen)
    return place if tensor.ipu is None else place._replace(ipu=tensor.ipu)


def _from_graph(tensor: _ir.Tensor, seen: set[_ir.Tensor]) -> Place:
    """What producer, else callers, else readers (copies between IPUs before others) say."""
    if tensor.producer is not None:
        return _made_at(tensor.producer, tensor, seen)
    for operand in _passed(tensor):
        found = _find(operand, seen)
        if found.ipu is not None:
            return found
    readers = sorted(tensor.consumers, key=lambda op: not isinstance(op, _k.IpuCopy))
    places = (_reading_place(reader, tensor, seen) for reader in readers)
    return next((place for place in places if place.ipu is not None), _NOWHERE)


def place_of(tensor: _ir.Tensor) -> Place:
    """Where ``tensor`` is: as stated, else where its producer leaves it, where what callers pass is, where its first
    reader (copies between IPUs before others) reads it."""
    return _find(tensor, set())


def ipu_of(tensor: _ir.Tensor) -> int | None:
    """The IPU of :func:`place_of`."""
    return place_of(tensor).ipu


#: Ops whose operands need not lie together.
_ANYWHERE = (_k.Call, _k.If, _k.Loop, _k.RemoteLoad, _k.RemoteStore)


def _source(tensor: _ir.Tensor) -> _ir.Tensor | None:
    """The tensor itself; of a call's result the tensor in the called graph that it is, None where there is none."""
    while (maker := tensor.producer) is not None and (callees := maker.called_graphs()):
        index, outputs = maker.outputs.index(tensor), callees[0].outputs
        if index >= len(outputs):
            return None
        tensor = outputs[index]
    return tensor


def _known_place(tensor: _ir.Tensor) -> tuple[int | None, str | None]:
    """As :func:`place_of`, as far as producers and readers that are no calls say: what a new op is checked against."""
    source = _source(tensor)
    if source is None:
        return tensor.ipu, None
    maker = source.producer
    ipu: int | None
    tile_set: str | None
    if maker is not None:  # a copy between IPUs is on its destination
        ipu, tile_set = _runs_on(maker), _result_set(maker)
    else:
        for reader in source.consumers:
            if not reader.called_graphs():
                copied = isinstance(reader, (_k.IpuCopy, _k.IoTileCopy))
                ipu, tile_set = _reading_place(reader, source, set()) if copied else (reader.ipu or 0, reader.tile_set)
                break
        else:
            return tensor.ipu, None
    return ipu if tensor.ipu is None else tensor.ipu, tile_set


def copied_from(tensor: _ir.Tensor) -> str | None:
    """The tile set from which a copy of ``tensor`` to the other one starts; None where nothing says.

    Variables and constants are on the compute tiles, inputs of graphs where callers and readers say.
    """
    if isinstance(_source(tensor), (_ir.Variable, _ir.Constant)):
        return "compute"
    tile_set = _known_place(tensor)[1] if tensor.producer is not None else None
    return tile_set or place_of(tensor).tile_set


def check_places(op_class: type[_ir.Op], tensors: Sequence[_ir.Tensor]) -> None:
    """ValueError when the operands of an op are on different IPUs or tile sets. Constants are wherever they are read.

    What nobody places says nothing (popart: python/popxl/python_files/ops/utils.py, check_tensor_ipu_and_tile_set).
    """
    located = [tensor for tensor in tensors if not isinstance(tensor, _ir.Constant)]
    places = [_known_place(tensor) for tensor in located]
    if places[1:] == places[:-1] or issubclass(op_class, _ANYWHERE):
        return
    placed = dict(zip(located, places, strict=True))
    for index, aspect in enumerate(("IPU", "tile set")):
        known = [(t, place[index]) for t, place in placed.items() if place[index] is not None]
        for tensor, place in known[1:]:
            if place != known[0][1]:
                raise ValueError(
                    f"{op_class.type}: {known[0][0].id!r} is on {aspect} {known[0][1]} and {tensor.id!r} on {aspect} "
                    f"{place}; operands must be on the same {aspect}"
                )


def place_gradients(derivative: _ir.Derivative) -> None:
    """Put the ops of a gradient graph that have no IPU where their operands are: those of the forward ops.

    Upstream gives a gradient op the settings of its forward op; both say the same, as the operands of an op are all on
    one IPU. Ops without an operand whose place is known go where their results are read.
    """
    graph = derivative.graph
    where: dict[_ir.Tensor, int] = {}
    for parameter, connection in zip(graph.inputs, derivative.inputs):
        number = ipu_of(connection.tensor)
        if number is not None:
            where[parameter] = number
    for tensor in graph.tensors.values():
        if tensor.ipu is not None:
            where.setdefault(tensor, tensor.ipu)
    for op in graph.ops:
        if op.ipu is None:
            op.ipu = next((where[t] for t in op.inputs if t in where), None)
        if isinstance(op, _k.If):
            _place_zeros(op)
        _note(op, where)
    for op in reversed(graph.ops):
        if op.ipu is None:
            op.ipu = next((r.ipu for t in op.outputs for r in t.consumers if r.ipu is not None), None)
            _note(op, where)


def _place_zeros(op: _k.If) -> None:
    """Put the zeros that one branch gives for a gradient where the other branch leaves the gradient."""
    for pair in zip(op.then_branch.outputs, op.else_branch.outputs, strict=True):
        makers = [t.producer for t in pair]
        for maker, partner in zip(makers, reversed(pair), strict=True):
            if isinstance(maker, _k.Init) and maker.ipu is None:
                maker.ipu = ipu_of(partner)


def _note(op: _ir.Op, where: dict[_ir.Tensor, int]) -> None:
    """Results of an op are on its IPU; those of a call are where the called graph leaves them."""
    callees = op.called_graphs()
    for index, tensor in enumerate(op.outputs):
        place = op.ipu
        if callees and index < len(callees[0].outputs):
            callee_ipu = ipu_of(callees[0].outputs[index])
            place = op.ipu if callee_ipu is None else callee_ipu
        if place is not None:
            tensor.ipu = where[tensor] = place
