"""Windows of a pipeline program: which are the same some micro-batches later, and so make a loop."""

from __future__ import annotations

import pytest

from ipuperf.pipelines.windows import Window, _moved
from ipuperf.schedules import Cell


def window(*cells, after=()):
    """A window of (kind, stage, micro-batch)."""
    return Window(0, tuple(Cell(*cell) for cell in cells), tuple(Cell(*cell) for cell in after))


@pytest.mark.parametrize(
    ("one", "two", "by"),
    [
        (window(), window(), 0),
        (window(("F", 0, 1)), window(("F", 0, 3)), 2),
        (window(("F", 0, 3)), window(("F", 0, 1)), None),
        (window(("F", 0, 1)), window(("F", 0, 1)), None),
        (window(("F", 0, 1)), window(("F", 1, 2)), None),
        (window(("F", 0, 1), ("F", 1, 0)), window(("F", 0, 2), ("F", 1, 2)), None),
        (window(("F", 0, 1), ("F", 1, 0)), window(("F", 0, 2), after=[("F", 1, 1)]), None),
        (window(("F", 0, 1)), window(("F", 0, 2), ("F", 1, 1)), None),
    ],
)
def test_the_same_some_micro_batches_later(one, two, by):
    assert _moved(one, two) == by
