"""Makes table ``transfers`` from what was recorded.

A Pod makes the same sends thousands of times. What two templates have in common is therefore handled and stored once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipuperf.trace import FoldedTransfers

from .folding import Unfolding
from .recorder import Recorder, TransferTemplate
from .rows import whole_numbers

_MOST = 2**62
"""Codes that combine several numbers stay below this, so that int64 holds them."""


def transfer_rows(recorder: Recorder, unfolding: Unfolding) -> FoldedTransfers:
    """Table ``transfers``. Transfers that differ only in their times share a template."""
    moved, templates = recorder.transfers.columns(), recorder.templates
    sizes = whole_numbers(map(len, recorder.batches))
    # A batch is expanded into its templates, a row for each.
    counts = sizes[moved["batch"]]
    shift = (np.cumsum(sizes) - sizes)[moved["batch"]] - (np.cumsum(counts) - counts)
    flat = whole_numbers(number for batch in recorder.batches for number in batch)
    lengths = np.repeat(moved["dur"], counts)
    ends, repeat = unfolding.rows(np.repeat(moved["start"], counts) + lengths)
    kinds: dict[str, int] = {}
    return FoldedTransfers(
        {
            **unfolding.loops(),
            "start": ends - lengths,
            "dur": lengths,
            "repeat": repeat,
            "template": flat[np.arange(counts.sum()) + np.repeat(shift, counts)],
            "bytes": whole_numbers(row.size for row in templates),
            "op_id": whole_numbers(row.label.op_id for row in templates),
            "kind": whole_numbers(kinds.setdefault(row.label.kind, len(kinds)) for row in templates),
            **_sends(templates),
        },
        {"kinds": tuple(kinds)},
    )


def _sends(templates: Sequence[TransferTemplate]) -> dict[str, np.ndarray]:
    """The sends of each template: their owners, IPUs and links.

    Templates with the same flights and the same owner share their sends. Sends over the same links share a list.
    """
    # By identity, because the network gives equal flights as the same object (while its cache has them).
    bundles = {id(row.flights): row.flights for row in templates}
    flights = {id(flight): flight for bundle in bundles.values() for flight in bundle}
    place = dict(zip(flights, range(len(flights)), strict=True))
    numbers = {key: whole_numbers(place[id(flight)] for flight in bundle) for key, bundle in bundles.items()}
    owners: dict[tuple[int, ...], int] = {}
    groups: dict[tuple[int, int], int] = {}
    group = whole_numbers(
        groups.setdefault((owners.setdefault(row.owner, len(owners)), id(row.flights)), len(groups))
        for row in templates
    )
    counts = whole_numbers(len(bundles[bundle]) for _, bundle in groups)
    flight = np.concatenate([np.empty(0, dtype=np.int64), *(numbers[bundle] for _, bundle in groups)])
    owner = np.repeat(whole_numbers(owner for owner, _ in groups), counts)
    ways: dict[tuple[int, ...], int] = {}
    way = whole_numbers(ways.setdefault(flight.links, len(ways)) for flight in flights.values())[flight]
    links = whole_numbers(map(len, ways))
    return {
        "first": (np.cumsum(counts) - counts)[group],
        "sends": counts[group],
        "rank": _ranks(list(owners), [flight.owner for flight in flights.values()], owner, flight),
        "ipu": whole_numbers(flight.ipu for flight in flights.values())[flight],
        "link_first": (np.cumsum(links) - links)[way],
        "links": links[way],
        "link_id": whole_numbers(link for route in ways for link in route),
    }


def _ranks(
    heads: Sequence[tuple[int, ...]], tails: Sequence[tuple[int, ...]], head: np.ndarray, tail: np.ndarray
) -> np.ndarray:
    """The ranks of the tuples ``heads[head] + tails[tail]`` in sorted order, from 0 on; equal tuples have equal ranks.

    The numbers in the tuples must not be negative.
    """
    # Column by column, the columns so far become a single number, so that NumPy can sort the tuples.
    begins, ends = _padded(heads), _padded(tails)
    lengths = whole_numbers(map(len, heads))[head]
    code, size = np.zeros(len(head), dtype=np.int64), 1
    for column in range(begins.shape[1] + ends.shape[1]):
        behind = np.clip(column - lengths, 0, ends.shape[1] - 1)
        inside = begins[head, min(column, begins.shape[1] - 1)]
        # One more than the number, so that the -1 after a tuple becomes the smallest code.
        value = np.where(column < lengths, inside, ends[tail, behind]) + 1
        base = int(value.max(initial=0)) + 1
        # When the next column could overflow, the codes are replaced by their ranks, which are small.
        if size * base > _MOST:
            distinct, code = np.unique(code, return_inverse=True)
            size = len(distinct)
        code, size = code * base + value, size * base
    return np.asarray(np.unique(code, return_inverse=True)[1], dtype=np.int64)


def _padded(tuples: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The tuples as rows. At least one -1 follows each tuple; it sorts before any number."""
    rows = np.full((len(tuples), 1 + max(map(len, tuples), default=0)), -1, dtype=np.int64)
    for row, numbers in zip(rows, tuples, strict=True):
        row[: len(numbers)] = numbers
    return rows
