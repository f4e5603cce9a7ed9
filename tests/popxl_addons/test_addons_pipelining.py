"""``addons.pipelined_execution``: values against NumPy, the written program, its time, its errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pipelineprograms as programs
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.popxl import ops
from ipuperf.report import pipeline_split
from ipuperf.simulation import simulate
from ipuperf.trace import Trace


def batches(net: programs.Network, steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    replicas = net.ir.replication_factor
    lead = (steps, replicas) if replicas > 1 else (steps,)
    x = rng.normal(size=(*lead, *net.inputs.shape)).astype(np.float32)
    return x, rng.integers(0, programs.CLASSES, (*lead, net.batch)).astype(np.int32)


def assert_close(actual: programs.Weights, expected: programs.Weights) -> None:
    for pair, wanted in zip(actual, expected, strict=True):
        for one, other in zip(pair, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("stages", "steps"), [(2, 6), (2, 9), (3, 10), (4, 14)])
def test_training_equals_gradient_accumulation(stages: int, steps: int, recompute: bool) -> None:
    net = programs.network(stages, recompute=recompute)
    session = popxl.Session(programs.pipelined(net, steps), "ipu_hw")
    expected = programs.data_of(session, net)
    with session:
        for run in range(3):
            x, labels = batches(net, steps, run)
            losses = session.run({net.inputs: x, net.labels: labels})[net.losses]
            wanted, expected = programs.reference_update(expected, x, labels)
            np.testing.assert_allclose(losses, wanted, rtol=1e-5)
            assert_close(programs.data_of(session, net), expected)


def test_one_stage_is_a_loop() -> None:
    net = programs.network(1)
    session = popxl.Session(programs.pipelined(net, 2), "ipu_hw")
    expected = programs.data_of(session, net)
    x, labels = batches(net, 2)
    with session:
        losses = session.run({net.inputs: x, net.labels: labels})[net.losses]
    wanted, expected = programs.reference_update(expected, x, labels)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert_close(programs.data_of(session, net), expected)


def test_replicas_train_on_all_their_data() -> None:
    net = programs.network(2, replicas=2)
    session = popxl.Session(programs.pipelined(net, 6), "ipu_hw")
    expected = programs.data_of(session, net)
    x, labels = batches(net, 6)
    with session:
        losses = session.run({net.inputs: x, net.labels: labels})[net.losses]
    flat = programs.reference_update(expected, x.reshape(12, *x.shape[2:]), labels.reshape(12, -1))
    np.testing.assert_allclose(losses.reshape(-1), flat[0], rtol=1e-5)
    assert_close(programs.data_of(session, net), flat[1])


def test_sharded_program_gives_the_same_numbers() -> None:
    found = []
    for build in (programs.sharded, programs.pipelined):
        net = programs.network(3)
        session = popxl.Session(build(net, 10), "ipu_hw")
        x, labels = batches(net, 10)
        with session:
            session.run({net.inputs: x, net.labels: labels})
        found.append(programs.data_of(session, net))
    assert_close(*found)


# -- inference ---------------------------------------------------------------------------------------------------------


@contextmanager
def chain(steps: int) -> Iterator[tuple[popxl.Ir, addons.transforms.pipelining.StageContext, popxl.Tensor]]:
    """A pipeline over scalars: program, pipeline, and an input stream's value loaded in stage 0 on IPU 0."""
    ir = popxl.Ir()
    ir.num_host_transfers = steps
    with ir.main_graph:
        stream = popxl.h2d_stream((), popxl.float32, "x")
        with addons.pipelined_execution(steps) as pipeline:
            with pipeline.stage(0), popxl.ipu(0):
                x = ops.host_load(stream, "x")
            yield ir, pipeline, x


def out_stream() -> popxl.DeviceToHostStream:
    return popxl.d2h_stream((), popxl.float32, "out")


def results(ir: popxl.Ir, steps: int) -> np.ndarray:
    """What a run gives for the inputs 0, 1, 2 ..."""
    with popxl.Session(ir, "ipu_hw") as session:
        (stream,) = session.expected_inputs()
        (out,) = session.run({stream: np.arange(steps, dtype=np.float32)}).values()
    return out


@pytest.mark.parametrize(("stages", "steps"), [(2, 4), (2, 10), (4, 10)])
def test_each_stage_adds_one(stages: int, steps: int) -> None:
    with chain(steps) as (ir, pipeline, x):
        for stage in range(stages):
            with pipeline.stage(stage), popxl.ipu(stage):
                x = x + 1
                if stage < stages - 1:
                    x = x.copy_to_ipu(stage + 1)
                else:
                    ops.host_store(out_stream(), x)
    np.testing.assert_array_equal(results(ir, steps), np.arange(steps) + stages)


def test_a_copy_may_stand_in_the_receiving_stage() -> None:
    with chain(4) as (ir, pipeline, x), pipeline.stage(1), popxl.ipu(1):
        ops.host_store(out_stream(), x.copy_to_ipu(1) * 2)
    np.testing.assert_array_equal(results(ir, 4), np.arange(4) * 2)


def test_a_value_handed_from_stage_to_stage_stays_with_its_micro_batch() -> None:
    with chain(8) as (ir, pipeline, x):
        with pipeline.stage(0), popxl.ipu(0):
            mask, x = x.copy_to_ipu(1), (x * 2).copy_to_ipu(1)
        with pipeline.stage(1), popxl.ipu(1):
            mask, x = mask.copy_to_ipu(2), (x * 5).copy_to_ipu(2)
        with pipeline.stage(2), popxl.ipu(2):
            ops.host_store(out_stream(), x + mask)
    np.testing.assert_array_equal(results(ir, 8), np.arange(8) * 11)


def test_a_tensor_waits_in_a_stash() -> None:
    with chain(6) as (ir, pipeline, x):
        with pipeline.stage(0), popxl.ipu(0):
            there = (x * 10).copy_to_ipu(1)
        with pipeline.stage(1), popxl.ipu(1):
            back = (there + 0.5).copy_to_ipu(0)
        with pipeline.stage(2), popxl.ipu(0):
            kept = pipeline.stash_and_restore_tensor(x)
            assert kept.shape == ()
            ops.host_store(out_stream(), back + kept)
    np.testing.assert_array_equal(results(ir, 6), np.arange(6) * 11 + 0.5)
    graph = next(g for g in ir.main_graph.called_graphs)
    assert "main_cycle" in graph.print_schedule()
    (ring,) = [v for v in ir.main_graph.variables if v.name.startswith("stash")]
    assert ring.shape == (3, 1)  # stage 2 - stage 0 + 1 entries


def test_what_a_copy_brings_is_stashed_from_the_stage_that_gets_it() -> None:
    with chain(8) as (ir, pipeline, x):
        with pipeline.stage(0), popxl.ipu(0):
            x = x.copy_to_ipu(1)
        with pipeline.stage(1), popxl.ipu(1):
            y = (x * 2).copy_to_ipu(0)
        with pipeline.stage(2), popxl.ipu(0):
            y = (y * 2).copy_to_ipu(1)
        with pipeline.stage(3), popxl.ipu(1):
            ops.host_store(out_stream(), y + pipeline.stash_and_restore_tensor(x))
    np.testing.assert_array_equal(results(ir, 8), np.arange(8) * 5)
    assert [v.shape for v in ir.main_graph.variables if v.name.startswith("stash")] == [(3, 1)]


def test_a_variable_changes_in_every_step_and_can_be_copied() -> None:
    with chain(4) as (ir, pipeline, x):
        with pipeline.stage(0), popxl.ipu(0):
            total = popxl.variable(0.0, popxl.float32, "total")
            scale = popxl.variable(3.0, popxl.float32, "scale")
            ops.var_updates.accumulate_(total, x)
            x, there = x.copy_to_ipu(1), scale.copy_to_ipu(1, 0)
        with pipeline.stage(1), popxl.ipu(1):
            ops.host_store(out_stream(), x * there)
    with popxl.Session(ir, "ipu_hw") as session:
        (stream,) = session.expected_inputs()
        (out,) = session.run({stream: np.arange(4, dtype=np.float32)}).values()
        assert session.get_tensor_data(total) == 6
    np.testing.assert_array_equal(out, np.arange(4) * 3)


def test_pipeline_in_a_repeated_graph() -> None:
    """Device iterations: the pipeline is a part of a graph that runs several times."""
    ir = popxl.Ir()
    ir.num_host_transfers = 12
    with ir.main_graph:
        stream, out = popxl.h2d_stream((), popxl.float32, "x"), out_stream()

        def step(offset: popxl.Tensor) -> None:
            with addons.pipelined_execution(4) as pipeline:
                with pipeline.stage(0), popxl.ipu(0):
                    x = (ops.host_load(stream) + offset).copy_to_ipu(1)
                with pipeline.stage(1), popxl.ipu(1):
                    ops.host_store(out, x * 2)

        with popxl.ipu(0):
            offset = popxl.variable(100.0, popxl.float32)
        ops.repeat(ir.create_graph(step, offset), 3, offset)
    with popxl.Session(ir, "ipu_hw") as session:
        found = session.run({stream: np.arange(12, dtype=np.float32)})[out]
    np.testing.assert_array_equal(found, (np.arange(12) + 100) * 2)


# -- the program -------------------------------------------------------------------------------------------------------


def test_the_main_graph_has_one_call_of_ramps_and_a_loop() -> None:
    net = programs.network(2)
    ir = programs.pipelined(net, 7)
    assert ir.main_graph.print_schedule().count("(pipeline_graph_subgraph(") == 1
    (pipeline,) = [g for g in ir.main_graph.called_graphs if g.name.startswith("pipeline_graph")]
    text = pipeline.print_schedule()
    # three stages: two cycles of ramp-up, five full ones, two of ramp-down; the last cycle copies nothing
    assert (text.count("(stage_0"), text.count("(stage_1"), text.count("(stage_2")) == (2, 2, 2)
    assert text.count("IpuCopy") == 2 * 3
    (loop,) = [op for op in pipeline._base.ops if op.type == "Loop"]
    assert loop.trip_count == 7 - 2
    body = popxl.Graph._from_ir(loop.callee).print_schedule()
    assert body.index("(stage_0") < body.index("(stage_1") < body.index("(stage_2") < body.index("HostStore")
    assert body.index("HostStore") < body.index("IpuCopy")
    assert body.count("IpuCopy") == 2


def test_ops_after_the_pipeline_come_after_it() -> None:
    net = programs.network(2)
    lines = programs.pipelined(net, 6).main_graph.print_schedule().split("\n")
    at = next(i for i, line in enumerate(lines) if "pipeline_graph" in line)
    assert all("ScaledAdd" not in line for line in lines[:at])
    assert sum("ScaledAdd" in line for line in lines[at:]) == 4


def test_backward_graphs_are_on_the_ipu_of_their_forward() -> None:
    net = programs.network(3, recompute=True)
    programs.pipelined(net, 10)
    for ipu, layer in enumerate(net.layers):
        graphs = [layer.fwd.graph._base, layer.bwd.grad_graph_info.forward_graph._base]
        graphs += layer.bwd.graph._base.called_graphs()
        for graph in graphs:
            assert {op.ipu for op in graph.ops} == {ipu}, graph.name


def trace_of(ir: popxl.Ir) -> Trace:
    """A simulated run on a POD4."""
    machine = load_machine("pod4")
    return simulate(lower(ir._ir, machine), machine)


@pytest.mark.parametrize("recompute", [False, True])
def test_ipus_overlap(recompute: bool) -> None:
    shape = {"batch": 512, "width": 1024, "recompute": recompute}
    steps = 10
    serial, parallel = (
        trace_of(build(programs.network(3, **shape), steps)).summary()
        for build in (programs.sharded, programs.pipelined)
    )
    assert parallel["total_cycles"] < 0.8 * serial["total_cycles"]
    links = {link["name"]: link["transfers"] for link in parallel["links"]}
    # five stages: steps + 4 cycles, all with copies but the last; those of a cycle are one exchange
    assert links["pod4/ipu0->ipu1"] == steps + 4 - 1


@pytest.mark.parametrize("recompute", [False, True])
def test_what_the_ipus_do_is_told_apart(recompute: bool) -> None:
    """Stages that restore activations run their forward again after restoring; the last one keeps its own."""
    trace = trace_of(programs.pipelined(programs.network(2, batch=64, width=64, recompute=recompute), 6))
    split = pipeline_split(trace)
    for ipu in (0, 1):
        assert split[ipu]["fwd"] > 0
        assert split[ipu]["bwd"] > 0
        assert split[ipu]["update"] > 0
    assert (split[0]["recompute"] > 0.3 * split[0]["fwd"]) == recompute
    assert ("recompute" in set(trace.columns("ops")["phase"])) == recompute


# -- errors ------------------------------------------------------------------------------------------------------------

Stages = addons.transforms.pipelining.StageContext


def too_few_steps(pipeline: Stages, x: popxl.Tensor) -> None:
    for stage in (1, 2, 3, 4):
        with pipeline.stage(stage), popxl.ipu(stage):
            x = x.copy_to_ipu(stage) + 1


def no_stage(pipeline: Stages, x: popxl.Tensor) -> None:
    x + 1


def gap_in_the_stages(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(2), popxl.ipu(0):
        pipeline.stash_and_restore_tensor(x)


def no_copy(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(0), popxl.ipu(0):
        y = ops.identity(x, "y")
    with pipeline.stage(1), popxl.ipu(0):
        ops.host_store(out_stream(), y)


def two_stages_after_a_copy(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(0), popxl.ipu(0):
        x = x.copy_to_ipu(1)
    with pipeline.stage(1), popxl.ipu(1):
        x + 1
    with pipeline.stage(2), popxl.ipu(1):
        ops.host_store(out_stream(), x)


def copy_used_by_its_sender(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(0), popxl.ipu(1):
        ops.host_store(out_stream(), x.copy_to_ipu(1))


def later_stage(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(1), popxl.ipu(0):
        late = popxl.variable(1.0) + 1
    with pipeline.stage(0), popxl.ipu(0):
        ops.host_store(out_stream(), x + late)


def copy_in_a_wrong_stage(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(1), popxl.ipu(0):
        popxl.variable(1.0) + 1
    with pipeline.stage(2), popxl.ipu(1):
        ops.host_store(out_stream(), x.copy_to_ipu(1))


def copied_variable_at_once(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(0), popxl.ipu(0):
        there = popxl.variable(1.0).copy_to_ipu(1, 0)
    with pipeline.stage(0), popxl.ipu(1):
        there + 1


def stash_outside_of_a_stage(pipeline: Stages, x: popxl.Tensor) -> None:
    pipeline.stash_and_restore_tensor(x)


def stash_of_a_variable(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(1):
        pipeline.stash_and_restore_tensor(popxl.variable(1.0))


def stash_in_the_same_stage(pipeline: Stages, x: popxl.Tensor) -> None:
    with pipeline.stage(0):
        pipeline.stash_and_restore_tensor(x)


def users_own_error(pipeline: Stages, x: popxl.Tensor) -> None:
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (too_few_steps, ValueError, "steps=8 for 5 stages; at least 10"),
        (no_stage, RuntimeError, "Add.*is in no stage"),
        (gap_in_the_stages, ValueError, r"stages that have ops are \[0, 2\].*without gaps"),
        (no_copy, ValueError, "HostStore.*in stage 1 uses 'y'.*stage 0 makes.*copy_to_ipu.*stash_and_restore_tensor"),
        (two_stages_after_a_copy, ValueError, r"a copy brings to stage 1; stage 2 is then at anoth.*from_stage=1\)"),
        (copy_used_by_its_sender, ValueError, "in stage 0 uses.*brings to stage 1: copies run at the end of a cycle"),
        (later_stage, ValueError, "in stage 0 uses.*made later, in stage 1"),
        (copy_in_a_wrong_stage, ValueError, "IpuCopy.*is in stage 2, its operand is of stage 0.*copy it in stage 0"),
        (copied_variable_at_once, ValueError, "in stage 0 uses.*for stages from 1 on"),
        (stash_outside_of_a_stage, RuntimeError, r"inside `with pipeline.stage"),
        (stash_of_a_variable, RuntimeError, "no stage of the pipeline makes.*from_stage"),
        (stash_in_the_same_stage, TypeError, "a stash of 1 entries.*from stage 0 to stage 0"),
        (users_own_error, KeyError, "mine"),
    ],
)
def test_pipelines_that_cannot_be(
    write: Callable[[Stages, popxl.Tensor], None], error: type[Exception], message: str
) -> None:
    def build() -> None:
        with chain(8) as (_, pipeline, x):
            write(pipeline, x)

    with pytest.raises(error, match=message):
        build()
    with popxl.Ir().main_graph:
        popxl.variable(1.0) + 1  # nothing of it is left over


@pytest.mark.parametrize("steps", [0, 2.0, True])
def test_steps_that_are_no_number(steps: object) -> None:
    with popxl.Ir().main_graph, pytest.raises(ValueError, match=r"pipelined_execution\(.*whole number"):
        addons.pipelined_execution(steps).__enter__()


@pytest.mark.parametrize("number", [-1, 1.0, None, True])
def test_stage_that_is_no_number(number: object) -> None:
    with pytest.raises(ValueError, match="number of a stage"):
        Stages().stage(number).__enter__()


def test_a_pipeline_without_ops() -> None:
    with pytest.raises(ValueError, match="no op was created"), popxl.Ir().main_graph, addons.pipelined_execution(4):
        pass


def test_tensors_of_a_pipeline_cannot_be_used_after_it() -> None:
    with popxl.Ir().main_graph:
        with addons.pipelined_execution(4) as pipeline, pipeline.stage(0), popxl.ipu(0):
            x = popxl.variable(1.0) + 1
        with pytest.raises(popxl.errors.popart_exception, match="belongs to graph 'pipeline_graph_subgraph"):
            x + 1


def test_activations_of_a_call_outside_of_the_pipeline() -> None:
    net = programs.network(1)
    layer = net.layers[0]
    with net.ir.main_graph, popxl.ipu(0):
        layer.init()
        layer.forward(popxl.variable(np.zeros((net.batch, 6), np.float32)))
        pipeline = Stages()
        with pipeline.stage(1), pytest.raises(RuntimeError, match="is in stage None, this is stage 1"):
            pipeline.stash_and_restore_activations(layer.call, layer.bwd.grad_graph_info)
