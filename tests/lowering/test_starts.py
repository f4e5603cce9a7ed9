"""Linear mappings begin one after the other, all around; oracle: tiles counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT32, TensorSpec, Variable
from ipuperf.lowering import MemoryReport, TileVector, lower
from ipuperf.lowering.layout import Layout, linear
from ipuperf.lowering.places import Places
from ipuperf.lowering.starts import LinearStarts, turned
from ipuperf.lowering.supersteps import stack
from ipuperf.lowering.tile_sets import TileSets
from ipuperf.machine import load_machine

GC200 = load_machine("gc200-1")
TILES = GC200.chip.tiles


def variables(*sizes: int) -> tuple[ir.Ir, list[Variable]]:
    """A program with vectors of floats."""
    program = ir.Ir()
    main = program.main_graph
    found = []
    for number, size in enumerate(sizes):
        data = np.zeros(size, np.float32)
        found.append(main.add(Variable(f"v{number}", TensorSpec((size,), FLOAT32), main, data, program.grouping())))
    return program, found


def tiles_of(program: ir.Ir) -> dict[str, list[int]]:
    """The tiles on which each variable has a part."""
    found = lower(program, GC200).memory.variables
    return {v.name: np.flatnonzero(v.bytes.dense()).tolist() for v in found if v.category == "variable"}


def tiles_of_code(memory: MemoryReport) -> list[int]:
    """The tiles with the code of all vertices."""
    code = memory.categories[0]["vertexCode"]
    return np.flatnonzero(code.dense() == code.max).tolist()


def test_each_begins_after_the_last():
    """32 floats (128 bytes) are the least on a tile: vectors of 64, 96 and 32 take 2, 3 and 1."""
    program, _ = variables(64, 96, 32)
    assert tiles_of(program) == {"v0": [0, 1], "v1": [2, 3, 4], "v2": [5]}


def test_all_around_and_what_takes_all_tiles_stands_still():
    whole = TILES * 32
    program, _ = variables(32 * (TILES - 1), whole, 64, 32)
    found = tiles_of(program)
    assert found["v0"] == list(range(TILES - 1))
    assert found["v1"] == list(range(TILES))
    assert found["v2"] == [0, TILES - 1], "the last tile, then the first"
    assert found["v3"] == [1]


def test_what_shares_storage_begins_together_and_bytes_are_the_same():
    program, (first, second) = variables(64, 64)
    main = program.main_graph
    main.create(ops.ScaledAddLhsInplace, [second, first], ["v1"], a=1.0, b=1.0)
    memory = lower(program, GC200).memory
    held = {v.name: v.bytes for v in memory.variables if v.category == "variable"}
    assert [held["v0"].total, held["v1"].total] == [256, 256]
    assert held["v1"].at(2) == held["v1"].at(3) == 128
    assert tiles_of_code(memory) == [2, 3], "the vertex runs where the tensor lies that it changes"


def test_the_result_of_a_call_lies_where_the_callee_leaves_it():
    program, (first, second) = variables(64, 64)
    main, callee = program.main_graph, program.create_graph("changes")
    x = callee.add_input(second.spec, "x", by_ref=True)
    callee.add_output(callee.create(ops.ScaledAddLhsInplace, [x, x], ["y"], a=1.0, b=1.0).outputs[0])
    result = main.create(ops.Call, [second], ["result"], callee=callee).outputs[0]
    main.create(ops.ScaledAddLhsInplace, [result, first], ["z"], a=1.0, b=1.0)
    assert tiles_of_code(lower(program, GC200).memory) == [2, 3]


def test_stacks_of_slices_are_linear_and_plans_are_not():
    _, (a, b, c) = variables(64, 64, 64)
    starts = LinearStarts(Places(TileSets(GC200, 0)))
    unit = linear(64, 4, 2, TILES)
    assert starts.give(a, stack(unit, (0,), 5)) == 0
    assert starts.give(b, Layout(("plan", 1, 64), unit.elements)) == 0
    assert starts.give(c, unit) == 2
    assert (starts.of(a), starts.of(b), starts.of(c)) == (0, 0, 2)


@pytest.mark.parametrize("start", [0, 1, 3])
def test_turned(start: int):
    vector = TileVector.of(np.array([7, 5, 0, 0]))
    assert turned(vector, start).dense().tolist() == np.roll([7, 5, 0, 0], start).tolist()
