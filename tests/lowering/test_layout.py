"""Tile mapping and tile vectors: nothing is lost, everything is even, the examples of ``docs/reference/memory.md`` 1
hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf.lowering import TileVector, linear
from ipuperf.lowering.layout import distinct_elements, even, spread


@given(st.integers(0, 3_000_000), st.sampled_from([2, 4]), st.integers(1, 1472))
def test_linear_mapping_holds_every_element_once(elements, size, tiles):
    layout = linear(elements, size, 8 // size, tiles)
    counts = layout.elements.dense()
    assert counts.sum() == elements
    assert counts.min() >= 0
    assert len(counts) == tiles
    used = counts[counts > 0]
    assert used.size == 0 or used.max() - used.min() <= 2 * (8 // size)


def test_linear_mapping_keeps_128_bytes_on_a_tile():
    layout = linear(4096, 2, 4, 1472)  # docs/reference/memory.md 1: 64 tiles
    assert layout.elements.active == 64
    assert set(layout.elements.values) == {64, 0}


def test_linear_mapping_of_a_million_halves_fills_all_tiles():
    assert linear(1 << 20, 2, 4, 1472).elements.max == 179 * 4


@given(st.integers(1, 100_000), st.integers(1, 300), st.integers(1, 300), st.integers(1, 32))
def test_even_mapping_holds_every_element_once(elements, tiles, used, grain):
    counts = even("key", elements, tiles, used, grain).elements.dense()
    assert counts.sum() == elements
    assert counts.min() >= 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_tile_vector_is_its_dense_vector(values):
    dense = np.asarray(values, dtype=np.int64)
    vector = TileVector.of(dense)
    assert np.array_equal(vector.dense(), dense)
    assert vector.max == dense.max()
    assert vector.total == dense.sum()
    assert vector.argmax == int(dense.argmax())
    assert vector.active == int((dense > 0).sum())
    assert np.array_equal((vector + vector).dense(), 2 * dense)
    assert all(a != b for a, b in zip(vector.values, vector.values[1:], strict=False))


@given(st.integers(0, 10_000), st.integers(1, 200))
def test_spread_is_as_even_as_whole_units_allow(units, tiles):
    counts = spread(units, tiles)
    assert counts.sum() == units
    assert counts.max() - counts.min() <= 1


def test_uniform_on_some_tiles():
    vector = TileVector.uniform(7, 10, 4)
    assert vector.dense().tolist() == [7] * 4 + [0] * 6
    assert TileVector.uniform(7, 10).stops == (10,)


@given(st.lists(st.integers(0, 90), min_size=1, max_size=40), st.integers(1, 9))
def test_derived_vectors_keep_the_runs(values, factor):
    vector = TileVector.of(np.asarray(values))
    for made, expected in (
        (vector.times(factor), [v * factor for v in values]),
        (vector.rounded_up(factor), [-(-v // factor) * factor for v in values]),
        (vector.map(lambda v: v // factor), [v // factor for v in values]),
    ):
        assert made.dense().tolist() == expected
        assert made.stops == vector.stops
    assert vector.times(factor) is vector.times(factor)
    assert (vector.min, vector.max) == (min(values), max(values))


def test_tile_vectors_are_values():
    one, other = TileVector((2, 5), (7, 0)), TileVector.uniform(7, 5, 2)
    assert one == other
    assert hash(one) == hash(other)
    assert one != TileVector((5,), (7,))
    assert one != TileVector((1, 2, 5), (7, 7, 0))  # the same numbers in other runs
    assert repr(one) == "TileVector(stops=(2, 5), values=(7, 0))"


def test_tile_vectors_do_not_change_with_the_array_they_came_from():
    values = np.array([1, 2, 3])
    vector = TileVector((1, 2, 3), values)
    values[0] = 9
    assert vector.values == (1, 2, 3)
    with pytest.raises(ValueError, match="read-only"):
        vector.run_values[0] = 9


def test_layouts_are_equal_by_key():
    assert linear(4096, 2, 4, 1472) == linear(4096, 2, 4, 1472)
    assert linear(4096, 2, 4, 1472) != linear(4096, 4, 2, 1472)
    assert even(("a",), 100, 10, 10, 1) != even(("b",), 100, 10, 10, 1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_value_of_one_tile_is_that_of_the_dense_vector(values):
    vector = TileVector.of(np.array(values))
    assert [vector.at(tile) for tile in range(len(values))] == values


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4), st.integers(0, 700))
def test_distinct_elements_of_what_is_broadcast(axes, count):
    whole = tuple(n for n, _ in axes)
    shape = tuple(n if own else 1 for n, own in axes)
    places = np.broadcast_to(np.arange(np.prod(shape)).reshape(shape), whole).reshape(-1)
    count = min(count, places.size)
    (found,) = distinct_elements(shape, whole, np.array([count]))
    assert len(set(places[:count])) <= found <= np.prod(shape)


@pytest.mark.parametrize(
    ("shape", "whole", "count", "read"),
    [
        ((64, 1), (64, 100), 250, 3),  # a value for each row
        ((100,), (64, 100), 250, 100),  # a vector for all rows
        ((100,), (64, 100), 30, 30),
        ((8, 1, 1), (2, 8, 5, 5), 60, 3),  # a value for each channel
        ((), (64, 100), 250, 1),
        ((64, 100), (64,), 30, 30),  # nothing that is broadcast
    ],
)
def test_distinct_elements(shape, whole, count, read):
    assert distinct_elements(shape, whole, np.array([0, count])).tolist() == [0, read]
