"""Copies of a stage's ops in one routine, and the place where recomputed ones run.

With interleaved recomputation (PopART's implicit recomputation, TensorFlow's ``RecomputeAndBackpropagateInterleaved``)
the backward computes the values it needs again where it needs them: from one checkpoint to the next, the last stretch
first. So the values of one stretch are gone when the next one starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ipuperf.ir import CONTEXT, Builder, Constant, Graph, Op, Tensor
from ipuperf.ops import Transpose


def copy_ops(
    ops: Iterable[Op], graph: Graph, images: dict[Tensor, Tensor], ipu: int, recomputed: Collection[Op] = ()
) -> dict[Op, Op]:
    """Copy ``ops`` into ``graph``, on ``ipu``; gives ``{op: copy}``. Copies of ``recomputed`` ops have the phase
    ``recompute``.

    ``images`` maps operands to their images there and receives the results; constants are copied on first use.
    Constraints between the ops also hold between their copies. A transposition that undoes another one is left out
    (PopART's view simplification).
    """
    copies: dict[Op, Op] = {}
    builder = Builder(graph)
    with CONTEXT.detached(ipu):
        for op in ops:
            for tensor in op.inputs:
                # Graphs are closed, so the copy needs a constant of its own.
                if tensor not in images and isinstance(tensor, Constant):
                    images[tensor] = graph.constant(tensor, tensor.dtype, tensor.name)
            operands = [images[tensor] for tensor in op.inputs]
            undone = _undone(op, operands)
            if undone is not None:
                images[op.outputs[0]] = undone
                continue
            copy = builder.copy(op, operands)
            if op.phase == "recompute" or op in recomputed:
                copy.phase = "recompute"
            images.update(zip(op.outputs, copy.outputs, strict=True))
            copies[op] = copy
    # Constraints come last, when every copy exists.
    for op, copy in copies.items():
        for predecessor in op.graph.constraints.get(op, ()):
            if predecessor in copies:
                graph.constrain(copies[predecessor], copy)
    return copies


def _undone(op: Op, operands: Sequence[Tensor]) -> Tensor | None:
    """The original tensor, where ``op`` would transpose a transposed tensor back to it; None otherwise."""
    if type(op) is not Transpose or type(operands[0].producer) is not Transpose:
        return None
    first_transpose = operands[0].producer
    # Two permutations in a row are one; the second undoes the first if that is the identity.
    order = [first_transpose.attributes["permutation"][axis] for axis in op.attributes["permutation"]]
    return first_transpose.inputs[0] if order == sorted(order) else None


def ancestors(targets: Iterable[Tensor], known: Collection[Tensor], order: Sequence[Op]) -> list[Op]:
    """The ops of ``order`` that make ``targets`` from ``known``, in order."""
    needed, needed_ops = {tensor for tensor in targets if tensor not in known}, []
    for op in reversed(order):
        if any(tensor in needed for tensor in op.outputs):
            needed_ops.append(op)
            needed.update(tensor for tensor in op.inputs if tensor not in known)
    return needed_ops[::-1]


def stretches(ops: Iterable[Op], changing: Collection[Tensor], checkpoints: Collection[Tensor]) -> dict[Op, int]:
    """The stretch of each op of a forward (``ops``, producers first).

    It is the largest number of checkpoints on a path to the op from the ``changing`` inputs. Ops that depend on
    parameters only have no stretch.
    """
    stretch_of: dict[Op, int] = {}
    for op in ops:
        makers = [
            (stretch_of[tensor.producer], tensor)
            for tensor in op.inputs
            if tensor.producer is not None and tensor.producer in stretch_of
        ]
        if makers or any(tensor in changing for tensor in op.inputs):
            stretch_of[op] = max([number + (tensor in checkpoints) for number, tensor in makers], default=0)
    return stretch_of


def interleave(
    graph: Graph, again: Mapping[Op, Op], stretch: Mapping[Op, int], kept: Collection[Tensor], backward: Iterable[Op]
) -> None:
    """Order the copies in ``graph`` so that a stretch is computed again after the backward of the later ones.

    Args:
        again: forward op -> its copy, in order.
        stretch: the stretch of each forward op (:func:`stretches`).
        kept: forward values that are not computed again.
        backward: ops that read the copies, in order.

    An op whose result a later stretch reads belongs to the later one, even where that one is not computed again
    (labels, which the loss reads after the last checkpoint). An op of the backward belongs to the earliest stretch that
    it depends on.
    """
    stretch_of_copy: dict[Op, int] = {}
    # Readers come later in the forward, so they have their stretch before the ops they read.
    for op, copy in reversed(list(again.items())):
        if op not in stretch:
            continue
        readers = [
            stretch_of_copy[reader]
            for tensor in copy.outputs
            for reader in tensor.consumers
            if reader in stretch_of_copy
        ]
        forward_readers = [
            reader for tensor in op.outputs if tensor not in kept for reader in tensor.consumers if reader not in again
        ]
        stretch_of_copy[copy] = max(
            [stretch[op], *readers, *(stretch[reader] for reader in forward_readers if reader in stretch)]
        )
    earliest: dict[Op, int] = {}
    last_ops: dict[int, list[Op]] = {}
    for op in backward:
        makers = [tensor.producer for tensor in op.inputs if tensor.producer is not None]
        depends = [
            stretch_of_copy[maker] if maker in stretch_of_copy else earliest[maker]
            for maker in makers
            if maker in stretch_of_copy or maker in earliest
        ]
        if depends:
            earliest[op] = min(depends)
            last_ops.setdefault(earliest[op], []).append(op)
    numbers = sorted(set(stretch_of_copy.values()))
    # Each stretch that runs again waits for the next later one.
    later = dict(zip(numbers, numbers[1:], strict=False))
    for copy, number in stretch_of_copy.items():
        begins_stretch = all(
            tensor.producer is None or stretch_of_copy.get(tensor.producer) != number for tensor in copy.inputs
        )
        if begins_stretch and number in later:
            for op in last_ops.get(later[number], ()):
                graph.constrain(op, copy)
