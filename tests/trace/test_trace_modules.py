"""The tree of modules: its sums are those of the operations and of the variables, to the cycle and byte."""

import pytest

from ipuperf.trace import PHASES, Trace
from ipuperf.trace.operations import NO_OP_NAME

SUMS = ("cycles", "waiting_cycles", "flops", "bytes", *PHASES)


@pytest.fixture(params=["rich", "stages"])
def trace(request, synthetic) -> Trace:
    return synthetic.rich_trace() if request.param == "rich" else synthetic.pipeline_trace(ipus=3, micro_batches=2)


def test_the_outermost_modules_add_up_to_the_totals(trace):
    tree, operations, variables = trace.modules(), trace.operations(), trace.table("variables")
    outermost = tree[tree.parent == ""]
    for name in ("cycles", "waiting_cycles", "flops"):
        assert outermost[name].sum() == operations[name].sum()
    assert outermost.bytes.sum() == variables[variables.location == "tile"].bytes.sum()
    assert tree.own_cycles.sum() == operations.cycles.sum()
    assert tree.own_bytes.sum() == outermost.bytes.sum()


def test_a_module_is_the_sum_of_what_is_inside_and_of_itself(trace):
    tree = trace.modules().set_index("module")
    for path, row in tree.iterrows():
        inside = tree[tree.parent == path]
        assert row.cycles == row.own_cycles + inside.cycles.sum()
        assert row.bytes == row.own_bytes + inside.bytes.sum()
        assert row.cycles == row[list(PHASES)].sum()
        assert row.level == (path.count(".") if path != NO_OP_NAME else 0)


def test_parents_come_first_and_the_costliest_of_siblings(trace):
    tree = trace.modules()
    for place, row in enumerate(tree.itertuples()):
        assert not row.parent or row.parent in tree.module[:place].tolist()
    for _, siblings in tree.groupby("parent"):
        assert siblings.cycles.is_monotonic_decreasing


def test_phases_belong_to_the_module_of_their_forward_op(synthetic):
    build = synthetic.Builder()
    for number, phase in enumerate(("fwd", "bwd", "update")):
        build.add("ops", number, f"main/net/fc/Op.{number}", "Op", "main", phase, 3, f"m.py:{number}", "")
        build.add("steps", 0, number, -1, number, "compute", 10 * number, 10 + number, 5.0, 4, 0, 0, 0, 7, 0, -1)
    build.add("instances", 0, 0, 0, 0, -1, -1, 0, 100, 0)
    build.add("variables", 0, "w", 0, "variable", "float32", 0, 0, 4, 64, False, "tile", 0)
    build.add("code", 2, 0, "vertexCode", 1, 3, 20)
    build.add("variables", 1, "far", 0, "variable", "float32", 0, 0, 4, 900, False, "remote", 0)
    tree = build.trace().modules().set_index("module")
    assert tree.index.tolist() == ["net", "net.fc"]
    for path in tree.index:
        assert tree.loc[path, ["fwd", "recompute", "bwd", "update"]].tolist() == [10, 0, 11, 12]
        assert tree.loc[path, ["cycles", "flops", "bytes"]].tolist() == [33, 21, 84]
    assert tree.own_cycles.tolist() == [0, 33]
    assert tree.line.tolist() == ["m.py:2", "m.py:2"]  # where those inside spend most


def test_nothing_executed_is_a_tree_of_nothing(synthetic):
    assert len(synthetic.Builder().trace().modules()) == 0
