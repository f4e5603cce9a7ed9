"""Collectives against loops over replica groups in plain NumPy."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf import ir
from ipuperf.numerics import Evaluator
from ipuperf.ops.elementwise.arithmetic import Add
from ipuperf.ops.gradients import autodiff
from ipuperf.ops.shape import Transpose, TransposeInplace
from ipuperf.ops.transfers.collectives import (
    ReplicatedAllGather,
    ReplicatedAllReduce,
    ReplicatedAllReduceInplace,
    ReplicatedReduceScatter,
)
from ipuperf.ops.transfers.streams import HostStore

REDUCE = {"add": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "mul": np.prod}
GROUPS = [(4, 1, 4), (4, 1, 2), (4, 2, 2), (4, 1, 1), (8, 2, 2), (8, 1, 4), (8, 4, 2), (6, 2, 3), (1, 1, 1)]


def members_of(replicas, stride, size):
    """Groups by definition: members are ``stride`` apart, groups fill blocks of stride * size replicas."""
    span = stride * size
    return [
        [block + first + k * stride for k in range(size)]
        for block, first in itertools.product(range(0, replicas, span), range(stride))
    ]


def run(data, group, build):
    """Evaluate ``build(main, variable) -> tensor`` on per-replica data ``(R, *shape)``."""
    replicas = data.shape[0]
    program = ir.Ir(replicas)
    main = program.main_graph
    spec = ir.TensorSpec(data.shape[1:], ir.dtype_of(data))
    host = data if replicas > 1 else data[0]
    variable = ir.Variable("v", spec, main, host.copy(), program.grouping(1, 1))
    main.add(variable)
    with ir.CONTEXT.sequence(True):
        tensor = build(main, variable, program.grouping(*group))
        stream = ir.Stream("s", tensor.spec, main, "d2h")
        main.add(stream)
        main.create(HostStore, [tensor], [], stream=stream)
    evaluator = Evaluator(program)
    evaluator.load_variables()
    result = evaluator.run()[stream][0]
    np.testing.assert_array_equal(evaluator.variables[variable].shape, data.shape)
    return result, evaluator.variables[variable]


def create(main, op_class, tensor, **attributes):
    return main.create(op_class, [tensor], ["out"], **attributes).outputs[0]


@pytest.mark.parametrize(("replicas", "stride", "size"), GROUPS)
@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_all_reduce(replicas, stride, size, op, in_place, turned):
    data = np.random.default_rng(0).normal(size=(replicas, 3, 5)).astype(np.float32)
    op_class = ReplicatedAllReduceInplace if in_place else ReplicatedAllReduce

    def build(main, v, group):
        if turned:
            v = create(main, TransposeInplace, v, permutation=(1, 0))
        return create(main, op_class, v, op=op, group=group)

    result, after = run(data, (stride, size), build)
    expected = np.empty_like(data)
    for members in members_of(replicas, stride, size):
        expected[members] = REDUCE[op](data[members], axis=0)
    np.testing.assert_allclose(result, expected.swapaxes(1, 2) if turned else expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after, expected if in_place else data, rtol=1e-5, atol=1e-6)


def test_fp16_sums_are_made_in_float32_and_rounded_once():
    data = np.array([[2048], [1], [1], [1]], np.float16)
    result, _ = run(data, (1, 4), lambda m, v, g: create(m, ReplicatedAllReduce, v, op="add", group=g))
    np.testing.assert_array_equal(result, np.full((4, 1), 2051, np.float32).astype(np.float16))


def test_integers():
    data = np.array([[1, -2], [30, 4]], np.int32)
    for op, expected in (("add", [31, 2]), ("max", [30, 4]), ("mul", [30, -8])):
        result, _ = run(data, (1, 2), lambda m, v, g, op=op: create(m, ReplicatedAllReduce, v, op=op, group=g))
        np.testing.assert_array_equal(result, [expected] * 2)


@settings(max_examples=60)
@given(
    group=st.sampled_from(GROUPS),
    shape=st.lists(st.integers(1, 4), max_size=3),
    op=st.sampled_from([*REDUCE, "local"]),
    turned=st.booleans(),
)
def test_reduce_scatter_then_gather(group, shape, op, turned):
    """Member k of a group holds piece k of the group's combination, zero padded; a gather inverts it."""
    replicas, stride, size = group
    turned = turned and len(shape) == 2
    data = np.random.default_rng(1).normal(size=(replicas, *shape)).astype(np.float32)

    def scatter(main, v, g):
        if turned:
            v = create(main, Transpose, v, permutation=(1, 0))
        return create(main, ReplicatedReduceScatter, v, op=op, group=g, rts=True)

    shards, after = run(data, (stride, size), scatter)
    np.testing.assert_array_equal(after, data)
    whole = data.swapaxes(1, 2) if turned else data
    count = int(np.prod(shape))
    held = -(-count // size)
    assert shards.shape == (replicas, held)
    for members in members_of(replicas, stride, size):
        for k, replica in enumerate(members):
            value = whole[replica] if op == "local" else REDUCE[op](whole[members], axis=0)
            padded = np.zeros(held * size, np.float32)
            padded[:count] = value.reshape(-1)
            np.testing.assert_allclose(shards[replica], padded[k * held : (k + 1) * held], rtol=1e-5, atol=1e-6)
    if op == "local" or not shape:  # no shape is no meta_shape: a scalar cannot be gathered by it
        return
    full, _ = run(
        data,
        (stride, size),
        lambda m, v, g: create(m, ReplicatedAllGather, scatter(m, v, g), group=g, mode="meta_shape"),
    )
    flat, _ = run(data, (stride, size), lambda m, v, g: create(m, ReplicatedAllGather, scatter(m, v, g), group=g))
    assert full.shape == whole.shape
    assert flat.shape == (replicas, held * size)
    for members in members_of(replicas, stride, size):
        for replica in members:
            expected = REDUCE[op](whole[members], axis=0)
            np.testing.assert_allclose(full[replica], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(flat[replica, :count], expected.reshape(-1), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(flat[replica, count:], 0)


# -- rules ---------------------------------------------------------------------------------------------------------


def test_specs_and_errors():
    program = ir.Ir(4)
    main, group = program.main_graph, program.grouping()
    x = main.add_input(ir.TensorSpec((3, 3), ir.FLOAT32), "x")
    shard = create(main, ReplicatedReduceScatter, x, op="add", group=group, rts=True)
    assert shard.spec == ir.TensorSpec((3,), ir.FLOAT32, (3, 3))
    assert create(main, ReplicatedReduceScatter, x, group=group).meta_shape == ()
    assert create(main, ReplicatedAllReduce, shard, group=group).meta_shape == (3, 3)
    whole = main.add_input(ir.TensorSpec((3, 3), ir.INT32), "i")
    for message, op_class, tensor, attributes in (
        ("over 2 replicas, the program has 4", ReplicatedAllReduce, x, {"group": ir.ReplicaGrouping(2)}),
        ("op='xor'; allowed: add, mean", ReplicatedAllReduce, x, {"group": group, "op": "xor"}),
        ("op='local'; allowed: add, mean", ReplicatedAllReduce, x, {"group": group, "op": "local"}),
        ("'i' is int32", ReplicatedAllReduce, whole, {"group": group, "op": "mean"}),
        ("no meta_shape", ReplicatedAllGather, x, {"group": group, "mode": "meta_shape"}),
        ("has 5 elements, not 3", ReplicatedAllGather, shard, {"group": program.grouping(1, 2), "mode": "meta_shape"}),
        ("mode='auto'; allowed: flat, meta_shape, shape", ReplicatedAllGather, x, {"group": group, "mode": "auto"}),
    ):
        with pytest.raises(ir.IrError, match=message):
            create(main, op_class, tensor, **attributes)
    with pytest.raises(ValueError, match="does not divide"):
        program.grouping(1, 3)


# -- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["add", "mean"])
def test_gradient_of_an_all_reduce_is_the_transposed_map(op):
    """A linear map over all replicas and its gradient: <A x, y> = <x, A^T y>, summed over replicas."""
    program = ir.Ir(4)
    group = program.grouping(2, 2)
    graph = program.create_graph("g")
    x = graph.add_input(ir.TensorSpec((5,), ir.FLOAT32), "x")
    y = create(graph, ReplicatedAllReduce, x, op=op, group=group)
    graph.add_output(y)
    derivative = autodiff(graph)
    rng = np.random.default_rng(4)
    values, weights = (rng.normal(size=(4, *t.shape)).astype(np.float32) for t in (x, y))
    forward = evaluate(program, graph, [values])
    backward = evaluate(program, derivative.graph, [weights])
    assert backward.shape == values.shape
    np.testing.assert_allclose((forward * weights).sum(), (values * backward).sum(), rtol=1e-4)


@pytest.mark.parametrize(("replicas", "stride", "size"), GROUPS)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)])
def test_gradient_of_an_all_gather_is_the_replicas_own_part(replicas, stride, size, shape):
    program = ir.Ir(replicas)
    graph = program.create_graph("g")
    x = graph.add_input(ir.TensorSpec(shape, ir.FLOAT32), "x")
    y = graph.add_output(create(graph, ReplicatedAllGather, x, group=program.grouping(stride, size)))
    weights = np.random.default_rng(4).normal(size=(replicas, *y.shape)).astype(np.float32)
    backward = evaluate(program, autodiff(graph).graph, [weights])
    for members in members_of(replicas, stride, size):
        for k, replica in enumerate(members):
            np.testing.assert_array_equal(backward[replica], weights[replica].reshape(size, *shape)[k])


@pytest.mark.parametrize("shape", [(), (5,), (2, 4)])
def test_gradient_of_a_slice_is_a_gather(shape):
    program = ir.Ir(4)
    graph = program.create_graph("g")
    x = graph.add_input(ir.TensorSpec(shape, ir.FLOAT32), "x")
    y = create(graph, ReplicatedReduceScatter, x, op="local", group=program.grouping(2, 2))
    graph.add_output(y)
    weights = np.random.default_rng(4).normal(size=(4, *y.shape)).astype(np.float32)
    backward = evaluate(program, autodiff(graph).graph, [weights])
    for members in members_of(4, 2, 2):
        whole = weights[members].reshape(-1)[: int(np.prod(shape))].reshape(shape)
        np.testing.assert_array_equal(backward[members], [whole, whole])


@pytest.mark.parametrize("op", ["add", "mean", "max", "min", "mul"])
def test_a_reduce_scatter_has_no_gradient(op):
    """As upstream, whatever is reduced."""
    program = ir.Ir(2)
    graph = program.create_graph("g")
    x = graph.add_input(ir.TensorSpec((4,), ir.FLOAT32), "x")
    graph.add_output(create(graph, ReplicatedReduceScatter, x, op=op, group=program.grouping()))
    with pytest.raises(ir.IrError, match=f"op '{op}' has no gradient; 'local' has one"):
        autodiff(graph)


def evaluate(program, graph, arrays):
    """Call ``graph`` from a fresh main graph."""
    from ipuperf.numerics.compiler import Compiler

    compiler = Compiler(program.replication_factor, {}, {})
    kernel, outputs = compiler.compile(graph, arrays)
    kernel()
    return outputs[0].copy()


def test_maximum_has_no_gradient():
    program = ir.Ir(2)
    graph = program.create_graph("g")
    x = graph.add_input(ir.TensorSpec((5,), ir.FLOAT32), "x")
    y = create(graph, ReplicatedAllReduce, x, op="max", group=program.grouping())
    graph.add_output(graph.create(Add, [y, y], ["z"]).outputs[0])
    with pytest.raises(ir.IrError, match="op 'max' has no gradient"):
        autodiff(graph)
