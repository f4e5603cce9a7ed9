"""Live intervals of nested calls, put together from profiles, against a walk that executes every call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf import ir, ops
from ipuperf.ir import CONTEXT, FLOAT32, TensorSpec, Variable
from ipuperf.lowering import lower
from ipuperf.lowering.liveness import shared_outputs
from ipuperf.lowering.lower import NO_MERGING, PASSES, Compilation
from ipuperf.lowering.timeline import Timeline
from ipuperf.machine import load_machine
from ipuperf.models.encoder import EncoderOptions, encoder
from ipuperf.pipelines import build_pipeline
from ipuperf.pipelines.schedules import popart_pipeline

GC200 = load_machine("gc200-1")
POD4 = load_machine("pod4")
SPEC = TensorSpec((4096,), FLOAT32)


class Walk:
    """Every op of every call, one after the other: program steps and ``{name: {(first, last)}}`` per IPU."""

    def __init__(self, program, machine):
        lowered = Compilation(program, machine, "p", False, "single_pipeline", NO_MERGING, None)
        for step in PASSES[:4]:  # up to the lowering of the ops
            lowered = step(lowered)
        self.places = lowered.places
        self.steps = dict.fromkeys(lowered.syncs.ipus, 1)
        self.lives = []  # [name, ipu, first, last]
        main = lowered.graphs[program.main_graph]
        held = {t: self.new(t, 1) for t in program.main_graph.tensors.values() if isinstance(t, Variable)}
        kept = list(held.values())
        self.graph(main, held)
        for life in kept:
            life[3] = self.steps[life[1]]

    def new(self, tensor, first, ipu=None):
        ipu = self.places.home(tensor) if ipu is None else ipu
        self.lives.append([tensor.id, ipu, first, first])
        return self.lives[-1]

    def use(self, tensors, held):
        for tensor in tensors:
            if tensor in held:
                held[tensor][3] = max(held[tensor][3], self.steps[held[tensor][1]])

    def passing(self, steps):
        for ipu, own in steps.items():
            self.steps[ipu] += len(own)

    def graph(self, lowered, held):
        for item in lowered.ops:
            (self.call if item.calls else self.op)(item, held)

    def op(self, item, held):
        first = self.steps[item.ipu] - item.joined
        self.steps[item.ipu] += len(item.steps.steps)
        for party in item.shared.participants if item.shared is not None else ():
            self.steps[party] += 1
        self.use(item.op.inputs, held)
        aliases = shared_outputs(item)
        for index, tensor in enumerate(item.op.outputs):
            if index not in aliases:
                held[tensor] = self.new(tensor, first, item.ipu)
                held[tensor][3] = self.steps[item.ipu]
            elif item.op.inputs[aliases[index]] in held:
                held[tensor] = held[item.op.inputs[aliases[index]]]
        if item.steps.temp is not None and self.steps[item.ipu] > first:
            self.lives.append([f"{item.op.label}/temporary", item.ipu, first, self.steps[item.ipu]])

    def call(self, item, held):
        self.passing(item.copies.before)
        self.use([item.op.inputs[index] for index in item.copies.copied], held)
        for body, trips in item.calls:
            inner = {}
            for index, (callee, caller) in enumerate(zip(body.graph.inputs, item.op.inputs, strict=True)):
                if caller in held and index in item.copies.copied:
                    home = self.places.home(callee)
                    inner[callee] = self.new(callee, self.steps[home], home)
                elif caller in held:
                    inner[callee] = held[caller]
            self.graph(body, inner)
            self.passing(item.copies.after_trip)
            if trips > 1:
                self.use(item.op.inputs, held)
            self.use(body.graph.outputs, inner)
            held.update({o: inner[i] for i, o in zip(body.graph.outputs, item.op.outputs, strict=True) if i in inner})

    def intervals(self):
        found = {}
        for name, ipu, first, last in self.lives:
            found.setdefault((ipu, name), set()).update({(first, last)} if last > first else ())
        return {key: tuple(sorted(value)) for key, value in found.items()}


def check(program, machine=GC200):
    walk = Walk(program, machine)
    memory = lower(program, machine).memory
    assert {ipu: len(names) for ipu, names in memory.step_names.items()} == walk.steps
    assert {(v.ipu, v.name): tuple(v.intervals) for v in memory.variables} == walk.intervals()
    size = {(v.ipu, v.name): v.bytes.total for v in memory.variables}
    for ipu, total in memory.not_always_live.items():
        lives = [(first, last, size[ipu, name]) for name, where, first, last in walk.lives if where == ipu]
        assert total.tolist() == [sum(n for a, b, n in lives if a <= t < b) for t in range(len(total))]


def variable(program, name):
    graph = program.main_graph
    return graph.add(Variable(name, SPEC, graph, np.zeros(SPEC.shape, np.float32), program.grouping()))


OPS = ("add", "exp", "change", "view", "call", "call", "loop")


def fill(program, graph, tensors, deeper, draw):
    """A few random ops on ``tensors``; their last results."""
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(OPS if deeper else OPS[:4]))
        one, other = draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors))
        if kind == "add":
            made = graph.create(ops.Add, [one, other], ["sum"]).outputs
        elif kind == "exp":
            made = graph.create(ops.Exp, [one], ["e"]).outputs
        elif kind == "change":
            copy = graph.create(ops.Exp, [one], ["c"]).outputs[0]
            made = graph.create(ops.AddLhsInplace, [copy, other], ["changed"]).outputs
        elif kind == "view":
            made = graph.create(ops.Reshape, [one], ["flat"], shape=SPEC.shape).outputs
        elif kind == "loop":
            made = graph.create(ops.Loop, [one], ["l"], callee=draw(st.sampled_from(deeper))[1], trip_count=3).outputs
        else:
            callee = draw(st.sampled_from(deeper))[0]
            made = graph.create(ops.Call, [one, other], ["y", "z"], callee=callee).outputs
        tensors = [*tensors, *made]
    return tensors


@pytest.mark.heavy
@settings(max_examples=60)
@given(st.data())
def test_random_nested_calls(data):
    program = ir.Ir()
    with CONTEXT.sequence(True):
        build(program, data)
    check(program)


def build(program, data):
    """Three levels of graphs that call those below, and the main graph."""
    deeper = []
    for level in range(3):
        pair = []
        for inputs, name in ((2, "body"), (1, "trip")):
            graph = program.create_graph(f"{name}{level}")
            tensors = [graph.add_input(SPEC, f"x{i}") for i in range(inputs)]
            found = fill(program, graph, tensors, deeper, data.draw)
            if data.draw(st.booleans()):  # a change of an operand that is passed by value
                found = [*found, graph.create(ops.AddLhsInplace, [found[0], found[0]], ["own"]).outputs[0]]
            for _ in range(inputs):
                graph.add_output(data.draw(st.sampled_from(found)))
            pair.append(graph)
        deeper.append(pair)
    fill(program, program.main_graph, [variable(program, "a"), variable(program, "b")], deeper, data.draw)


def test_a_tensor_that_is_two_operands_lives_until_the_later_use():
    program = ir.Ir()
    graph = program.create_graph("body")
    first, second = (graph.add_input(SPEC, f"x{i}") for i in range(2))
    with CONTEXT.sequence(True):
        early = graph.create(ops.Exp, [second], ["early"]).outputs[0]
        graph.add_output(graph.create(ops.Add, [early, first], ["late"]).outputs[0])
        main = program.main_graph
        x = main.create(ops.Exp, [variable(program, "a")], ["x"]).outputs[0]
        main.create(ops.Call, [x, x], ["y"], callee=graph)
    check(program)


@pytest.mark.parametrize("by_ref", [False, True])
def test_results_that_outlive_their_call(by_ref):
    program = ir.Ir()
    graph = program.create_graph("body")
    x = graph.add_input(SPEC, "x", by_ref=by_ref)
    y = graph.create(ops.Exp, [x], ["y"]).outputs[0]
    graph.add_output(graph.create(ops.AddLhsInplace, [x, y], ["sum"]).outputs[0])
    graph.add_output(y)
    main = program.main_graph
    a = variable(program, "a")
    first = main.create(ops.Call, [a], ["p", "q"], callee=graph).outputs
    second = main.create(ops.Call, [first[1]], ["r", "s"], callee=graph).outputs
    main.create(ops.Add, [first[1], second[1]], ["end"])
    check(program)
    memory = lower(program, GC200).memory
    (own,) = (v for v in memory.variables if v.name.endswith("body_subgraph(0)/y"))
    assert len(own.intervals) == 2
    assert own.intervals[0][1] == len(memory.step_names[0])  # the first result is read at the very end


def test_calls_on_several_ipus():
    program = ir.Ir()
    main = program.main_graph
    graphs = []
    for ipu in range(2):
        graph = program.create_graph(f"stage{ipu}")
        x = graph.add_input(SPEC, "x")
        with CONTEXT.on_ipu(ipu):
            graph.add_output(graph.create(ops.Exp, [x], ["y"]).outputs[0])
        graphs.append(graph)
    a = variable(program, "a")
    for _ in range(3):
        y = main.create(ops.Call, [a], ["y"], callee=graphs[0]).outputs[0]
        z = main.create(ops.IpuCopy, [y], ["z"], source=0, destination=1).outputs[0]
        main.create(ops.Call, [z], ["w"], callee=graphs[1])
    check(program, POD4)


def steps_kept(timelines):
    """Values of steps that are in memory, each once."""
    found, waiting = {}, list(timelines)
    while waiting:
        part = waiting.pop()
        if isinstance(part, Timeline):
            waiting += part.parts
        else:
            found[id(part)] = len(part)
    return sum(found.values())


def test_what_is_kept_of_a_pipeline_grows_with_its_stages_and_not_with_their_calls():
    kept, steps = {}, {}
    for stages in (4, 8):
        model = encoder(EncoderOptions(layers=stages, stages=stages), seed=None)
        timetable = popart_pipeline(stages, 2 * stages)
        build_pipeline(model.ir, model.parts, timetable, outputs=model.outputs, training=model.training)
        memory = lower(model.ir, load_machine("pod16")).memory
        names, bytes_ = memory.step_names.values(), memory.not_always_live.values()
        kept[stages], steps[stages] = (steps_kept(names), steps_kept(bytes_)), sum(map(len, names))
    assert steps[8] > 4 * steps[4]
    for few, many in zip(kept[4], kept[8], strict=True):
        assert many < 2.3 * few
        assert 2 * few < steps[4]
        assert 4 * many < steps[8]
