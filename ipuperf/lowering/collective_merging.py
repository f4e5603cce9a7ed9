"""Small collectives become large ones: neighbours of one kind that do not depend on each other are merged.

PopART merges on request (``replicatedCollectivesSettings`` of its session options, all off by default): the
``merge...Collectives`` options join collectives that follow each other directly in the schedule,
``prepareScheduleForMergingCollectives`` first moves together all that can be (``willow/src/transforms/
mergecollectives.cpp``, ``contiguatecollectivesformerging.cpp``). TensorFlow lets collectives wait until a number of
bytes has come together (``IPUConfig.optimizations.maximum_cross_replica_sum_buffer_size`` and its like, 0 by
default). Both ask for the same kind, operator, type and replica group. Here the IPU must be the same too, so that a
merged collective is always one step. The numeric half is not touched: merging moves the cost, not the values.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipuperf.ir import Graph, Op, Tensor, roots
from ipuperf.machine import Machine
from ipuperf.ops import work as w

from .lowered import LoweredGraph, LoweredOp
from .supersteps import OpSteps, Superstepper

Works = Callable[[Any], Sequence[w.Work]]
"""Gives the work of an op."""


@dataclass(frozen=True)
class CollectiveMerging:
    """Which collectives are merged.

    Attributes:
        all_reduce, reduce_scatter, all_gather: upper limit in bytes (of whole tensors) for one collective of this kind.
            With 0 none are merged; None sets no limit. A larger tensor is not merged.
        contiguous: first move collectives of a graph together, as far as data dependencies allow.
    """

    all_reduce: int | None = 0
    reduce_scatter: int | None = 0
    all_gather: int | None = 0
    contiguous: bool = False

    def __post_init__(self) -> None:
        for kind in ("all_reduce", "reduce_scatter", "all_gather"):
            limit = self.limit(kind)
            if limit is not None and limit < 0:
                raise ValueError(f"CollectiveMerging: {kind} is {limit}, allowed: bytes from 0 on, None for no limit")

    def limit(self, kind: str) -> int | None:
        """Upper limit in bytes of a merged collective of ``kind``; None: no limit."""
        limits = {"all_reduce": self.all_reduce, "reduce_scatter": self.reduce_scatter, "all_gather": self.all_gather}
        return limits[kind]

    def work_of(self, works: Sequence[w.Work]) -> w.GroupCollective | None:
        """The collective of an op with these works; None if it has none or it may not be merged."""
        work = works[0] if len(works) == 1 else None
        return work if isinstance(work, w.GroupCollective) and self.limit(work.kind) != 0 else None


NO_MERGING = CollectiveMerging()


def _key(op: Op, work: w.GroupCollective) -> tuple[object, ...]:
    """The properties in which collectives must agree to be merged."""
    return work.kind, work.reduce, work.dtype, work.group, op.ipu or 0


@dataclass
class _Waiting:
    """Collectives of one key whose dependencies are met."""

    ops: list[int] = field(default_factory=list)
    bytes: int = 0


def contiguous(graph: Graph, order: Sequence[Op], merging: CollectiveMerging, works: Works) -> list[Op]:
    """``order`` with collectives moved together; all other ops keep their order.

    A collective waits until others of its key fill the limit, or until nothing else can run. Only true dependencies
    count: values, and reads and writes of the same storage, remote buffer or stream. Ops that call graphs also keep
    their order among each other and relative to users of buffers and streams.
    """
    collectives = [merging.work_of(works(op)) for op in order]
    # A single collective has no partner.
    if sum(collective is not None for collective in collectives) < 2:
        return list(order)
    dependents, missing = _dependencies(graph, order)
    # Ascending numbers are a heap already.
    ready = [index for index, count in enumerate(missing) if not count and collectives[index] is None]
    waiting: dict[tuple[object, ...], _Waiting] = {}
    new_order: list[int] = []

    def run(index: int) -> None:
        new_order.append(index)
        for later in dependents[index]:
            missing[later] -= 1
            if not missing[later]:
                become_ready(later)

    def become_ready(index: int) -> None:
        collective = collectives[index]
        if collective is None:
            # The heap returns ready ops in their old order.
            heapq.heappush(ready, index)
            return
        key, limit = _key(order[index], collective), merging.limit(collective.kind)
        group = waiting.setdefault(key, _Waiting())
        # The group would exceed the limit, so it runs without this collective.
        if limit is not None and group.ops and group.bytes + collective.bytes > limit:
            flush(key)
            group = waiting.setdefault(key, _Waiting())
        group.ops.append(index)
        group.bytes += collective.bytes

    def flush(key: tuple[object, ...]) -> None:
        for index in waiting.pop(key).ops:
            run(index)

    # The counts are copied: an op that becomes ready in this loop must not be entered twice.
    for index, count in enumerate(list(missing)):
        if not count and collectives[index] is not None:
            become_ready(index)
    # Other ops run first, in their old order, so that as many collectives as possible come together.
    while ready or waiting:
        if ready:
            run(heapq.heappop(ready))
        else:
            flush(min(waiting, key=lambda key: waiting[key].ops[0]))
    return [order[index] for index in new_order]


def _dependencies(graph: Graph, order: Sequence[Op]) -> tuple[list[list[int]], list[int]]:
    """For each op, by place in ``order``: the ops that must come after it, and how many must come before it."""
    root = roots(graph)
    place = {op: index for index, op in enumerate(order)}
    written: dict[object, int] = {}
    read: dict[object, list[int]] = {}
    needs_of: list[set[int]] = []
    for index, op in enumerate(order):
        needs = {place[t.producer] for t in op.inputs if t.producer in place}
        reads, writes = _touched(op, root)
        # A read waits for the last write; a write waits for that and for all reads since.
        for storage in reads | writes:
            if storage in written:
                needs.add(written[storage])
        for storage in writes:
            # A write comes after all reads of the old contents.
            needs.update(read.pop(storage, ()))
            written[storage] = index
        for storage in reads - writes:
            read.setdefault(storage, []).append(index)
        needs.discard(index)
        needs_of.append(needs)
    dependents: list[list[int]] = [[] for _ in order]
    for index, needs in enumerate(needs_of):
        for earlier in sorted(needs):
            dependents[earlier].append(index)
    return dependents, [len(needs) for needs in needs_of]


def _touched(op: Op, root: dict[Tensor, Tensor]) -> tuple[set[object], set[object]]:
    """Storages that an op reads and writes; remote buffers, streams and called graphs count as storages too."""
    reads: set[object] = {root.get(tensor, tensor) for tensor in op.inputs}
    writes: set[object] = {root.get(op.inputs[index], op.inputs[index]) for index in op.modified_inputs()}
    writes.update(tensor for tensor in op.outputs if root.get(tensor, tensor) is tensor)
    outside = {id(op.attributes[name]) for name in ("buffer", "stream") if name in op.attributes}
    if op.called_graphs():
        # What a called graph touches is not looked up, so calls are ordered as if all wrote one storage.
        writes.add("calls")
    elif outside:
        writes.update(outside)
        # Users of buffers and streams keep their place among calls, which may touch the same ones.
        reads.add("calls")
    return reads, writes


# -- merging of neighbours ---------------------------------------------------------------------------------------------


def merge_collectives(lowered: LoweredGraph, merging: CollectiveMerging, works: Works, machine: Machine) -> None:
    """Join collectives of a lowered graph that follow each other, where nothing between them takes time."""
    for group in list(_groups(lowered, merging, works)):
        if len(group) > 1:
            _join(lowered, group, works, machine)


def _groups(lowered: LoweredGraph, merging: CollectiveMerging, works: Works) -> Iterator[list[LoweredOp]]:
    """Groups of collectives that become one each."""
    root = roots(lowered.graph)
    group: list[LoweredOp] = []
    key: tuple[object, ...] = ()
    size = 0
    written: set[Tensor] = set()
    used: set[Tensor] = set()
    for lowered_op in lowered.ops:
        work = merging.work_of(works(lowered_op.op)) if not lowered_op.calls else None
        if work is None and not group:
            continue
        reads = {root.get(t, t) for t in lowered_op.op.inputs}
        changes = {root.get(lowered_op.op.inputs[i], lowered_op.op.inputs[i]) for i in lowered_op.op.modified_inputs()}
        # Without steps the collective is of groups of one replica, and nothing happens.
        if work is not None and lowered_op.steps.steps:
            limit = merging.limit(work.kind)
            fits = limit is None or size + work.bytes <= limit
            # A collective joins the group only if the limit allows it and it depends on no result of the group.
            if not (group and key == _key(lowered_op.op, work) and fits and not written & reads and not used & changes):
                if group:
                    yield group
                group, key, size, written, used = [], _key(lowered_op.op, work), 0, set(), set()
            group.append(lowered_op)
            size += work.bytes
            used |= reads
            written |= {root.get(t, t) for t in lowered_op.op.outputs} | changes
        elif (lowered_op.steps.steps or lowered_op.calls or lowered_op.shared is not None) and group:
            yield group
            group = []
        elif written & reads:
            # A view of a result takes no time but hands its dependency on.
            written.update(root.get(t, t) for t in lowered_op.op.outputs)
    if group:
        yield group


def _join(lowered: LoweredGraph, group: Sequence[LoweredOp], works: Works, machine: Machine) -> None:
    """Give the first op the steps of all; the other ops happen in them."""
    head = group[0]
    op_id = head.steps.steps[0].op_id
    pairs = []
    for lowered_op in group:
        work = works(lowered_op.op)[0]
        assert isinstance(work, w.GroupCollective)
        pairs.append((work, lowered.layouts[lowered_op.op.inputs[0]]))
    stepper = Superstepper(head.op, op_id, lowered.layouts, machine)
    stepper.collectives(pairs)
    for lowered_op in group:
        lowered_op.steps, lowered_op.joined = OpSteps(), lowered_op is not head
    head.steps = stepper.out
