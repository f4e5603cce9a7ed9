"""Variables between host and device: replica groups, shards and remote entries.

Host side: :attr:`ipuperf.ir.Variable.data`. Device side: ``(R, *shape)`` on chip, or an entry of a remote buffer.
Semantics: ``docs/reference/popxl.md`` 4 and 5. Shards are contiguous pieces of the flattened value, the last
one padded with zeros, as in :mod:`ipuperf.ops.transfers.collectives`.
"""

from __future__ import annotations

import math

import numpy as np

from ipuperf.ir import ReplicaGrouping, Variable

from .errors import EvaluationError


def device_shape(variable: Variable) -> tuple[int, ...]:
    """Shape of the part that one replica holds: the shard of a sharded variable, otherwise the value."""
    return variable.remote[0].shape if variable.remote else variable.spec.shape


def whole_shape(variable: Variable) -> tuple[int, ...]:
    """Shape of the unsharded value on one replica."""
    if variable.spec.meta_shape:
        return variable.spec.meta_shape
    return (variable.remote[0].meta_shape if variable.remote else ()) or variable.spec.shape


def is_sharded(variable: Variable) -> bool:
    """True when a replica holds only a shard."""
    return bool(variable.spec.meta_shape or (variable.remote and variable.remote[0].meta_shape))


def shard_group(variable: Variable) -> ReplicaGrouping:
    """The replicas over which one value of a sharded variable is spread.

    These are ``variable.shard_over`` members of a replica group where the attribute exists and is set. Otherwise they
    are as many as fit the shard's size, the whole replica group before its parts.

    Raises:
        EvaluationError: no divisor of the replica group gives shards of this size.
    """
    grouping, elements = variable.grouping, math.prod(whole_shape(variable))
    shard_elements = math.prod(device_shape(variable))
    stated_shards = getattr(variable, "shard_over", None)
    # The largest group first, as a value is spread as widely as its shard size allows.
    sizes = [stated_shards] if stated_shards else range(grouping.group_size, 0, -1)
    for size in sizes:
        if grouping.group_size % size == 0 and -(-elements // size) == shard_elements:
            return ReplicaGrouping(grouping.replicas, grouping.finest().stride, size)
    raise EvaluationError(
        f"variable {variable.id!r}: {whole_shape(variable)} over shards of {shard_elements} elements"
        + (f" and {stated_shards} replicas" if stated_shards else "")
        + f" does not fit its replica groups of {grouping.group_size}; the number of shards must divide the group size"
    )


def to_device(variable: Variable) -> np.ndarray:
    """The device values of all replicas, ``(R, *device_shape)``, from the host copy.

    Raises:
        EvaluationError: the host copy has neither the host shape nor, with ``all_replicas``, one value per replica.
    """
    grouping, shape = variable.grouping, whole_shape(variable)
    data = np.asarray(variable.data)
    groups = grouping.num_groups
    if data.shape == ((groups, *shape) if groups > 1 else shape):
        whole = data[list(grouping.assignment)] if groups > 1 else np.broadcast_to(data, (grouping.replicas, *shape))
    elif variable.retrieval == "all_replicas" and data.shape == (grouping.replicas, *shape):
        whole = data
    else:
        raise EvaluationError(
            f"variable {variable.id!r}: the host data has shape {data.shape}; with {groups} replica groups it must be "
            f"{(groups, *shape) if groups > 1 else shape}"
        )
    if is_sharded(variable):
        return _scatter(whole, shard_group(variable), device_shape(variable))
    return whole.reshape(grouping.replicas, *device_shape(variable))


def from_device(variable: Variable, device_values: np.ndarray) -> np.ndarray:
    """The host value from the device values of all replicas: one per group (its first member), or one per replica."""
    grouping = variable.grouping
    groups = grouping.groups
    if is_sharded(variable):
        device_values = _gather(device_values, shard_group(variable), whole_shape(variable))
    device_values = device_values.reshape(grouping.replicas, *whole_shape(variable))
    if variable.retrieval == "all_replicas" and grouping.replicas > 1:
        return device_values
    return device_values[0] if len(groups) == 1 else device_values[[members[0] for members in groups]]


def write_back(variable: Variable, value: np.ndarray) -> None:
    """Store a host value in the variable's data: in place when the shape is the same.

    Raises:
        EvaluationError: the data is a file that is mapped for reading only, and the value differs from it.
    """
    # A file mapped read-only is fine as long as the program leaves the value as it is.
    if isinstance(variable.data, np.memmap) and not variable.data.flags.writeable:
        if not np.array_equal(variable.data, value):
            raise EvaluationError(
                f"variable {variable.id!r}: the program changed it, and {variable.data.filename} is mapped for reading "
                "only; map it with mode 'r+', or 'c' to leave the file as it is"
            )
        return
    if isinstance(variable.data, np.ndarray) and variable.data.shape == value.shape and variable.data.flags.writeable:
        np.copyto(variable.data, value)
    else:
        variable.data = value.copy()


def _scatter(whole: np.ndarray, group: ReplicaGrouping, shape: tuple[int, ...]) -> np.ndarray:
    """Each replica's shard of its own row of ``whole`` ``(R, *shape)``."""
    replicas, size = whole.shape[0], math.prod(shape)
    flat = whole.reshape(replicas, -1)
    shards = np.zeros((replicas, size), dtype=whole.dtype)
    for members in group.groups:
        for index, replica in enumerate(members):
            # The last part may be shorter; the rest of its shard stays zero.
            part = flat[replica, index * size : (index + 1) * size]
            shards[replica, : part.size] = part
    return shards.reshape(replicas, *shape)


def _gather(device_values: np.ndarray, group: ReplicaGrouping, shape: tuple[int, ...]) -> np.ndarray:
    """The whole value on every replica from the shards of its group."""
    whole = np.empty((device_values.shape[0], *shape), dtype=device_values.dtype)
    count = math.prod(shape)
    for members in group.groups:
        # Cuts off the zeros that pad the last shard.
        value = device_values[list(members)].reshape(-1)[:count].reshape(shape)
        whole[list(members)] = value
    return whole
