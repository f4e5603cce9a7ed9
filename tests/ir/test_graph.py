"""Graphs, names, order and ambiguity, with toy ops so that this room is tested on its own."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf import ir
from ipuperf.ir import CONTEXT, FLOAT32, AmbiguityError, CycleError, IrError, Op, ReplicaGrouping, TensorSpec
from ipuperf.ir.attributes import INTEGERS, Attribute, optional


class Join(Op):
    """Any number of inputs, one output like the first."""

    type: ClassVar[str] = "Join"

    shape = Attribute(optional(INTEGERS), None)

    def infer(self):
        return [TensorSpec(self.shape or (self.inputs[0].shape if self.inputs else (4,)), FLOAT32)]


class Change(Join):
    """Changes its first input in place."""

    type: ClassVar[str] = "Change"

    def modified_inputs(self):
        return (0,)

    def aliases(self):
        return {0: 0}


def join(graph, *tensors, shape=None):
    return graph.create(Join, tensors, ["out"], shape=shape).outputs[0]


def change(graph, *tensors):
    return graph.create(Change, tensors, ["out"]).outputs[0]


def test_op_ids_start_at_100_and_count_over_all_graphs():
    program = ir.Ir()
    sub = program.create_graph("f")
    a = join(program.main_graph)
    join(sub)
    b = join(program.main_graph, a)
    assert (a.producer.id, sub.ops[0].id, b.producer.id) == (100, 101, 102)


def test_names_clash_with_one_counter_per_ir():
    program = ir.Ir()
    names = [program.main_graph.constant(np.zeros(1, np.float32), name=n).id for n in ("w", "b", "b", "w")]
    assert names == ["w", "b", "b__t0", "w__t1"]


def test_graph_names_and_scopes():
    program = ir.Ir()
    first, second = program.create_graph("Net"), program.create_graph("Net")
    assert (first.name, second.name) == ("Net_subgraph(0)", "Net_subgraph(1)")
    with CONTEXT.scope("layer"):
        tensor = first.add_input(TensorSpec((2,), FLOAT32), "x")
    assert tensor.id == "Net_subgraph(0)/layer/x"
    assert tensor.name == "layer/x"


def test_operand_of_another_graph_is_refused():
    program = ir.Ir()
    a = join(program.main_graph)
    with pytest.raises(IrError, match="belongs to graph 'main', not to 'f_subgraph"):
        join(program.create_graph("f"), a)


def test_operand_of_another_ir_is_refused():
    with pytest.raises(IrError, match="belongs to another Ir"):
        join(ir.Ir().main_graph, join(ir.Ir().main_graph))


def test_graphs_of_two_irs_do_not_nest():
    with (
        CONTEXT.use_graph(ir.Ir().main_graph),
        pytest.raises(RuntimeError, match="another Ir"),
        CONTEXT.use_graph(ir.Ir().main_graph),
    ):
        pass


def test_small_result_is_scheduled_before_big_one():
    graph = ir.Ir().main_graph
    big = join(graph, shape=(1000,))
    small = join(graph, shape=(2,))
    join(graph, big, small)
    assert [op.outputs[0] for op in ir.schedule(graph)][:2] == [small, big]


def test_in_sequence_orders_what_data_flow_does_not():
    graph = ir.Ir().main_graph
    with CONTEXT.sequence(True):
        tensors = [join(graph, shape=(n,)) for n in (1000, 2, 500)]
    assert [op.outputs[0] for op in ir.schedule(graph)] == tensors


def test_what_no_op_makes_and_nobody_keeps_is_freed_by_its_last_reader():
    """Graphs under construction read tensors that are not inputs yet."""
    graph = ir.Ir().create_graph("stage")
    small = graph.add_input(TensorSpec((4,), FLOAT32), "small")
    loose = ir.Tensor("loose", TensorSpec((1000,), FLOAT32), graph)
    first, frees = join(graph, small), join(graph, loose, shape=(8,))
    assert [op.outputs[0] for op in ir.schedule(graph)] == [frees, first]


def test_false_block_is_one_unit_inside_a_sequence():
    graph = ir.Ir().main_graph
    with CONTEXT.sequence(True):
        first = join(graph).producer
        with CONTEXT.sequence(False):
            left, right = join(graph).producer, join(graph).producer
        last = join(graph).producer
    needs = ir.dependencies(graph)
    assert needs[left] == needs[right] == {first}
    assert {left, right} <= needs[last]


def test_pass_block_adds_no_edges():
    graph = ir.Ir().main_graph
    with CONTEXT.sequence(True):
        join(graph)
        with CONTEXT.sequence("pass"):
            free = join(graph).producer
    assert ir.dependencies(graph)[free] == set()


def test_unknown_sequence_mode_is_a_type_error():
    with pytest.raises(TypeError, match="allowed are True, False and 'pass'"), CONTEXT.sequence(None):
        pass


def test_unordered_in_place_change_is_ambiguous_and_named():
    graph = ir.Ir().main_graph
    x = join(graph)
    change(graph, x)
    join(graph, x)
    with pytest.raises(AmbiguityError, match=r"Inplacing ambiguity detected. Change.101 .* Join.102 .*in_sequence"):
        ir.check_ambiguity(graph)


def test_what_is_ordered_is_not_called_ambiguous():
    """One reader comes before the change, nothing orders the other: the message names the latter."""
    graph = ir.Ir().main_graph
    with CONTEXT.sequence(True):
        x = join(graph)
        join(graph, x)
        change(graph, x)
    join(graph, x)
    with pytest.raises(AmbiguityError, match=r"Change.102 .* Join.103 "):
        ir.check_ambiguity(graph)


def test_ordered_in_place_change_is_fine():
    graph = ir.Ir().main_graph
    with CONTEXT.sequence(True):
        x = join(graph)
        change(graph, x)
        join(graph, x)
    ir.check_ambiguity(graph)


def test_in_place_change_ordered_by_data_flow_is_fine():
    graph = ir.Ir().main_graph
    x = join(graph)
    read = join(graph, x)
    change(graph, x, read)
    ir.check_ambiguity(graph)


def test_contradicting_constraints_name_the_ops():
    graph = ir.Ir().main_graph
    a, b = join(graph).producer, join(graph).producer
    graph.constrain(a, b)
    graph.constrain(b, a)
    with pytest.raises(CycleError, match=r"Join.100, Join.101"):
        ir.schedule(graph)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 50)), max_size=25))
def test_schedule_is_a_topological_order_and_deterministic(nodes):
    def build():
        graph = ir.Ir().main_graph
        made = [join(graph)]
        for a, b, size in nodes:
            made.append(join(graph, made[a % len(made)], made[b % len(made)], shape=(size,)))
        return graph

    graph = build()
    order = ir.schedule(graph)
    position = {op: i for i, op in enumerate(order)}
    assert len(order) == len(graph.ops)
    for op, before in ir.dependencies(graph).items():
        assert all(position[b] < position[op] for b in before)
    assert [op.id for op in ir.schedule(build())] == [op.id for op in order]


def test_replica_groups():
    assert ReplicaGrouping(8, 1, 4).groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert ReplicaGrouping(8, 4, 2).groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert ReplicaGrouping(4).num_groups == 1
    assert ReplicaGrouping(8, 1, 4).transpose().groups == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_group_that_does_not_divide_the_replicas_is_refused():
    with pytest.raises(ValueError, match="stride 1 and group_size 3 does not divide the 4 replicas"):
        ReplicaGrouping(4, 1, 3)


def test_printing_numbers_tensors_by_first_visit():
    program = ir.Ir()
    graph = program.create_graph("f")
    x, w = (graph.add_input(TensorSpec((2,), FLOAT32), name) for name in "xw")
    graph.add_output(join(graph, x, w))
    assert ir.format_schedule(graph, {w: "weight"}) == (
        "Graph : f_subgraph(0)\n"
        "  (%1, weight=%2) -> (%3) {\n"
        "    Join.100 (%1 [(2,) float32], %2 [(2,) float32]) -> (%3 [(2,) float32])\n"
        "  }"
    )


def test_what_follows_from_a_frozen_graph_is_worked_out_once():
    program = ir.Ir()
    graph = program.main_graph
    a = join(graph)
    calls = []

    @ir.derived
    def ops_of(graph):
        calls.append(graph)
        return len(graph.ops)

    assert (ops_of(graph), ops_of(graph), len(calls)) == (1, 1, 2)
    with program.frozen(), program.frozen():
        assert (ops_of(graph), ops_of(graph), len(calls)) == (1, 1, 3)
        assert ir.schedule(graph) is ir.schedule(graph)
    join(graph, a)
    assert (ops_of(graph), len(calls)) == (2, 4)
    with pytest.raises(ValueError, match="inside"), program.frozen():
        raise ValueError("inside")
    join(graph, a)
    assert ops_of(graph) == 3


def test_a_frozen_graph_does_not_change():
    program = ir.Ir()
    graph = program.main_graph
    a, b = join(graph), join(graph)
    changes = [
        lambda: join(graph, a),
        lambda: graph.add_input(TensorSpec((2,), FLOAT32), "x"),
        lambda: graph.constrain(a.producer, b.producer),
    ]
    for make in changes:
        with pytest.raises(IrError, match="graph 'main' cannot change while its program is lowered"), program.frozen():
            make()
    assert (len(graph.ops), len(graph.tensors), graph.constraints) == (2, 2, {})
    assert b.producer.inputs == []
