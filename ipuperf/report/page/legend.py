"""The names and colours on the page, each with a colour that colour-blind readers can tell apart."""

from __future__ import annotations

from ipuperf.report.palette import CATEGORY_COLOURS, KIND_COLOURS, KIND_LABELS, PHASE_COLOURS
from ipuperf.trace import KINDS, PHASES

SAFE_COLOURS: dict[str, str] = {
    "compute": "#d55e00",
    "exchange": "#56b4e9",
    "sync": "#f0e442",
    "link": "#009e73",
    "remote_load": "#0072b2",
    "remote_store": "#7fb6d8",
    "host_begin": "#dddddd",
    "host_mid": "#cc79a7",
    "host_end": "#e6bcd3",
    "host_run": "#8a6d3b",
    "sync_external": "#555555",
    "idle": "#555555",
}
"""Colours of kinds of steps that colour-blind readers can tell apart (those of Okabe and Ito)."""

SAFE_PHASES: dict[str, str] = {
    "fwd": "#009e73",
    "recompute": "#8fd3bd",
    "bwd": "#e69f00",
    "update": "#0072b2",
    "io": "#cc79a7",
    "other": "#bbbbbb",
}
"""Such colours for phases of ops."""

SAFE_CATEGORIES: tuple[str, ...] = (
    *("#d55e00", "#0072b2", "#e69f00", "#009e73", "#8fd3bd", "#f0e442", "#56b4e9"),
    *("#999999", "#cc79a7", "#7fb6d8", "#555555", "#e6bcd3", "#8a6d3b", "#e4e4e4"),
)
"""Such colours for categories of memory, in the order of :data:`~ipuperf.report.palette.CATEGORY_COLOURS`."""


def legend() -> dict[str, list[dict[str, str]]]:
    """Kinds of steps, phases of ops and categories of memory, in the order of their codes."""
    return {
        "kinds": [
            {"name": kind, "label": KIND_LABELS[kind], "colour": KIND_COLOURS[kind], "safe": SAFE_COLOURS[kind]}
            for kind in KINDS
        ],
        "phases": [{"name": phase, "colour": PHASE_COLOURS[phase], "safe": SAFE_PHASES[phase]} for phase in PHASES],
        "categories": [
            {"name": name, "colour": colour, "safe": safe}
            for (name, colour), safe in zip(CATEGORY_COLOURS.items(), SAFE_CATEGORIES, strict=True)
        ],
    }
