"""Remote buffers: arrays of equally shaped tensors in Streaming Memory, one copy per replica."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ipuperf import ir as _ir

from . import dtypes
from .arguments import checked_kinds, whole, wholes
from .builder import current_program
from .handle import Tensor
from .replica_grouping import ReplicaGrouping


def _entries(number: int) -> int:
    count = whole(number, "entries of a remote buffer")
    if count < 1:
        raise ValueError(f"a remote buffer has {count} entries; at least one is needed")
    return count


class RemoteBuffer:
    """A remote buffer of the current program. Ids start at 1.

    Args:
        tensor_shape, tensor_dtype: of one entry on one replica (the shard for sharded buffers).
        entries: number of tensors; may be enlarged until the program is run.
    """

    def __init__(
        self,
        tensor_shape: Sequence[int],
        tensor_dtype: dtypes.dtype,
        entries: int,
        meta_shape: Sequence[int] = (),
    ) -> None:
        shape = wholes(tensor_shape, "shape of a remote buffer", 0)
        kind, count = dtypes.dtype.as_dtype(tensor_dtype)._ir, _entries(entries)
        meta = wholes(meta_shape, "meta_shape of a remote buffer", 0)
        self._ir = current_program().remote_buffer(shape, kind, count, meta)
        self._shards: int | None = None  # over how many replicas a tensor is split, where that was said

    @classmethod
    def _from_ir(cls, buffer: _ir.RemoteBuffer) -> RemoteBuffer:
        self = cls.__new__(cls)
        self._ir = buffer
        self._shards = None
        return self

    @property
    def remote_buffer_id(self) -> int:
        """Number of the buffer."""
        return self._ir.id

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of one entry on one replica."""
        return self._ir.shape

    @property
    def tensor_dtype(self) -> dtypes.dtype:
        """Type of the entries."""
        return dtypes.dtype.as_dtype(self._ir.dtype)

    @property
    def entries(self) -> int:
        """Number of entries; settable, only to a larger number."""
        return self._ir.entries

    @entries.setter
    def entries(self, value: int) -> None:
        self._ir.entries = _entries(value)

    @property
    def meta_shape(self) -> tuple[int, ...]:
        """Whole shape of the tensors of a sharded buffer, else ``()``."""
        return self._ir.meta_shape

    @meta_shape.setter
    def meta_shape(self, value: Sequence[int]) -> None:
        self._ir.meta_shape = wholes(value, f"meta_shape of {self}", 0)

    @checked_kinds()
    def validate_tensor_matches_buffer(self, t: Tensor) -> None:
        """ValueError unless shape and type of ``t`` are those of an entry."""
        if t.shape != self.tensor_shape or t.dtype is not self.tensor_dtype:
            raise ValueError(
                f"tensor {t.id!r} is {t.shape} {t.dtype.name}, remote buffer {self.remote_buffer_id} holds "
                f"{self.tensor_shape} {self.tensor_dtype.name}"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteBuffer) and other._ir is self._ir

    def __hash__(self) -> int:
        return id(self._ir)

    def __repr__(self) -> str:
        return (
            f"RemoteBuffer[id={self.remote_buffer_id}, shape={self.tensor_shape}, dtype={self.tensor_dtype!r}, "
            f"entries={self.entries}]"
        )


@checked_kinds()
def remote_buffer(tensor_shape: Sequence[int], tensor_dtype: dtypes.dtype, entries: int = 1) -> RemoteBuffer:
    """A new remote buffer in the current Ir."""
    return RemoteBuffer(tensor_shape, tensor_dtype, entries)


def shard_length(elements: int, shards: int) -> int:
    """Elements of one shard: ``ceil(elements / shards)``."""
    return -(-elements // shards)


@checked_kinds()
def replica_sharded_buffer(
    tensor_shape: Sequence[int],
    tensor_dtype: dtypes.dtype,
    replica_grouping: ReplicaGrouping | None = None,
    shard_over: int | None = None,
    entries: int = 1,
) -> RemoteBuffer:
    """A remote buffer whose entries are shards of tensors.

    Args:
        tensor_shape: of the whole value as the host has it, ``(num_groups, *shape)`` with several groups, as upstream.
            One that begins with another number than theirs is ``shape`` itself.
        replica_grouping: replicas that hold the same tensor (default: all).
        shard_over: over how many of them a tensor is split (default: the group size).

    Raises:
        ValueError: one replica only, or ``shard_over`` does not divide the group size.
    """
    group = replica_grouping or ReplicaGrouping._from_ir(current_program().grouping())
    shards = check_sharding(group, shard_over)
    shape = wholes(tensor_shape, "shape of a remote buffer", 0)
    if group.num_groups > 1 and shape[:1] == (group.num_groups,):
        shape = shape[1:]
    buffer = RemoteBuffer((shard_length(math.prod(shape), shards),), tensor_dtype, entries, shape)
    buffer._shards = shards
    return buffer


def check_sharding(group: ReplicaGrouping, shard_over: int | None) -> int:
    """The number of shards (default: as many as there are replicas one stride apart, the group size of regular groups);
    ValueError when it is not possible."""
    if group.num_replicas < 2:
        raise ValueError(
            "replicated tensor sharding needs a replication factor above 1; set ir.replication_factor first"
        )
    size = group.const_rg.group_size
    shards = size if shard_over is None else whole(shard_over, "shard_over")
    if shards < 1 or size % shards:
        of = "" if group.is_const else " of const_rg"
        raise ValueError(f"shard_over={shards} does not divide the group size {size}{of}")
    return shards
