"""Copies that start together: neighbouring copies between IPUs, and stream copies under a sync pattern.

Copies between IPUs become one exchange if they follow each other in a graph's order, nothing between them takes time,
and none reads or overwrites what another one writes or reads. The same holds for stream copies when the sync
pattern makes several IPUs stand during them. This is an assumption about Poplar's compiler, which is not public: PopART
itself (``transforms/mergecopies.cpp``) only gathers copies whose results one op reads.
"""

from __future__ import annotations

from ipuperf.ir import Op, Tensor, roots

from .lowered import LoweredGraph, LoweredOp
from .steps import JoinableStep
from .steps.sync_groups import SyncGroups
from .tile_sets import COMPUTE


class _Merging:
    """Steps that start together; the first is that of the ``head`` op."""

    def __init__(
        self, head: LoweredOp, kind: type[JoinableStep], company: tuple[int, ...], root: dict[Tensor, Tensor]
    ) -> None:
        self.head = head
        self.kind = kind
        self.exchange = head.op.attributes.get("exchange")
        self.company = company
        self.root = root
        self.parts: list[tuple[int, JoinableStep]] = []
        self.read: set[Tensor] = set()
        self.written: set[Tensor] = set()

    def takes(self, lowered_op: LoweredOp, step: JoinableStep, company: tuple[int, ...]) -> bool:
        """Whether a step may start together with those already added."""
        op, root = lowered_op.op, self.root
        if type(step) is not self.kind or company != self.company or op.attributes.get("exchange") != self.exchange:
            return False
        if step.apart(lowered_op.ipu, self.parts):
            return False
        changed = {root.get(op.inputs[i], op.inputs[i]) for i in op.modified_inputs()}
        # Aliases count as the storage they share: no copy may read what another writes or change what it reads.
        return not self.written & {root.get(t, t) for t in op.inputs} and not self.read & changed

    def add(self, lowered_op: LoweredOp, step: JoinableStep) -> None:
        """Add a step; the op loses it, as the head's shared step contains it."""
        root = self.root
        self.read.update([root.get(t, t) for t in lowered_op.op.inputs])
        self.passes(lowered_op.op)
        self.written.update([root.get(t, t) for t in lowered_op.op.outputs])
        self.parts.append((lowered_op.ipu, step))
        lowered_op.steps.steps, lowered_op.joined = [], lowered_op is not self.head

    def passes(self, op: Op) -> None:
        """Note an op that takes no time: its results depend on the copies if its operands do."""
        root = self.root
        if self.written & {root.get(t, t) for t in op.inputs}:
            self.written.update([root.get(t, t) for t in op.outputs])

    def close(self) -> None:
        """Give the head the joined step."""
        head_step, others = self.parts[0][1], len(self.parts) - 1
        name = f"{head_step.name} and {others} more" if others else head_step.name
        self.head.shared = self.kind.together(head_step.op_id, name, self.parts, self.company)


def merge_exchanges(lowered: LoweredGraph, syncs: SyncGroups) -> None:
    """Join the steps of a lowered graph that may start together (:class:`JoinableStep`); see the module docstring."""
    root, groups = roots(lowered.graph), []
    group: _Merging | None = None
    for lowered_op in lowered.ops:
        steps = lowered_op.steps.steps
        step = steps[0] if len(steps) == 1 else None
        company: tuple[int, ...] | None = None
        if isinstance(step, JoinableStep):
            # Copies on I/O tiles make no IPU stand.
            standing = syncs.standing(lowered_op.ipu) if lowered_op.tile_set == COMPUTE else ()
            company = step.company(standing)
        if isinstance(step, JoinableStep) and company is not None:
            if group is None or not group.takes(lowered_op, step, company):
                group = _Merging(lowered_op, type(step), company, root)
                groups.append(group)
            group.add(lowered_op, step)
        # Anything that takes time ends the group.
        elif steps or lowered_op.calls:
            group = None
        elif group is not None:
            group.passes(lowered_op.op)
    for group in groups:
        group.close()
