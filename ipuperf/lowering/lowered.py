"""Graphs whose ops have become steps, before they are assembled into a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ipuperf.ir import Graph, Tensor
from ipuperf.ops.base import Op
from ipuperf.ops.control import Call, If, Loop

from .layout import Layout
from .steps import SharedStep, Step
from .supersteps import OpSteps

CallingOp = Call | Loop | If
"""An op that executes graphs."""


@dataclass(frozen=True, eq=False)
class CallCopies:
    """Copies that a call makes of its operands.

    Attributes:
        before: per IPU, copies of operands before the calls.
        after_trip: per IPU, copies of loop-carried values at the end of each trip.
        copied: indices of operands that the callee changes although they are passed by value, and that are therefore
            copied first (in ``before``).
    """

    before: dict[int, list[Step]] = field(default_factory=dict)
    after_trip: dict[int, list[Step]] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)


_NO_COPIES = CallCopies()


@dataclass(slots=True)
class LoweredOp:
    """One op of a lowered graph: its local steps on ``ipu``, or the calls it makes.

    Attributes:
        shared: a step in which several IPUs take part, after the local ones.
        tile_set: on which tiles of the IPU it runs (a copy between tile sets: where it goes).
        joined: the op's copy is part of the ``shared`` step of an earlier op.
        calls: the graphs it calls and how often (a loop: its trips); of a conditional the branch that takes longer.
        operands: the tensors passed to the inputs of those graphs.
        copies: the copies that a call makes of its operands.
    """

    op: Op
    ipu: int
    steps: OpSteps
    shared: SharedStep | None = None
    joined: bool = False
    tile_set: str = "compute"
    calls: Sequence[tuple[LoweredGraph, int]] = ()
    operands: Sequence[Tensor] = ()
    copies: CallCopies = _NO_COPIES


@dataclass
class LoweredGraph:
    """A graph with its ops lowered in schedule order, and where its tensors lie.

    ``participants`` are the IPUs that take part in it, once somebody has asked (:func:`.assembly.participants`).
    ``fitting`` has the identities of layouts of operands that a call need not copy.
    """

    graph: Graph
    ops: list[LoweredOp]
    layouts: dict[Tensor, Layout]
    participants: frozenset[int] | None = None
    fitting: set[tuple[int, ...]] = field(default_factory=set)
