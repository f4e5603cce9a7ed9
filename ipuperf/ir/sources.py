"""Which op of the user's program each op and each tensor of data belongs to, for reports.

Ops of the user's modules know their module and their line. A pipeline, a stash, an accumulation or a weight update is
made around them; nobody states a module there. Such an op belongs to an op of a module that the data lead to:

- what changes a tensor belongs to the first reader of the tensor (an update to the layer of its weight);
- otherwise to the op that made an operand, else to the first reader of an operand or result.

Calls are followed into the called graphs. An op that leads nowhere belongs to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from .graph import Graph, callees_first, calling
from .op import Op
from .schedule import changes, schedule
from .tensor import Tensor

_OfTensors = dict["Tensor", "Op"]
_Call = tuple["Graph", Sequence["Tensor"]]


class Sources(NamedTuple):
    """The source of each op that has no module itself, and the first reader of each tensor, both ops of modules."""

    ops: Mapping[Op, Op]
    readers: Mapping[Tensor, Op]

    def of(self, op: Op) -> Op:
        """The op whose module and line reports show for ``op``."""
        return self.ops.get(op, op)


def sources_of(main: Graph) -> Sources:
    """The sources of all ops and tensors that ``main`` and the graphs it calls have."""
    ops: dict[Op, Op] = {}
    readers: _OfTensors = {}
    makers: _OfTensors = {}
    graphs = callees_first(main)
    # Callers need to know what their callees read and make; then callees learn what they are called with.
    for graph in (*graphs, *reversed(graphs)):
        order, changing, calls = schedule(graph), changes(graph), {op: op.calls() for op in calling(graph)}
        # Readers come first, because updates follow their weights, and again for what only the makers lead to.
        _note_readers(order, calls, ops, readers)
        _note_makers(order, calls, changing, ops, readers, makers)
        _note_readers(order, calls, ops, readers)
        _pass_on(chain.from_iterable(calls.values()), (readers, makers))
    return Sources(ops, readers)


def _pass_on(calls: Iterable[_Call], sources: Sequence[_OfTensors]) -> None:
    """Let inputs of called graphs know what their operands lead to; the first call that knows anything counts."""
    operands_of: dict[Graph, list[Sequence[Tensor]]] = {}
    for callee, operands in calls:
        operands_of.setdefault(callee, []).append(operands)
    for callee, lists in operands_of.items():
        # Very many calls may pass one operand, which is looked up once.
        for tensor, column in zip(callee.inputs, map(dict.fromkeys, zip_longest(*lists)), strict=False):
            for known in sources:
                source = None if tensor in known else _first(column, known)
                if source is not None:
                    known[tensor] = source


def _note_readers(
    order: Sequence[Op], calls: Mapping[Op, Sequence[_Call]], ops: dict[Op, Op], readers: _OfTensors
) -> None:
    """Walk backwards, so that the last reader seen is a tensor's first. An op may follow those who read its results."""
    # Readers of a callee's inputs do not change meanwhile, and one callee may have very many calls.
    inputs_read: dict[Graph, list[tuple[int, Op]]] = {}
    for op in reversed(order):
        source = _known(op, ops)
        if source is None:
            source = _first(op.outputs, readers)
            if source is not None:
                ops[op] = source
        called_graphs = calls.get(op)
        # Nearly all ops call nothing.
        if called_graphs is None:
            if source is not None:
                for tensor in op.inputs:
                    readers[tensor] = source
            continue
        called: dict[Tensor, Op] = {}
        for callee, operands in called_graphs:
            if callee not in inputs_read:
                inputs_read[callee] = [
                    (i, readers[tensor]) for i, tensor in enumerate(callee.inputs) if tensor in readers
                ]
            called.update([(operands[i], reader) for i, reader in inputs_read[callee] if i < len(operands)])
        if called and source is None:
            readers.update(called)
            continue
        for tensor in op.inputs:
            reader = called.get(tensor, source)
            if reader is not None:
                readers[tensor] = reader


def _note_makers(
    order: Sequence[Op],
    calls: Mapping[Op, Sequence[_Call]],
    changing: Mapping[Op, Sequence[int]],
    ops: dict[Op, Op],
    readers: _OfTensors,
    makers: _OfTensors,
) -> None:
    """Walk forwards: what changes a tensor follows its first reader, every other op the makers of its operands."""
    for op in order:
        if not op.module:
            indices = changing.get(op)
            changed = _first([op.inputs[index] for index in indices], readers) if indices else None
            source = changed or _first(op.inputs, makers) or _known(op, ops) or _first(op.inputs, readers)
            if source is not None:
                ops[op] = source
        source = _known(op, ops)
        if source is not None:
            for result in op.outputs:
                makers[result] = source
        made: dict[Tensor, Op] = {}
        for callee, _ in calls.get(op, ()):
            for tensor, result in zip(callee.outputs, op.outputs, strict=False):
                if tensor in makers:
                    made[result] = makers[tensor]
        makers.update(made)


def _known(op: Op, ops: Mapping[Op, Op]) -> Op | None:
    return op if op.module else ops.get(op)


def _first(tensors: Iterable[Tensor], sources: Mapping[Tensor, Op]) -> Op | None:
    for tensor in tensors:
        source = sources.get(tensor)
        if source is not None:
            return source
    return None
