"""Costs and edges of the vendor's custom ops; their values: `tests/popxl_addons/test_addons_custom_ops.py`."""

from typing import Any

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.lowering import lower
from ipuperf.lowering.steps import Collective
from ipuperf.machine import load_machine
from ipuperf.ops.work import Copy, GroupCollective, Reduction


def made(op_class: type[ops.Op], shapes: list[tuple[int, ...]], dtypes: list[ir.DType], replicas: int, **options: Any):
    """An op over inputs of a graph of ``replicas`` replicas."""
    graph = ir.Ir(replicas).create_graph("test")
    tensors = [
        graph.add_input(ir.TensorSpec(s, d), f"x{i}") for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    outputs = {ops.CrossEntropySharded: 2, ops.DistributedLayerNorm: 3, ops.DistributedLayerNormGrad: 3}
    return graph.create(op_class, tensors, [f"y{i}" for i in range(outputs.get(op_class, 1))], **options)


F16, F32, I32 = ir.FLOAT16, ir.FLOAT32, ir.INT32


def collectives(op: ops.Op) -> list[tuple[str, str, int]]:
    return [(w.kind, w.reduce, w.bytes) for w in op.work() if isinstance(w, GroupCollective)]


def test_identical_inputs_cost_a_copy_and_others_an_all_reduce() -> None:
    group = ir.ReplicaGrouping(4)
    identical = made(ops.ReplicatedAllReduceTP, [(3, 5)], [F16], 4, group=group, identical_inputs=True)
    assert identical.work() == [Copy(30)]
    for op_class in (ops.ReplicatedAllReduceTP, ops.ReplicatedAllReduceStrided):
        op = made(op_class, [(3, 5)], [F16], 4, group=group, identical_grad_inputs=True)
        assert collectives(op) == [("all_reduce", "add", 30)]
        assert not op.movable()


@pytest.mark.parametrize(("size", "count"), [(4, 3), (1, 0)])
def test_a_sharded_cross_entropy_moves_three_numbers_for_each_sample(size: int, count: int) -> None:
    group = ir.ReplicaGrouping(4, 1, size)
    op = made(ops.CrossEntropySharded, [(7, 100), (7,)], [F16, I32], 4, group=group)
    assert [(kind, moved) for kind, _, moved in collectives(op)] == [("all_reduce", 14)] * count
    reductions = [w for w in op.work() if isinstance(w, Reduction)]
    assert [(w.inputs, w.outputs) for w in reductions] == [(700, 7), (700, 7)]


def test_a_distributed_layer_norm_moves_two_sums_of_each_row() -> None:
    group = ir.ReplicaGrouping(4, 2, 2)
    forward = made(ops.DistributedLayerNorm, [(7, 100), (100,), (100,)], [F16] * 3, 4, group=group)
    assert collectives(forward) == [("all_reduce", "add", 7 * 2 * 4)]
    shapes, types = [(7, 100), (100,), (7,), (7,), (7, 100)], [F16, F16, F32, F32, F16]
    backward = made(ops.DistributedLayerNormGrad, shapes, types, 4, group=group)
    assert collectives(backward) == [("all_reduce", "add", 7 * 2 * 4)]


@pytest.mark.parametrize(
    ("op_class", "shapes", "dtypes", "options"),
    [
        (ops.CrossEntropySharded, [(0, 5), (0,)], [F32, I32], {"group": ir.ReplicaGrouping(2)}),
        (ops.DistributedLayerNorm, [(0, 5), (5,), (5,)], [F32] * 3, {"group": ir.ReplicaGrouping(2)}),
        (ops.RotaryPosEmbed, [(0, 3, 2, 4), (1, 3, 2), (1, 3, 2)], [F32] * 3, {"rotary_dim": 4}),
        (ops.GroupQuantizeDecompress, [(0, 3, 2), (0, 3, 1), (0, 3, 1)], [ir.UINT16, F16, F16], {}),
        (ops.LinearLayout, [(0, 3)], [F32], {}),
        (ops.GradReduceSquareAdd, [(0,), ()], [F32, F32], {}),
    ],
)
def test_empty_operands(
    run_graph: Any, op_class: type[ops.Op], shapes: list[tuple[int, ...]], dtypes: list[ir.DType], options: Any
) -> None:
    op = made(op_class, shapes, dtypes, 2, **options)
    values = run_graph(op.graph, {t: np.ones((2, *t.shape), t.dtype.numpy) for t in op.inputs})
    for tensor in op.outputs:
        assert values[tensor].shape == (2, *tensor.shape)
        np.testing.assert_array_equal(values[tensor], 0)
    assert all(getattr(work, "elements", 1) for work in op.work())


def test_another_group_than_the_programs_is_refused() -> None:
    for op_class, shapes in ((ops.ReplicatedAllReduceTP, [(3,)]), (ops.DistributedLayerNorm, [(3, 2), (2,), (2,)])):
        with pytest.raises(ir.IrError, match="the group is over 8 replicas, the program has 4"):
            made(op_class, shapes, [F32] * len(shapes), 4, group=ir.ReplicaGrouping(8))


def test_a_collective_of_a_value_within_an_op_is_laid_out_for_itself() -> None:
    """The all-reduces of a sharded cross entropy move losses, not logits."""
    program = ir.Ir(2)
    main, group = program.main_graph, ir.ReplicaGrouping(2)
    logits = ir.Variable("x", ir.TensorSpec((4, 5000), F32), main, np.zeros((4, 5000), np.float32), program.grouping())
    labels = ir.Variable("i", ir.TensorSpec((4,), I32), main, np.zeros(4, np.int32), program.grouping())
    for variable in (logits, labels):
        main.add(variable)
    main.create(ops.CrossEntropySharded, [logits, labels], ["loss", "logs"], group=group)
    machine = load_machine("pod4")
    lowered = lower(program, machine)
    steps = [step for step in _steps(lowered.ipus[0]) if isinstance(step, Collective)]
    assert [step.bytes for step in steps] == [16, 16, 16]
    rearranged = [
        s for s in _steps(lowered.ipus[0]) if "rearrange" in getattr(s, "name", "") and hasattr(s, "bytes_in")
    ]
    assert rearranged
    assert all(step.bytes_in == 16 for step in rearranged)


def _steps(step: Any) -> list[Any]:
    return [step, *(s for child in getattr(step, "steps", ()) for s in _steps(child))]
