"""Shards chosen for a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds
from ipuperf.kinds import told

from ...effects import EFFECTS
from ...importer.attributes import written
from .sharding import dependencies, has_attr, set_shard

_MARK = "_ipu_autoshard"


@contextmanager
def ipu_autoshard() -> Iterator[None]:
    """Ops of the block are those that :func:`automatic_sharding` places; without such a block it places all."""
    with written(_MARK, "on"):
        yield


@checked_kinds()
def automatic_sharding(
    num_shards: int,
    input_ts: tf.Tensor,
    loss_ts: tf.Tensor,
    edge_filter: Callable[[tuple[str, str]], bool] | None = None,
    frozen_inference: bool = False,
) -> None:
    """Cut the ops between a tensor and the loss into shards of about equal bytes of results, where one tensor passes.

    Gradient ops are on the shards of their forward ops.

    Args:
        edge_filter: whether a cut at an edge (names of its two ops) is left out.
        frozen_inference: no effect: constants are not placed.

    Raises:
        ValueError: a number below 1, or fewer places to cut than are needed.
    """
    for what, tensor in (("input_ts", input_ts), ("loss_ts", loss_ts)):
        if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "op"):
            raise TypeError(f"automatic_sharding: {what} is {told(tensor)}; a tensor of a graph is needed")
    EFFECTS.given("ipu.autoshard.automatic_sharding(frozen_inference)", frozen_inference)
    if num_shards < 1:
        raise ValueError(f"automatic_sharding: num_shards is {num_shards}; at least 1 is needed")
    order = _between(input_ts, loss_ts)
    cuts = _cuts(order, edge_filter)
    if len(cuts) < num_shards - 1:
        raise ValueError(
            f"automatic_sharding: {num_shards} shards need {num_shards - 1} places where one tensor passes, the graph "
            f"between {input_ts.name} and {loss_ts.name} has {len(cuts)}"
        )
    chosen = _balanced([_bytes(op) for op in order], cuts, num_shards)
    shard = 0
    for number, op in enumerate(order):
        if shard < len(chosen) and number >= chosen[shard]:
            shard += 1
        set_shard(op, shard)


def _between(start: tf.Tensor, end: tf.Tensor) -> list[tf.Operation]:
    """Ops from which ``end`` is computed and that are computed from ``start``, in order."""
    needed = set(dependencies([end.op]))
    marked = any(has_attr(op, _MARK) for op in needed)
    reached, found = {start.op}, []
    for op in end.graph.get_operations():
        if op in needed and any(t.op in reached for t in op.inputs):
            reached.add(op)
            if not marked or has_attr(op, _MARK):
                found.append(op)
    return found


def _cuts(order: Sequence[tf.Operation], edge_filter: Callable[[tuple[str, str]], bool] | None) -> list[int]:
    """Places in the order before which one tensor passes."""
    place = {op: number for number, op in enumerate(order)}
    last: dict[int, int] = {}
    made: dict[int, int] = {}
    for number, op in enumerate(order):
        for tensor in op.inputs:
            if tensor.op in place:
                last[id(tensor)], made[id(tensor)] = number, place[tensor.op]
    found = []
    for number in range(1, len(order)):
        passing = [key for key in last if made[key] < number <= last[key]]
        edge = (order[number - 1].name, order[number].name)
        if len(passing) == 1 and not (edge_filter is not None and edge_filter(edge)):
            found.append(number)
    return found


def _bytes(op: tf.Operation) -> int:
    return sum((t.shape.num_elements() or 0) * (t.dtype.size or 0) for t in op.outputs if t.dtype != tf.resource)


def _balanced(sizes: Sequence[int], cuts: Sequence[int], shards: int) -> list[int]:
    """Of the possible cuts those nearest to equal shares, in order."""
    total, before, sums = sum(sizes), 0, []
    for size in sizes:
        sums.append(before)
        before += size
    chosen: list[int] = []
    for number in range(1, shards):
        left = shards - 1 - number
        after = [c for c in cuts if not chosen or c > chosen[-1]]
        possible = after[: len(after) - left]
        chosen.append(min(possible, key=lambda c: abs(sums[c] - total * number / shards)))
    return chosen


__all__ = ["automatic_sharding", "ipu_autoshard"]
