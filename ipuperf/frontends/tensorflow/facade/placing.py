"""Where programs and their ops are placed: scopes of devices and shards, shards of ops, shards chosen for a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from ipuperf.base.kinds import told
from ipuperf.runtime.replacing import replaced

from ..effects import EFFECTS, checked_kinds
from ..importer.needed import ancestors
from ..importer.origins import SHARD, shard_of, written
from ..importer.tracer import resource_variables
from ..state import state


@contextmanager
def ipu_scope(device: str) -> Iterator[str]:
    """Programs compiled in the block are for ``/device:IPU:<n>``; variables are resource variables.

    Raises:
        ValueError: another device name.
    """
    with (
        replaced(state(), device=ordinal_of(device)),
        resource_variables(),
        tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), use_resource=True, auxiliary_name_scope=False),
    ):
        yield device


@checked_kinds()
def ordinal_of(device: str) -> int:
    """The number of a device such as ``/device:IPU:0``.

    Raises:
        ValueError: another device name.
    """
    match = re.fullmatch(r".*device:IPU:(\d+)", str(device), re.IGNORECASE)
    if match is None:
        raise ValueError(f"ipu_scope({device!r}): a device such as '/device:IPU:0' is needed")
    return int(match[1])


@contextmanager
def ipu_shard(index: Any) -> Iterator[None]:
    """Ops of the block are on shard ``index`` of the replica; operands from elsewhere are copied there.

    Raises:
        NotImplementedError: several shards at once; ValueError: no shard number.
    """
    if isinstance(index, (list, tuple)):
        raise NotImplementedError(f"ipu_shard({index!r}): one op on several IPUs is not supported; give one index")
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"ipu_shard({index!r}): the number of a shard is needed, 0 or larger")
    with written(SHARD, index):
        yield


@checked_kinds()
@contextmanager
def frontend_attribute(attribute_name: str, attribute_value: str, restore_to: str | None = None) -> Iterator[None]:
    """An attribute for the Poplar compiler: it is written on the ops of the block, which run as without it."""
    EFFECTS.given("ipu.scopes.frontend_attribute(attribute_value)", attribute_value)
    EFFECTS.given("ipu.scopes.frontend_attribute(restore_to)", restore_to)
    with written(f"_ipu_frontend_{attribute_name}", attribute_value):
        yield


@contextmanager
def stochastic_rounding(override: Any) -> Iterator[None]:
    """Whether float16 results of the block are rounded stochastically: they are rounded to the nearest value."""
    EFFECTS.given("ipu.scopes.stochastic_rounding(override)", override)
    yield


@contextmanager
def partials_type(override_type: Any) -> Iterator[None]:
    """Type of the partial sums of the block's products: they are those of ``IPUConfig``.

    Raises:
        ValueError: another type than float16 and float32.
    """
    if tf.as_dtype(override_type) not in (tf.float16, tf.float32):
        raise ValueError(f"Only support float16, float32, provided {tf.as_dtype(override_type).name}")
    EFFECTS.given("ipu.scopes.partials_type(override_type)", override_type)
    yield


@contextmanager
def ipu_jit_scope(ipu_scope: Any) -> Iterator[None]:
    """Ops that are compiled together: all ops of a program are."""
    EFFECTS.given("ipu.scopes.ipu_jit_scope(ipu_scope)", ipu_scope)
    yield


@contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Host computation in the middle of a program: not available."""
    raise NotImplementedError(
        f"outside_compilation_scope({name!r}): programs here cannot call the host in the middle of a run"
    )
    yield


@checked_kinds()
def has_attr(op: tf.Operation, attribute_name: str) -> bool:
    """Whether an op has an attribute."""
    try:
        op.get_attr(attribute_name)
    except ValueError:
        return False
    return True


@checked_kinds()
def get_shard(op: tf.Operation) -> int | None:
    """The shard of an op, or of the forward op of a gradient op; None: it has none."""
    return shard_of(op)


@checked_kinds()
def set_shard(op: tf.Operation, index: int) -> None:
    """Place an op on a shard.

    Raises:
        ValueError: no shard number.
    """
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"set_shard({index!r}): the number of a shard is needed, 0 or larger")
    op.graph.ipuperf_written = True
    op._set_attr(SHARD, attr_value_pb2.AttrValue(i=index))


@checked_kinds()
def get_shard_from_colocation(op: tf.Operation) -> int | None:
    """The shard of the ops that an op is to be with; None: there is none."""
    for group in op.colocation_groups():
        name = group.decode().removeprefix("loc:@")
        neighbour = op.graph.get_operation_by_name(name) if name != op.name else None
        if neighbour is not None and get_shard(neighbour) is not None:
            return get_shard(neighbour)
    return None


@checked_kinds()
def propagate_sharding(graph: tf.Graph) -> None:
    """Give ops without a shard that of an op that they read; gradient ops have that of their forward ops."""
    for op in graph.get_operations():
        if get_shard(op) is None:
            shard = next((get_shard(t.op) for t in op.inputs if get_shard(t.op) is not None), None)
            if shard is not None:
                set_shard(op, shard)


@checked_kinds()
def dependencies(roots: Iterable[tf.Operation]) -> list[tf.Operation]:
    """All ops that ``roots`` are computed from, ``roots`` among them."""
    return list(ancestors(roots))


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
    for argument, tensor in (("input_ts", input_ts), ("loss_ts", loss_ts)):
        if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "op"):
            raise TypeError(f"automatic_sharding: {argument} is {told(tensor)}; a tensor of a graph is needed")
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
    reached, chosen = {start.op}, []
    for op in end.graph.get_operations():
        if op in needed and any(t.op in reached for t in op.inputs):
            reached.add(op)
            if not marked or has_attr(op, _MARK):
                chosen.append(op)
    return chosen


def _cuts(order: Sequence[tf.Operation], edge_filter: Callable[[tuple[str, str]], bool] | None) -> list[int]:
    """Places in the order before which one tensor passes."""
    place = {op: number for number, op in enumerate(order)}
    last_use: dict[int, int] = {}
    producer: dict[int, int] = {}
    for number, op in enumerate(order):
        for tensor in op.inputs:
            if tensor.op in place:
                last_use[id(tensor)], producer[id(tensor)] = number, place[tensor.op]
    cuts = []
    for number in range(1, len(order)):
        passing = [key for key in last_use if producer[key] < number <= last_use[key]]
        edge = (order[number - 1].name, order[number].name)
        if len(passing) == 1 and not (edge_filter is not None and edge_filter(edge)):
            cuts.append(number)
    return cuts


def _bytes(op: tf.Operation) -> int:
    return sum((t.shape.num_elements() or 0) * (t.dtype.size or 0) for t in op.outputs if t.dtype != tf.resource)


def _balanced(sizes: Sequence[int], cuts: Sequence[int], shards: int) -> list[int]:
    """Of the possible cuts those nearest to equal shares, in order."""
    total, so_far, sums = sum(sizes), 0, []
    for size in sizes:
        sums.append(so_far)
        so_far += size
    chosen: list[int] = []
    for number in range(1, shards):
        # Each cut leaves as many places behind it as there are cuts to come.
        left = shards - 1 - number
        later = [c for c in cuts if not chosen or c > chosen[-1]]
        possible = later[: len(later) - left]
        chosen.append(min(possible, key=lambda c: abs(sums[c] - total * number / shards)))
    return chosen
