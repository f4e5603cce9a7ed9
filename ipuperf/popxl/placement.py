"""On which IPU of the replica tensors and ops are when the program does not say so.

An op created outside of ``popxl.ipu(n)`` is on IPU 0 (upstream's default). Where a tensor without IPU is follows from
the graph around it, in the order of PopART's ``Tensor::getVirtualGraphIdAndTileSetUnsafe``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ipuperf import ir as _ir
from ipuperf import ops as _k


def _call_sites(graph: _ir.Graph) -> Iterator[_ir.Op]:
    return (op for caller in graph.ir.all_graphs() for op in caller.ops if graph in op.called_graphs())


def _reading_ipu(op: _ir.Op, tensor: _ir.Tensor, seen: set[_ir.Tensor]) -> int | None:
    """The IPU on which ``op`` reads ``tensor``; for calls, that of the graph input."""
    if isinstance(op, _k.IpuCopy):
        return op.source if op.inputs[0] is tensor else op.destination
    callees = op.called_graphs()
    if not callees:
        return op.ipu or 0
    index = op.inputs.index(tensor)
    inputs = callees[0].inputs
    return _find(inputs[index], seen) if index < len(inputs) else None


def _made_on(op: _ir.Op, tensor: _ir.Tensor, seen: set[_ir.Tensor]) -> int | None:
    """The IPU on which ``op`` leaves its result ``tensor``."""
    if isinstance(op, _k.IpuCopy):
        return op.destination
    callees = op.called_graphs()
    if not callees:
        return op.ipu or 0
    index = op.outputs.index(tensor)
    outputs = callees[0].outputs
    return _find(outputs[index], seen) if index < len(outputs) else None


def _find(tensor: _ir.Tensor, seen: set[_ir.Tensor]) -> int | None:
    if tensor.ipu is not None or tensor in seen:
        return tensor.ipu
    seen.add(tensor)
    if tensor.producer is not None:
        return _made_on(tensor.producer, tensor, seen)
    graph = tensor.graph
    if tensor in graph.inputs:
        index = graph.inputs.index(tensor)
        for site in _call_sites(graph):
            if index < len(site.inputs):
                found = _find(site.inputs[index], seen)
                if found is not None:
                    return found
    readers = sorted(tensor.consumers, key=lambda op: not isinstance(op, _k.IpuCopy))
    for reader in readers:
        found = _reading_ipu(reader, tensor, seen)
        if found is not None:
            return found
    return None


def ipu_of(tensor: _ir.Tensor) -> int | None:
    """The stated IPU of ``tensor``, else that of its producer, of what callers pass, of its first reader (copies
    between IPUs before others); None when nothing says."""
    return _find(tensor, set())


def place_gradients(derivative: _ir.Derivative) -> None:
    """Put the ops of a gradient graph that have no IPU where their operands are: those of the forward ops.

    Upstream gives a gradient op the settings of its forward op; both say the same, as the operands of an op are all on
    one IPU. Ops without an operand whose place is known go where their results are read.
    """
    graph = derivative.graph
    where: dict[_ir.Tensor, int] = {}
    for parameter, connection in zip(graph.inputs, derivative.inputs):
        found = ipu_of(connection.tensor)
        if found is not None:
            where[parameter] = found
    for tensor in graph.tensors.values():
        if tensor.ipu is not None:
            where.setdefault(tensor, tensor.ipu)
    for op in graph.ops:
        if op.ipu is None:
            op.ipu = next((where[t] for t in op.inputs if t in where), None)
        _note(op, where)
    for op in reversed(graph.ops):
        if op.ipu is None:
            op.ipu = next((r.ipu for t in op.outputs for r in t.consumers if r.ipu is not None), None)
            _note(op, where)


def _note(op: _ir.Op, where: dict[_ir.Tensor, int]) -> None:
    """Results of an op are on its IPU; those of a call are where the called graph leaves them."""
    callees = op.called_graphs()
    for index, tensor in enumerate(op.outputs):
        place = op.ipu
        if callees and index < len(callees[0].outputs):
            inner = ipu_of(callees[0].outputs[index])
            place = op.ipu if inner is None else inner
        if place is not None:
            tensor.ipu = where[tensor] = place
