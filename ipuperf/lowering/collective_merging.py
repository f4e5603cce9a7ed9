"""Small collectives become large ones: neighbours of one kind that do not depend on each other are done as one.

PopART merges on request (``replicatedCollectivesSettings`` of its session options, all off by default): the
``merge...Collectives`` options join collectives that follow each other directly in the schedule,
``prepareScheduleForMergingCollectives`` first moves together all that can be (``willow/src/transforms/
mergecollectives.cpp``, ``contiguatecollectivesformerging.cpp``). TensorFlow lets collectives wait until a number of
bytes has come together (``IPUConfig.optimizations.maximum_cross_replica_sum_buffer_size`` and its like, 0 by
default). Both ask for the same kind, operator, type and replica group; here also for the same IPU, so what is merged is
always one step. The numeric half is not touched: merging moves the cost, not the values.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipuperf.ir import Graph, Op, Tensor, roots
from ipuperf.ops import work as w

from .lowered import LoweredGraph, LoweredOp
from .steps import Collective
from .supersteps import OpSteps, Superstepper

if TYPE_CHECKING:
    from ipuperf.machine import Machine


Works = Callable[[Any], Sequence[w.Work]]
"""What an op asks of the machine."""


@dataclass(frozen=True)
class CollectiveMerging:
    """Which collectives become one.

    Attributes:
        all_reduce, reduce_scatter, all_gather: most bytes (of whole tensors) that become one collective of this kind;
            0: none are merged, None: any number. A larger tensor goes alone.
        contiguous: move collectives of a graph together first, as far as data dependencies let them.
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
        """Most bytes of a merged collective of ``kind``."""
        limits = {"all_reduce": self.all_reduce, "reduce_scatter": self.reduce_scatter, "all_gather": self.all_gather}
        return limits[kind]

    def work_of(self, works: Sequence[w.Work]) -> w.GroupCollective | None:
        """The collective that an op with these works is, when it may be merged."""
        item = works[0] if len(works) == 1 else None
        return item if isinstance(item, w.GroupCollective) and self.limit(item.kind) != 0 else None


NO_MERGING = CollectiveMerging()


def _key(op: Op, item: w.GroupCollective) -> tuple[object, ...]:
    """What collectives that become one have in common."""
    return item.kind, item.reduce, item.dtype, item.group, op.ipu or 0


@dataclass
class _Waiting:
    """Collectives of one key that could run now."""

    ops: list[int] = field(default_factory=list)
    bytes: int = 0


def contiguous(graph: Graph, order: Sequence[Op], merging: CollectiveMerging, works: Works) -> list[Op]:
    """``order`` with collectives moved together: each waits until others of its key fill the limit, or until nothing
    else can run. Everything else keeps its order. Only true dependencies count: values, and reads and writes of the
    same storage, remote buffer or stream; ops that call graphs also keep their order among each other and towards the
    latter.
    """
    items = [merging.work_of(works(op)) for op in order]
    if sum(item is not None for item in items) < 2:
        return list(order)
    after, missing = _dependencies(graph, order)
    ready = [index for index, count in enumerate(missing) if not count and items[index] is None]
    waiting: dict[tuple[object, ...], _Waiting] = {}
    found: list[int] = []

    def run(index: int) -> None:
        found.append(index)
        for later in after[index]:
            missing[later] -= 1
            if not missing[later]:
                come(later)

    def come(index: int) -> None:
        item = items[index]
        if item is None:
            heapq.heappush(ready, index)
            return
        key, limit = _key(order[index], item), merging.limit(item.kind)
        group = waiting.setdefault(key, _Waiting())
        if limit is not None and group.ops and group.bytes + item.bytes > limit:
            flush(key)
            group = waiting.setdefault(key, _Waiting())
        group.ops.append(index)
        group.bytes += item.bytes

    def flush(key: tuple[object, ...]) -> None:
        for index in waiting.pop(key).ops:
            run(index)

    for index, count in enumerate(list(missing)):
        if not count and items[index] is not None:
            come(index)
    while ready or waiting:
        if ready:
            run(heapq.heappop(ready))
        else:
            flush(min(waiting, key=lambda key: waiting[key].ops[0]))
    return [order[index] for index in found]


def _dependencies(graph: Graph, order: Sequence[Op]) -> tuple[list[list[int]], list[int]]:
    """For each op (by place in ``order``) those that must come after it, and how many must come before it."""
    root = roots(graph)
    place = {op: index for index, op in enumerate(order)}
    written: dict[object, int] = {}
    read: dict[object, list[int]] = {}
    before: list[set[int]] = []
    for index, op in enumerate(order):
        needs = {place[t.producer] for t in op.inputs if t.producer in place}
        reads, writes = _touched(op, root)
        for what in reads | writes:
            if what in written:
                needs.add(written[what])
        for what in writes:
            needs.update(read.pop(what, ()))
            written[what] = index
        for what in reads - writes:
            read.setdefault(what, []).append(index)
        needs.discard(index)
        before.append(needs)
    after: list[list[int]] = [[] for _ in order]
    for index, needs in enumerate(before):
        for earlier in sorted(needs):
            after[earlier].append(index)
    return after, [len(needs) for needs in before]


def _touched(op: Op, root: dict[Tensor, Tensor]) -> tuple[set[object], set[object]]:
    """Storages that an op reads and writes; remote buffers, streams and what is called as storages of their own."""
    reads: set[object] = {root.get(t, t) for t in op.inputs}
    writes: set[object] = {root.get(op.inputs[i], op.inputs[i]) for i in op.modified_inputs()}
    writes.update(t for t in op.outputs if root.get(t, t) is t)
    outside = {id(op.attributes[name]) for name in ("buffer", "stream") if name in op.attributes}
    if op.called_graphs():
        writes.add("calls")
    elif outside:
        writes.update(outside)
        reads.add("calls")
    return reads, writes


# -- merging of neighbours ---------------------------------------------------------------------------------------------


def merge_collectives(lowered: LoweredGraph, merging: CollectiveMerging, works: Works, machine: Machine) -> None:
    """Join collectives of a lowered graph that follow each other with nothing that takes time between them."""
    for group in list(_groups(lowered, merging, works)):
        if len(group) > 1:
            _join(lowered, group, works, machine)


def _groups(lowered: LoweredGraph, merging: CollectiveMerging, works: Works) -> Iterator[list[LoweredOp]]:
    """Collectives that become one."""
    root = roots(lowered.graph)
    group: list[LoweredOp] = []
    key: tuple[object, ...] = ()
    size = 0
    written: set[Tensor] = set()
    used: set[Tensor] = set()
    for item in lowered.ops:
        work = merging.work_of(works(item.op)) if not item.calls else None
        if work is None and not group:
            continue
        reads = {root.get(t, t) for t in item.op.inputs}
        changes = {root.get(item.op.inputs[i], item.op.inputs[i]) for i in item.op.modified_inputs()}
        if work is not None and any(isinstance(step, Collective) for step in item.steps.steps):
            limit = merging.limit(work.kind)
            fits = limit is None or size + work.bytes <= limit
            if not (group and key == _key(item.op, work) and fits and not written & reads and not used & changes):
                if group:
                    yield group
                group, key, size, written, used = [], _key(item.op, work), 0, set(), set()
            group.append(item)
            size += work.bytes
            used |= reads
            written |= {root.get(t, t) for t in item.op.outputs} | changes
        elif (item.steps.steps or item.calls or item.shared is not None) and group:
            yield group
            group = []
        elif written & reads:
            written.update(root.get(t, t) for t in item.op.outputs)
    if group:
        yield group


def _join(lowered: LoweredGraph, group: Sequence[LoweredOp], works: Works, machine: Machine) -> None:
    """The first op's steps become those of all, the others happen in them."""
    head = group[0]
    op_id = next(step.op_id for step in head.steps.steps if isinstance(step, Collective))
    pairs = []
    for item in group:
        work = works(item.op)[0]
        assert isinstance(work, w.GroupCollective)
        pairs.append((work, lowered.layouts[item.op.inputs[0]]))
    stepper = Superstepper(head.op, op_id, lowered.layouts, machine)
    stepper.collectives(pairs)
    for item in group:
        item.steps, item.joined = OpSteps(), item is not head
    head.steps = stepper.out
