"""Collectives between the IPUs of a replica: element ``i`` of the operands, and of the results, is on shard ``i``.

What a shard needs of others is copied over IPU-Links. Parts of a scattered result are in the order of the shards
(upstream leaves their order to the compiler).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import tensorflow as tf

from ipuperf.base.near_names import instead_of

from ..effects import checked_kinds
from .placing import ipu_shard

_KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "COLLECTIVE_OP_ADD": tf.add,
    "COLLECTIVE_OP_MUL": tf.multiply,
    "COLLECTIVE_OP_MIN": tf.minimum,
    "COLLECTIVE_OP_MAX": tf.maximum,
    "COLLECTIVE_OP_LOGICAL_AND": tf.logical_and,
    "COLLECTIVE_OP_LOGICAL_OR": tf.logical_or,
}
_LOCAL = "COLLECTIVE_OP_LOCAL"


@checked_kinds()
def all_gather(input_shards: Sequence[Any], axis: int = 0) -> list[tf.Tensor]:
    """The operands joined along ``axis`` (scalars: in a vector), on every shard.

    Raises:
        ValueError: operands of several types or ranks, or one of them twice.
    """
    shards = _checked(input_shards)
    if not shards[0].shape.rank:
        shards, axis = _vectors(shards), 0
    return _everywhere(shards, axis)


@checked_kinds()
def reduce_scatter(input_shards: Sequence[Any], op: str) -> list[tf.Tensor]:
    """Parts of the reduced operands, one on each shard: ``ceil(elements / shards)`` elements, zeros behind the end.

    Args:
        input_shards: scalars or vectors; shorter ones are filled with zeros.
        op: a name such as ``COLLECTIVE_OP_ADD``; ``COLLECTIVE_OP_LOCAL``: the shard's own values.

    Raises:
        ValueError: as :func:`all_gather`, or another op.
    """
    shards = _vectors(_checked(input_shards))
    if op not in _KINDS and op != _LOCAL:
        raise ValueError(f"op={op!r}{instead_of(op, [*_KINDS, _LOCAL])}")
    count = len(shards)
    part = -(-max(shard.shape[0] for shard in shards) // count)
    padded = []
    for number, shard in enumerate(shards):
        with ipu_shard(number):
            padded.append(tf.pad(shard, [[0, part * count - shard.shape[0]]]))
    results = []
    for number in range(count):
        with ipu_shard(number):
            parts = [whole[number * part : (number + 1) * part] for whole in padded]
            results.append(parts[number] if op == _LOCAL else reduce(_KINDS[op], parts))
    return results


@checked_kinds()
def all_reduce(input_shards: Sequence[Any], op: str) -> list[tf.Tensor]:
    """The reduced operands on every shard: :func:`reduce_scatter`, then :func:`all_gather`.

    Raises:
        ValueError: as :func:`reduce_scatter`.
    """
    length = max((shard.shape[0] for shard in _vectors(_checked(input_shards))), default=0)
    results = []
    for number, whole in enumerate(_everywhere(reduce_scatter(input_shards, op), 0)):
        with ipu_shard(number):
            results.append(whole[:length])
    return results


def _checked(operands: Sequence[Any]) -> list[tf.Tensor]:
    shards = [tf.convert_to_tensor(shard) for shard in operands]
    if not shards:
        raise ValueError("input_shards is empty; a tensor for each shard is needed.")
    if len({id(shard) for shard in shards}) != len(shards):
        raise ValueError("input_shards should not contain any duplicate entries.")
    if len({shard.dtype for shard in shards}) != 1:
        raise ValueError("Expected tensors to all be of the same type.")
    if len({shard.shape.rank for shard in shards}) != 1:
        raise ValueError("Expected tensors to all be of the same rank.")
    return shards


def _vectors(shards: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    if shards[0].shape.rank > 1:
        raise ValueError(f"input_shards have shape {shards[0].shape}; scalars or vectors are needed.")
    vectors = []
    for number, shard in enumerate(shards):
        with ipu_shard(number):
            vectors.append(tf.reshape(shard, [1]) if shard.shape.rank == 0 else shard)
    return vectors


def _everywhere(shards: Sequence[tf.Tensor], axis: int) -> list[tf.Tensor]:
    copies = []
    for number in range(len(shards)):
        with ipu_shard(number):
            copies.append(tf.concat(shards, axis))
    return copies
