"""Gather, its gradient, scatter and one-hot against PyTorch and plain NumPy."""

import itertools

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT32, IrError, ShapeError
from ipuperf.ops.selection.gather import PIECE, multi_slice, multi_update_add
from ipuperf.ops.work import Lookup, TableUpdate


def take(data, indices, axis):
    """Replica by replica."""
    return np.stack([np.take(d, i, axis) for d, i in zip(data, indices, strict=True)])


@pytest.mark.parametrize("index_shape", [(), (5,), (2, 3)])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_gather(bench, rng, axis, index_shape, dtype):
    data = rng.standard_normal((2, 4, 3, 6)).astype(np.float16)
    indices = rng.integers(0, 3, (2, *index_shape)).astype(dtype)
    np.testing.assert_array_equal(bench.run(ops.Gather, data, indices, axis=axis), take(data, indices, axis))


def test_gather_of_strided_data(bench, rng):
    data = rng.standard_normal((2, 6, 4)).swapaxes(1, 2)
    indices = rng.integers(0, 4, (2, 7)).astype(np.int32)
    np.testing.assert_array_equal(bench.run(ops.Gather, data, indices), take(data, indices, 0))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_gradient(bench, rng, axis):
    torch = pytest.importorskip("torch")
    data = rng.standard_normal((2, 4, 3, 5))
    indices = rng.integers(0, 3, (2, 2, 6)).astype(np.int32)

    def reference(x, i):
        found = torch.index_select(x, axis, i.reshape(-1).long())
        return found.reshape(*x.shape[:axis], *i.shape, *x.shape[axis + 1 :])

    bench.check(lambda g, x, i: g.create(ops.Gather, [x, i], ["y"], axis=axis).outputs[0], reference, [data, indices])


@pytest.mark.parametrize("padding", [None, 2, -1])
def test_embedding(bench, rng, padding):
    torch = pytest.importorskip("torch")
    indices = rng.integers(0, 7, (2, 4, 6)).astype(np.int32)
    indices[:, 0] = 2
    indices[:, 1] = 6
    bench.check(
        lambda g, w, i: g.create(ops.Gather, [w, i], ["y"], padding_idx=padding).outputs[0],
        lambda w, i: torch.nn.functional.embedding(i.long(), w, padding_idx=padding),
        [rng.standard_normal((2, 7, 5)), indices],
    )


def test_second_derivative(bench, rng):
    """The gradient of the gradient is a gather."""
    grad = rng.standard_normal((2, 4, 5))
    indices = rng.integers(0, 6, (2, 4)).astype(np.int32)
    _, cotangent, (found,) = bench.gradients(
        lambda g, x, i: g.create(ops.GatherGrad, [x, i], ["y"], axis=0, size=6).outputs[0], [grad, indices]
    )
    np.testing.assert_array_equal(found, take(cotangent, indices, 0))


@pytest.mark.parametrize("width", [1, 3, 40, PIECE + 5])
def test_gather_grad_in_pieces(bench, rng, width):
    count = max(4, 3 * PIECE // width // 2)
    grad = rng.standard_normal((2, count, width)).astype(np.float32)
    indices = rng.integers(0, 9, (2, count)).astype(np.int32)
    found = bench.run(ops.GatherGrad, grad, indices, axis=0, size=9)
    expected = np.zeros((2, 9, width))
    for r in range(2):
        for row in range(9):
            expected[r, row] = grad[r][indices[r] == row].astype(np.float64).sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(found, bench.run(ops.GatherGrad, grad, indices, axis=0, size=9))


def test_half_gradient_accumulates_in_float(bench):
    """4096 times 1 would stop growing at 2048 in fp16."""
    found = bench.run(ops.GatherGrad, np.ones((1, 4096, 2), np.float16), np.zeros((1, 4096), np.int32), axis=0, size=2)
    np.testing.assert_array_equal(found, [[[4096, 4096], [0, 0]]])
    assert found.dtype == np.float16


@pytest.mark.parametrize("bad", [-1, 4])
def test_out_of_range(bench, bad):
    data, indices = np.zeros((1, 4, 3), np.float32), np.array([[0, bad]], np.int32)
    with pytest.raises(ops.DynamicIndexError, match=rf"Gather.*index {bad} is out of range on axis 0; allowed: 0 to 3"):
        bench.run(ops.Gather, data, indices)
    with pytest.raises(IndexError, match=rf"GatherGrad.*index {bad} is out of range"):
        bench.run(ops.GatherGrad, np.zeros((1, 2, 3), np.float32), indices, axis=0, size=4)
    with pytest.raises(IndexError, match=rf"ScatterReduce.*index {bad} is out of range"):
        bench.run(ops.ScatterReduce, np.zeros((1, 2, 3), np.float32), indices, axis=0, axis_size=4)


@pytest.mark.parametrize("axis", [0, 1])
def test_zero_out_of_range(bench, rng, axis):
    data = rng.standard_normal((2, 4, 5))
    indices = np.array([[0, -1, 3, 2, 9], [1, 3, 0, 77, -5]], np.int32)
    inside = (indices >= 0) & (indices < data.shape[axis + 1])

    def build(g, x, i):
        return g.create(ops.Gather, [x, i], ["y"], axis=axis, zero_out_of_range=True).outputs[0]

    y, grad, (found,) = bench.gradients(build, [data, indices])
    along = (2, 5, 1) if axis == 0 else (2, 1, 5)
    kept = take(data, np.where(inside, indices, 0), axis) * inside.reshape(along)
    np.testing.assert_array_equal(y, kept)
    expected = np.zeros_like(data)
    for r, k in itertools.product(range(2), range(5)):
        if inside[r, k]:
            np.moveaxis(expected[r], axis, 0)[indices[r, k]] += np.moveaxis(grad[r], axis, 0)[k]
    np.testing.assert_allclose(found, expected)


def test_empty_indices(bench, rng):
    data, indices = rng.standard_normal((2, 4, 3)), np.zeros((2, 0), np.int32)
    assert bench.run(ops.Gather, data, indices).shape == (2, 0, 3)
    grad = bench.run(ops.GatherGrad, np.zeros((2, 0, 3)), indices, axis=0, size=4)
    np.testing.assert_array_equal(grad, np.zeros((2, 4, 3)))
    assert bench.op(ops.Gather, data, indices).work() == []


# -- scatter -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("form", ["full", "line", "broadcast"])
def test_scatter_sum(bench, rng, axis, form):
    torch = pytest.importorskip("torch")
    data = rng.standard_normal((2, 4, 3, 5))
    along = axis % 3
    shape = {
        "full": (4, 3, 5),
        "line": (data.shape[along + 1],),
        "broadcast": tuple(n if i == along else 1 for i, n in enumerate((4, 3, 5))),
    }[form]
    indices = rng.integers(0, 6, (2, *shape)).astype(np.int32)
    out = tuple(6 if i == along else n for i, n in enumerate((4, 3, 5)))
    initial = rng.standard_normal((2, *out))

    def reference(x, i, start):
        i = i.long().reshape([-1 if j == along else 1 for j in range(3)]) if form == "line" else i.long()
        return start.scatter_add(along, i.expand(4, 3, 5), x)

    bench.check(
        lambda g, x, i, s: g.create(ops.ScatterReduce, [x, i, s], ["y"], axis=axis, axis_size=6).outputs[0],
        reference,
        [data, indices, initial],
    )
    bench.check(
        lambda g, x, i: g.create(ops.ScatterReduce, [x, i], ["y"], axis=axis, axis_size=6).outputs[0],
        lambda x, i: reference(x, i, torch.zeros(out, dtype=x.dtype)),
        [data, indices],
    )


def test_scatter_none_writes_and_half(bench, rng):
    data = rng.standard_normal((2, 3, 4)).astype(np.float16)
    indices = np.array([[4, 0, 2], [1, 5, 3]], np.uint32)
    initial = rng.standard_normal((2, 6, 4)).astype(np.float16)
    found = bench.run(ops.ScatterReduce, data, indices, initial, axis=0, axis_size=6, reduction="none")
    expected = initial.copy()
    for r in range(2):
        expected[r, indices[r]] = data[r]
    np.testing.assert_array_equal(found, expected)
    found = bench.run(ops.ScatterReduce, np.ones((1, 4096), np.float16), np.zeros((1, 4096), np.int32), axis_size=1)
    np.testing.assert_array_equal(found, [[4096]])


@pytest.mark.parametrize("reduction", ["sum", "mul", "max"])
def test_elements_at_negative_indices_are_skipped(bench, rng, reduction):
    """Values and gradients are those of the other elements alone; the skipped ones have none."""
    data, start = rng.standard_normal((1, 5, 3)), rng.standard_normal((1, 4, 3))
    indices = np.array([[2, -1, 0, -7, 2]], np.int32)
    kept = indices[0] >= 0
    how = {"axis": 0, "axis_size": 4, "reduction": reduction}

    def build(g, x, i, s, **more):
        return g.create(ops.ScatterReduce, [x, i, s], ["y"], **how, **more).outputs[0]

    wanted, _, (some, of_start) = bench.gradients(build, [data[:, kept], indices[:, kept], start])
    y, _, (found, same) = bench.gradients(lambda *a: build(*a, skip_negative=True), [data, indices, start])
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(same, of_start)
    np.testing.assert_array_equal(found[0, kept], some[0])
    np.testing.assert_array_equal(found[0, ~kept], 0)
    works = [
        list(bench.op(ops.ScatterReduce, data, indices, start, **how, skip_negative=flag).work())
        for flag in (False, True)
    ]
    assert works[0] == works[1]
    if reduction == "max":
        with pytest.raises(IrError, match="skip_negative needs"):
            bench.run(ops.ScatterReduce, data, indices, **how, skip_negative=True)


# -- one-hot -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(bench, axis):
    indices = np.array([[[0, 2, -1], [4, 1, 5]], [[3, 3, 3], [9, 0, 4]]], np.int32)
    values = np.array([[0.5, 2], [-1, 1]], np.float16)
    found = bench.run(ops.OneHot, indices, values, depth=5, axis=axis)
    hot = indices[..., None] == np.arange(5)
    expected = np.where(hot, values[:, 1].reshape(2, 1, 1, 1), values[:, 0].reshape(2, 1, 1, 1))
    np.testing.assert_array_equal(found, np.moveaxis(expected, -1, axis + 1 if axis >= 0 else -1))
    assert found.dtype == np.float16


def test_one_hot_gradient_of_values(bench, rng):
    indices = rng.integers(0, 5, (2, 6)).astype(np.int32)
    _, grad, (found,) = bench.gradients(
        lambda g, i, v: g.create(ops.OneHot, [i, v], ["y"], depth=5).outputs[0],
        [indices, rng.standard_normal((2, 2))],
    )
    hot = indices[..., None] == np.arange(5)
    expected = np.stack([np.where(hot, 0, grad).sum((1, 2)), np.where(hot, grad, 0).sum((1, 2))], -1)
    np.testing.assert_allclose(found, expected)


# -- cost --------------------------------------------------------------------------------------------------------------


def test_multi_slice_against_the_published_estimate(mk2):
    """docs/reference/cycles.md 8.1: 48 offsets of which each worker has 8, slices of n float elements."""
    elements = np.array([64, 384, 1000, 4096])
    found = multi_slice(FLOAT32, 48, 1).cycles(48 * elements, mk2)
    np.testing.assert_array_equal(found, (6084, 21444, 51012, 199620))


def test_multi_update_against_the_published_estimate(mk2):
    """The same for updates of half elements: 48 indices, all on a tile that holds all rows."""
    elements = np.array([64, 384, 1000, 4096])
    found = multi_update_add(ir.FLOAT16, 48, 100, 1).cycles(100 * elements, mk2)
    np.testing.assert_array_equal(found, (6510, 29550, 73902, 296814))


def test_multi_update_on_part_of_the_rows(mk2):
    """A tile with 10 of 100 rows of one element: of 600 indices 60 hit it, 10 for each worker."""
    found = multi_update_add(FLOAT32, 600, 100, 1).cycles(np.array([10, 0]), mk2)
    np.testing.assert_array_equal(found, [6 * (38 + 10 * 11 + 590 * 5), 0])
    odd = multi_update_add(ir.FLOAT16, 6, 1, 5).cycles(np.array([5]), mk2)
    np.testing.assert_array_equal(odd, [6 * (37 + 1 * (13 + 100) + 5 * 5)])


def test_works(mk2, bench):
    data, indices = np.zeros((1, 50, 8), np.float16), np.zeros((1, 30), np.int32)
    grad = np.zeros((1, 30, 8), np.float16)
    lookup = Lookup(50, 8, 30, ir.FLOAT16)
    cleared = TableUpdate(50, 8, 30, ir.FLOAT16, cleared=True)
    works = {
        bench.op(ops.Gather, data, indices): [lookup],
        bench.op(ops.GatherGrad, grad, indices, axis=0, size=50): [cleared],
        bench.op(ops.ScatterReduce, grad, indices, axis=0, axis_size=50): [cleared],
        bench.op(ops.ScatterReduce, grad, indices, data, axis=0, axis_size=50): [
            TableUpdate(50, 8, 30, ir.FLOAT16, copied=True),
        ],
        bench.op(ops.ScatterReduceGrad, data, indices, axis=0, shape=(30, 8)): [lookup],
    }  # fmt: skip
    for op, wanted in works.items():
        assert list(op.work()) == wanted
    padded = bench.op(ops.GatherGrad, grad, indices, axis=0, size=50, padding_idx=1).work()
    assert padded[0] == cleared
    assert padded[1].vertex.startswith("popops::Fill")
    one_hot = bench.op(ops.OneHot, indices, np.zeros((1, 2), np.float32), depth=4).work()
    assert [work.vertex.partition("<")[0] for work in one_hot] == ["popops::EncodeOneHot"]
    assert (one_hot[0].cycles(np.array([1, 100, 5000]), mk2) > 0).all()
    assert len(bench.op(ops.Gather, data, indices, zero_out_of_range=True).work()) == 5


# -- errors ------------------------------------------------------------------------------------------------------------


# -- the largest elements and running sums -----------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("largest", [True, False])
def test_top_k(bench, rng, axis, largest):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 5, 4, 6))
    values, positions = bench.run(ops.TopK, x, outputs=2, k=3, axis=axis, largest=largest)
    assert positions.dtype == np.int32
    for r in range(2):
        expected = torch.topk(torch.tensor(x[r]), 3, axis, largest)
        np.testing.assert_array_equal(values[r], expected.values.numpy())
        np.testing.assert_array_equal(positions[r], expected.indices.numpy())
    bench.check(
        lambda g, t: g.create(ops.TopK, [t], ["v", "i"], k=3, axis=axis, largest=largest).outputs[0],
        lambda t: torch.topk(t, 3, axis, largest).values,
        [x],
    )


@pytest.mark.parametrize("largest", [True, False])
def test_top_k_of_equals_takes_the_first(bench, largest):
    x = np.array([[1, 3, 3, 1, 3, 1]], np.uint32)
    _, positions = bench.run(ops.TopK, x, outputs=2, k=4, largest=largest)
    np.testing.assert_array_equal(positions, [[1, 2, 4, 0]] if largest else [[0, 3, 5, 1]])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum(bench, rng, axis, exclusive, reverse):
    torch = pytest.importorskip("torch")

    def reference(t):
        line = t.flip(axis) if reverse else t
        total = line.cumsum(axis) - (line if exclusive else 0)
        return total.flip(axis) if reverse else total

    bench.check(
        lambda g, t: g.create(ops.CumSum, [t], ["y"], axis=axis, exclusive=exclusive, reverse=reverse).outputs[0],
        reference,
        [rng.standard_normal((2, 4, 3, 5))],
    )
    assert torch


def test_cumsum_half_accumulates_in_float(bench):
    found = bench.run(ops.CumSum, np.ones((1, 4096), np.float16))
    np.testing.assert_array_equal(found[0], np.arange(1, 4097).astype(np.float16))


def test_top_k_and_cumsum_works(bench):
    """k = 3 of 16 in 4 lines: K = 4, 3 passes sort fours, merging halves 16 and 8, each then sorted in 2 passes."""
    x = np.zeros((1, 4, 16), np.float32)
    works = bench.op(ops.TopK, x, outputs=2, k=3).work()
    assert [w.elements for w in works] == [64, 64, 64, 64, 32, 32, 32, 16, 16]
    assert all(w.low_confidence for w in works)
    works = bench.op(ops.TopK, x, outputs=2, k=1, sorted=False, largest=False).work()
    assert [w.elements for w in works] == [64, 64, 32, 16, 8, 4]
    (product,) = bench.op(ops.CumSum, x, axis=1).work()
    assert (product.m, product.k, product.n) == (4, 16, 16)
    assert len(bench.op(ops.CumSum, x, axis=0).work()) == 3


# -- gathers of other kinds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_gather_in_groups(bench, rng, axis):
    """Each group has indices of its own; values and gradients are those of one gather for each."""
    torch = pytest.importorskip("torch")
    x, index = rng.standard_normal((2, 3, 4, 5)), rng.integers(0, 4, (2, 3, 2, 6)).astype(np.int32)

    def grouped(data, indices):
        rows = [d.index_select(axis % 3 - 1, i.reshape(-1).long()) for d, i in zip(data, indices, strict=True)]
        shape = (*data.shape[: axis % 3], 2, 6, *data.shape[axis % 3 + 1 :])
        return torch.stack(rows).reshape(shape)

    bench.check(
        lambda graph, t, i: graph.create(ops.Gather, [t, i], ["y"], axis=axis, group_size=3).outputs[0],
        grouped,
        [x, index],
    )


def test_tied_gather_is_a_gather(bench, rng):
    x, index = rng.standard_normal((1, 5, 2)), np.array([[4, 0, 4]], np.int32)
    np.testing.assert_array_equal(bench.run(ops.TiedGather, x, index), x[:, index[0]])
    assert bench.op(ops.TiedGather, x, index).type == "PopartTiedGather"


# -- scatters of other kinds -------------------------------------------------------------------------------------------

TORCH_NAMES = {"sum": "sum", "max": "amax", "min": "amin", "mul": "prod"}


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reduction", TORCH_NAMES)
def test_scatter_reductions(bench, rng, reduction, axis, start):
    data = rng.permutation(2 * 4 * 3 * 5).reshape(2, 4, 3, 5) / 40 + 0.5
    indices = rng.integers(0, 6, (2, 4, 3, 5)).astype(np.int32)
    out = tuple(6 if i == axis % 3 else n for i, n in enumerate((4, 3, 5)))
    initial = rng.permutation(2 * int(np.prod(out))).reshape(2, *out) / 60 + 0.501

    def reference(x, i, *given):
        import torch

        table = given[0] if given else torch.full(out, float(reduction == "mul"), dtype=x.dtype)
        return table.scatter_reduce(
            axis, i.long(), x, TORCH_NAMES[reduction], include_self=bool(given) or reduction == "mul"
        )

    bench.check(
        lambda g, *ts: g.create(ops.ScatterReduce, ts, ["y"], axis=axis, axis_size=6, reduction=reduction).outputs[0],
        reference,
        [data, indices, initial] if start else [data, indices],
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
@pytest.mark.parametrize("reduction", [*TORCH_NAMES, "none"])
def test_scatter_reductions_of_types(bench, reduction, dtype):
    data, index = np.array([[-3, 2, -4]], dtype), np.array([[1, 3, 1]], np.int32)
    wanted = {
        "sum": [0, -7, 0, 2],
        "max": [0, -3, 0, 2],
        "min": [0, -4, 0, 2],
        "mul": [1, 12, 1, 2],
        "none": [0, -4, 0, 2],
    }
    found = bench.run(ops.ScatterReduce, data, index, axis=0, axis_size=4, reduction=reduction)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[0], wanted[reduction])


@pytest.mark.parametrize("reduction", [*TORCH_NAMES, "none"])
def test_scatter_of_nothing(bench, reduction):
    named = {"axis": 0, "axis_size": 2, "reduction": reduction}
    found = bench.run(ops.ScatterReduce, np.zeros((1, 0), np.float32), np.zeros((1, 0), np.int32), **named)
    np.testing.assert_array_equal(found, np.full((1, 2), reduction == "mul"))


def test_scatter_none_gradient(bench, rng):
    index = np.array([[4, 0, 2], [1, 5, 3]], np.int32)
    bench.check(
        lambda g, *ts: g.create(ops.ScatterReduce, ts, ["y"], axis=0, axis_size=6, reduction="none").outputs[0],
        lambda x, i, start: start.index_copy(0, i.long(), x),
        [rng.standard_normal((2, 3, 4)), index, rng.standard_normal((2, 6, 4))],
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_reduce_uses_as_much_as_there_are_indices(bench, rng, axis):
    torch = pytest.importorskip("torch")
    data, index = rng.standard_normal((1, 4, 5)), rng.integers(0, 3, (1, 2, 4)).astype(np.int32)
    named = {"axis": axis, "axis_size": 3, "index_broadcast": False}
    found = bench.run(ops.ScatterReduce, data, index, **named)
    table = torch.zeros((3, 4) if axis == 0 else (2, 3), dtype=torch.float64)
    expected = table.scatter_add(axis, torch.tensor(index[0]).long(), torch.tensor(data[0]))
    np.testing.assert_allclose(found[0], expected.numpy())


@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 3)), (0, (2, 4)), (1, (4, 2)), (-1, (1, 1))])
def test_scatter(bench, rng, axis, shape):
    index = np.argsort(rng.random((2, 4, 4)), axis % 2 + 1)[:, : shape[0], : shape[1]].astype(np.int32)
    bench.check(
        lambda g, *ts: g.create(ops.Scatter, ts, ["y"], axis=axis).outputs[0],
        lambda t, i, values: t.scatter(axis, i.long(), values),
        [rng.standard_normal((2, 4, 4)), index, rng.standard_normal((2, *shape))],
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_scatter_of_types(bench, dtype, count):
    values = np.ones((1, count), dtype)
    found = bench.run(ops.Scatter, np.zeros((1, 4), dtype), np.array([[3, 1]], np.int32)[:, :count], values)
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.flatnonzero(found), sorted([3, 1][:count]))


def test_scatter_works(bench):
    """Slices where the indices lie along the axis; single elements of the flattened table, with indices that are worked
    out first, where they do not. Without initial values a maximum is masked by a second update."""
    x, index = np.zeros((1, 6, 4), np.float32), np.zeros((1, 3), np.int32)
    rows = TableUpdate(6, 4, 3, FLOAT32, operation="MAX", cleared=True)
    works = bench.op(ops.ScatterReduce, x[:, :3], index, axis=0, axis_size=6, reduction="max").work()
    assert [works[0], works[2]] == [rows, rows]
    assert len(works) == 4
    (update,) = bench.op(ops.Scatter, x, index, x[:, :3]).work()
    assert update == TableUpdate(6, 4, 3, FLOAT32, operation="NONE", copied=True)
    wide = np.zeros((1, 3, 4), np.int32)
    moved, *linear, update = bench.op(ops.ScatterReduce, x[:, :3], wide, axis=0, axis_size=6).work()
    assert (moved.bytes, [w.elements for w in linear]) == (48, [12, 12])
    assert update == TableUpdate(24, 1, 12, FLOAT32, cleared=True)
    names = [w.vertex for w in bench.op(ops.ScatterReduce, x[:, :3], index, axis=0, axis_size=6, reduction="min").work()
             if not isinstance(w, TableUpdate)]  # fmt: skip
    assert sum("NEGATE" in name for name in names) == 2


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 1)])
@pytest.mark.parametrize("reduction", [*TORCH_NAMES, "none"])
def test_scatter_in_groups(bench, rng, reduction, shape, start):
    """Each group has indices of its own; values and gradients are those of one op for each."""
    torch = pytest.importorskip("torch")
    data = rng.permutation(2 * 3 * 4 * 5).reshape(2, 3, 4, 5) / 40 + 0.5
    indices = np.argsort(rng.random((2, *shape)), 2)[:, :, :4].astype(np.int32)
    initial = rng.permutation(2 * 3 * 6 * 5).reshape(2, 3, 6, 5) / 60 + 0.501
    named = {"axis_size": 6, "reduction": reduction}

    def one(x, i, *given):
        wide = i.long().reshape(4, -1).expand(4, 5)
        table = given[0] if given else torch.full((6, 5), float(reduction == "mul"), dtype=x.dtype)
        if reduction == "none":
            return table.scatter(0, wide, x)
        keep = bool(given) or reduction == "mul"
        return table.scatter_reduce(0, wide, x, TORCH_NAMES[reduction], include_self=keep)

    bench.check(
        lambda g, *ts: g.create(ops.ScatterReduce, ts, ["y"], axis=1, group_size=3, **named).outputs[0],
        lambda *ts: torch.stack([one(*group) for group in zip(*ts, strict=True)]),
        [data, indices, initial] if start else [data, indices],
    )


def test_scatter_in_groups_works_and_errors(bench):
    x, index = np.zeros((1, 3, 4, 5), np.float32), np.zeros((1, 3, 4), np.int32)
    named = {"axis": 1, "axis_size": 6, "group_size": 3}
    op = bench.op(ops.ScatterReduce, x, index, **named, available_memory_proportion=0.2)
    assert op.work() == [TableUpdate(6, 5, 4, FLOAT32, 3, 0.2, cleared=True)]
    back = bench.op(ops.ScatterReduceGrad, np.zeros((1, 3, 6, 5), np.float32), index, axis=1, group_size=3,
                    shape=(3, 4, 5))  # fmt: skip
    assert back.work() == [Lookup(6, 5, 4, FLOAT32, 3)]
    with pytest.raises(ShapeError, match="group_size 2: the first axis"):
        bench.op(ops.ScatterReduce, x, index, **{**named, "group_size": 2})
    with pytest.raises(ShapeError, match="axis 0 goes over the 3 groups"):
        bench.op(ops.ScatterReduce, x, index, **{**named, "axis": 0})


def test_memory_proportions_reach_gradients_and_plans(bench):
    """A lookup's share is that of its gradient's update."""
    program = ir.Ir().main_graph
    x = program.constant(np.zeros((8, 4), np.float32))
    index = program.constant(np.zeros(3, np.int32))
    op = program.create(ops.Gather, [x, index], ["y"], available_memory_proportion=0.3)
    assert op.work() == [Lookup(8, 4, 3, FLOAT32, 1, 0.3)]
    grad = program.create(ops.GatherGrad, [op.outputs[0], index], ["g"], size=8, **op.attributes)
    assert grad.work() == [TableUpdate(8, 4, 3, FLOAT32, 1, 0.3, cleared=True)]
