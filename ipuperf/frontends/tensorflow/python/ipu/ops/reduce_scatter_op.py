"""Reductions over replicas of which each one gets a part."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....functions import collectives

#: Kinds of reductions by upstream's names.
KINDS = {
    "COLLECTIVE_OP_ADD": "add",
    "COLLECTIVE_OP_MEAN": "mean",
    "COLLECTIVE_OP_MUL": "mul",
    "COLLECTIVE_OP_MIN": "min",
    "COLLECTIVE_OP_MAX": "max",
    "COLLECTIVE_OP_LOGICAL_AND": "and",
    "COLLECTIVE_OP_LOGICAL_OR": "or",
    "COLLECTIVE_OP_SQUARE_ADD": "square_add",
    "COLLECTIVE_OP_LOCAL": "local",
}


@checked_kinds()
def reduce_scatter(x: Any, replication_factor: int, op: str = "COLLECTIVE_OP_ADD", name: str | None = None) -> Any:
    """A replica's part of the reduced ``x``.

    Args:
        x: a vector, or a list of vectors.
        replication_factor: replicas of a group, which are successive ones.
        op: one of :data:`KINDS`; ``COLLECTIVE_OP_LOCAL``: the replica's own values.

    Returns:
        A vector of ``ceil(elements / replication_factor)`` elements, zeros behind the end; a list for several.

    Raises:
        ValueError: another op, or tensors that are no vectors. RuntimeError: outside of a program.
    """
    if op not in KINDS:
        raise ValueError(f"reduce_scatter: op={op!r}; allowed: {', '.join(KINDS)}")
    given = [tf.convert_to_tensor(one) for one in tf.nest.flatten(x)]
    if wrong := [one.shape for one in given if one.shape.rank != 1]:
        raise ValueError(f"reduce_scatter: a tensor of shape {wrong[0]}; vectors are needed")
    stem = name or "reduce_scatter"
    found = [collectives.reduce_scatter(one, replication_factor, KINDS[op], stem) for one in given]
    return found[0] if len(found) == 1 else found


__all__ = ["reduce_scatter"]
