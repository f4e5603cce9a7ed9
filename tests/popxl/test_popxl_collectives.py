"""Collectives: ``replicated_slice``, the reductions besides the usual ones, ``CommGroup``, ``all_reduce`` of IPUs."""

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import IrError
from ipuperf.popxl import ops
from ipuperf.popxl.ops.collectives import CommGroup, CommGroupType

RNG = np.random.default_rng(3)


def _run(ir, build, *data):
    """The results on all replicas of what ``build`` makes of variables, one value per replica."""
    with ir.main_graph:
        each = ir.replica_grouping(group_size=1)
        made = build(*(popxl.variable(d if ir.replication_factor > 1 else d[0], replica_grouping=each) for d in data))
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in made]
        for stream, tensor in zip(streams, made, strict=True):
            ops.host_store(stream, tensor)
    with popxl.Session(ir, "ipu_model") as session:
        found = session.run()
    return [found[s] for s in streams]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("size", "stride"), [(4, 1), (2, 1), (2, 2)])
def test_replicated_slice_is_the_part_of_the_replica(axis, size, stride):
    ir = popxl.Ir(replication=4)
    data = RNG.normal(size=(4, 8, 16, 8)).astype(np.float32)
    group = ir.replica_grouping(stride, size)
    (found,) = _run(ir, lambda t: [ops.collectives.replicated_slice(t, axis, group)], data)
    for replica in range(4):
        part = replica // stride % size
        np.testing.assert_array_equal(found[replica], np.split(data[replica], size, axis)[part])


@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 4), (4, 2, 3), (2, 4, 3), (2, 3, 4)])
def test_a_slice_one_element_long_has_no_axis(shape):
    """What is left has the axes of upstream's code: the first of them moves to where the slice was taken."""
    axis, ir = shape.index(4), popxl.Ir(replication=4)
    data = RNG.normal(size=(4, *shape)).astype(np.float32)

    def build(t):
        graph = ir.create_graph(lambda t: ops.collectives.replicated_slice(t, axis), t)
        (part,) = ops.call(graph, t)
        return [part, *ops.call(popxl.transforms.autodiff(graph).graph, part)]

    parts, gradients = _run(ir, build, data)
    for replica in range(4):
        part = data[replica].take(replica, axis)
        np.testing.assert_array_equal(parts[replica], np.moveaxis(part, 0, min(axis, part.ndim - 1)) if axis else part)
    rows = [data[r].take(r, axis) for r in range(4)]
    np.testing.assert_array_equal(gradients, np.stack([np.stack(rows, axis)] * 4))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(), (1,), (5,)])
def test_sum_of_squares(shape, dtype):
    for replicas in (1, 2):
        data = RNG.normal(size=(replicas, *shape)).astype(dtype)
        ir = popxl.Ir(replication=replicas)
        (found,) = _run(ir, lambda t: [ops.collectives.replicated_all_reduce(t, "square_add")], data)
        wanted = np.square(data.astype(np.float32)).sum(0).astype(dtype)
        np.testing.assert_allclose(found.reshape(replicas, *shape), np.broadcast_to(wanted, data.shape), rtol=1e-6)


@pytest.mark.parametrize(("op", "function"), [("and", np.all), ("or", np.any)])
def test_reductions_of_booleans(op, function):
    data = np.array([[True, True, False], [True, False, False]])
    (found,) = _run(popxl.Ir(replication=2), lambda t: [ops.collectives.replicated_all_reduce(t, op)], data)
    np.testing.assert_array_equal(found, np.stack([function(data, 0)] * 2))
    with popxl.Ir(replication=2).main_graph, pytest.raises(IrError, match="booleans are needed"):
        ops.collectives.replicated_all_reduce(popxl.variable(1.0), op)


@pytest.mark.parametrize(
    ("group", "rows"),
    [
        (CommGroup(), [[0, 1, 2, 3]]),
        (CommGroup(CommGroupType.Consecutive, 2), [[0, 1], [2, 3]]),
        (CommGroup(CommGroupType.Orthogonal, 2), [[0, 2], [1, 3]]),
        (CommGroup(CommGroupType.Ungrouped), [[0], [1], [2], [3]]),
    ],
)
def test_groups_in_the_older_words(group, rows):
    data = RNG.normal(size=(4, 3)).astype(np.float32)
    (found,) = _run(popxl.Ir(replication=4), lambda t: [ops.collectives.replicated_all_reduce(t, group=group)], data)
    for row in rows:
        np.testing.assert_allclose(found[row], np.broadcast_to(data[row].sum(0), (len(row), 3)), rtol=1e-5)


def test_a_group_must_divide_the_replicas():
    with popxl.Ir(replication=4).main_graph, pytest.raises(ValueError, match="groups of 3 of 4 replicas"):
        ops.collectives.replicated_all_reduce(popxl.variable(1.0), group=CommGroup(CommGroupType.Consecutive, 3))


@pytest.mark.parametrize(("op", "function"), [("add", np.sum), ("mul", np.prod), ("max", np.max)])
def test_all_reduce_between_ipus(op, function):
    data = RNG.normal(size=(3, 4)).astype(np.float32)
    ir = popxl.Ir()

    def build():
        placed = []
        for number, values in enumerate(data):
            with popxl.ipu(number):
                placed.append(popxl.variable(values) * 1.0)
        return ops.collectives.all_reduce(placed, [0, 1, 2], op)

    found = _run(ir, build)
    for number, value in enumerate(found):
        np.testing.assert_allclose(value, function(data, 0), rtol=1e-6, err_msg=str(number))


def test_all_reduce_refuses():
    with popxl.Ir().main_graph:
        x, y = popxl.variable(1.0), popxl.variable(np.ones(2, np.float32))
        for arguments, message in (
            (([x, x], [0]), "2 tensors for the IPUs"),
            (([x, x], [0, 0]), "each may be there once"),
            (([x, y], [0, 1]), "equal shapes and types"),
            (([x, x], [0, 1], "square_add"), "allowed: add"),
        ):
            with pytest.raises(ValueError, match=message):
                ops.collectives.all_reduce(*arguments)
