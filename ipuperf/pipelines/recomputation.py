"""Which forward ops PopART's ``autoRecomputation`` runs again in the backward pass, outside pipelines.

Names, numbers and rules: ``popart:willow/src/recompute.cpp`` and ``willow/src/intervals.cpp``. Only ops on the way to
the loss are run again, except

- ``RecomputeAll``: those that make a checkpoint; and, unless recomputation is explicit, those between the last
  checkpoints and the loss (they would run twice in a row);
- ``NormOnly``: all but norms; checkpoints mean nothing;
- ``Standard``: those that make a set of checkpoints that the rule picks itself, one set for each of a row of ever
  shorter intervals of the schedule: that of the moment with the fewest live bytes.

Simplifications: copies between IPUs are never run again (upstream may run them again under sharding); ``Standard``
counts the ops of this program, of which one may stand for several of PopART's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ipuperf.ir import Graph, Op, Tensor, schedule

from .model import Activation, PipelineError, StageGraph

RECOMPUTATIONS = ("None", "Standard", "NormOnly", "RecomputeAll")
"""What :func:`recomputing` knows; ``Pipeline`` is a matter of the schedule."""

NORMS = frozenset({"BatchNormalization", "GroupNormalization"})
"""Types of the ops that ``NormOnly`` runs again (layer and instance norms are group norms)."""


def recomputing(
    parts: Sequence[StageGraph], how: str, loss: tuple[int, int], *, explicit: bool = False
) -> list[StageGraph]:
    """``parts`` with the ops that ``autoRecomputation`` ``how`` runs again.

    Args:
        parts: the stages; what leads to an output counts as on the way to the loss.
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
    found = []
    ways = [
        _on_the_way(part.graph, [part.graph.outputs[loss[1]]] if number == loss[0] else part.graph.outputs)
        for number, part in enumerate(parts)
    ]
    kept = _standard_checkpoints(parts, ways) if how == "Standard" else set()
    for number, (part, ops) in enumerate(zip(parts, ways, strict=True)):
        if how == "NormOnly":
            found.append(replace(part, recomputed=frozenset(op for op in ops if op.type in NORMS), checkpoints=()))
        elif how == "Standard":
            found.append(replace(part, recomputed=frozenset(ops) - kept, checkpoints=()))
        else:
            final = number == loss[0] and not explicit
            last = _after_last_checkpoint(part.graph.outputs[loss[1]], part.checkpoints) if final else set()
            found.append(replace(part, recomputed=frozenset(ops) - last))
    return found


def _on_the_way(graph: Graph, roots: Iterable[Tensor]) -> list[Op]:
    """The ops on which ``roots`` depend, in the order of execution."""
    reached: set[Op] = set()
    waiting = list(roots)
    while waiting:
        producer = waiting.pop().producer
        if producer is not None and producer not in reached:
            reached.add(producer)
            waiting += producer.inputs
    return [op for op in schedule(graph) if op in reached]


def _after_last_checkpoint(loss: Tensor, checkpoints: Sequence[Tensor]) -> set[Op]:
    """Ops from which the loss can be reached without a checkpoint in between."""
    kept = set(checkpoints)
    reached: set[Op] = set()
    waiting = [loss]
    while waiting:
        tensor = waiting.pop()
        if tensor.producer is not None and tensor.producer not in reached and tensor not in kept:
            reached.add(tensor.producer)
            waiting += tensor.producer.inputs
    return reached


def _standard_checkpoints(parts: Sequence[StageGraph], ways: Sequence[Sequence[Op]]) -> set[Op]:
    """Of each interval the ops whose results live at its moment of the fewest live bytes."""
    numbers = sorted(range(len(parts)), key=lambda number: parts[number].stage)
    order = [op for number in numbers for op in ways[number]]
    live = _live_sets(order, _readers(parts))
    size = {op: sum(t.spec.bytes for t in op.outputs) for op in order}
    found: set[Op] = set()
    for begin, end in decreasing_intervals(len(order)):
        found |= min(live[begin:end], key=lambda ops: sum(size[op] for op in ops))
    return found


def _readers(parts: Sequence[StageGraph]) -> dict[Tensor, list[Op]]:
    """The readers of results in later stages."""
    found: dict[Tensor, list[Op]] = {}
    for part in parts:
        for tensor, source in zip(part.graph.inputs, part.sources):
            if isinstance(source, Activation):
                found.setdefault(parts[source.part].graph.outputs[source.output], []).extend(tensor.consumers)
    return found


def _live_sets(order: Sequence[Op], elsewhere: Mapping[Tensor, Sequence[Op]]) -> list[set[Op]]:
    """After each op: itself and the ops before it whose results have a reader in ``order`` after it."""
    position = {op: index for index, op in enumerate(order)}
    last = {}
    for op in order:
        readers = [r for t in op.outputs for r in (*t.consumers, *elsewhere.get(t, ())) if r in position]
        last[op] = max((position[r] for r in readers), default=position[op])
    found: list[set[Op]] = []
    live: set[Op] = set()
    for index, op in enumerate(order):
        live = {other for other in live if last[other] > index} | {op}
        found.append(live)
    return found


def decreasing_intervals(count: int) -> list[tuple[int, int]]:
    """``(begin, end)`` of intervals that cover ``count`` ops: K, K - 1, ... 1 of them, then one each.

    ``K = int(0.75 (int(sqrt(2 count)) - 1))`` (``popart:willow/src/intervals.cpp``).
    """
    length = int(0.75 * (math.isqrt(2 * count) - 1))
    found, begin = [], 0
    while begin < count:
        size = max(1, min(length, count - begin))
        found.append((begin, begin + size))
        begin += size
        length -= 1
    return found
