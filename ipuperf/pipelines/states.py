"""Variables that the forward changes (buffers, a teacher's weights), as the backward reads them.

A variable that takes a new value after each forward differs between micro-batches. The backward, and a forward that is
computed again for it, needs the value that the forward had. That value is stashed like any other value that waits for
the backward.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ipuperf.ir import Op, Tensor, Variable, schedule

from .model import Data, StageGraph


def changed_by(parts: Iterable[StageGraph]) -> set[Variable]:
    """The variables that take a new value after each forward of some stage."""
    return {variable for part in parts for variable in part.updates.values()}


def read_states(
    part: StageGraph, needed: Collection[Tensor], changed: Collection[Variable], *, recomputed: bool
) -> set[Tensor]:
    """The inputs of a stage's graph that are ``changed`` variables which its backward reads.

    Args:
        needed: the forward's tensors that the backward reads.
        recomputed: whether these are computed again, from the inputs.
    """
    inputs = zip(part.graph.inputs, part.sources, strict=True)
    states = {tensor for tensor, source in inputs if isinstance(source, Data) and source.tensor in changed}
    if not states:
        return set()
    # A recomputed forward starts from the inputs, so it also reads states behind the needed values.
    return states & (depended_on(needed, schedule(part.graph)) if recomputed else set(needed))


def depended_on(tensors: Iterable[Tensor], order: Sequence[Op]) -> set[Tensor]:
    """``tensors`` and all tensors on which they depend through the ops of ``order`` (producers first)."""
    needed = set(tensors)
    for op in reversed(order):
        if needed.isdisjoint(op.outputs):
            continue
        for index, tensor in enumerate(op.inputs):
            # Operands that only a new state depends on (running statistics) count only where that state is needed.
            if index not in op.replaced or op.outputs[op.replaced[index]] in needed:
                needed.add(tensor)
    return needed
