"""What ``docs/reference`` states as a table or a number is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ipuperf.ir import FLOAT16, FLOAT32
from ipuperf.lowering.layout import linear
from ipuperf.lowering.planner import reductions as convolution_reductions
from ipuperf.machine import load_machine
from ipuperf.ops import vertices
from ipuperf.ops.selection.dynamic import slice_cycles
from ipuperf.report.palette import KIND_COLOURS
from ipuperf.schedules import tutorial_columns_before_full
from ipuperf.schedules.phased import Liveness, phase_numbers

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
CHIP = load_machine("gc200-1").chip
UNARY = {
    "exponential": "EXPONENT",
    "logarithm": "LOGARITHM",
    "negate": "NEGATE",
    "square": "SQUARE",
    "square root": "SQRT",
    "reciprocal square root": "RSQRT",
    "inverse": "INVERSE",
    "tanh": "TANH",
    "sigmoid": "SIGMOID",
    "ReLU": "RELU",
}


def section(page: str, number: str) -> str:
    """The text of a section, its subsections included."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    found = re.search(rf"^(##+) {re.escape(number)}\.? .*?$(.*?)(?=^##? |^\1 |\Z)", text, flags=re.M | re.S)
    assert found is not None, (page, number)
    return found[2]


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of the first table, its head left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def loops(text: str) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in re.findall(r"(\d+)/(\d+)", text)]


def test_loops_of_unary_vertices() -> None:
    table = {row[0]: row[1:] for row in rows(section("cycles.md", "2.1"))}
    assert set(UNARY) < set(table)
    for name, key in UNARY.items():
        single, half, in_place = table[name]
        assert [*loops(single), *loops(half)] == [vertices.UNARY[key]["float"], vertices.UNARY[key]["half"]], name
        other = vertices.UNARY_IN_PLACE.get(key, {})
        assert loops(in_place) == [other[kind] for kind in ("float", "half") if kind in other], name


def test_formulas_of_element_wise_vertices() -> None:
    n, workers = np.array([1000]), CHIP.workers
    m = -(-1000 // workers)
    cases = [
        (vertices.unary("TANH", FLOAT32, 1000), workers * (17 + 12 * -(-m // 2)) + 20),
        (vertices.unary("TANH", FLOAT16, 1000, in_place=True), workers * (55 + 2 * -(-m // 4)) + 20),
        (vertices.binary("ADD", FLOAT16, 1000), workers * (26 + 3 * -(-m // 4)) + 11),
        (vertices.binary("DIVIDE", FLOAT32, 1000, in_place=True), workers * (58 + 10 * -(-m // 2)) + 11),
        (vertices.broadcast_scalar("ADD", FLOAT32, 1000), workers * (20 + 2 * -(-m // 2)) + 11),
        (vertices.select(FLOAT32, 1000), workers * (6 + 5 * m) + 11),
        (vertices.clamp(FLOAT16, 1000), workers * (6 + 2 * -(-m // 4)) + 11),
        (vertices.non_linearity("GELU", FLOAT16, 1000, 8), workers * (26 + 10 + 5 * (-(-m // 4) - 1)) + 9),
        (vertices.non_linearity_grad("SWISH", FLOAT32, 1000, 8), workers * (24 + 15 * (-(-m // 2) - 1)) + 9),
        (vertices.cast(FLOAT16, FLOAT32, 1000), 12 + workers * (37 + 2 * (m // 4) + 6)),
        (vertices.fill(FLOAT16, 1000), workers * (26 + m // 4)),
    ]
    for vertex, expected in cases:
        assert int(vertex.cycles(n, CHIP)[0]) == expected, vertex.name


def test_dynamic_slice() -> None:
    assert slice_cycles(4, 2)(np.array([120]), CHIP).tolist() == [25 + 6 * (39 + (24 + 2 * 5) * 2)]


def test_stages_of_partial_sums() -> None:
    depths = [convolution_reductions.reduce_depths(n) for n in (15, 16, 124, 125)]
    assert [len(found) for found in depths] == [1, 2, 2, 3]


def test_examples_of_the_linear_mapping() -> None:
    small, large = (linear(count, 2, 4, 1472).elements for count in (4096, 2**20))
    assert (small.active, small.max) == (64, 16 * 4)
    assert (large.active, large.max) == (1465, 179 * 4)


def test_phases() -> None:
    found = rows(section("pipelines.md", "4.2"))
    assert len(found) == 5
    for name, phases, pairs in found:
        apart = name == "and a separate backward phase"
        numbers = phase_numbers(3, Liveness.AlwaysLive if apart else Liveness[name], apart)
        assert (numbers.phases, list(zip(numbers.forward, numbers.backward, strict=True))) == (
            int(phases),
            [(int(a), int(b)) for a, b in re.findall(r"(\d+) to (\d+)", pairs)],
        ), name


def test_columns_before_a_full_one() -> None:
    assert "3, 6, 12, 21 and not 5, 7, 11, 17" in " ".join(section("pipelines.md", "3.3").split())
    assert [tutorial_columns_before_full(n) for n in (2, 3, 5, 8)] == [3, 6, 12, 21]


@pytest.mark.parametrize("kind", ["compute", "exchange", "link", "host_begin", "host_mid", "sync", "idle"])
def test_colours(kind: str) -> None:
    assert KIND_COLOURS[kind] in section("traces.md", "1")
