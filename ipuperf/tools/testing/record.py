"""The record that a baseline keeps of a trace: figures by section, and a table of its ops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ipuperf.trace import Trace

SECTIONS = {
    "system": "system",
    "cycles": "cycles",
    "memory": "memory, bytes",
    "transfers": "bytes moved, by kind of transfer",
}
"""Sections of figures and their titles; ``operations`` is the section of the table of ops."""

MACHINE_KEYS = ("machine", "clock_hz", "tiles_per_ipu", "bytes_per_tile")
"""Keys of a header that describe the machine; a baseline is only compared on an equal machine."""

Header = dict[str, Any]
Figures = dict[str, int]
Summary = dict[str, Any]


@dataclass(frozen=True)
class OpFigures:
    """One op and its figures.

    The op is named by its scope, its type, and its number among the ops of that type there. Its figures are the number
    of its runs and the cycles of all its steps, on all IPUs and replicas together.
    """

    scope: str
    type: str
    number: int
    calls: int
    cycles: int

    @property
    def name(self) -> str:
        """Name in tables: type and number; "(no op)" for steps that belong to no op."""
        return f"{self.type} {self.number}" if self.type else "(no op)"

    @property
    def path(self) -> str:
        """Scope and name."""
        return f"{self.scope}/{self.name}" if self.scope else self.name


@dataclass(frozen=True)
class Record:
    """Header, figures by section (see :data:`SECTIONS`), and ops in the order in which the program creates them."""

    header: Header
    figures: dict[str, Figures]
    operations: tuple[OpFigures, ...]


def record(trace: Trace) -> Record:
    """Make the record of a trace.

    ``system``: IPUs and replicas. ``cycles``: the whole trace (and each run if there are several), the parts of the
    last run on its critical IPU (:func:`ipuperf.report.breakdown_cycles`), and the cycles of each kind on all IPUs.
    ``memory``: for each stored IPU the peak of live bytes, always and not always live, the fullest tile and each
    category. ``transfers``: bytes of each kind over each kind of link, and bytes that steps receive and send, by kind.
    Figures that are 0 are left out.
    """
    summary = trace.summary()
    header = {key: trace.meta[key] for key in ("ipuperf_version", "schema_version", *MACHINE_KEYS)}
    header["program"] = str(trace.meta.get("program", ""))
    figures = {
        "system": {"IPUs": int(trace.meta["num_ipus"]), "replicas": int(trace.meta["replicas"])},
        "cycles": _cycles(trace, summary),
        "memory": _memory(trace, summary),
        "transfers": _transfers(trace, summary),
    }
    nonzero = {
        name: _sorted({figure_name: amount for figure_name, amount in values.items() if amount})
        for name, values in figures.items()
    }
    return Record(header, nonzero, tuple(operation_figures(trace)))


def operation_figures(trace: Trace) -> Iterator[OpFigures]:
    """Yield the ops of a trace in the order in which the program creates them, with the cycles of all their steps.

    Waiting is included. The numbers at the end of the names of ops and graphs count everything created before, so one
    new op would rename all later ones. They give the order but are left out of the record; ops are numbered by type
    within their scope instead.
    """
    # The table's row breaks ties between names with the same number.
    place = {name: row for row, name in enumerate(trace.columns("ops")["name"])}
    table = trace.operations()
    order = [(_trailing_number(name), place.get(name, -1)) for name in table["op"]]
    numbers: Counter[tuple[str, str]] = Counter()
    for row in sorted(range(len(order)), key=order.__getitem__):
        name, kind = str(table["op"].iloc[row]), str(table["type"].iloc[row])
        # Graph names carry such numbers too.
        scope = re.sub(r"\(\d+\)", "", name.rpartition("/")[0])
        numbers[scope, kind] += 1
        calls = int(table["calls"].iloc[row])
        cycles = int(table["cycles"].iloc[row] + table["waiting_cycles"].iloc[row])
        yield OpFigures(scope, kind, numbers[scope, kind], calls, cycles)


def _trailing_number(name: str) -> int:
    """The number after the last dot, -1 if there is none."""
    tail = name.rpartition(".")[2]
    return int(tail) if tail.isdigit() else -1


def _sorted(figures: Figures) -> Figures:
    """Sort by name; numbers within names sort by value."""

    def key(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]

    return {name: figures[name] for name in sorted(figures, key=key)}


def _cycles(trace: Trace, summary: Summary) -> Figures:
    from ipuperf.report.breakdown import breakdown_cycles
    from ipuperf.trace import KINDS

    figures = {"total": int(summary["total_cycles"])}
    if len(summary["runs"]) > 1:
        figures.update({f"run {row}": int(run["cycles"]) for row, run in enumerate(summary["runs"])})
    if len(trace.columns("instances")["instance"]):
        figures.update({f"critical IPU: {part}": cycles for part, cycles in breakdown_cycles(trace).items()})
    for kind in KINDS:
        figures[f"all IPUs: {kind}"] = sum(ipu["kinds"][kind] for ipu in summary["ipus"])
    return figures


def _memory(trace: Trace, summary: Summary) -> Figures:
    from ipuperf.trace.tables import fullest_tile

    figures: Figures = {}
    memory = trace.columns("tile_memory")
    for ipu in summary["memory"]["ipus"]:
        name = f"IPU {ipu['ipu']}"
        for key, label in (
            ("total_peak", "peak of live bytes"),
            ("always_live", "always live"),
            ("not_always_live_peak", "not always live, peak"),
        ):
            figures[f"{name}: {label}"] = ipu[key] or 0
        rows = memory["ipu"] == ipu["ipu"]
        fullest = fullest_tile({key: values[rows] for key, values in memory.items()})
        figures[f"{name}: fullest tile"] = fullest[2] if fullest else 0
        for category in set(memory["category"][rows]):
            chosen = rows & (memory["category"] == category)
            figures[f"{name}: category {category}"] = int(memory["bytes"][chosen].sum())
    return figures


def _transfers(trace: Trace, summary: Summary) -> Figures:
    transfers, links = trace.columns("transfers"), trace.columns("links")
    kind_of = dict(zip(links["link_id"].tolist(), links["kind"], strict=True))
    figures: Counter[str] = Counter()
    for link_id in np.unique(transfers["link_id"]).tolist():
        rows = transfers["link_id"] == link_id
        for kind in set(transfers["kind"][rows]):
            chosen = rows & (transfers["kind"] == kind)
            figures[f"{kind} over {kind_of.get(link_id, 'an unknown link')}"] += int(transfers["bytes"][chosen].sum())
    for kind, moved in summary["traffic"].items():
        figures[f"steps of kind {kind}: received"] = moved["bytes_in"]
        figures[f"steps of kind {kind}: sent"] = moved["bytes_out"]
    return dict(figures)
