"""Which ops PopART's recomputation types run again, and stages that do so inside their backward pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pipelinecases import ROWS, WIDTH, Network, network

from ipuperf.ir import FLOAT32, Graph, Ir, Op, Tensor, TensorSpec
from ipuperf.numerics import Evaluator
from ipuperf.ops import Add, BatchNormalization, GroupNormalization, MatMul, Relu, Sin
from ipuperf.pipelines import PipelineError, StageGraph, build_pipeline, recomputing
from ipuperf.pipelines.recomputation import decreasing_intervals
from ipuperf.schedules import popart_pipeline, sharded


def names(ops: object) -> set[str]:
    """Names of the first results of ops."""
    return {op.outputs[0].name for op in ops}


def block(graph: Graph, *values: Tensor, name: str, op: type[Op] = Sin) -> Tensor:
    return graph.create(op, values, [name]).outputs[0]


def stage(sizes: tuple[int, ...] = (8,) * 9, side: bool = False) -> StageGraph:
    """A chain ``a0, a1 ...`` of matrix products with results of so many columns, and maybe an op off the chain."""
    graph = Ir().create_named_graph("stage")
    x = graph.add_input(TensorSpec((4, 8), FLOAT32), "x")
    for number, columns in enumerate(sizes):
        w = graph.add_input(TensorSpec((x.shape[1], columns), FLOAT32), f"w{number}")
        x = block(graph, x, w, name=f"a{number}", op=MatMul)
    graph.add_output(x)
    if side:
        graph.add_output(block(graph, graph.tensors["stage/a1"], name="side"))
    return StageGraph(graph, 0, 0, [])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [(0, 1)]),
        (4, [(n, n + 1) for n in range(4)]),
        # int(0.75 * (int(sqrt(50)) - 1)) = 4
        (25, [(0, 4), (4, 7), (7, 9), *((n, n + 1) for n in range(9, 25))]),
        # int(0.75 * (int(sqrt(400)) - 1)) = 14: 14 + 13 + ... + 1 = 105
        (200, [(0, 14), (14, 27)]),
    ],
)
def test_decreasing_intervals(count: int, expected: list[tuple[int, int]]) -> None:
    found = decreasing_intervals(count)
    assert found[: len(expected)] == expected
    assert [b for b, _ in found[1:]] == [e for _, e in found[:-1]]
    assert found[-1][1] == count


def test_recompute_all_stops_at_the_last_checkpoint_unless_explicit() -> None:
    part = stage(side=True)
    part = replace(part, checkpoints=(part.graph.tensors["stage/a2"], part.graph.tensors["stage/a5"]))
    (found,) = recomputing([part], "RecomputeAll", (0, 0))
    assert names(found.recomputed) == {f"a{n}" for n in range(6)}  # a6 to a8 lead from the last checkpoint to the loss
    assert found.checkpoints == part.checkpoints
    (found,) = recomputing([part], "RecomputeAll", (0, 0), explicit=True)
    assert names(found.recomputed) == {f"a{n}" for n in range(9)}


def test_recompute_all_without_checkpoints_recomputes_nothing() -> None:
    """Everything stands between the last checkpoint and the loss, as in PopART's ``recompute_test``."""
    assert recomputing([stage()], "RecomputeAll", (0, 0))[0].recomputed == frozenset()


def test_branches_around_a_checkpoint_are_between_it_and_the_loss() -> None:
    """PopART's example (``tests/popart/recompute_tests``): ops 3 and 4 reach the loss past checkpoint 2."""
    graph = Ir().create_named_graph("stage")
    x = graph.add_input(TensorSpec((4,), FLOAT32), "x")
    one = block(graph, block(graph, x, name="op0"), name="op1")
    two, three = block(graph, one, name="op2"), block(graph, one, name="op3")
    graph.add_output(block(graph, two, three, name="op4", op=Add))
    part = StageGraph(graph, 0, 0, [], checkpoints=(one, two))
    assert names(recomputing([part], "RecomputeAll", (0, 0))[0].recomputed) == {"op0", "op1", "op2"}


def test_norm_only_is_norms_and_nothing_else() -> None:
    graph = Ir().create_named_graph("stage")
    x = graph.add_input(TensorSpec((4, 8), FLOAT32), "x")
    c = [graph.add_input(TensorSpec((8,), FLOAT32), f"c{n}") for n in range(4)]
    y = graph.create(BatchNormalization, [x, *c], ["b", "m", "v", "sm", "sv"], epsilon=1e-5, momentum=0.1).outputs[0]
    y = block(graph, y, name="relu", op=Relu)
    y = graph.create(GroupNormalization, [y, c[0], c[1]], ["g", "gm", "gv"], num_groups=2, epsilon=1e-5).outputs[0]
    graph.add_output(block(graph, y, name="sin"))
    part = StageGraph(graph, 0, 0, [], checkpoints=(y,))
    (found,) = recomputing([part], "NormOnly", (0, 0))
    assert (names(found.recomputed), found.checkpoints) == ({"b", "g"}, ())


def test_standard_keeps_the_smallest_moment_of_each_interval() -> None:
    """25 ops, intervals of 4, 3, 2, 1, 1 ...: one of each is kept, that with the fewest columns."""
    sizes = [8] * 25
    sizes[2] = sizes[4] = sizes[8] = 2
    (found,) = recomputing([stage(tuple(sizes))], "Standard", (0, 0))
    assert names(found.recomputed) == {"a0", "a1", "a3", "a5", "a6", "a7"}
    assert found.checkpoints == ()


def test_standard_keeps_what_lives_across_the_moment() -> None:
    """A residual that is read later belongs to the live set."""
    graph = Ir().create_named_graph("stage")
    x = residual = block(graph, graph.add_input(TensorSpec((4,), FLOAT32), "x"), name="r")
    for number in range(12):
        x = block(graph, x, name=f"a{number}")
    graph.add_output(block(graph, x, residual, name="sum", op=Add))
    (found,) = recomputing([StageGraph(graph, 0, 0, [])], "Standard", (0, 0))
    # 14 ops: int(0.75 * 4) = 3, intervals of 3, 2, 1 ...; first the moment after r alone, then those after one more op
    assert names(found.recomputed) == {"a0", "a1", "a3"}


def test_none_changes_nothing_and_other_words_are_refused() -> None:
    parts = [stage()]
    assert recomputing(parts, "None", (0, 0)) == parts
    with pytest.raises(PipelineError, match="recomputation 'Pipeline'; allowed outside pipelines are None, Standard"):
        recomputing(parts, "Pipeline", (0, 0))


def trained(how: str, stages: int = 3, keep: bool = True) -> tuple[Network, list[np.ndarray], np.ndarray]:
    """Weights and losses after two runs of a sharded network."""
    net = network(stages, functions=["sin"] * stages)
    parts = [
        replace(part, checkpoints=[part.graph.tensors[f"layer{part.stage}/z"]] if keep else []) for part in net.parts
    ]
    parts = recomputing(parts, how, (stages - 1, 1), explicit=True)
    table = sharded(stages, 4, devices=list(range(stages)))
    build_pipeline(net.ir, parts, table, outputs=net.outputs, training=net.training, copies="when needed")
    rng = np.random.default_rng(3)
    data = {s: rng.normal(size=(4, 1, ROWS, WIDTH)).astype(np.float32) for s in (net.inputs, net.targets)}
    evaluator = Evaluator(net.ir)
    evaluator.load_variables()
    losses = [evaluator.run(data)[net.losses] for _ in range(2)]
    evaluator.store_variables(net.weights)
    return net, [np.array(w.data) for w in net.weights], np.array(losses)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("how", ["Standard", "RecomputeAll"])
def test_shards_that_recompute_give_the_same_numbers(how: str, keep: bool) -> None:
    _, weights, losses = trained("None")
    net, found, same = trained(how, keep=keep)
    np.testing.assert_array_equal(same, losses)
    for one, other in zip(found, weights, strict=True):
        np.testing.assert_array_equal(one, other)
    backward = [graph for name, graph in net.ir.graphs.items() if name.endswith("_bwd")]
    products = sum(op.type == "MatMul" for graph in backward for op in graph.ops)
    # two products a stage in the backward pass, one in the first; the sums of products are kept or made again
    assert products == 5 + (3 if how == "RecomputeAll" and not keep else 0)
    passes = [graph for name, graph in net.ir.graphs.items() if name.endswith("_bwd_pass")]
    again = [op.label for graph in passes for op in graph.ops if op.phase == "recompute" and op.type == "MatMul"]
    assert len(again) == products - 5
    assert all(label.startswith("recompute/MatMul.") for label in again)


def test_a_stage_recomputes_its_own_ops_and_not_what_the_schedule_recomputes() -> None:
    net = network(2)
    ops = list(net.parts[0].graph.ops)
    table = popart_pipeline(2, 4, recompute=True)
    parts = [replace(net.parts[0], recomputed=ops), net.parts[1]]
    with pytest.raises(PipelineError, match="stage 0 recomputes 2 ops inside its backward pass, but the schedule"):
        build_pipeline(net.ir, parts, table, training=net.training)
    net = network(2)
    parts = [net.parts[0], replace(net.parts[1], recomputed=net.parts[0].graph.ops)]
    with pytest.raises(PipelineError, match="stage 1 recomputes .*, which is not in 'layer1'"):
        build_pipeline(net.ir, parts, sharded(2, 4, devices=[0, 1]), training=net.training, copies="when needed")
    parts = [net.parts[0], replace(net.parts[1], checkpoints=net.parts[0].graph.outputs)]
    with pytest.raises(PipelineError, match="stage 1 has checkpoint 'layer0/y', which is not in 'layer1'"):
        build_pipeline(net.ir, parts, sharded(2, 4, devices=[0, 1]), training=net.training, copies="when needed")
