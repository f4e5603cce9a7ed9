"""A program that differs from an earlier one in counts alone gets its steps; every other one is lowered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import FLOAT32, Builder, Ir, Stream, TensorSpec, Variable
from ipuperf.lowering import Again, lower
from ipuperf.lowering.again import Unlike, description
from ipuperf.machine import MachineError, Topology, load_machine

GC200 = load_machine("gc200-1")


def program(trips=8, *, width=64, scale=0.5, entry=None, op=ops.Neg, transfers=1, second=None):
    """A loop around an op, scaled by a constant; ``second``: trips of another loop around the same graph."""
    made = Ir()
    main, body = made.main_graph, made.create_graph("body")
    spec = TensorSpec((32, width), FLOAT32)
    x = main.add(Variable("x", spec, main, np.zeros(spec.shape, np.float32), made.grouping()))
    stream = main.add(Stream("in", spec, main, "h2d"))
    stream.transfers = transfers
    body.add_output(Builder(body).op(op, [body.add_input(spec, "x")], "y"))
    build = Builder(main)
    factor = main.constant(np.float32(scale), FLOAT32, "factor")
    if entry is not None:
        main.constant(np.array([entry], np.int32), name="entry")
    for count in (trips, *([] if second is None else [second])):
        (x,) = build.create(ops.Loop, [x], ["y"], callee=body, trip_count=count).outputs
    build.op(ops.Mul, [x, factor], "z")
    return made


class Counted:
    """Lowers through what is kept; counts how often something was really lowered."""

    def __init__(self):
        self.again, self.times = Again(), 0

    def __call__(self, ir, machine=GC200, name="program", how=()):
        def lowered():
            self.times += 1
            return lower(ir, machine, name=name)

        return self.again.lowered(ir, machine, name, how, lowered)


def said(lowered):
    """All of a lowered program."""
    memory = lowered.memory
    totals = [memory.not_always_live[0].tolist(), memory.max_tile[0].tolist(), memory.peak[0].tolist()]
    rest = lowered.ops, lowered.streams, lowered.warnings, lowered.plans, lowered.placement
    return lowered.describe(), memory.variables, memory.step_names, memory.categories, totals, *rest


def test_counts_and_values_alone_are_not_lowered_again():
    kept = Counted()
    kept(program())
    for other in (program(9), program(1000, scale=0.25), program(3, transfers=5)):
        assert said(kept(other, name="other")) == said(lower(other, GC200, name="other"))
    assert kept.times == 1


@pytest.mark.parametrize(
    "change",
    [{"trips": 1}, {"trips": 0}, {"width": 65}, {"op": ops.Exp}, {"entry": 3}, {"second": 8}, {"second": 9}],
    ids=str,
)
def test_all_else_is_lowered(change):
    kept = Counted()
    kept(program())
    other = program(**change)
    assert said(kept(other)) == said(lower(other, GC200))
    assert kept.times == 2


def test_machine_settings_and_entries_count():
    kept = Counted()
    first = kept(program(entry=1))
    assert kept(program(entry=1)).describe() == first.describe()
    assert kept.times == 1
    kept(program(entry=2))
    kept(program(entry=1), machine=replace(GC200, chip=replace(GC200.chip, sync_cycles=200)))
    kept(program(entry=1), how=("full",))
    assert kept.times == 4


def test_links_host_and_the_size_of_the_pod_are_not_lowered_again():
    """What lowering does not look at: the program has the machine's name and a place on it."""
    pod = load_machine("pod16")
    links = tuple(replace(link, bandwidth_bytes_per_s=2 * link.bandwidth_bytes_per_s) for link in pod.topology.links)
    kept = Counted()
    kept(program())
    for machine in (
        pod,
        replace(pod, name="faster", topology=Topology(links, pod.topology.ipus)),
        replace(GC200, host=replace(GC200.host, sync_seconds=1.0)),
    ):
        found = kept(program(7), machine)
        assert said(found) == said(lower(program(7), machine))
        assert found.machine == machine.name
    assert kept.times == 1
    two = program()
    two.replication_factor = 2
    with pytest.raises(MachineError):
        kept(two, GC200)


@pytest.mark.parametrize(("factor", "times"), [(0.25, 1), (1.0, 2), (0.0, 2)])
@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [(ops.Accumulate, 2, {"kind": "add"}), (ops.Accumulate, 2, {"kind": "square"}), (ops.AccumulatorScale, 1, {}),
     (ops.SparseAccumulate, 3, {"axis": 0})],
)  # fmt: skip
def test_factors_of_updates_count_where_they_are_0_or_1(op, operands, attributes, factor, times):
    def update(factor):
        made = program()
        main = made.main_graph
        names = ["target", "value"][:operands]
        data = [main.constant(np.zeros((4, 8), np.float32), FLOAT32, name) for name in names]
        data += [main.constant(np.arange(4, dtype=np.uint32), name="rows")] if operands == 3 else []
        Builder(main).create(op, data, ["updated"], factor=factor, **attributes)
        return made

    kept = Counted()
    kept(update(0.5))
    assert said(kept(update(factor))) == said(lower(update(factor), GC200))
    assert kept.times == times


def test_two_loops_around_one_graph_share_nothing():
    kept = Counted()
    kept(program(8, second=8))
    other = program(8, second=9)
    assert said(kept(other)) == said(lower(other, GC200))
    assert kept.times == 2


def test_branches_are_compared_with_all_their_trips():
    def conditional(trips):
        made = program(trips)
        main = made.main_graph
        branches = [made.create_graph(name) for name in ("then", "else")]
        for branch, op in zip(branches, (ops.Neg, ops.Exp), strict=True):
            branch.add_output(Builder(branch).op(op, [branch.add_input(TensorSpec((8,), FLOAT32), "x")], "y"))
        condition = main.constant(np.array(True), name="condition")
        x = main.constant(np.zeros(8, np.float32), FLOAT32, "operand")
        Builder(main).create(ops.If, [condition, x, x], ["r"], then_branch=branches[0], else_branch=branches[1])
        return made

    assert description(conditional(8)) == description(conditional(8))
    assert description(conditional(8)) != description(conditional(9))


def test_an_op_of_a_users_own_is_not_compared():
    class Own(ops.Neg):
        type = "Own"

    kept = Counted()
    for _ in range(2):
        kept(program(op=Own))
    assert kept.times == 2
    strange = program()
    strange.main_graph.ops[0].note = "something"
    with pytest.raises(Unlike):
        description(strange)


def test_few_programs_are_kept():
    kept = Counted()
    for width in (64, 65, 66, 64):
        kept(program(width=width))
    assert kept.times == 4
