"""A program on its way from ops to steps: what the passes of :func:`.lower.lower` hand on to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipuperf.ir import Graph, Ir, Op, Sources
from ipuperf.machine import Machine

if TYPE_CHECKING:
    from .alike import OpCache
    from .code import CodeOf
    from .collective_merging import CollectiveMerging
    from .layout import DataLayouts
    from .lowered import LoweredGraph
    from .outlining import SharedCode
    from .places import Places
    from .planner.plan import ConvolutionPlan
    from .program import DeviceProgram, MemoryReport, OpInfo
    from .steps.sync_groups import SyncGroups


@dataclass
class Compilation:
    """A program between two passes. Each pass reads the fields of earlier passes and sets its own, named in brackets.

    Attributes:
        ir: the program; no pass changes it.
        machine: where it runs.
        name, strict_memory, sync_pattern, merging, outlining: see :func:`.lower.lower`.
        cache: steps, facts and order of the ops (place).
        places: on which IPU and tile set tensors lie (place).
        syncs: which IPUs wait for each other (place).
        placement: IPUs of each replica (place).
        data_layouts: how variables, constants and streams lie (lay out data).
        phases: the purpose of each op, :mod:`ipuperf.ir.phase` (lower ops).
        sources: the ops of the user's modules that ops and tensors belong to (lower ops).
        graphs: the lowered graphs, callers before callees (lower ops).
        ops, numbers: the op table, and the row of each op there (lower ops).
        plans: how products and convolutions are split, by op (lower ops).
        low_confidence: names of costs without a primary source; a dictionary keeps their order (lower ops).
        loaded: graphs whose code comes from Streaming Memory, with that code (load code).
        shared_code: all other code, by IPU and tile set (share code).
        memory: memory of every tile (measure memory).
        device_program: the result (assemble).
    """

    ir: Ir
    machine: Machine
    name: str
    strict_memory: bool
    sync_pattern: str
    merging: CollectiveMerging
    outlining: float | None
    cache: OpCache = field(init=False)
    places: Places = field(init=False)
    syncs: SyncGroups = field(init=False)
    placement: tuple[tuple[int, ...], ...] = field(init=False)
    data_layouts: DataLayouts = field(init=False)
    phases: Mapping[Op, str] = field(init=False)
    sources: Sources = field(init=False)
    graphs: dict[Graph, LoweredGraph] = field(default_factory=dict)
    ops: list[OpInfo] = field(default_factory=list)
    numbers: dict[Op, int] = field(default_factory=dict)
    plans: dict[int, tuple[ConvolutionPlan, ...]] = field(default_factory=dict)
    low_confidence: dict[str, None] = field(default_factory=dict)
    loaded: Mapping[Graph, CodeOf] = field(init=False)
    shared_code: Mapping[tuple[int, str], SharedCode] = field(init=False)
    memory: MemoryReport = field(init=False)
    device_program: DeviceProgram = field(init=False)
