"""Transfers by link, without a row for each link of each send.

Links that carry the same transfers have the same times, so that they are looked at together. A Pod has thousands of
links, and a collective uses most of them alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ipuperf.trace.folded import FoldedTransfers, ranges
from ipuperf.trace.loops import unrolled
from ipuperf.trace.tables import TraceTables


class LinkTraffic(NamedTuple):
    """The transfers over each of some links, in order of start.

    A row is a transfer: its ``start`` and ``dur`` in cycles, its ``bytes`` over one link, the number of its op
    (``op_id``), its ``kind``, and the loop around it (``repeat``, a place in the arrays of the folded table; -1: none).
    ``links`` has the numbers of the links (``link_id``), in order.
    """

    links: np.ndarray
    start: np.ndarray
    dur: np.ndarray
    bytes: np.ndarray
    op_id: np.ndarray
    kind: np.ndarray
    repeat: np.ndarray

    def chosen(self, rows: np.ndarray) -> LinkTraffic:
        """The transfers of these rows, a place or a flag for each."""
        columns = {name: getattr(self, name)[rows] for name in self._fields[1:]}
        return self._replace(**columns)


def folded_traffic(trace: TraceTables) -> list[LinkTraffic]:
    """The transfers of all used links, each once for all trips of the loops around it; links that carry the same
    ones are together."""
    table = trace.folded("transfers")
    if not isinstance(table, FoldedTransfers):
        return list(_traffic_of_rows(trace))
    rows = np.arange(len(table.arrays["start"]))
    return list(_traffic(table, rows, table.arrays["start"], table.arrays["repeat"]))


def traffic(trace: TraceTables) -> list[LinkTraffic]:
    """The transfers of all used links in every trip; links that carry the same ones are together."""
    table = trace.folded("transfers")
    if not isinstance(table, FoldedTransfers):
        return list(_traffic_of_rows(trace))
    arrays = table.arrays
    rows, start, _ = unrolled(table.loops, arrays["start"], arrays["dur"], arrays["repeat"], None)
    return list(_traffic(table, rows, start, np.full(len(rows), -1)))


def _traffic_of_rows(trace: TraceTables) -> Iterator[LinkTraffic]:
    """The transfers of each link, of a table that is not folded."""
    table = trace.columns("transfers")
    order = np.lexsort((table["start"], table["link_id"]))
    links, begins = np.unique(table["link_id"][order], return_index=True)
    for link, rows in zip(links, np.split(order, begins[1:]), strict=False):
        columns = {name: table[name][rows] for name in ("start", "dur", "bytes", "op_id", "kind")}
        yield LinkTraffic(links=np.array([link]), repeat=np.full(len(rows), -1), **columns)


def _traffic(table: FoldedTransfers, rows: np.ndarray, start: np.ndarray, repeat: np.ndarray) -> Iterator[LinkTraffic]:
    """The traffic of rows of a folded table at these starts, by links that carry the same."""
    arrays, kinds = table.arrays, np.array(table.words["kinds"], dtype=object)
    routes_of, routes = _routes(arrays)
    order = np.lexsort((start, routes_of[arrays["template"][rows]]))
    rows, start, repeat = rows[order], start[order], repeat[order]
    template = arrays["template"][rows]
    edges = np.searchsorted(routes_of[template], np.arange(len(routes) + 1))
    for links, crossed in _alike(routes):
        # A link that a template crosses several times carries as many transfers at once.
        _, place = ranges(edges[crossed], edges[crossed + 1] - edges[crossed])
        place = place[np.argsort(start[place], kind="stable")]
        if len(place):
            of = template[place]
            yield LinkTraffic(
                links,
                start[place],
                arrays["dur"][rows[place]],
                arrays["bytes"][of],
                arrays["op_id"][of],
                kinds[arrays["kind"][of]],
                repeat[place],
            )


def _routes(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """For each template the number of its routes, and the links of these, as often as sends cross them."""
    numbers: dict[tuple[bytes, bytes], int] = {}
    routes: list[np.ndarray] = []
    # Most templates share their sends.
    parts, part = np.unique(np.stack([arrays["first"], arrays["sends"]]), axis=1, return_inverse=True)
    of_parts = np.empty(parts.shape[1], dtype=np.int64)
    for place, (first, sends) in enumerate(parts.T.tolist()):
        begin, count = (arrays[name][first : first + sends] for name in ("link_first", "links"))
        number = of_parts[place] = numbers.setdefault((begin.tobytes(), count.tobytes()), len(numbers))
        if number == len(routes):
            routes.append(np.sort(arrays["link_id"][ranges(begin, count)[1]]))
    return of_parts[part.reshape(-1)], routes


def _alike(routes: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Links that the same routes cross, and these routes, as often as they cross them."""
    link = np.concatenate([np.empty(0, dtype=np.int64), *routes])
    route = np.repeat(np.arange(len(routes)), [len(links) for links in routes])
    order = np.lexsort((route, link))
    links, begins = np.unique(link[order], return_index=True)
    alike: dict[bytes, tuple[list[int], np.ndarray]] = {}
    for number, crossed in zip(links.tolist(), np.split(route[order], begins[1:]), strict=False):
        alike.setdefault(crossed.tobytes(), ([], crossed))[0].append(number)
    for numbers, crossed in alike.values():
        yield np.array(numbers), crossed
