"""Each row of the catalogue in every vocabulary: value and gradients against its oracle."""

from typing import Any

import pytest

pytest.importorskip("torch")

import vocabularies
from drawing import element_by_element

from ipuperf.frontends.catalogue import ROWS, Row

COMPARED = [row for row in ROWS if row.operands]
"""Rows with operands to compare with; the others have tests of their own (lookups, random numbers, 8-bit floats)."""


def named(vocabulary: str) -> list[Any]:
    """The rows of a vocabulary, once for each name."""
    return [pytest.param(row, name, id=name) for row in COMPARED for name in getattr(row, vocabulary)]


@pytest.mark.parametrize("row", [row for row in COMPARED if row.oracle], ids=lambda row: row.function)
def test_of_the_library(row: Row) -> None:
    vocabularies.compare_library(row)


@pytest.mark.parametrize("row", [row for row in COMPARED if element_by_element(row)], ids=lambda row: row.function)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3, 5)])
def test_of_any_shape(row: Row, shape: tuple[int, ...]) -> None:
    vocabularies.compare_library(row, shape)


@pytest.mark.parametrize("row", [row for row in COMPARED if row.oracle], ids=lambda row: row.function)
def test_in_half(row: Row) -> None:
    vocabularies.compare_half(row)


@pytest.mark.parametrize(("row", "name"), named("popxl"))
def test_in_popxl(row: Row, name: str) -> None:
    vocabularies.compare_popxl(row, name)


@pytest.mark.parametrize("row", [row for row in COMPARED if row.aten], ids=lambda row: row.function)
def test_in_poptorch(row: Row) -> None:
    vocabularies.compare_poptorch(row)


@pytest.mark.parametrize(("row", "name"), named("tensorflow"))
def test_in_graphs_of_tensorflow(row: Row, name: str) -> None:
    pytest.importorskip("tensorflow")
    vocabularies.compare_graph_op(row, name)


@pytest.mark.parametrize(("row", "name"), named("keras"))
def test_in_keras(row: Row, name: str) -> None:
    pytest.importorskip("tensorflow")
    vocabularies.compare_keras(row, name)


def test_rows_name_functions_once() -> None:
    for vocabulary in ("popxl", "aten", "tensorflow", "keras"):
        names = [name for row in ROWS for name in getattr(row, vocabulary)]
        assert len(names) == len(set(names)), vocabulary
    assert all(callable(row.implementation) for row in ROWS)


def test_names_of_pytorch_exist_and_stand_in_one_table() -> None:
    import torch

    from ipuperf.frontends.poptorch.aten import elementwise, norms, products, reduce, shape

    names = {name for row in ROWS for name in row.aten}
    for name in names:
        packet, _, overload = name.partition(".")
        assert getattr(getattr(torch.ops.aten, packet), overload or "overloads")
    for family in (elementwise, reduce, shape, products, norms):
        assert not family.HANDLERS.keys() & names, "a row's name stands in a table too"
