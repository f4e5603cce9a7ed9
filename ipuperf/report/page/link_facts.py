"""Links on a page: how much each carries, when, and how often its transfers share it; collectives with their rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.live import link_use
from ipuperf.report.page.encoding import grouped
from ipuperf.trace.columns import lookup

if TYPE_CHECKING:
    from ipuperf.trace import Trace

_SHOWN = 64
_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


def link_facts(trace: Trace, summary: dict[str, Any]) -> dict[str, Any]:
    """Totals of each used link, its use over time, and the collectives."""
    used = sorted((link for link in summary["links"] if link["bytes"]), key=lambda link: -link["utilisation"])[:_SHOWN]
    use, shared = link_use(trace), _sharing(trace)
    for link in used:
        link["bytes"], link["utilisation"] = int(link["bytes"]), float(link["utilisation"])
        link["most"], link["shared"] = shared.get(link["name"], (0, 0))
        if link["name"] in use:
            time, value = use[link["name"]]
            link["use"] = _binned(time, value, summary["total_cycles"])
    return {"used": used, "collectives": _collectives(trace)}


def _sharing(trace: Trace) -> dict[str, tuple[int, int]]:
    """By link: transfers at once at most, and cycles with more than one."""
    links, moved = trace.columns("links"), trace.columns("transfers")
    names = dict(zip(links["link_id"].tolist(), links["name"], strict=True))
    rows = np.flatnonzero(moved["dur"] > 0)
    keys, order, begins = grouped(moved["link_id"][rows])
    result = {}
    for number, link in enumerate(keys.tolist()):
        mine = rows[order[begins[number] : begins[number + 1]]]
        time = np.concatenate([moved["start"][mine], moved["start"][mine] + moved["dur"][mine]])
        change = np.repeat([1, -1], len(mine))
        sequence = np.lexsort((change, time))  # what ends at a cycle makes room for what begins
        at_once = np.cumsum(change[sequence])
        length = np.diff(time[sequence], append=time[sequence[-1]])
        result[str(names[link])] = (int(at_once.max()), int(length[at_once > 1].sum()))
    return result


def _collectives(trace: Trace) -> list[dict[str, Any]]:
    """One row per collective, the one with most bytes first: its rounds, and how long the IPUs are in it."""
    moved, ops = trace.columns("transfers"), trace.columns("ops")
    rows = np.flatnonzero(np.isin(moved["kind"], _COLLECTIVES))
    keys, order, begins = grouped(moved["op_id"][rows])
    names = lookup(keys, ops["op_id"], ops["name"], "")
    found: list[dict[str, Any]] = []
    for number, name in enumerate(names.tolist()):
        mine = rows[order[begins[number] : begins[number + 1]]]
        starts, longest = grouped(moved["start"][mine])[0], 0
        for start, end in _rounds(moved["start"][mine], moved["dur"][mine]):
            longest += end - start
        found.append(
            {
                "op": str(name),
                "kind": str(moved["kind"][mine[0]]),
                "transfers": len(mine),
                "rounds": len(starts),
                "bytes": int(moved["bytes"][mine].sum()),
                "cycles": longest,
            }
        )
    return sorted(found, key=lambda row: -row["bytes"])[:200]


def _rounds(start: np.ndarray, dur: np.ndarray) -> list[tuple[int, int]]:
    """Stretches in which something is on its way."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate((start + dur)[order])
    new = np.flatnonzero(np.append(True, start[1:] > end[:-1]))
    last = np.append(new[1:], len(start)) - 1
    return list(zip(start[new].tolist(), end[last].tolist(), strict=True))


def _binned(time: np.ndarray, value: np.ndarray, total: int, bins: int = 400) -> list[float]:
    """Mean of a step curve in equal stretches of the whole time."""
    edges = np.linspace(0, max(total, 1), bins + 1)
    area = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(time))])
    place = np.clip(np.searchsorted(time, edges, side="right") - 1, 0, len(time) - 1)
    at = np.where(edges < time[0], 0.0, area[place] + value[place] * (edges - time[place]))
    return np.round(np.diff(at) / np.diff(edges), 2).tolist()
