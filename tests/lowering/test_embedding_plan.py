"""Plans of lookups and updates by indices: against hand computation, and what has to hold of all."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import FLOAT16, FLOAT32, INT32, Ir, TensorSpec, Variable
from ipuperf.lowering import Phase, lower
from ipuperf.lowering.lookups import most_hits
from ipuperf.lowering.planner.embedding import combined_cycles, plan_lookup, splits, strided_reduce
from ipuperf.machine import load_machine
from ipuperf.ops.work import Lookup, TableUpdate

BOW = load_machine("bow-1")
CHIP = BOW.chip

SHAPES = [
    (entries, width, indices)
    for entries, width, indices in itertools.product((1, 3, 100, 5000), (1, 16, 500), (1, 7, 300, 20000))
]


def by_trial(item):
    """The fewest estimated cycles over every grid of at most 8 tiles: loops over all splits, for one group."""
    workers, best = 6, None
    grain = max(1, 8 // item.dtype.size)
    grains = -(-item.width // grain)
    even = -(-item.entries * grains // 8) * grain * item.dtype.size
    for parts, rows_split, split in itertools.product(range(1, 9), repeat=3):
        if parts * rows_split * split > 8 or parts > item.indices or split > grains:
            continue
        if rows_split > -(-item.entries // 2):
            continue
        columns = min(-(-grains // split) * grain, item.width)
        rows, indices = -(-item.entries // rows_split), -(-item.indices // parts)
        piece = rows * columns * 4
        table = max(piece if parts > 1 else 0, piece - even, 0)

        def stage(columns, indices, rows=rows):
            mine = -(-indices // workers)
            hits = min(mine, int(np.ceil(mine * (rows / item.entries))))
            return workers * (30 + hits * (19 + 2 * -(-columns // 2)) + (mine - hits) * 8)

        cycles = -(-table // 4) + stage(columns, indices)
        if rows_split > 1:
            second = -(-indices // rows_split)
            cycles += rows_split * second * columns + stage(-(-columns // grain), second)
        best = cycles if best is None else min(best, cycles)
    return best


@pytest.mark.parametrize("shape", [(16, 8, 12), (100, 4, 30), (1, 2, 1), (64, 32, 5), (9, 6, 50)])
def test_the_cheapest_of_all_grids(shape):
    item = Lookup(*shape, FLOAT32)
    assert plan_lookup(replace(CHIP, tiles=8), item).cycles == by_trial(item)


def test_by_hand():
    # 32 indices into 16 x 16 floats: 6 indices on a tile are one for each worker, 8 parts of 2 columns:
    # 16 rows x 2 columns x 4 bytes / 4 in, and 6 (30 + 19 + 2) cycles of vertices
    plan = plan_lookup(CHIP, Lookup(16, 16, 32, FLOAT32))
    assert (plan.index_split, plan.row_split, plan.column_split) == (6, 1, 8)
    assert plan.cycles == 32 + 6 * 51
    # 16 updates of 2 columns: all rows of a worker get at most one: 32 in, 6 (38 + 1 (11 + 3) + 15 * 5)
    update = plan_lookup(CHIP, TableUpdate(1024, 16, 16, FLOAT32))
    assert (update.index_split, update.column_split) == (1, 8)
    assert update.cycles == 32 + 6 * (38 + 14 + 75)


@pytest.mark.parametrize("kind", [Lookup, TableUpdate])
def test_what_holds_of_every_plan(kind):
    for shape, dtype in itertools.product(SHAPES, (FLOAT16, FLOAT32)):
        item = kind(*shape, dtype)
        plan = plan_lookup(CHIP, item)
        assert 1 <= plan.tiles <= CHIP.tiles
        assert plan.row_split * plan.rows >= item.entries
        assert plan.column_split * plan.columns >= item.width
        assert plan.index_split * plan.indices >= item.indices
        assert plan.temporary_bytes <= 0.6 * CHIP.bytes_per_tile


@pytest.mark.parametrize("kind", [Lookup, TableUpdate])
def test_more_work_takes_no_less(kind):
    def cycles(entries, width, indices):
        return plan_lookup(CHIP, kind(entries, width, indices, FLOAT32)).cycles

    sizes = [16, 64, 256, 1024, 4096, 16384]
    assert np.all(np.diff([cycles(4096, 64, n) for n in sizes]) >= 0)
    assert np.all(np.diff([cycles(n, 64, 4096) for n in sizes[3:]]) >= 0)
    assert np.all(np.diff([cycles(1024, n, 1024) for n in sizes]) >= 0)


def test_less_memory_takes_no_less_time():
    item = Lookup(4096, 512, 32768, FLOAT32)
    plans = [plan_lookup(CHIP, replace(item, available_memory_proportion=share)) for share in (0.6, 0.15, 0.1)]
    assert [plan.temporary_bytes <= share * CHIP.bytes_per_tile for plan, share in zip(plans, (0.6, 0.15, 0.1))] == [
        True
    ] * 3
    assert plans[0].cycles < plans[1].cycles < plans[2].cycles


def test_where_nothing_fits_the_cheapest_is_taken():
    item = Lookup(4096, 512, 32768, FLOAT32)
    tight = plan_lookup(CHIP, replace(item, available_memory_proportion=1e-6))
    assert tight.cycles == plan_lookup(CHIP, replace(item, available_memory_proportion=1.0)).cycles


def test_groups_are_split_too():
    one, many = (plan_lookup(CHIP, Lookup(64, 16, 32, FLOAT32, groups)) for groups in (1, 2000))
    assert one.group_split == one.groups == 1
    assert many.group_split * many.groups >= 2000
    assert many.cycles > one.cycles


def test_splits_leave_out_none():
    assert splits(10, 100).tolist() == [1, 2, 3, 4, 5, 10]
    assert splits(10, 4).tolist() == [1, 2, 3, 4]
    assert splits(1, 4).tolist() == [1]


def test_strided_reduce():
    # 24 sums of 5 floats: 12 vectors, two for each worker: 6 (16 + 2 (3 + 3 + 5 + 4))
    assert strided_reduce(np.array(24), np.array(5), 4, CHIP) == 6 * (16 + 2 * 15)


@pytest.mark.parametrize(("indices", "share", "workers"), [(30, 0.1, 500), (200, 0.01, 6000), (64, 0.5, 10)])
def test_most_hits_against_draws(indices, share, workers):
    drawn = np.random.default_rng(1).binomial(indices, share, (2000, workers)).max(axis=1)
    assert most_hits(indices, share, workers) == np.median(drawn)
    assert most_hits(indices, 1.0, workers) == indices
    assert most_hits(0, share, workers) == 0


@pytest.mark.parametrize("item", [Lookup(0, 4, 4, FLOAT32), Lookup(4, 4, 0, FLOAT32)])
def test_nothing_has_no_plan(item):
    with pytest.raises(ValueError, match="at least 1"):
        plan_lookup(CHIP, item)
    with pytest.raises(ValueError, match="availableMemoryProportion is 2"):
        plan_lookup(CHIP, Lookup(4, 4, 4, FLOAT32, available_memory_proportion=2))


def steps(op, operands, **attributes):
    program = Ir()
    main = program.main_graph
    given = []
    for shape, dtype in operands:
        data = np.zeros(shape, dtype.numpy)
        given.append(Variable(main.tensor_id("x"), TensorSpec(shape, dtype), main, data, program.grouping()))
        main.add(given[-1])
    main.create(op, given, ["y"], **attributes)
    return [step for step in lower(program, BOW).walk() if isinstance(step, Phase)]


def phases(op, operands, **attributes):
    return [step.name.partition("/")[2] or step.name for step in steps(op, operands, **attributes)]


def test_phases():
    slices = "popops::MultiSlice<float>"
    assert phases(ops.Gather, [((16, 16), FLOAT32), ((32,), INT32)], axis=0) == ["indices", slices]
    assert phases(ops.Gather, [((4096, 16), FLOAT32), ((32,), INT32)], axis=0) == [
        "indices", slices, "popops::Fill<int>", "positions", "popops::map<unsigned int>", "candidates", slices,
    ]  # fmt: skip
    update = "popops::ScaledMultiUpdateOp<float,ADD>"
    grown = phases(ops.ScatterReduce, [((256, 512), FLOAT32), ((256,), INT32)], axis=0, axis_size=32)
    assert grown[0] == grown[1] == "popops::Fill<float>"
    assert grown[2:] == [
        "indices", update, "partials", "popops::Reduce<ADD,float>", "popops::ScaledAddSupervisor<float>",
    ]  # fmt: skip


@pytest.mark.parametrize(("entries", "rows", "division"), [(256, 16, 3), (272, 17, 96)])
def test_the_part_of_an_index_is_a_shift_where_parts_have_a_power_of_two_rows(entries, rows, division):
    """6 indices on each of 6 workers: a division by the rows of a part, a multiplication, an addition."""
    assert plan_lookup(CHIP, Lookup(entries, 16, 32, FLOAT32)).rows == rows
    (positions,) = [
        phase
        for phase in steps(ops.Gather, [((entries, 16), FLOAT32), ((32,), INT32)], axis=0)
        if phase.name == "popops::map<unsigned int>"
    ]
    assert positions.cycles.max == CHIP.launch_cycles + 6 * (20 + 6 * (division + 2 * 3))


def test_many_partial_tables_are_reduced_in_two_stages():
    """4,096 slices of 128 into 32 rows: 92 parts of the indices."""
    operands = [((4096, 128), FLOAT32), ((4096,), INT32)]
    grown = phases(ops.ScatterReduce, operands, axis=0, axis_size=32)
    reduced = ["partials", "popops::Reduce<ADD,float>"]
    assert plan_lookup(CHIP, TableUpdate(32, 128, 4096, FLOAT32)).index_split == 92
    assert grown[-5:] == [*reduced, *reduced, "popops::ScaledAddSupervisor<float>"]


@pytest.mark.parametrize(("width", "cycles_per_byte"), [(128, CHIP.strided_copy_cycles_per_byte), (2, 1 / 8)])
def test_initial_values_are_gathered_where_columns_are_split(width, cycles_per_byte):
    """The fullest tile's part of the table arrives, and short pieces of rows are copied word by word."""
    plan = plan_lookup(CHIP, TableUpdate(32768, width, 16, FLOAT32))
    assert (plan.column_split > 1, plan.index_split) == (width > 2, 1)
    shapes = [((16, width), FLOAT32), ((16,), INT32), ((32768, width), FLOAT32)]
    arriving, copied = steps(ops.ScatterReduce, shapes, axis=0, axis_size=32768)[:2]
    size = 4 * plan.rows * plan.columns
    assert arriving.cycles.max == CHIP.exchange_setup_cycles + -(-size // 4)
    assert copied.cycles.max == CHIP.launch_cycles + CHIP.copy_setup_cycles + math.ceil(size * cycles_per_byte)


def test_what_is_added_to_the_table_may_share_its_memory_element():
    """600 sums: 300 vectors, 50 on each worker, at 3 cycles instead of 1; six workers."""
    item, sums = TableUpdate(32, 128, 4096, FLOAT32), np.array([600])
    slow, fast = (int(combined_cycles(item, sums, CHIP, apart=apart)[0]) for apart in (False, True))
    assert slow - fast == 6 * 49 * 2


def test_phases_of_other_updates():
    """Greatest and products are combined by the operation itself; what is written is never split by indices."""
    operands = [((256, 512), FLOAT32), ((256,), INT32)]
    named = {"axis": 0, "axis_size": 32}
    grown = phases(ops.ScatterReduce, [*operands, ((32, 512), FLOAT32)], **named, reduction="max")
    assert grown[-4:] == ["popops::MultiUpdateOp<float,MAX>", "partials", "popops::Reduce<MAX,float>",
                          "popops::BinaryOp1D<MAXIMUM,float>"]  # fmt: skip
    grown = phases(ops.ScatterReduce, operands, **named, reduction="mul")
    assert grown[-1] == "popops::BinaryOp1D<MULTIPLY,float>"
    grown = phases(ops.ScatterReduce, operands, **named, reduction="none")
    assert grown[-1] == "popops::MultiUpdate<float>"
    assert not [name for name in grown if "Reduce" in name]


@pytest.mark.parametrize("operation", ["ADD", "MAX", "MUL", "NONE"])
@pytest.mark.parametrize("shape", SHAPES[::7])
def test_every_update_has_a_plan(shape, operation):
    plan = plan_lookup(CHIP, TableUpdate(*shape, FLOAT32, operation=operation))
    assert plan.cycles > 0
    assert plan.index_split == 1 or operation != "NONE"


def test_carried_values_of_a_loop_are_copied_together():
    """Three values: one lies elsewhere at the end, one does not, one is handed on unchanged. One compute set copies two
    of them into clones, one exchange brings back the first, one compute set the second; nothing happens to the third. A
    condition adds what works it out."""

    def loop(**named):
        program = Ir()
        main, body = program.main_graph, program.create_graph("body")
        specs = [TensorSpec((32, 16), FLOAT32), TensorSpec((16, 16), FLOAT32), TensorSpec((32,), INT32)]
        before, table, index = (body.add_input(spec, name) for spec, name in zip(specs, "bti", strict=True))
        found = body.create(ops.Gather, [table, index], ["found"], axis=0).outputs[0]
        turned = body.create(ops.Neg, [index], ["turned"]).outputs[0]
        for tensor in (found, table, turned):
            body.add_output(tensor)
        given = [Variable(main.tensor_id(s), TensorSpec(t.shape, t.dtype), main, np.zeros(t.shape, t.dtype.numpy),
                          program.grouping()) for s, t in zip("bti", (before, table, index), strict=True)]  # fmt: skip
        for tensor in given:
            main.add(tensor)
        main.create(ops.Loop, given, ["x", "y", "z"], callee=body, trip_count=2, **named)
        rows = [step for step in lower(program, BOW).walk() if isinstance(step, Phase)]
        return rows[: len(rows) // 2]

    plain, asking = loop(), loop(conditional=True)
    copies = ["poplar::Memcpy32", "Loop/carried b", "poplar::Memcpy32"]
    assert [row.name for row in plain[-3:]] == copies
    # The index has 32 elements, on one tile; the table of 16 x 16 is not among the copies.
    assert plain[-1].cycles.active == 1
    decided = ["Loop/trips and condition", "popops::map<bool>", "Loop/answer", "popops::map<int>"]
    assert [row.name for row in asking[-7:]] == decided + copies
    assert len(asking) == len(plain) + len(decided)
