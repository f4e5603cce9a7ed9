"""Which forward ops PopART's ``autoRecomputation`` runs again in the backward pass, outside pipelines.

Names, numbers and rules: ``popart:willow/src/recompute.cpp`` and ``willow/src/intervals.cpp``. Only ops on the way to
the loss run again, with these exceptions:

- ``RecomputeAll``: not those that make a checkpoint; and, unless recomputation is explicit, not those between the last
  checkpoints and the loss (they would run twice in a row).
- ``NormOnly``: norms only; checkpoints mean nothing.
- ``Standard``: not those that make a checkpoint of the rule's own. It divides the schedule into ever shorter intervals
  and takes, in each, the results that are live at the moment with the fewest live bytes.

Simplifications: copies between IPUs never run again (upstream may run them again under sharding). ``Standard`` counts
the ops of this program, of which one may stand for several of PopART's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ipuperf.ir import Graph, Op, Tensor, schedule

from .model import Activation, PipelineError, StageGraph

RECOMPUTATIONS = ("None", "Standard", "NormOnly", "RecomputeAll")
"""The settings that :func:`recomputing` takes; the schedule takes care of ``Pipeline``."""

NORMS = frozenset({"BatchNormalization", "GroupNormalization"})
"""Types of the ops that ``NormOnly`` runs again (layer and instance norms are group norms)."""


def recomputing(
    parts: Sequence[StageGraph], how: str, loss: tuple[int, int], *, explicit: bool = False
) -> list[StageGraph]:
    """``parts`` with the ops that ``autoRecomputation`` ``how`` runs again.

    Args:
        parts: the stages; ops that lead to an output count as on the way to the loss.
        how: one of :data:`RECOMPUTATIONS`.
        loss: part and output of the loss.
        explicit: PopART's ``explicitRecomputation``.

    Raises:
        PipelineError: another value of ``how``.
    """
    if how not in RECOMPUTATIONS:
        raise PipelineError(f"recomputation {how!r}; allowed outside pipelines are {', '.join(RECOMPUTATIONS)}")
    if how == "None":
        return list(parts)
    recomputed_parts = []
    loss_ops = [
        _on_the_way(part.graph, [part.graph.outputs[loss[1]]] if number == loss[0] else part.graph.outputs)
        for number, part in enumerate(parts)
    ]
    # The rule sees all stages as one schedule, so its checkpoints are found for all parts together.
    checkpoint_ops = _standard_checkpoints(parts, loss_ops) if how == "Standard" else set()
    for number, (part, ops) in enumerate(zip(parts, loss_ops, strict=True)):
        if how == "NormOnly":
            recomputed_parts.append(
                replace(part, recomputed=frozenset(op for op in ops if op.type in NORMS), checkpoints=())
            )
        elif how == "Standard":
            recomputed_parts.append(replace(part, recomputed=frozenset(ops) - checkpoint_ops, checkpoints=()))
        else:
            # The backward follows these ops at once, so they would run twice in a row.
            final = number == loss[0] and not explicit
            final_ops = _after_last_checkpoint(part.graph.outputs[loss[1]], part.checkpoints) if final else set()
            recomputed_parts.append(replace(part, recomputed=frozenset(ops) - final_ops))
    return recomputed_parts


def _on_the_way(graph: Graph, roots: Iterable[Tensor]) -> list[Op]:
    """The ops on which ``roots`` depend, in the order of execution."""
    reached: set[Op] = set()
    pending = list(roots)
    while pending:
        producer = pending.pop().producer
        if producer is not None and producer not in reached:
            reached.add(producer)
            pending += producer.inputs
    return [op for op in schedule(graph) if op in reached]


def _after_last_checkpoint(loss: Tensor, checkpoints: Sequence[Tensor]) -> set[Op]:
    """Ops from which the loss can be reached without a checkpoint in between."""
    checkpoint_set = set(checkpoints)
    reached: set[Op] = set()
    pending = [loss]
    while pending:
        tensor = pending.pop()
        if tensor.producer is not None and tensor.producer not in reached and tensor not in checkpoint_set:
            reached.add(tensor.producer)
            pending += tensor.producer.inputs
    return reached


def _standard_checkpoints(parts: Sequence[StageGraph], loss_ops: Sequence[Sequence[Op]]) -> set[Op]:
    """The ops of each interval whose results are live at its moment with the fewest live bytes."""
    numbers = sorted(range(len(parts)), key=lambda number: parts[number].stage)
    order = [op for number in numbers for op in loss_ops[number]]
    live = _live_sets(order, _readers(parts))
    result_bytes = {op: sum(tensor.spec.bytes for tensor in op.outputs) for op in order}
    checkpoint_ops: set[Op] = set()
    for begin, end in decreasing_intervals(len(order)):
        # The results that are live at that moment are the cheapest checkpoints of the interval.
        checkpoint_ops |= min(live[begin:end], key=lambda ops: sum(result_bytes[op] for op in ops))
    return checkpoint_ops


def _readers(parts: Sequence[StageGraph]) -> dict[Tensor, list[Op]]:
    """The readers of results in later stages."""
    readers: dict[Tensor, list[Op]] = {}
    for part in parts:
        for tensor, source in zip(part.graph.inputs, part.sources):
            if isinstance(source, Activation):
                readers.setdefault(parts[source.part].graph.outputs[source.output], []).extend(tensor.consumers)
    return readers


def _live_sets(order: Sequence[Op], elsewhere: Mapping[Tensor, Sequence[Op]]) -> list[set[Op]]:
    """For each op, the set of ops after it whose results are live: the op itself, and earlier ops that have a later
    reader in ``order``."""
    position = {op: index for index, op in enumerate(order)}
    last_read = {}
    for op in order:
        readers = [
            reader
            for tensor in op.outputs
            for reader in (*tensor.consumers, *elsewhere.get(tensor, ()))
            if reader in position
        ]
        last_read[op] = max((position[reader] for reader in readers), default=position[op])
    live_sets: list[set[Op]] = []
    live: set[Op] = set()
    for index, op in enumerate(order):
        live = {live_op for live_op in live if last_read[live_op] > index} | {op}
        live_sets.append(live)
    return live_sets


def decreasing_intervals(count: int) -> list[tuple[int, int]]:
    """``(begin, end)`` of intervals that cover ``count`` ops: K, K - 1, ... 1 of them, then one each.

    ``K = int(0.75 (int(sqrt(2 count)) - 1))`` (``popart:willow/src/intervals.cpp``).
    """
    length = int(0.75 * (math.isqrt(2 * count) - 1))
    intervals, begin = [], 0
    while begin < count:
        size = max(1, min(length, count - begin))
        intervals.append((begin, begin + size))
        begin += size
        length -= 1
    return intervals
