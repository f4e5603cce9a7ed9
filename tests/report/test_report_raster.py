"""Pixels against counting: what is drawn is what the slices cover."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf.report.palette import KIND_COLOURS
from ipuperf.report.raster import Raster, colours, stacked

SLICE = st.tuples(st.integers(0, 2), st.integers(-20, 130), st.integers(0, 60))


@given(st.lists(SLICE, max_size=20), st.integers(1, 17))
def test_fractions_are_the_covered_part_of_each_pixel(found, width):
    window = (0, 100)
    raster = Raster(3, window, width)
    for piece in (found[:5], found[5:]):
        columns = [np.array([s[k] for s in piece], dtype=np.int64) for k in range(3)]
        raster.add(*columns)
    expected = np.zeros((3, width))
    edges = np.linspace(0, 100, width + 1)
    for row, start, dur in found:
        expected[row] += np.clip(np.minimum(edges[1:], start + dur) - np.maximum(edges[:-1], start), 0, None)
    np.testing.assert_allclose(raster.fractions(), expected / (100 / width), atol=1e-6)


def test_a_stacked_strip_divides_each_column():
    rgb = colours(["compute", "exchange"], KIND_COLOURS)
    assert rgb.tolist() == [[0xF6, 0x62, 0x71], [0xB1, 0xE0, 0xE7]]
    fractions = np.array([[1.0, 0.5, 0.0, 1.0], [0.0, 0.25, 0.0, 1.0]])
    image = stacked(fractions, rgb, 8)
    assert image.shape == (8, 4, 3)
    red, blue, white = [rgb[0].tolist(), rgb[1].tolist(), [255] * 3]

    def count(column, colour):
        return sum(pixel == colour for pixel in image[:, column].tolist())

    assert [count(k, red) for k in range(4)] == [8, 4, 0, 4]
    assert [count(k, blue) for k in range(4)] == [0, 2, 0, 4]
    assert [count(k, white) for k in range(4)] == [0, 2, 8, 0]
    assert image[7, 1].tolist() == red


def test_the_colours_are_those_of_popvision():
    known = {"compute": "#f66271", "exchange": "#b1e0e7", "link": "#95a595", "host_begin": "#dbdbdb"}
    assert {kind: KIND_COLOURS[kind] for kind in known} == known
    assert KIND_COLOURS["sync"] == "#f6e6a1" != KIND_COLOURS["host_end"]
    assert KIND_COLOURS["idle"] == KIND_COLOURS["sync_external"] == "#757575"


def test_every_kind_has_a_colour():
    from ipuperf.report.breakdown import PART_OF_KIND, PARTS
    from ipuperf.report.palette import CATEGORY_COLOURS, KIND_LABELS, PHASE_COLOURS, PHASE_LETTERS
    from ipuperf.trace import KINDS, MEMORY_CATEGORIES, PHASES

    assert set(KIND_COLOURS) == set(KIND_LABELS) == set(PART_OF_KIND) == set(KINDS)
    assert list(CATEGORY_COLOURS) == list(MEMORY_CATEGORIES)
    assert set(PHASE_COLOURS) == set(PHASE_LETTERS) == set(PHASES)
    assert set(PART_OF_KIND.values()) == set(PARTS)


def test_labels_share_a_colour():
    from ipuperf.report.palette import KIND_LABELS

    by_label: dict[str, set[str]] = {}
    for kind, label in KIND_LABELS.items():
        by_label.setdefault(label, set()).add(KIND_COLOURS[kind])
    assert all(len(found) == 1 for found in by_label.values())
    with pytest.raises(KeyError):
        colours(["nothing"], KIND_COLOURS)
