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
from .steps import JoinableStep
from .tile_sets import COMPUTE


class _Merging:
    """Steps that start together, from that of the ``head`` op on."""

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

    def takes(self, item: LoweredOp, step: JoinableStep, company: tuple[int, ...]) -> bool:
        """Whether a step may start together with those that are in it."""
        op, root = item.op, self.root
        if type(step) is not self.kind or company != self.company or op.attributes.get("exchange") != self.exchange:
            return False
        if step.apart(item.ipu, self.parts):
            return False
        changed = {root.get(op.inputs[i], op.inputs[i]) for i in op.modified_inputs()}
        return not self.written & {root.get(t, t) for t in op.inputs} and not self.read & changed

    def add(self, item: LoweredOp, step: JoinableStep) -> None:
        """Put a step in; the head's then holds it."""
        root = self.root
        self.read.update([root.get(t, t) for t in item.op.inputs])
        self.passes(item.op)
        self.written.update([root.get(t, t) for t in item.op.outputs])
        self.parts.append((item.ipu, step))
        item.steps.steps, item.joined = [], item is not self.head

    def passes(self, op: Op) -> None:
        """An op that takes no time: what it makes of a copied tensor depends on the copy too."""
        root = self.root
        if self.written & {root.get(t, t) for t in op.inputs}:
            self.written.update([root.get(t, t) for t in op.outputs])

    def close(self) -> None:
        """Give the head the step of all."""
        first, more = self.parts[0][1], len(self.parts) - 1
        name = f"{first.name} and {more} more" if more else first.name
        self.head.shared = self.kind.together(first.op_id, name, self.parts, self.company)


def merge_exchanges(lowered: LoweredGraph, standing: Callable[[int], tuple[int, ...]]) -> None:
    """Join the steps of a lowered graph that may start together (:class:`JoinableStep`); see the module docstring.

    ``standing`` gives the IPUs that stand during a stream copy of an IPU; I/O tiles make nobody stand.
    """
    root, groups = roots(lowered.graph), []
    group: _Merging | None = None
    for item in lowered.ops:
        steps = item.steps.steps
        step = steps[0] if len(steps) == 1 else None
        company: tuple[int, ...] | None = None
        if isinstance(step, JoinableStep):
            company = step.company(item.ipu, standing if item.tile_set == COMPUTE else _nobody)
        if isinstance(step, JoinableStep) and company is not None:
            if group is None or not group.takes(item, step, company):
                group = _Merging(item, type(step), company, root)
                groups.append(group)
            group.add(item, step)
        elif steps or item.calls:
            group = None
        elif group is not None:
            group.passes(item.op)
    for group in groups:
        group.close()


def _nobody(ipu: int) -> tuple[int, ...]:
    return ()
