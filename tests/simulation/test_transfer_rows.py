"""Table ``transfers``: what templates share is there once, and sends of equal times keep the order of their owners."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf.simulation import transfers
from ipuperf.simulation.recorder import Flight, Label, TransferTemplate


@pytest.mark.parametrize("most", [2**62, 50])
def test_ranks_are_the_places_of_sorted_tuples(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_MOST", most)
    draw = np.random.default_rng(5)
    heads, tails = (
        [tuple(draw.integers(0, 4, draw.integers(0, 4)).tolist()) for _ in range(count)] for count in (9, 14)
    )
    head, tail = draw.integers(0, 9, 200), draw.integers(0, 14, 200)
    whole = [heads[h] + tails[t] for h, t in zip(head.tolist(), tail.tolist(), strict=True)]
    places = {owner: place for place, owner in enumerate(sorted(set(whole)))}
    assert transfers._ranks(heads, tails, head, tail).tolist() == [places[owner] for owner in whole]


def test_templates_share_sends_and_sends_share_links() -> None:
    near, far = Flight((0,), (3, 5), (), 0), Flight((1,), (7,), (), 2)
    both, label = (near, far), Label("p2p", 4)
    templates = [
        TransferTemplate((), both, 8, label),
        TransferTemplate((), both, 16, label),
        TransferTemplate((9,), both, 8, label),
        TransferTemplate((), (Flight((2,), (3, 5), (), 1),), 8, label),
    ]
    found = {name: values.tolist() for name, values in transfers._sends(templates).items()}
    assert found == {
        "first": [0, 0, 2, 4],
        "sends": [2, 2, 2, 1],
        "rank": [0, 1, 3, 4, 2],
        "ipu": [0, 2, 0, 2, 1],
        "link_first": [0, 2, 0, 2, 0],
        "links": [2, 1, 2, 1, 2],
        "link_id": [3, 5, 7],
    }
    assert all(len(values) == 0 for values in transfers._sends([]).values())
