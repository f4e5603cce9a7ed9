"""The folded, columnar trace: tables of templates and instances, and the questions asked of them.

>>> trace = Trace.load("run.ipt")           # doctest: +SKIP
>>> trace.summary()["total_cycles"]         # doctest: +SKIP
>>> trace.expand(window=(0, 10_000))        # doctest: +SKIP

The tables are described in :mod:`ipuperf.trace.schema`; this room knows nothing of programs, machines or figures.
"""

from __future__ import annotations

from ipuperf.trace.check import check
from ipuperf.trace.columns import Words
from ipuperf.trace.errors import TraceError, TraceSizeError
from ipuperf.trace.fold import (
    MOST_SLICES,
    Slices,
    fitting_window,
    instances_in,
    merged_slices,
    pairs,
    slice_batches,
    slice_count,
    slices,
    span,
    step_runs,
    working_cycles,
)
from ipuperf.trace.folded import (
    FoldedCode,
    FoldedHostEvents,
    FoldedInstances,
    FoldedTransfers,
    FoldedVariables,
    SteadyLoop,
)
from ipuperf.trace.loops import spent
from ipuperf.trace.operations import NO_OP_NAME
from ipuperf.trace.schema import (
    HOST_WAITING_KINDS,
    KINDS,
    LOCATIONS,
    MEMORY_CATEGORIES,
    NO_OP,
    PHASES,
    SCHEMA_VERSION,
    TABLES,
    TRANSFER_KINDS,
    WAITING_KINDS,
    Column,
    Table,
)
from ipuperf.trace.shortened import Cut, Ipu, LoopCuts, Shortened
from ipuperf.trace.store import replacing
from ipuperf.trace.template import Window, check_window
from ipuperf.trace.trace import Trace

__all__ = [
    "HOST_WAITING_KINDS",
    "KINDS",
    "LOCATIONS",
    "MEMORY_CATEGORIES",
    "MOST_SLICES",
    "NO_OP",
    "NO_OP_NAME",
    "PHASES",
    "SCHEMA_VERSION",
    "TABLES",
    "TRANSFER_KINDS",
    "WAITING_KINDS",
    "Column",
    "Cut",
    "FoldedCode",
    "FoldedHostEvents",
    "FoldedInstances",
    "FoldedTransfers",
    "FoldedVariables",
    "Ipu",
    "LoopCuts",
    "Shortened",
    "Slices",
    "SteadyLoop",
    "Table",
    "Trace",
    "TraceError",
    "TraceSizeError",
    "Window",
    "Words",
    "check",
    "check_window",
    "fitting_window",
    "instances_in",
    "merged_slices",
    "pairs",
    "replacing",
    "slice_batches",
    "slice_count",
    "slices",
    "span",
    "spent",
    "step_runs",
    "working_cycles",
]
