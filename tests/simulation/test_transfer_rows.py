"""Table ``transfers``: what templates share is there once, and sends of equal times keep the order of their owners."""

from __future__ import annotations

from ipuperf.simulation import transfers
from ipuperf.simulation.recorder import Flight, Label, TransferTemplate


def test_ranks_are_the_places_of_sorted_owners() -> None:
    assert transfers._ranks([(2,), (1, 5), (2,), (1,), ()]).tolist() == [3, 2, 3, 1, 0]


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
        "owner": [0, 0, 1, 0],
        "number": [0, 0, 0, 0],
        "first": [0, 0, 0, 2],
        "sends": [2, 2, 2, 1],
        "rank": [0, 1, 2],
        "ipu": [0, 2, 1],
        "link_first": [0, 2, 0],
        "links": [2, 1, 2],
        "link_id": [3, 5, 7],
    }
    assert all(len(values) == 0 for values in transfers._sends([]).values())


def test_templates_share_the_sends_of_the_same_parties() -> None:
    label = Label("remote_load", 4)
    first, second = ((Flight((0, 3, number), (5,), (), 1), Flight((0, 7, number), (6,), (), 2)) for number in (4, 9))
    columns = transfers._sends([TransferTemplate((), flights, 8, label) for flights in (second, first)])
    assert {name: columns[name].tolist() for name in ("number", "first", "sends", "rank", "ipu")} == {
        "number": [1, 0],
        "first": [0, 0],
        "sends": [2, 2],
        "rank": [0, 1],
        "ipu": [1, 2],
    }
