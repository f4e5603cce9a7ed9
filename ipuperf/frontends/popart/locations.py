"""The place of a tensor (``TensorLocation`` and its relatives, also names of ``popxl``), as values to pass on.

The words are upstream's. Nothing in a PopXL program itself takes them: a variable's constructor decides its place.
``variable`` is on chip, ``remote_variable`` in Streaming Memory, ``replica_sharded_variable`` in shards.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipuperf.frontends.enumerations import NativeEnum


class TensorStorage(NativeEnum):
    """The memory."""

    OffChip = 0
    OnChip = 1


class TileSet(NativeEnum):
    """The tiles of an IPU that hold or load a tensor."""

    Compute = 0
    IO = 1
    Undefined = 2


class ReplicatedTensorSharding(NativeEnum):
    """Whether each replica holds a shard only."""

    Off = 0
    On = 1


class ExecutionContext(NativeEnum):
    """The part of a program in which an op stands.

    Programs here have only the first one: weights are copied from and to the host without ops.
    """

    Normal = 0
    AccumulateOuterFragment = 1
    WeightsFromHostFragment = 2
    WeightsToHostFragment = 3
    OptimizerFromHostFragment = 4
    Subgraph = 5


@dataclass(frozen=True)
class TensorLocation:
    """Memory, tiles that load a tensor, tiles that hold it, sharding.

    Raises:
        TypeError: a field of another kind.
    """

    storage: TensorStorage = TensorStorage.OnChip
    loadTileSet: TileSet = TileSet.Compute
    storageTileSet: TileSet = TileSet.Compute
    replicatedTensorSharding: ReplicatedTensorSharding = ReplicatedTensorSharding.Off

    def __post_init__(self) -> None:
        # Upstream's binding refuses values of another enumeration, too.
        kinds = (TensorStorage, TileSet, TileSet, ReplicatedTensorSharding)
        for (name, value), kind in zip(vars(self).items(), kinds, strict=True):
            if not isinstance(value, kind):
                raise TypeError(f"TensorLocation({name}={value!r}): a popxl.{kind.__name__} is needed")
