"""Scopes: op makers of graphs inside others."""

from __future__ import annotations

from ipuperf.functions import make
from ipuperf.ir import CONTEXT, FLOAT32, Ir, Op, Tensor, TensorSpec
from ipuperf.ops import Abs, Loop, Neg
from ipuperf.pipelines.routine import Routine
from ipuperf.pipelines.scope import Scope

SPEC = TensorSpec((2,), FLOAT32)


def _made(tensor: Tensor) -> Op:
    assert tensor.producer is not None
    return tensor.producer


def test_ops_run_as_written_and_floating_ones_when_they_can() -> None:
    graph = Ir().main_graph
    scope, x = Scope(graph), graph.add_input(SPEC, "x")
    with scope.on(1):
        first = _made(make(Neg, x))
        with scope.floating():
            free = _made(make(Abs, x))
        last = _made(-x)
    assert graph.constraints == {last: {first}}
    assert [op.ipu for op in (first, free, last)] == [1, 1, 1]
    assert first.outputs[0].name == "t"


def test_place_and_phase_are_said_by_context_and_end_with_it() -> None:
    graph = Ir().main_graph
    scope, x = Scope(graph, phase="bwd"), graph.add_input(SPEC, "x")
    with CONTEXT.on_ipu(3), CONTEXT.scope("users"), scope.on(0):
        usual = _made(make(Neg, x))
        with CONTEXT.on_tiles("io"), CONTEXT.phase("io"):
            there = _made(make(Neg, x))
    assert (usual.ipu, usual.tile_set, usual.phase, usual.scope) == (0, "compute", "bwd", "")
    assert (there.ipu, there.tile_set, there.phase) == (0, "io", "io")
    assert CONTEXT.builders == []


def test_tensors_from_outside_come_in_by_reference_once() -> None:
    ir = Ir()
    outside = ir.main_graph.add_input(SPEC, "x")
    main = Scope(ir.main_graph)
    body = main.inner("body")
    with body.on():
        result = outside + outside
    (image,) = body.graph.inputs
    assert (image.by_ref, body.captured) == (True, {outside: image})
    assert result.graph is body.graph
    body.close(trips=5)
    (loop,) = ir.main_graph.ops
    assert isinstance(loop, Loop)
    assert (loop.inputs, loop.attributes["trip_count"]) == ([outside], 5)


def test_a_routine_is_called_where_it_runs() -> None:
    ir = Ir()
    main = Scope(ir.main_graph)
    x = ir.main_graph.add_input(SPEC, "x")
    routine = Routine(ir, "forward", 2, "fwd")
    with routine.on():
        routine.give("y", -routine.argument("x", SPEC, "x"))
    (call, again) = (_made(routine.call(main, {"x": x})["y"]) for _ in range(2))
    assert [(op.ipu, op.phase) for op in (call, again)] == [(2, "fwd")] * 2
    assert ir.main_graph.constraints == {again: {call}}
