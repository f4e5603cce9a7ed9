"""Facts on links: their bytes, their use over time, and how transfers share them; collectives with their rounds."""

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
    """The totals of each used link, its use over time, and the collectives."""
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
    """The largest number of simultaneous transfers of each link, and its cycles with more than one."""
    links, moved = trace.columns("links"), trace.columns("transfers")
    names = dict(zip(links["link_id"].tolist(), links["name"], strict=True))
    rows = np.flatnonzero(moved["dur"] > 0)
    keys, order, begins = grouped(moved["link_id"][rows])
    sharing = {}
    for position, link in enumerate(keys.tolist()):
        link_rows = rows[order[begins[position] : begins[position + 1]]]
        time = np.concatenate([moved["start"][link_rows], moved["start"][link_rows] + moved["dur"][link_rows]])
        change = np.repeat([1, -1], len(link_rows))
        sequence = np.lexsort((change, time))  # transfers that end in a cycle come before those that begin in it
        at_once = np.cumsum(change[sequence])
        length = np.diff(time[sequence], append=time[sequence[-1]])
        sharing[str(names[link])] = (int(at_once.max()), int(length[at_once > 1].sum()))
    return sharing


def _collectives(trace: Trace) -> list[dict[str, Any]]:
    """A row for each collective, the one with the most bytes first, with its rounds and cycles."""
    moved, ops = trace.columns("transfers"), trace.columns("ops")
    rows = np.flatnonzero(np.isin(moved["kind"], _COLLECTIVES))
    keys, order, begins = grouped(moved["op_id"][rows])
    names = lookup(keys, ops["op_id"], ops["name"], "")
    collectives: list[dict[str, Any]] = []
    for position, name in enumerate(names.tolist()):
        op_rows = rows[order[begins[position] : begins[position + 1]]]
        starts, longest = grouped(moved["start"][op_rows])[0], 0
        for start, end in _rounds(moved["start"][op_rows], moved["dur"][op_rows]):
            longest += end - start
        collectives.append(
            {
                "op": str(name),
                "kind": str(moved["kind"][op_rows[0]]),
                "transfers": len(op_rows),
                "rounds": len(starts),
                "bytes": int(moved["bytes"][op_rows].sum()),
                "cycles": longest,
            }
        )
    return sorted(collectives, key=lambda row: -row["bytes"])[:200]


def _rounds(start: np.ndarray, dur: np.ndarray) -> list[tuple[int, int]]:
    """The stretches in which any transfer is under way."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate((start + dur)[order])
    round_begins = np.flatnonzero(np.append(True, start[1:] > end[:-1]))
    round_ends = np.append(round_begins[1:], len(start)) - 1
    return list(zip(start[round_begins].tolist(), end[round_ends].tolist(), strict=True))


def _binned(time: np.ndarray, value: np.ndarray, total: int, bins: int = 400) -> list[float]:
    """The mean of a step curve in equal stretches of the whole time."""
    # The mean is exact: the difference of the integral at both ends, over the length.
    edges = np.linspace(0, max(total, 1), bins + 1)
    area = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(time))])
    place = np.clip(np.searchsorted(time, edges, side="right") - 1, 0, len(time) - 1)
    integral = np.where(edges < time[0], 0.0, area[place] + value[place] * (edges - time[place]))
    return np.round(np.diff(integral) / np.diff(edges), 2).tolist()
