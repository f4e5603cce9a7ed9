"""Creation of variables, constants and graph inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipuperf import ir as _ir
from ipuperf.base.near_names import instead_of
from ipuperf.runtime.effects import tell

from .arguments import checked_kinds, whole, wholes
from .builder import current_builder, current_program
from .dtypes import dtype as _dtype
from .handle import Constant, Tensor, Variable, wrap
from .remote_buffer import RemoteBuffer, check_sharding, shard_length
from .replica_grouping import ReplicaGrouping
from .utils import downcast_np_dtypes, host_values, to_numpy

RETRIEVAL_MODES = ("one_per_group", "all_replicas")


def _grouping(replica_grouping: ReplicaGrouping | None) -> ReplicaGrouping:
    """The given grouping, else that of all replicas; TypeError for anything else."""
    if replica_grouping is not None and not isinstance(replica_grouping, ReplicaGrouping):
        raise TypeError(
            f"replica_grouping is {replica_grouping!r}; a popxl.ReplicaGrouping (ir.replica_grouping) or None is needed"
        )
    return replica_grouping or ReplicaGrouping._from_ir(current_program().grouping())


def _host_array(
    data: Any,
    dtype: _dtype | None,
    downcast: bool,
    group: ReplicaGrouping,
    name: str,
    log2_scale: int | None,
    nan_on_overflow: bool | None,
) -> np.ndarray:
    """Host data as :func:`host_values`, a memory-mapped array itself; several groups are the leading axis."""
    mapped = isinstance(data, np.memmap)
    if mapped:
        _check_mapped(data, dtype, name)
    array: np.ndarray
    if mapped and group.is_const:
        array = data
    else:
        array = host_values(data, dtype, downcast, True, log2_scale, nan_on_overflow, subject=f"variable {name!r}")
    if mapped and not group.is_const:
        tell(
            f"variable {name!r}: you have passed np.memmap data and a non-const replica grouping; the data is copied, "
            "the file is not written"
        )
    if group.num_groups > 1 and (array.ndim == 0 or array.shape[0] != group.num_groups):
        raise ValueError(
            f"variable {name!r}: host data has shape {array.shape}; with {group.num_groups} replica groups it must be "
            f"({group.num_groups}, ...)"
        )
    return array


def _check_mapped(data: np.memmap, dtype: _dtype | None, name: str) -> None:
    """ValueError unless a memory-mapped array can be the variable's data as it is."""
    of = "When passing a memory-mapped NumPy array"
    if data.dtype in downcast_np_dtypes:
        raise ValueError(
            f"{of}, the dtype {dtype} is not supported, as it requires downcasting: variable {name!r}, {data.dtype} to "
            f"{downcast_np_dtypes[data.dtype]}"
        )
    if dtype is not None and _dtype.as_dtype(dtype).as_numpy() != data.dtype:
        raise ValueError(
            f"{of}, the `dtype` parameter has to be the array's own or None: variable {name!r}, {dtype} for "
            f"{data.dtype}"
        )
    if not data.flags.c_contiguous:
        raise ValueError(f"{of}, it must already be in C-ordered layout: variable {name!r} has strides {data.strides}")
    if data.size == 0:
        raise ValueError(f"variable {name!r}: empty data of shape {data.shape} cannot live on the IPU")


def _new_variable(
    array: np.ndarray,
    name: str | None,
    group: ReplicaGrouping,
    retrieval_mode: str | None,
    remote: tuple[RemoteBuffer, int] | None = None,
    shards: int = 1,
    sharded: bool = False,
) -> Variable:
    """Register a variable in the main graph. ``shards`` and ``sharded`` describe RTS variables."""
    mode = retrieval_mode or "one_per_group"
    if mode not in RETRIEVAL_MODES:
        raise ValueError(f"retrieval_mode {mode!r}{instead_of(mode, RETRIEVAL_MODES)}")
    graph = current_builder().graph
    if graph is not graph.ir.main_graph:
        raise ValueError(
            f"variables can only be created in the main graph, not in {graph.name!r}; use popxl.graph_input or "
            "popxl.constant there"
        )
    shape = array.shape[1:] if group.num_groups > 1 else array.shape
    spec = _ir.TensorSpec(tuple(shape), _ir.dtype_of(array))
    if sharded and not shape:
        raise ValueError(f"variable {name or 't'!r}: data of shape () cannot be sharded; give it an axis")
    if sharded:
        spec = _ir.TensorSpec((shard_length(math.prod(shape), shards),), spec.dtype, tuple(shape))
    place = None
    if remote is not None:
        _check_entry(remote[0], remote[1], name or "t")
        place = (remote[0]._ir, remote[1])
    over = shards if sharded else None
    variable = _ir.Variable(graph.tensor_id(name or "t"), spec, graph, array, group._base, mode, place, over)
    if _ir.CONTEXT.ipus:
        variable.ipu = _ir.CONTEXT.ipus[-1]
    graph.add(variable)
    return Variable(variable)


def _check_entry(buffer: RemoteBuffer, entry: int, name: str) -> None:
    """ValueError unless ``buffer`` has an entry ``entry``; TypeError for what is no buffer."""
    if not isinstance(buffer, RemoteBuffer):
        raise TypeError(
            f"remote variable {name!r}: the buffer is {buffer!r}; a popxl.RemoteBuffer (popxl.remote_buffer) is needed"
        )
    if not 0 <= entry < buffer.entries:
        raise ValueError(f"remote variable {name!r}: entry {entry} of {buffer}; allowed: 0 to {buffer.entries - 1}")


def check_remote_variables(program: _ir.Ir) -> None:
    """ValueError unless all remote variables have size and type of their buffers' entries; shapes may differ, as
    upstream: a load gives the buffer's.

    As upstream a program is checked when it is complete: how long a shard is, is the buffer's word."""
    for variable in program.variables():
        if variable.remote is None:
            continue
        buffer = RemoteBuffer._from_ir(variable.remote[0])
        if variable.shard_over is not None and not math.prod(variable.shape) == math.prod(buffer.tensor_shape):
            raise ValueError(
                f"remote variable {variable.id!r}: {math.prod(variable.replica_shape)} elements over groups of "
                f"{variable.grouping.group_size} replicas do not give shards of {math.prod(buffer.tensor_shape)}; "
                "create the buffer with popxl.replica_sharded_buffer"
            )
        size = math.prod(buffer.tensor_shape)
        if variable.spec.elements != size or variable.dtype != buffer.tensor_dtype._ir:
            raise ValueError(
                f"remote variable {variable.id!r} is {variable.spec}; {buffer} holds {buffer.tensor_shape} "
                f"{buffer.tensor_dtype.name}"
            )


@checked_kinds()
def variable(
    data: Any,
    dtype: _dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    replica_grouping: ReplicaGrouping | None = None,
    retrieval_mode: str | None = None,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> Variable:
    """A variable on chip.

    Args:
        data: initial host data, ``(num_groups, *shape)`` when the grouping has more than one group. It is copied,
            except for a ``numpy.memmap``: that is the variable's host data from now on, and copies from the device
            write its file (not for a grouping without a constant stride, which is said).
        replica_grouping: replicas with the same value (default: all).
        retrieval_mode: what the host reads: ``one_per_group`` or ``all_replicas``.
        log2_scale, nan_on_overflow: for 8-bit floats, see :func:`.utils.to_numpy`.

    Raises:
        ValueError: empty data, wrong leading axis, not in the main graph.
    """
    group = _grouping(replica_grouping)
    array = _host_array(data, dtype, downcast, group, name or "t", log2_scale, nan_on_overflow)
    return _new_variable(array, name, group, retrieval_mode)


@checked_kinds("remote_buffer")
def remote_variable(
    data: Any,
    remote_buffer: RemoteBuffer,
    offset: int = 0,
    dtype: _dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    replica_grouping: ReplicaGrouping | None = None,
    retrieval_mode: str | None = None,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> Variable:
    """A variable in entry ``offset`` of a remote buffer. Load it with ``ops.remote_load`` before use.

    Raises:
        ValueError: there is no such entry; when a session is made: shape or type do not match the buffer.
    """
    group = _grouping(replica_grouping)
    array = _host_array(data, dtype, downcast, group, name or "t", log2_scale, nan_on_overflow)
    return _new_variable(array, name, group, retrieval_mode, (remote_buffer, whole(offset, "offset")))


@checked_kinds()
def remote_replica_sharded_variable(
    data: Any,
    remote_buffer: RemoteBuffer,
    offset: int = 0,
    dtype: _dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    replica_grouping: ReplicaGrouping | None = None,
    retrieval_mode: str | None = None,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> Variable:
    """A remote variable of which each replica stores one shard; ``data`` is the whole value.

    Raises:
        ValueError: one replica only, or the buffer has shards of another shape; when a session is made: the shards do
            not have the length of the buffer's entries.
    """
    group = _grouping(replica_grouping)
    array = _host_array(data, dtype, downcast, group, name or "t", log2_scale, nan_on_overflow)
    shape = array.shape[1:] if group.num_groups > 1 else array.shape
    if remote_buffer.meta_shape and remote_buffer.meta_shape != tuple(shape):
        raise ValueError(
            f"remote variable {name or 't'!r} has shape {tuple(shape)}, {remote_buffer} holds shards of "
            f"{remote_buffer.meta_shape}; the shape given to popxl.replica_sharded_buffer is that of the data, "
            f"{array.shape}"
        )
    shards = _shards_for(group, math.prod(shape), remote_buffer)
    entry = whole(offset, "offset")
    if not remote_buffer.meta_shape:
        remote_buffer.meta_shape = shape  # the first sharded variable of a plain buffer says what its entries are
    return _new_variable(array, name, group, retrieval_mode, (remote_buffer, entry), shards, sharded=True)


def _shards_for(group: ReplicaGrouping, elements: int, buffer: RemoteBuffer) -> int:
    """Number of shards: what the buffer was made for, else as few as give shards of its length and divide the group;
    the group's size when none do (then :func:`check_remote_variables` says so).

    Shards of one element can be those of any larger number, too; with the fewest each smaller group holds the value."""
    most, length = check_sharding(group, None), math.prod(buffer.tensor_shape)
    if buffer._shards is not None:
        return check_sharding(group, buffer._shards)
    sizes = [n for n in range(1, most + 1) if most % n == 0]
    return next((n for n in sizes if shard_length(elements, n) == length), most)


@checked_kinds()
def replica_sharded_variable(
    data: Any,
    dtype: _dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    replica_grouping: ReplicaGrouping | None = None,
    shard_over: int | None = None,
    retrieval_mode: str | None = None,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> tuple[Variable, Tensor]:
    """A variable of which each replica holds one shard on chip: the variable and the shard.

    Upstream loads the shard from Streaming Memory when weights are copied to the device and stores it when they are
    copied back; here the shard *is* the variable on chip and the copies gather and scatter it: both results name it,
    the first one with the shape of the whole value.

    Raises:
        ValueError: one replica only, or ``shard_over`` does not divide the group size.
    """
    group = _grouping(replica_grouping)
    shards = check_sharding(group, shard_over)
    array = _host_array(data, dtype, downcast, group, name or "t", log2_scale, nan_on_overflow)
    shard = _new_variable(array, name, group, retrieval_mode, None, shards, sharded=True)
    return Variable(shard._ir_tensor, whole=True), shard


@checked_kinds()
def constant(
    data: Any,
    dtype: _dtype | None = None,
    name: str | None = None,
    downcast: bool = True,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
) -> Constant:
    """A constant of the current graph; for 8-bit floats see :func:`.utils.to_numpy`."""
    element_type = _dtype.as_dtype(dtype) if dtype is not None else None
    array = to_numpy(
        data, element_type, downcast, True, log2_scale, nan_on_overflow, subject=f"constant {name or 't'!r}"
    )
    return Constant(current_builder().graph.constant(array, name=name or "t"))


@checked_kinds()
def graph_input(
    shape: Sequence[int],
    dtype: _dtype,
    name: str | None = None,
    by_ref: bool = False,
    meta_shape: Sequence[int] | None = None,
) -> Tensor:
    """Append an input to the current subgraph.

    The main graph takes inputs, too, as upstream, but nothing fills them: a session refuses such a program.
    """
    name = name or "t"
    meta = wholes(() if meta_shape is None else meta_shape, f"meta_shape of graph input {name!r}", 0)
    spec = _ir.TensorSpec(wholes(shape, f"shape of graph input {name!r}", 0), _dtype.as_dtype(dtype)._ir, meta)
    return wrap(current_builder().graph.add_input(spec, name, by_ref=by_ref))


@checked_kinds()
def graph_output(t: Tensor) -> None:
    """Append ``t`` to the outputs of the current subgraph."""
    graph = current_builder().graph
    if graph is graph.ir.main_graph:
        raise RuntimeError("the main graph has no outputs; use ops.host_store")
    graph.add_output(t._ir_tensor)
