"""State that the forward changes (buffers, a teacher's weights), as the backward reads it.

A variable that takes a new value after each forward is another one for each micro-batch. What the backward, or a
forward that is computed again for it, reads of such a variable is put aside as any other value that waits: the
gradients are those of the numbers that the forward had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ipuperf.ir import Op, Tensor, Variable, schedule

from .model import Data, StageGraph


def changed_by(parts: Iterable[StageGraph]) -> set[Variable]:
    """The variables that take a new value after each forward of some stage."""
    return {variable for part in parts for variable in part.updates.values()}


def read_states(
    part: StageGraph, needed: Collection[Tensor], changed: Collection[Variable], *, again: bool
) -> set[Tensor]:
    """The inputs of a stage's graph that are ``changed`` variables which its backward reads.

    Args:
        needed: the forward's tensors that the backward reads.
        again: whether these are computed again, from the inputs.
    """
    inputs = zip(part.graph.inputs, part.sources, strict=True)
    states = {t for t, source in inputs if isinstance(source, Data) and source.tensor in changed}
    if not states:
        return set()
    return states & (depended_on(needed, schedule(part.graph)) if again else set(needed))


def depended_on(wanted: Iterable[Tensor], order: Sequence[Op]) -> set[Tensor]:
    """``wanted`` and all that they depend on through the ops of ``order`` (producers first)."""
    found = set(wanted)
    for op in reversed(order):
        if found.isdisjoint(op.outputs):
            continue
        for index, tensor in enumerate(op.inputs):
            if index not in op.replaced or op.outputs[op.replaced[index]] in found:
                found.add(tensor)
    return found
