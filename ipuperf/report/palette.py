"""The colours of figures, which PopVision's users know, and the order in which kinds of steps are stacked.

The colours of phases and of comparisons are those of PopVision Graph Analyser (sampled from screenshots,
``docs/reference/traces.md`` 1); those of Streaming Memory, of the fixed host cost, of StreamCopyEnd
(PopVision draws it like a sync), of memory categories and of what an op is for are ours.
"""

from __future__ import annotations

KIND_COLOURS: dict[str, str] = {
    "compute": "#f66271",
    "exchange": "#b1e0e7",
    "sync": "#f6e6a1",
    "link": "#95a595",
    "remote_load": "#8f7ac6",
    "remote_store": "#c2b2e6",
    "host_begin": "#dbdbdb",
    "host_mid": "#f0b093",
    "host_end": "#e0bf7d",
    "host_run": "#a9805b",
    "sync_external": "#757575",
    "idle": "#757575",
}
"""Colour of each kind of step, in the order in which they are stacked from the bottom."""

KIND_LABELS: dict[str, str] = {
    "compute": "compute",
    "exchange": "exchange",
    "sync": "sync",
    "link": "global exchange",
    "remote_load": "remote load",
    "remote_store": "remote store",
    "host_begin": "StreamCopyBegin",
    "host_mid": "StreamCopyMid",
    "host_end": "StreamCopyEnd",
    "host_run": "host run",
    "sync_external": "external sync, idle",
    "idle": "external sync, idle",
}
"""The label of each kind in legends. Kinds of one colour share a label."""

PHASE_COLOURS: dict[str, str] = {
    "fwd": "#8ccf8c",
    "recompute": "#c3e6bd",
    "bwd": "#7fa8de",
    "update": "#e3b75e",
    "io": "#e8cdb5",
    "other": "#c9b8a4",
}
"""The colour of each phase."""

WAITING_COLOUR = "#ececec"
"""The colour of time in which an IPU waits for others."""

PHASE_LETTERS: dict[str, str] = {"fwd": "F", "recompute": "R", "bwd": "B", "update": "U", "io": "", "other": ""}
"""The letter before the micro-batch number on an instance."""

BREAKDOWN_COLOURS: dict[str, str] = {
    "compute": "#f66271",
    "exchange": "#b1e0e7",
    "sync": "#f6e6a1",
    "links": "#95a595",
    "ddr": "#8f7ac6",
    "host": "#f0b093",
}
"""Colour of each part of a time breakdown."""

COMPARE_ALWAYS: tuple[str, ...] = ("#f66271", "#f7aa67", "#8c564b", "#e377c2")
"""Always-live colours: source, target, then further programs."""

COMPARE_NOT_ALWAYS: tuple[str, ...] = ("#6f6ffe", "#209b00", "#17becf", "#bcbd22")
"""Not-always-live colours: source, target, then further programs."""

CATEGORY_COLOURS: dict[str, str] = {
    "variableAlwaysLive": "#f66271",
    "variableNotAlwaysLive": "#6f6ffe",
    "constant": "#f7aa67",
    "vertexCode": "#209b00",
    "vertexInstanceState": "#8ccf8c",
    "controlCode": "#c9a227",
    "internalExchangeCode": "#7cc5d0",
    "globalExchangeCode": "#95a595",
    "hostExchangeCode": "#f0b093",
    "copyDescriptor": "#b07aa1",
    "globalExchangePacketHeader": "#5f6f5f",
    "hostExchangePacketHeader": "#c47f5c",
    "stack": "#8c6d5a",
    "gaps": "#e4e4e4",
}
"""Colour of each category of tile memory, in the order in which they are stacked from the bottom."""

LIMIT_COLOUR = "#333333"
OVER_COLOUR = "#d40000"
"""The colours of the memory limit and of bytes above it."""
