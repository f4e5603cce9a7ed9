"""Ops of a stage's graphs copied into one routine, and which of them are computed again when.

With interleaved recomputation (PopART's implicit recomputation, TensorFlow's ``RecomputeAndBackpropagateInterleaved``)
what the backward needs is computed again where it needs it: from one checkpoint to the next, the last stretch first,
so that the values of one stretch are gone when the next one starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ipuperf.ir import CONTEXT, Builder, Constant, Graph, Op, Tensor
from ipuperf.ops import Transpose


def copy_ops(
    ops: Iterable[Op], graph: Graph, images: dict[Tensor, Tensor], ipu: int, recomputed: Collection[Op] = ()
) -> dict[Op, Op]:
    """Copies of ``ops`` in ``graph``, on ``ipu``: ``{op: copy}``; those of ``recomputed`` ops say that they are.

    ``images`` holds the operands there and gets the results; constants are copied on first use. What orders the ops in
    their own graph orders the copies. A transposition that undoes another one is left out (PopART's view
    simplification).
    """
    copies: dict[Op, Op] = {}
    builder = Builder(graph)
    with CONTEXT.detached(ipu):
        for op in ops:
            for tensor in op.inputs:
                if tensor not in images and isinstance(tensor, Constant):
                    images[tensor] = graph.constant(tensor.data, tensor.dtype, tensor.name)
            operands = [images[tensor] for tensor in op.inputs]
            undone = _undone(op, operands)
            if undone is not None:
                images[op.outputs[0]] = undone
                continue
            made = builder.copy(op, operands)
            if op.phase == "recompute" or op in recomputed:
                made.phase = "recompute"
            images.update(zip(op.outputs, made.outputs, strict=True))
            copies[op] = made
    for op, made in copies.items():
        for before in op.graph.constraints.get(op, ()):
            if before in copies:
                graph.constrain(copies[before], made)
    return copies


def _undone(op: Op, operands: Sequence[Tensor]) -> Tensor | None:
    """What a copy of ``op`` would give back when it transposes a transposed tensor into what that was."""
    if type(op) is not Transpose or type(operands[0].producer) is not Transpose:
        return None
    first = operands[0].producer
    order = [first.attributes["permutation"][axis] for axis in op.attributes["permutation"]]
    return first.inputs[0] if order == sorted(order) else None


def ancestors(wanted: Iterable[Tensor], known: Collection[Tensor], order: Sequence[Op]) -> list[Op]:
    """The ops of ``order`` that make ``wanted`` from ``known``, in order."""
    needed, found = {t for t in wanted if t not in known}, []
    for op in reversed(order):
        if any(t in needed for t in op.outputs):
            found.append(op)
            needed.update(t for t in op.inputs if t not in known)
    return found[::-1]


def stretches(ops: Iterable[Op], changing: Collection[Tensor], checkpoints: Collection[Tensor]) -> dict[Op, int]:
    """The stretch of each of the ``ops`` of a forward (producers first): how many checkpoints lie, at most, on a way to
    it from the ``changing`` inputs. Ops that depend on parameters only are in none."""
    found: dict[Op, int] = {}
    for op in ops:
        makers = [(found[t.producer], t) for t in op.inputs if t.producer is not None and t.producer in found]
        if makers or any(t in changing for t in op.inputs):
            found[op] = max([number + (t in checkpoints) for number, t in makers], default=0)
    return found


def interleave(
    graph: Graph, again: Mapping[Op, Op], stretch: Mapping[Op, int], kept: Collection[Tensor], backward: Iterable[Op]
) -> None:
    """Order the copies in ``graph`` so that a stretch is computed again after the backward of the later ones.

    Args:
        again: forward op -> its copy, in order.
        stretch: of each forward op (:func:`stretches`).
        kept: forward values that are not computed again.
        backward: ops that read the copies, in order.

    An op whose result a later stretch reads belongs to that one, also where that one is not computed again (labels,
    which the loss reads after the last checkpoint). An op of the backward belongs to the earliest stretch that it
    depends on.
    """
    where: dict[Op, int] = {}
    for op, copy in reversed(list(again.items())):
        if op not in stretch:
            continue
        readers = [where[other] for t in copy.outputs for other in t.consumers if other in where]
        outside = [other for t in op.outputs if t not in kept for other in t.consumers if other not in again]
        where[copy] = max([stretch[op], *readers, *(stretch[other] for other in outside if other in stretch)])
    earliest: dict[Op, int] = {}
    ends: dict[int, list[Op]] = {}
    for op in backward:
        makers = [t.producer for t in op.inputs if t.producer is not None]
        depends = [where[m] if m in where else earliest[m] for m in makers if m in where or m in earliest]
        if depends:
            earliest[op] = min(depends)
            ends.setdefault(earliest[op], []).append(op)
    numbers = sorted(set(where.values()))
    later = dict(zip(numbers, numbers[1:], strict=False))
    for copy, number in where.items():
        first = all(t.producer is None or where.get(t.producer) != number for t in copy.inputs)
        if first and number in later:
            for op in ends.get(later[number], ()):
                graph.constrain(op, copy)
