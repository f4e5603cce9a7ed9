"""What is said about a program that does not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.lowering import lower
from ipuperf.lowering.fitting import Moment
from ipuperf.machine import load_machine

GC200 = load_machine("gc200-1")
TILES = 1472


def product(rows=4096, inner=8192):
    """A product of operands of 90 and 364 KB per tile with a result of 90."""
    program = ir.Ir()
    main = program.main_graph

    def variable(name, *shape):
        data = np.broadcast_to(np.zeros((), np.float32), shape)
        return main.add(ir.Variable(name, ir.TensorSpec(shape, ir.FLOAT32), main, data, program.grouping()))

    main.create(ops.MatMul, [variable("a", rows, inner), variable("b", inner, 2 * inner)], ["c"])
    return program


@pytest.fixture(scope="module")
def lowered():
    return lower(product(), GC200)


def test_the_line_names_tile_step_op_demand_limit_contributors_and_remedies(lowered):
    (line,) = lowered.texts("does not fit")
    pattern = (
        r"does not fit: IPU 0 tile \d+ needs [\d,]+ bytes at program step \d+ \([^)]+ of "
        r"MatMul\.\d+ at \S*test_fitting\.py:\d+\), [\d,]+ bytes over the 638,976 there are "
        r"\((all tiles|[\d,]+ of 1,472 tiles) are over\); by category: [^;]+; largest: [^;]+; would help: .+"
    )
    assert re.fullmatch(pattern, line), line
    categories = line.split("by category: ")[1].split(";")[0]
    assert {"variable", "temporary", "intermediate"} <= set(re.findall(r"[a-zA-Z]+", categories))
    helps = line.split("would help: ")[1]
    assert re.search(
        r"a lower availableMemoryProportion for MatMul\.\d+ at \S+ \(temporaries take [\d,]+ bytes\)", helps
    )
    assert "fewer layers on this IPU" in helps
    assert "outlining" not in helps, "there is hardly any code"


def test_categories_and_groups_add_up_to_the_fullest_tile(lowered):
    memory = lowered.memory
    step = int(memory.max_tile[0].argmax())
    tile = int(memory.argmax_tile[0][step])
    moment = Moment(memory, 0, step, tile)
    assert sum(moment.by_category().values()) == memory.max_tile[0][step]
    constants = memory.categories[0]["constant"].dense()[tile]
    assert sum(moment.groups().values()) + constants == memory.max_tile[0][step]
    assert {v.category for v in moment.live} == {"variable", "temporary", "intermediate"}


def test_temporaries_of_a_product_keep_to_the_memory_proportion(lowered):
    """What the plan holds on a tile, rounded to the alignment, is never more than the proportion allows."""
    for variable in lowered.memory.variables:
        if variable.category == "temporary":
            assert variable.bytes.max <= 0.6 * 638_976 + 16
            assert len(variable.intervals) == 1, "only while the op runs"


def test_a_step_knows_its_op(lowered):
    memory = lowered.memory
    assert memory.op_of_step(0, 0) == "", "weights are uploaded"
    assert memory.op_of_step(0, 1).startswith("MatMul.")
    assert memory.op_of_step(0, 10**6) == ""
    assert len(memory.step_ops[0]) == len(memory.step_names[0])


def test_what_fits_says_nothing():
    assert not lower(product(64, 64), GC200).texts("does not fit")
