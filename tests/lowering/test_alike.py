"""Ops that are alike share their steps; ops that are not, do not."""

from __future__ import annotations

import numpy as np

from ipuperf import ir, ops
from ipuperf.ir import FLOAT16, FLOAT32, TensorSpec, Variable
from ipuperf.lowering import Phase, lower
from ipuperf.lowering.alike import OpCache
from ipuperf.lowering.supersteps import Superstepper
from ipuperf.lowering.tile_sets import TileSets
from ipuperf.machine import load_machine

GC200 = load_machine("gc200-1")


def variable(program, name, shape, dtype=FLOAT32):
    graph = program.main_graph
    data = np.zeros(shape, dtype.numpy)
    return graph.add(Variable(name, TensorSpec(shape, dtype), graph, data, program.grouping()))


def steps_with_and_without_memory(program):
    """Steps of every op, looked up and made anew, with the layouts that each way leads to."""
    from ipuperf.lowering import linear

    known, found, plain = OpCache(TileSets(GC200, 0)), {}, {}
    for tensor in program.main_graph.tensors.values():
        if isinstance(tensor, Variable):
            size = tensor.dtype.size
            found[tensor] = plain[tensor] = linear(tensor.spec.elements, size, 8 // size, GC200.chip.tiles)
    for number, op in enumerate(ir.schedule(program.main_graph)):
        yield op, known.steps(op, known.facts(op), found).for_op(number), Superstepper(op, number, plain, GC200).run()
    assert found == plain


def test_remembered_steps_are_those_of_the_op_itself():
    program = ir.Ir()
    graph = program.main_graph
    w, x = variable(program, "w", (128, 128)), variable(program, "x0", (64, 128))
    for layer in range(3):
        y = graph.create(ops.MatMul, [x, w], [f"y{layer}"]).outputs[0]
        y = graph.create(ops.Add, [y, y], [f"s{layer}"]).outputs[0]
        y = graph.create(ops.Softmax, [y], [f"p{layer}"], axis=layer % 2).outputs[0]
        x = graph.create(ops.Transpose, [y], [f"t{layer}"], permutation=(0, 1)).outputs[0]
    for op, remembered, own in steps_with_and_without_memory(program):
        assert remembered.steps == own.steps, op
        assert remembered.temp == own.temp
        assert remembered.vertices == own.vertices
        assert remembered.code.parts.keys() == own.code.parts.keys()
        assert all(np.array_equal(value, own.code.parts[name]) for name, value in remembered.code.parts.items())


def test_attributes_types_and_repeated_operands_make_a_difference():
    program = ir.Ir()
    graph = program.main_graph
    a, b = variable(program, "a", (64, 32)), variable(program, "b", (64, 32), FLOAT16)
    wide = graph.create(ops.Cast, [b], ["wide"], dtype=FLOAT32).outputs[0]
    for name, operands in (("same", [a, a]), ("other", [a, wide])):
        graph.create(ops.Add, operands, [name])
    graph.create(ops.ReduceSum, [a], ["rows"], axes=(0,), keepdims=False)
    graph.create(ops.ReduceSum, [a], ["columns"], axes=(1,), keepdims=False)
    for op, remembered, own in steps_with_and_without_memory(program):
        assert remembered.steps == own.steps, op


def test_a_view_that_can_be_shared_is_not_taken_for_one_that_cannot():
    """Whether a reshape moves anything depends on what else is done with its operand."""
    program = ir.Ir()
    graph = program.main_graph
    shared, changed = variable(program, "shared", (64, 32)), variable(program, "changed", (64, 32))
    views = [graph.create(ops.Reshape, [x], ["flat"], shape=(2048,)) for x in (shared, changed)]
    graph.create(ops.AddLhsInplace, [changed, changed], ["sum"])
    graph.create(ops.Add, [views[1].outputs[0], views[1].outputs[0]], ["later"])
    assert [bool(view.work()) for view in views] == [False, True]
    for op, remembered, own in steps_with_and_without_memory(program):
        assert remembered.steps == own.steps, op


def test_every_step_names_its_own_op():
    program = ir.Ir()
    a = variable(program, "a", (4096,))
    for number in range(4):
        a = program.main_graph.create(ops.Exp, [a], [f"y{number}"]).outputs[0]
    lowered = lower(program, GC200)
    phases = [step for step in lowered.walk() if isinstance(step, Phase)]
    assert [step.op_id for step in phases] == [0, 1, 2, 3]
    assert len({id(step.cycles) for step in phases}) == 1
