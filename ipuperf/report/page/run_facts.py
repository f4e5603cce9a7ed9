"""Facts on the last run: the parts of its time, its waiting by owner, and its critical path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ipuperf.report.advice import LEAST_GAIN
from ipuperf.report.critical_path import CriticalPath, path_stretches
from ipuperf.report.page.encoding import lists
from ipuperf.report.step_time import TIME_PARTS, StepTime

if TYPE_CHECKING:
    import pandas as pd


_POINTS = 20_000
"""The largest number of pieces of the critical path that are drawn."""
_COSTS = 400
"""The largest number of rows of the table of the critical path, the costliest ones."""
PART_NAMES: dict[str, str] = {
    "compute": "compute",
    "exchange": "exchange between tiles",
    "sync": "syncs and waiting for other IPUs",
    "links": "IPU-Links",
    "ddr": "Streaming Memory",
    "host": "the host",
}
"""The names of parts of a run in which waiting has no owner."""

UNTOLD = (
    "The run has too many steps to follow them one by one: whom its IPUs wait for, and its critical path, are not "
    "told; waiting counts as sync."
)
"""What the page says of a run that is too long for waits and paths."""


def run_facts(time: StepTime, path: CriticalPath, costs: pd.DataFrame) -> dict[str, Any]:
    """The time of a run, with its critical path, and its ``costs`` by IPU, kind and op."""
    pieces = path_stretches(path, _POINTS)
    return {
        "ipu": time.ipu,
        "replica": time.replica,
        "total": time.total,
        "sentence": time.sentence(),
        "parts": _parts(time.parts, TIME_PARTS),
        "waiting": {str(ipu): owners for ipu, owners in time.waits.by_ipu().items()},
        "path": lists(pieces.table),
        "path_pieces": pieces.total,
        "path_cycles": lists(costs.head(_COSTS)),
    }


def long_run_facts(replica: int, ipu: int, parts: Mapping[str, int]) -> dict[str, Any]:
    """The time of a run with too many steps to follow: cycles by kind of step, without owners of waits."""
    total = sum(parts.values())
    largest = max(parts, key=lambda name: parts[name])
    return {
        "ipu": ipu,
        "replica": replica,
        "total": total,
        "sentence": f"bound by {PART_NAMES[largest]} ({100 * parts[largest] / max(total, 1):.1f} % of it)",
        "parts": _parts(parts, PART_NAMES),
        "waiting": {},
        "path": None,
    }


def advice_facts(advice: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What changes gain: those that gain something, and those that change the training apart; None: not simulated."""
    if advice is None:
        return None
    # Where the run does not fit, each change with which it does is worth showing.
    listed = [trial for trial in advice["trials"] if not advice["fits"] or trial["gain"] >= LEAST_GAIN]
    return {
        "fullest": advice["fullest"],
        "same": [trial for trial in listed if not trial["training"]],
        "training": [trial for trial in listed if trial["training"]],
        "untried": advice["untried"],
    }


def _parts(parts: Mapping[str, int], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "label": labels[name], "cycles": cycles} for name, cycles in parts.items()]
