"""Timetables in which values wait: random ones, and the schedules of the literature, against plain accumulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelinecases import FUNCTIONS, ROWS, WIDTH, network, run_once
from test_pipeline_values import assert_like_plain_accumulation
from timetablecases import made, needs, placements

from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.models.encoder import EncoderOptions, encoder
from ipuperf.numerics import Evaluator
from ipuperf.pipelines import Activation, Data, Offload, Pipeline, PipelineError, build_pipeline
from ipuperf.schedules import Cell, ScheduleError, Timetable, popart_pipeline, timetable_of
from ipuperf.schedules.assembly import assemble

COPIES = ("every step", "when needed")


@pytest.mark.heavy
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_timetables(data: st.DataObject) -> None:
    cells, ipus, count, period = data.draw(placements())
    stages = len(ipus)
    pairs = [(a, b) for b in range(stages) for a in range(b - 1)]
    skips = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3)) if pairs else []
    functions = data.draw(st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=stages, max_size=stages))
    offload = Offload(activations=data.draw(st.booleans()))
    table = made(cells, ipus, count, period)
    assert_like_plain_accumulation(table, data.draw(st.sampled_from(COPIES)), 2, 1, offload, skips, functions)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_random_timetables_that_break_a_rule_are_refused(data: st.DataObject) -> None:
    cells, ipus, count, _ = data.draw(placements())
    index = data.draw(st.integers(0, len(cells) - 1))
    step, _, cell = cells[index]
    steps = {other: at for at, _, other in cells}
    before = [steps[other] for other in needs(cell, len(ipus))]
    ways = {"twice": True, "early": bool(before), "missing": cell.kind != "W" or count > 1}
    how = data.draw(st.sampled_from([way for way, possible in ways.items() if possible]))
    changed = [*cells[:index], *cells[index + 1 :]]
    if how == "twice":
        changed = [*cells, (step, 9, cell)]
    elif how == "early":
        least = min(before)
        changed.append((data.draw(st.integers(0, least)), -1, cell))
    with pytest.raises(ScheduleError, match=rf"stage {cell.stage}, micro-batch {cell.micro_batch}\b"):
        made(changed, ipus, count)


GRID = [
    *[("1f1b", stages, count, {}) for stages, count in ((1, 1), (1, 3), (2, 1), (2, 5), (3, 3), (4, 9))],
    ("1f1b", 3, 7, {"devices": [2, 0, 1]}),
    *[("zb_h1", stages, count, {}) for stages, count in ((1, 1), (1, 4), (2, 2), (2, 9), (3, 2), (4, 11))],
    ("zb_h1", 3, 8, {"devices": [1, 0, 2]}),
    *[("interleaved_1f1b", stages, count, {}) for stages, count in ((2, 3), (4, 2), (4, 12))],
    ("interleaved_1f1b", 6, 4, {"chunks": 3}),
    ("interleaved_1f1b", 4, 4, {"devices": [1, 0, 1, 0]}),
    ("interleaved_1f1b", 3, 3, {"chunks": 1}),
]


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize(("name", "stages", "count", "options"), GRID, ids=str)
def test_schedules_with_flush(name: str, stages: int, count: int, options: dict, copies: str) -> None:
    skips = [(0, stages - 1)] if stages > 2 else []
    table = timetable_of(name, stages, count, **options)
    assert_like_plain_accumulation(table, copies, 2, 1, Offload(), skips)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "interleaved_1f1b"])
@pytest.mark.parametrize(
    ("offload", "options"),
    [
        (Offload(activations=True, accumulators=True), {}),
        (Offload(weights=True, shard_optimiser_state=True), {"reduction": "sum", "loss_scale": 8.0}),
        (Offload(), {"reduction": "running_mean"}),
    ],
    ids=["activations", "weights", "running_mean"],
)
def test_with_offloading_replicas_and_reductions(name: str, offload: Offload, options: dict) -> None:
    table = timetable_of(name, 4, 8)
    assert_like_plain_accumulation(table, "when needed", 2, 2, offload, [(0, 3), (1, 3)], **options)


def test_a_running_mean_of_stages_that_share_an_ipu() -> None:
    """Each stage counts its own micro-batches."""
    table = popart_pipeline(3, 7, devices=[0, 1, 0])
    assert_like_plain_accumulation(table, "every step", 2, 1, Offload(), [], reduction="running_mean")


def test_stages_that_share_a_variable_have_its_mean() -> None:
    """A running mean and a mean are one number, also of a variable that gets two gradients in each micro-batch."""
    found = []
    for reduction in ("mean", "running_mean"):
        net = network(3, ipus=[0, 1, 0], reduction=reduction)
        net.parts[2] = replace(
            net.parts[2], sources=[Activation(1, 0), Data(net.weights[0]), *net.parts[2].sources[2:]]
        )
        table = popart_pipeline(3, 7, devices=[0, 1, 0])
        build_pipeline(net.ir, net.parts, table, outputs=net.outputs, training=net.training, repeats=2)
        run_once(net, *np.random.default_rng(1).normal(size=(2, 14, 1, ROWS, WIDTH)).astype(np.float32))
        found.append([np.array(weight.data) for weight in net.weights])
    for mean, running in zip(*found, strict=True):
        np.testing.assert_allclose(running, mean, rtol=1e-5)


@pytest.mark.parametrize("copies", COPIES)
def test_a_row_with_a_forward_between_backwards(copies: str) -> None:
    """Only the second micro-batch of the last stage goes back in the step of its forward."""
    rows = ["F00", "F10 F01", "B10", "B00 F11 B11", "B01"]
    cells = [
        (step, rank, Cell(word[0], int(word[1]), int(word[2])))
        for step, row in enumerate(rows)
        for rank, word in enumerate(row.split())
    ]
    assert_like_plain_accumulation(made(cells, [0, 0], 2), copies, 2, 1, Offload(), [])


@pytest.mark.parametrize("copies", COPIES)
def test_a_gradient_that_waits_as_it_arrived(copies: str) -> None:
    """Stages without a function: the gradients of weights are made of what arrived, buffers that copies change."""
    table = timetable_of("zb_h1", 3, 5)
    assert_like_plain_accumulation(table, copies, 2, 1, Offload(), [], ["identity"] * 3)
    assert_like_plain_accumulation(replace(table, period=99), copies, 2, 1, Offload(), [], ["identity"] * 3)


def built(table: Timetable, **options: object) -> Pipeline:
    """The small network under a timetable."""
    net = network(table.stages, **options)
    return build_pipeline(net.ir, net.parts, table, outputs=net.outputs, training=net.training)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "interleaved_1f1b"])
def test_the_steady_part_is_a_loop(name: str) -> None:
    """A program is no longer with more micro-batches."""
    ipus = [group[0] for group in timetable_of(name, 4, 8).devices]
    programs = [built(timetable_of(name, 4, count), ipus=ipus).program for count in (16, 32)]
    assert 1 < programs[0].trips < programs[1].trips
    windows = [[len(part) for part in (program.before, program.body, program.after)] for program in programs]
    assert windows[0] == windows[1]


def trained(name: str, count: int = 4) -> list[np.ndarray]:
    """Weights of an encoder (norms, biases, attention, several layers in a stage) after one update."""
    table = timetable_of(name, 3, count)
    options = EncoderOptions(layers=5, stages=3, hidden=8, heads=2, sequence=4, batch=1, feed_forward=16, half=False)
    model = encoder(options)
    build_pipeline(model.ir, model.parts, table, outputs=model.outputs, training=model.training)
    rng = np.random.default_rng(5)
    streams = [stream for stream in (model.inputs, model.targets) if stream is not None]
    data = {s: rng.normal(size=(count, 1, *s.shape)).astype(np.float32) for s in streams}
    evaluator = Evaluator(model.ir)
    evaluator.load_variables()
    evaluator.run(data)
    evaluator.store_variables()
    return [np.array(weight.data) for weight in model.weights]


def test_a_backward_in_two_gives_the_same_weights() -> None:
    for weight, expected in zip(trained("zb_h1"), trained("sharded"), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-7)


def test_gradients_of_weights_have_products_of_their_own() -> None:
    """Of the two products of a layer's backward, one is in each part; the first layer's needs no gradient before it."""
    pipeline = built(timetable_of("zb_h1", 3, 6))
    counts = []
    for stage in pipeline.stages:
        routines = [stage.backward, stage.weights]
        counts.append([sum(op.type == "MatMul" for op in r.graph.ops) for r in routines if r is not None])
    assert counts == [[0, 1], [1, 1], [1, 1]]


def gpipe(stages: int, count: int) -> Timetable:
    """All forwards, then all backwards."""
    half = count + stages - 1
    every = [(stage, m) for stage in range(stages) for m in range(count)]
    cells = [(m + stage, 0, Cell("F", stage, m)) for stage, m in every]
    cells += [(half + m + stages - 1 - stage, 0, Cell("B", stage, m)) for stage, m in every]
    return assemble("gpipe", count, tuple((stage,) for stage in range(stages)), cells, 2 * half)


@pytest.mark.heavy
def test_memory_follows_what_is_alive() -> None:
    """GPipe keeps all micro-batches, 1F1B as many as there are stages after: with more micro-batches it stays."""

    def peak(table: Timetable) -> int:
        options = EncoderOptions(
            layers=4, stages=4, hidden=64, heads=2, sequence=32, batch=2, feed_forward=256, host_inputs=False
        )
        model = encoder(options, seed=None)
        build_pipeline(model.ir, model.parts, table, outputs=model.outputs, training=model.training)
        return lower(model.ir, load_machine("pod4")).memory.peak_not_always_live(0)

    few, many = peak(timetable_of("1f1b", 4, 8)), peak(timetable_of("1f1b", 4, 16))
    assert few == many < peak(gpipe(4, 8)) < peak(gpipe(4, 16))


def test_what_a_way_of_copying_cannot_express() -> None:
    """Only the last stage reads, of the first; what it reads goes through the stage between them in every step."""
    net = network(3, skips=[(0, 2)])
    middle = net.parts[1]
    cells = [(0, 0, Cell("F", 0, 0)), (0, 0, Cell("F", 1, 0)), (1, 0, Cell("F", 2, 0))]
    cells += [(2, 0, Cell("B", 2, 0)), (3, 0, Cell("B", 1, 0)), (3, 0, Cell("B", 0, 0))]
    table = assemble("mine", 1, ((0,), (1,), (2,)), cells, 4, reads=[(0, 2)])
    with pytest.raises(PipelineError, match="mine: F of stage 1, micro-batch 0 in step 0 reads F of stage 0"):
        build_pipeline(net.ir, net.parts, table, outputs=net.outputs, training=net.training)
    sources = [net.parts[0].sources[0], *middle.sources[1:]]
    net.parts[1] = replace(middle, sources=sources)
    with pytest.raises(PipelineError, match="F of stage 2, micro-batch 0 in step 1 reads what .* use copies='when"):
        build_pipeline(net.ir, net.parts, table, outputs=net.outputs, training=net.training)


def test_a_split_backward_with_recomputation() -> None:
    net = network(1)
    cells = [(m * 4 + i, 0, Cell(kind, 0, m)) for m in range(2) for i, kind in enumerate("FRBW")]
    table = assemble("mine", 2, ((0,),), cells, 8)
    with pytest.raises(PipelineError, match="stage 0 has cells of its own for gradients of weights; .* leave out R"):
        build_pipeline(net.ir, net.parts, table, outputs=net.outputs, training=net.training)
