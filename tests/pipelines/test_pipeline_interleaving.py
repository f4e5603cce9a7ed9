"""Recomputation interleaved with the backward: the numbers of plain gradient accumulation, and less memory."""

from __future__ import annotations

import numpy as np
import pytest
from pipelinecases import ROWS, WIDTH, Momentum, network, plain, run_once

from ipuperf.ir import FLOAT32, Ir, Stream, TensorSpec, Variable, schedule
from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.ops import Mul, ReduceSum, Tanh
from ipuperf.pipelines import Data, HostInput, PipelineError, StageGraph, StageOutput, Training, build_pipeline
from ipuperf.pipelines.inlining import stretches
from ipuperf.report import pipeline_split
from ipuperf.schedules import popart_pipeline, sharded
from ipuperf.simulation import simulate


def marked(stages, **options):
    """The network with the product of every stage marked as a checkpoint."""
    net = network(stages, **options)
    for number, part in enumerate(net.parts):
        product = part.graph.ops[0].outputs[0]
        part.graph.add_output(product)
        net.parts[number] = StageGraph(part.graph, part.stage, part.ipu, part.sources, {}, (product,))
    return net


@pytest.mark.parametrize("recompute", ["in one piece", "interleaved", "always"])
@pytest.mark.parametrize(
    "timetable",
    [popart_pipeline(3, 8, recompute=True), popart_pipeline(2, 5), sharded(3, 4), sharded(1, 3)],
    ids=["popart_recompute", "popart", "sharded", "one_stage"],
)
def test_numbers_are_those_of_gradient_accumulation(timetable, recompute):
    net = marked(timetable.stages)
    start = [w.data.copy() for w in net.weights]
    build_pipeline(
        net.ir, net.parts, timetable, outputs=net.outputs, training=net.training, repeats=2, recompute=recompute
    )
    x, target = np.random.default_rng(1).normal(size=(2, 2 * timetable.micro_batches, 1, ROWS, WIDTH))
    x, target = x.astype(np.float32), target.astype(np.float32)
    found = run_once(net, x, target)
    weights, losses = plain(start, [], x[:, 0], target[:, 0], 2, factor=1.0 / timetable.micro_batches)
    np.testing.assert_allclose(found.reshape(-1), losses, rtol=1e-5)
    for variable, expected in zip(net.weights, weights, strict=True):
        np.testing.assert_allclose(variable.data, expected, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_that_only_leaves_is_not_stashed():
    """PopART stashes what something other than a copy to another IPU reads: of two checkpoints in a stage, the product
    and the result, only the product, which the function after it reads."""

    def stashed(marks):
        net = network(3)
        for number, part in enumerate(net.parts[:-1]):
            tensors = [part.graph.ops[0].outputs[0], part.graph.outputs[0]][:marks]
            if marks:
                part.graph.add_output(tensors[0])
            net.parts[number] = StageGraph(part.graph, part.stage, part.ipu, part.sources, {}, tuple(tensors))
        built = build_pipeline(net.ir, net.parts, popart_pipeline(3, 8, recompute=True), outputs=net.outputs,
                               training=net.training, recompute="interleaved")  # fmt: skip
        return {ipu: held // (4 * ROWS * WIDTH) for ipu, held in built.stash_bytes().items()}

    assert stashed(0) == {0: 5, 1: 3, 2: 0}, "a stage's input, for the micro-batches in flight"
    assert stashed(1) == stashed(2) == {0: 10, 1: 6, 2: 0}


def deep(length, checkpoints, *, label=False):
    """One stage: ``w`` of 1 KB per tile through ``length`` functions, then the sum of all; with ``label`` of their
    product with a function of the input."""
    ir = Ir()
    main = ir.main_graph
    spec = TensorSpec((1472, 256), FLOAT32)
    x = main.add(Stream("x", spec, main, "h2d"))
    losses = main.add(Stream("loss", TensorSpec((), FLOAT32), main, "d2h"))
    weight = main.add(Variable("w", spec, main, np.ones(spec.shape, np.float32), ir.grouping()))
    graph = ir.create_named_graph("deep")
    inputs = [graph.add_input(spec, name) for name in ("x", "w")]
    value = graph.create(Mul, inputs, ["y"]).outputs[0]
    order = []
    for _ in range(length):
        value = graph.create(Tanh, [value], ["y"]).outputs[0]
        order.append(value)
    marks = [order[i] for i in checkpoints]
    if label:
        wanted = graph.create(Tanh, [inputs[0]], ["label"]).outputs[0]
        value = graph.create(Mul, [value, wanted], ["y"]).outputs[0]
    for mark in marks:
        graph.add_output(mark)
    graph.add_output(graph.create(ReduceSum, [value], ["loss"], axes=(0, 1), keepdims=False).outputs[0])
    part = StageGraph(graph, 0, 0, [HostInput(x), Data(weight)], {}, marks)
    training = Training(0, len(marks), [weight], Momentum())
    return ir, part, training, [StageOutput(0, len(marks), losses, "all")], order


def peak(checkpoints, recompute, **options):
    ir, part, training, outputs, _ = deep(24, checkpoints, **options)
    build_pipeline(ir, [part], sharded(1, 4), outputs=outputs, training=training, recompute=recompute)
    return lower(ir, load_machine("gc200-1")).memory.peak_not_always_live() // (1472 * 1024)


def test_checkpoints_bound_what_is_live():
    """24 values of 1 KB per tile; with checkpoints after each six there are 3 of them and one stretch of 6."""
    whole, short = peak([5, 11, 17], "in one piece"), peak([5, 11, 17], "always")
    assert whole >= 24
    assert whole - 24 + 9 <= short <= whole - 24 + 9 + 2


def waits(*, label):
    """What runs again only after ops of the backward, and after how many."""
    ir, part, training, outputs, _ = deep(24, [5, 11, 17], label=label)
    build_pipeline(ir, [part], sharded(1, 4), outputs=outputs, training=training, recompute="always")
    (graph,) = [graph for graph in ir.all_graphs() if graph.name.endswith("bwd_pass")]
    return sorted((op.type, len(before)) for op, before in graph.constraints.items() if op.phase == "recompute")


def test_what_the_loss_reads_belongs_to_the_end():
    """A label is made of the input, before all checkpoints, and read after the last: it is made again for the loss, not
    with the first stretch, or the whole backward would belong to that one and no stretch wait for another. The first
    stretch begins with the product, the second and the third with a function, and each waits for the gradients of six
    functions; the third for what follows the label too, as that is made again."""
    assert waits(label=False) == [("Mul", 6), ("Tanh", 6)]
    assert waits(label=True) == [("Mul", 6), ("Tanh", 6), ("Tanh", 8)]


def test_the_report_tells_recomputation_apart():
    """Of the 12 functions the results of 3 and 7 are kept, and those after 7: in each of two micro-batches the product
    and six functions run again, as long as in the forward."""
    split, forward = {}, {}
    for recompute in ("in one piece", "always"):
        ir, part, training, outputs, _ = deep(12, [3, 7])
        build_pipeline(ir, [part], sharded(1, 2), outputs=outputs, training=training, recompute=recompute)
        machine = load_machine("gc200-1")
        trace = simulate(lower(ir, machine), machine)
        split[recompute] = pipeline_split(trace)[0]
        ops = trace.operations()
        ops = ops[ops["op"].str.startswith("deep/")]
        forward[recompute] = {kind: set(ops["cycles"][ops["type"] == kind]) for kind in ("Mul", "Tanh")}
    assert forward["always"] == forward["in one piece"]
    (product,), (function,) = forward["always"].values()
    assert split["in one piece"]["recompute"] == 0
    assert split["always"]["recompute"] == product + 6 * function
    assert split["always"]["bwd"] == split["in one piece"]["bwd"]


def test_stretches_count_checkpoints():
    *_, part, _, _, order = deep(12, [3, 7])
    graph, marks = part.graph, set(part.checkpoints)
    found = stretches(schedule(graph), {graph.inputs[0]}, marks)
    assert [found[t.producer] for t in order] == [0] * 4 + [1] * 4 + [2] * 4
    assert stretches(schedule(graph), (), marks) == {}, "what follows from parameters is in no stretch"


def test_unknown_way_to_recompute():
    net = network(1)
    with pytest.raises(PipelineError, match="recompute='sometimes'; allowed are 'in one piece', 'interleaved'"):
        build_pipeline(net.ir, net.parts, sharded(1, 2), training=net.training, recompute="sometimes")
