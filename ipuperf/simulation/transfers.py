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
    """The sends of each template, and the places of owners in sorted order.

    The order of sends is that of the template's owner with the send's behind it. A send's owner begins with its party
    (two numbers). The numbers behind are the same for all sends of a template, so that they are kept with the template.
    Templates then share sends of the same parties over the same links, and sends over the same links share a list.
    """
    # By identity, because the network gives equal flights as the same object (while its cache has them).
    bundles = {id(row.flights): row.flights for row in templates}
    flights = [flight for flights in bundles.values() for flight in flights]
    counts = whole_numbers(map(len, bundles.values()))
    ways: dict[tuple[int, ...], int] = {}
    way = whole_numbers(ways.setdefault(flight.links, len(ways)) for flight in flights)
    party = _ranks([flight.owner[:2] for flight in flights])
    columns = np.stack([party, whole_numbers(flight.ipu for flight in flights), way], axis=1)
    shared: dict[bytes, int] = {}
    parts = (columns[end - count : end].tobytes() for count, end in zip(counts, np.cumsum(counts), strict=True))
    of_bundle = [shared.setdefault(part, len(shared)) for part in parts]
    place = dict(zip(bundles, of_bundle, strict=True))
    part = whole_numbers(place[id(row.flights)] for row in templates)
    rank, ipu, way = np.frombuffer(b"".join(shared), dtype=np.int64).reshape(-1, 3).T
    sends = whole_numbers(len(rows) // columns[:1].nbytes for rows in shared)
    links = whole_numbers(map(len, ways))
    return {
        "owner": _ranks([row.owner for row in templates]),
        "number": _ranks([row.flights[0].owner[2:] for row in templates]),
        "first": (np.cumsum(sends) - sends)[part],
        "sends": sends[part],
        "rank": rank,
        "ipu": ipu,
        "link_first": (np.cumsum(links) - links)[way],
        "links": links[way],
        "link_id": whole_numbers(link for route in ways for link in route),
    }


def _ranks(owners: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The place of each owner among all in sorted order, from 0 on; equal owners have equal places."""
    places = {owner: place for place, owner in enumerate(sorted(set(owners)))}
    return whole_numbers(places[owner] for owner in owners)
