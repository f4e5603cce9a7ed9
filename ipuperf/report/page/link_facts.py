"""Facts on links: their bytes, their use over time, and how transfers share them; collectives with their rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.page.encoding import Columns, Tables, groups, stretches

if TYPE_CHECKING:
    from ipuperf.report.live import Series

_SHOWN = 64
"""The largest number of listed links, the busiest ones."""
_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


def link_facts(
    tables: Tables, totals: Iterable[dict[str, Any]], use: Mapping[str, Series], total_cycles: int
) -> dict[str, Any]:
    """The totals of each used link, its use over time, and the collectives.

    ``totals`` are the links of a summary, ``use`` the percentage of the bandwidth in use over time by link.
    """
    used = sorted((link for link in totals if link["bytes"]), key=lambda link: -link["utilisation"])[:_SHOWN]
    shared = _sharing(tables["links"], tables["transfers"])
    for link in used:
        link["bytes"], link["utilisation"] = int(link["bytes"]), float(link["utilisation"])
        link["most"], link["shared"] = shared.get(link["name"], (0, 0))
        if link["name"] in use:
            link["use"] = _binned(*use[link["name"]], total_cycles)
    return {"used": used, "collectives": _collectives(tables["transfers"], tables["ops"])}


def _sharing(links: Columns, transfers: Columns) -> dict[str, tuple[int, int]]:
    """The largest number of simultaneous transfers of each link, and its cycles with more than one."""
    names = dict(zip(links["link_id"].tolist(), links["name"], strict=True))
    timed = np.flatnonzero(transfers["dur"] > 0)
    sharing = {}
    for link, part in groups(transfers["link_id"][timed]):
        rows = timed[part]
        time = np.concatenate([transfers["start"][rows], transfers["start"][rows] + transfers["dur"][rows]])
        change = np.repeat([1, -1], len(rows))
        sequence = np.lexsort((change, time))  # transfers that end in a cycle come before those that begin in it
        at_once = np.cumsum(change[sequence])
        # Nothing is under way behind the last end, so its length is 0.
        length = np.diff(time[sequence], append=time[sequence[-1]])
        sharing[str(names[link])] = (int(at_once.max()), int(length[at_once > 1].sum()))
    return sharing


def _collectives(transfers: Columns, ops: Columns) -> list[dict[str, Any]]:
    """A row for each collective, the one with the most bytes first, with its rounds and cycles."""
    chosen = np.flatnonzero(np.isin(transfers["kind"], _COLLECTIVES))
    names = dict(zip(ops["op_id"].tolist(), ops["name"], strict=True))
    collectives: list[dict[str, Any]] = []
    for op_id, part in groups(transfers["op_id"][chosen]):
        rows = chosen[part]
        rounds = _rounds(transfers["start"][rows], transfers["dur"][rows])
        collectives.append(
            {
                "op": str(names.get(op_id, "")),
                "kind": str(transfers["kind"][rows[0]]),
                "transfers": len(rows),
                # Sends of one round begin together.
                "rounds": len(np.unique(transfers["start"][rows])),
                "bytes": int(transfers["bytes"][rows].sum()),
                "cycles": sum(end - start for start, end in rounds),
            }
        )
    return sorted(collectives, key=lambda row: -row["bytes"])[:200]


def _rounds(start: np.ndarray, dur: np.ndarray) -> list[tuple[int, int]]:
    """The stretches in which any transfer is under way."""
    order = np.argsort(start, kind="stable")
    _, begin, end = stretches(start[order], dur[order])
    return list(zip(begin.tolist(), end.tolist(), strict=True))


def _binned(time: np.ndarray, value: np.ndarray, total: int, bins: int = 400) -> list[float]:
    """The mean of a step curve in equal stretches of the whole time."""
    # The mean is exact: the difference of the integral at both ends, over the length.
    edges = np.linspace(0, max(total, 1), bins + 1)
    area = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(time))])
    place = np.clip(np.searchsorted(time, edges, side="right") - 1, 0, len(time) - 1)
    integral = np.where(edges < time[0], 0.0, area[place] + value[place] * (edges - time[place]))
    means: list[float] = np.round(np.diff(integral) / np.diff(edges), 2).tolist()
    return means
