"""Copies that start together: neighbouring copies between IPUs, and stream copies under a sync pattern.

Copies between IPUs that follow each other directly in a graph's order, with nothing that takes time between them and
none of which reads or overwrites what another one writes or reads, become one exchange; likewise stream copies when the
sync pattern makes several IPUs stand during them. That is an assumption about Poplar's compiler, which is not public:
PopART itself (``transforms/mergecopies.cpp``) only gathers copies whose results one op reads.
"""

from __future__ import annotations

from collections.abc import Callable

from ipuperf.ir import Op, Tensor, roots

from .lowered import LoweredGraph, LoweredOp
from .steps import HostCopy, HostExchange, InterIpuCopy, IpuTransfer, StreamCopy


class _Merging:
    """An exchange that copies are being added to, from the ``head`` op on."""

    def __init__(self, head: LoweredOp, step: InterIpuCopy | StreamCopy, standing: tuple[int, ...]) -> None:
        self.head = head
        self.first = step
        self.exchange = head.op.attributes.get("exchange")
        self.standing = standing
        self.transfers: dict[tuple[int, int], int] = {}
        self.copies: list[HostCopy] = []
        self.count = 0
        self.read: set[Tensor] = set()
        self.written: set[Tensor] = set()

    def takes(
        self, item: LoweredOp, step: InterIpuCopy | StreamCopy, standing: tuple[int, ...], root: dict[Tensor, Tensor]
    ) -> bool:
        """Whether a copy may start together with those that are in it."""
        if type(step) is not type(self.first) or standing != self.standing:
            return False
        if isinstance(step, StreamCopy) and any((c.ipu, c.stream) == (item.ipu, step.stream) for c in self.copies):
            return False
        op = item.op
        if op.attributes.get("exchange") != self.exchange:
            return False
        changed = {root.get(op.inputs[i], op.inputs[i]) for i in op.modified_inputs()}
        return not self.written & {root.get(t, t) for t in op.inputs} and not self.read & changed

    def add(self, item: LoweredOp, step: InterIpuCopy | StreamCopy, root: dict[Tensor, Tensor]) -> None:
        """Put a copy in; the head's step then holds it."""
        self.read.update(root.get(t, t) for t in item.op.inputs)
        self.passes(item.op, root)
        self.written.update(root.get(t, t) for t in item.op.outputs)
        self.count += 1
        if isinstance(step, InterIpuCopy):
            for copy in step.copies:
                pair = (copy.source, copy.destination)
                self.transfers[pair] = self.transfers.get(pair, 0) + copy.bytes
        else:
            self.copies.append(HostCopy(item.ipu, step.direction, step.bytes, step.stream))
        item.steps.steps, item.joined = [], item is not self.head
        name = self.first.name if self.count == 1 else f"{self.first.name} and {self.count - 1} more"
        if isinstance(self.first, InterIpuCopy):
            moves = tuple(IpuTransfer(*pair, size) for pair, size in self.transfers.items())
            self.head.shared = InterIpuCopy(self.first.op_id, name, moves)
        else:
            self.head.shared = HostExchange(self.first.op_id, name, tuple(self.copies), self.standing)

    def passes(self, op: Op, root: dict[Tensor, Tensor]) -> None:
        """An op that takes no time: what it makes of a copied tensor depends on the copy too."""
        if self.written & {root.get(t, t) for t in op.inputs}:
            self.written.update(root.get(t, t) for t in op.outputs)


def merge_exchanges(lowered: LoweredGraph, standing: Callable[[int], tuple[int, ...]]) -> None:
    """Join the copies of a lowered graph that may start together; see the module docstring.

    ``standing`` gives the IPUs that stand during a stream copy of an IPU; alone it stays a :class:`StreamCopy`.
    """
    root, group = roots(lowered.graph), None
    for item in lowered.ops:
        steps = item.steps.steps
        step = steps[0] if len(steps) == 1 else None
        party: tuple[int, ...] = ()
        if isinstance(step, StreamCopy) and item.tile_set == "compute":  # I/O tiles make nobody stand
            party = standing(item.ipu)
        if isinstance(step, InterIpuCopy) or (isinstance(step, StreamCopy) and len(party) > 1):
            if group is None or not group.takes(item, step, party, root):
                group = _Merging(item, step, party)
            group.add(item, step, root)
        elif steps or item.calls:
            group = None
        elif group is not None:
            group.passes(item.op, root)
