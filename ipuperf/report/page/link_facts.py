"""Facts on links: their bytes, their use over time, and how transfers share them; collectives with their rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ipuperf.report.live import Series
from ipuperf.report.page.encoding import Columns, groups
from ipuperf.report.waiting import Rates
from ipuperf.trace import LoopCuts, Shortened
from ipuperf.trace.summary import union_length
from ipuperf.trace.traffic import LinkTraffic, traffic

_SHOWN = 64
"""The largest number of listed links, the busiest ones."""
_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


def link_facts(
    short: Shortened, totals: Iterable[dict[str, Any]], use: Mapping[str, Series], total_cycles: int
) -> dict[str, Any]:
    """The totals of each used link, its use over time, and the collectives, of a shortened trace.

    ``totals`` are the links of a summary, ``use`` the percentage of the bandwidth in use over time by link, in cycles
    of the shortened trace.
    """
    links, carried = short.trace.columns("links"), traffic(short.trace)
    used = sorted((link for link in totals if link["bytes"]), key=lambda link: -link["utilisation"])[:_SHOWN]
    shared = _sharing(links, carried, short.cuts)
    curves: dict[int, list[float]] = {}
    for link in used:
        link["bytes"], link["utilisation"] = int(link["bytes"]), float(link["utilisation"])
        link["most"], link["shared"] = shared.get(link["name"], (0, 0))
        if link["name"] in use:
            curve = use[link["name"]]
            # Links that carry the same have the same curve.
            if id(curve) not in curves:
                curves[id(curve)] = _binned(*curve, total_cycles, cuts=short.cuts)
            link["use"] = curves[id(curve)]
    return {"used": used, "collectives": _collectives(carried, short.trace.columns("ops"), short.cuts)}


def _sharing(links: Columns, carried: Iterable[LinkTraffic], cuts: LoopCuts) -> dict[str, tuple[int, int]]:
    """The largest number of simultaneous transfers of each link, and its cycles with more than one."""
    names = dict(zip(links["link_id"].tolist(), links["name"], strict=True))
    sharing = {}
    for transfers in carried:
        moving = transfers.chosen(transfers.dur > 0)
        if not len(moving.start):
            continue
        time = np.concatenate([moving.start, moving.start + moving.dur])
        change = np.repeat([1, -1], len(moving.start))
        sequence = np.lexsort((change, time))  # transfers that end in a cycle come before those that begin in it
        at_once = np.cumsum(change[sequence])
        # Nothing is under way behind the last end, so its length is 0.
        length = np.diff(cuts.elapsed(time[sequence]), append=0)
        of_each = int(at_once.max()), int(length[:-1][at_once[:-1] > 1].sum())
        sharing.update({str(names[link]): of_each for link in moving.links.tolist()})
    return sharing


def _collectives(carried: Sequence[LinkTraffic], ops: Columns, cuts: LoopCuts) -> list[dict[str, Any]]:
    """A row for each collective, the one with the most bytes first, with its rounds and cycles."""
    is_collective = frozenset(_COLLECTIVES).__contains__  # NumPy compares strings slowly
    chosen = [
        (part, np.flatnonzero(np.fromiter(map(is_collective, part.kind.tolist()), dtype=bool))) for part in carried
    ]
    if not chosen:
        return []
    op_ids, start, dur, size, kind = (
        np.concatenate([getattr(part, name)[rows] for part, rows in chosen])
        for name in ("op_id", "start", "dur", "bytes", "kind")
    )
    links = np.repeat([len(part.links) for part, _ in chosen], [len(rows) for _, rows in chosen])
    names = dict(zip(ops["op_id"].tolist(), ops["name"], strict=True))
    times, begin, end = cuts.times(start), cuts.elapsed(start), cuts.elapsed(start + dur)
    carried_times = times * links
    moved = size * carried_times
    collectives: list[dict[str, Any]] = []
    for op_id, rows in groups(op_ids):
        in_order = rows[np.argsort(start[rows], kind="stable")]
        # Sends of one round begin together.
        first = np.append(True, np.diff(start[in_order]) > 0)
        collectives.append(
            {
                "op": str(names.get(op_id, "")),
                "kind": str(kind[rows[0]]),
                "transfers": int(carried_times[rows].sum()),
                "rounds": int(times[in_order][first].sum()),
                "bytes": int(moved[rows].sum()),
                "cycles": union_length(begin[in_order], end[in_order]),
            }
        )
    return sorted(collectives, key=lambda row: -row["bytes"])[:200]


def _binned(
    time: np.ndarray, value: np.ndarray, total: int, bins: int = 400, cuts: LoopCuts | None = None
) -> list[float]:
    """The mean of a step curve in equal stretches of the whole time."""
    # The mean is exact: the difference of the integral at both ends, over the length.
    edges = np.linspace(0, max(total, 1), bins + 1)
    # The curve is 0 before its first step. After its last one it stays as it is.
    rates = np.append(0.0, value)[:, None]
    curve = Rates(np.array([min(time[0] - 1, 0), *time, max(time[-1], total) + 1]), rates, cuts or LoopCuts())
    integral = curve.until(edges)[:, 0]
    means: list[float] = np.round(np.diff(integral) / np.diff(edges), 2).tolist()
    return means
