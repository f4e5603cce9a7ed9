"""Normalisation against PyTorch and plain NumPy in float64."""

import normcases as norms
import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT16, FLOAT32, IrError, ReplicaGrouping, TensorSpec
from ipuperf.ops.norms import shared as normalisation
from ipuperf.ops.norms.shared import row_piece
from ipuperf.ops.work import GroupCollective, Reduction, Vertices


def parameters(rng, channels, replicas=2):
    return [rng.standard_normal((replicas, channels)), rng.standard_normal((replicas, channels))]


@pytest.mark.parametrize("shape", [(5, 6), (3, 6, 4), (2, 6, 3, 5)])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_group_norm(bench, rng, shape, groups):
    torch = pytest.importorskip("torch")
    bench.check(
        lambda g, x, s, b: norms.group_norm(g, x, groups, s, b, 1e-3),
        lambda x, s, b: torch.nn.functional.group_norm(x, groups, s, b, 1e-3),
        [rng.standard_normal((2, *shape)) * 2 + 3, *parameters(rng, 6)],
    )


@pytest.mark.parametrize(
    ("shape", "normalized"), [((4, 7), (7,)), ((2, 3, 8), (8,)), ((2, 3, 4, 5), (4, 5)), ((5,), (5,))]
)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(bench, rng, shape, normalized, affine):
    torch = pytest.importorskip("torch")
    arrays = [rng.standard_normal((2, *shape)) - 1]
    if affine:
        arrays += [rng.standard_normal((2, *normalized)), rng.standard_normal((2, *normalized))]
    bench.check(
        lambda g, x, *p: norms.layer_norm(g, x, normalized, *p, epsilon=1e-6),
        lambda x, *p: torch.nn.functional.layer_norm(x, normalized, *p, eps=1e-6),
        arrays,
        rtol=1e-8,
        atol=1e-10,
    )


@pytest.mark.parametrize("affine", [True, False])
def test_instance_norm(bench, rng, affine):
    torch = pytest.importorskip("torch")
    bench.check(
        lambda g, x, *p: norms.instance_norm(g, x, *p),
        lambda x, *p: torch.nn.functional.instance_norm(x, weight=p[0] if p else None, bias=p[1] if p else None),
        [rng.standard_normal((2, 3, 4, 6)), *(parameters(rng, 4) if affine else [])],
    )


def test_group_norm_saves_statistics(bench, rng):
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float16) * 50
    scale, bias = np.ones((2, 4), np.float16), np.zeros((2, 4), np.float16)
    y, mean, inverse = bench.run(ops.GroupNormalization, x, scale, bias, outputs=3, num_groups=2)
    assert y.dtype == np.float16
    assert mean.dtype == inverse.dtype == np.float32
    rows = x.astype(np.float64).reshape(2, 6, 10)
    np.testing.assert_allclose(mean, rows.mean(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(rows.var(-1) + 1e-5), rtol=1e-5)
    expected = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, expected.reshape(y.shape), atol=2e-3)


def test_large_mean_does_not_cancel(bench, rng):
    """Sums of squares in float32 would lose the variance here."""
    x = (rng.standard_normal((1, 4, 64)) * 0.1 + 1000).astype(np.float32)
    one, none = np.ones((1, 64), np.float32), np.zeros((1, 64), np.float32)
    y = bench.run(ops.GroupNormalization, x, one, none, outputs=3, num_groups=1, epsilon=0.0)[0]
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=5e-3, atol=5e-3)


def test_half_gradient(bench, rng):
    torch = pytest.importorskip("torch")
    arrays = [rng.standard_normal((2, 6, 8)), *parameters(rng, 8)]
    arrays = [a.astype(np.float16) for a in arrays]
    bench.check(
        lambda g, x, s, b: norms.group_norm(g, x, 2, s, b),
        lambda x, s, b: torch.nn.functional.group_norm(x.float(), 2, s.float(), b.float()).half(),
        arrays,
        rtol=1e-2,
        atol=1e-2,
    )


def batch_arrays(rng, shape, replicas=2):
    channels = shape[1]
    return [
        rng.standard_normal((replicas, *shape)) * 2 + 1,
        *parameters(rng, channels, replicas),
        rng.standard_normal((replicas, channels)),
        rng.random((replicas, channels)) + 0.5,
    ]


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 2)])
def test_batch_norm_training(bench, rng, shape):
    torch = pytest.importorskip("torch")
    arrays = batch_arrays(rng, shape)

    def build(g, *tensors):
        names = ["y", "mean", "variance", "saved_mean", "saved_inverse"]
        return g.create(ops.BatchNormalization, tensors, names, epsilon=1e-3, momentum=0.3).outputs[0]

    y, grad, found = bench.gradients(build, arrays, required=[0, 1, 2])
    _, mean, variance, saved_mean, saved = bench.run(
        ops.BatchNormalization, *arrays, outputs=5, epsilon=1e-3, momentum=0.3
    )
    for r in range(2):
        leaves = [torch.tensor(a[r]) for a in arrays]
        for leaf in leaves[:3]:
            leaf.requires_grad_()
        x, scale, bias, new_mean, new_variance = leaves
        expected = torch.nn.functional.batch_norm(x, new_mean, new_variance, scale, bias, True, 0.3, 1e-3)
        expected.backward(torch.tensor(grad[r]))
        np.testing.assert_allclose(y[r], expected.detach().numpy(), rtol=1e-9, atol=1e-11)
        for mine, leaf in zip(found, leaves, strict=False):
            np.testing.assert_allclose(mine[r], leaf.grad.numpy(), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(mean[r], new_mean.numpy())
        np.testing.assert_allclose(variance[r], new_variance.numpy())
        axes = tuple(i for i in range(len(shape)) if i != 1)
        np.testing.assert_allclose(saved_mean[r], arrays[0][r].mean(axes))
        np.testing.assert_allclose(saved[r], 1 / np.sqrt(arrays[0][r].var(axes) + 1e-3))


def test_batch_norm_over_replicas(bench, rng):
    """Pairs of replicas share the statistics: what PyTorch gives for the samples of both together, gradients included;
    those of scale and bias are each replica's own."""
    torch = pytest.importorskip("torch")
    arrays = [np.concatenate([a, b]) for a, b in zip(*(batch_arrays(rng, (3, 4, 5)) for _ in "ab"), strict=True)]
    for array in arrays[1:]:
        array[:] = np.repeat(array[::2], 2, axis=0)
    group = ReplicaGrouping(4, 1, 2)

    def forward(g, tensors):
        names = ["y", "mean", "variance", "saved_mean", "saved_inverse"]
        return g.create(ops.BatchNormalization, tensors, names, epsilon=1e-3, momentum=0.3, group=group)

    def build(g, *tensors):
        return forward(g, tensors).outputs[0]

    y, grad, found = bench.gradients(build, arrays, required=[0, 1, 2], replicas=4)
    graph = ir.Ir(4).create_graph("running")
    tensors = [graph.add_input(TensorSpec(a.shape[1:], ir.dtype_of(a)), f"x{i}") for i, a in enumerate(arrays)]
    op = forward(graph, tensors)
    values = bench.values(graph, dict(zip(tensors, arrays, strict=True)))
    mean, variance = (values[t] for t in op.outputs[1:3])
    for pair in (slice(0, 2), slice(2, 4)):
        x = torch.tensor(arrays[0][pair].reshape(6, 4, 5), requires_grad=True)
        scale, bias = (torch.tensor(a[pair.start], requires_grad=True) for a in arrays[1:3])
        new_mean, new_variance = (torch.tensor(a[pair.start]) for a in arrays[3:])
        expected = torch.nn.functional.batch_norm(x, new_mean, new_variance, scale, bias, True, 0.3, 1e-3)
        expected.backward(torch.tensor(grad[pair].reshape(6, 4, 5)))
        np.testing.assert_allclose(y[pair].reshape(6, 4, 5), expected.detach().numpy(), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(found[0][pair].reshape(6, 4, 5), x.grad.numpy(), rtol=1e-8, atol=1e-10)
        for mine, leaf in zip(found[1:3], (scale, bias), strict=True):
            np.testing.assert_allclose(mine[pair].sum(0), leaf.grad.numpy(), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(mean[pair], np.broadcast_to(new_mean.numpy(), (2, 4)))
        np.testing.assert_allclose(variance[pair], np.broadcast_to(new_variance.numpy(), (2, 4)))


def test_batch_norm_over_replicas_reduces_two_sums_at_once():
    graph, (x, scale) = graph_with(((2, 6, 3), FLOAT16), ((6,), FLOAT16), replicas=4)
    attributes = {"group": ReplicaGrouping(4, 1, 2)}
    forward = graph.create(ops.BatchNormalization, [x, *[scale] * 4], list("abcde"), **attributes)
    saved = list(forward.outputs[3:])
    backward = graph.create(ops.BatchNormalizationGrad, [x, scale, *saved, x], list("fgh"), frozen=False, **attributes)
    for op, size in ((forward, 6 * (2 + 4)), (backward, 2 * 6 * 2)):
        (found,) = (work for work in op.work() if isinstance(work, GroupCollective))
        assert (found.kind, found.elements, found.bytes) == ("all_reduce", 12, size)
        assert not op.movable()
    with pytest.raises(IrError, match="the group is over 2 replicas, the program has 4"):
        graph.create(ops.BatchNormalization, [x, *[scale] * 4], list("ijklm"), group=ReplicaGrouping(2))


@pytest.mark.parametrize("shape", [(3, 6), (2, 6, 5), (2, 6, 3, 2)])
def test_group_norm_of_strided_groups(bench, rng, shape):
    """Two groups of channels 0, 2, 4 and 1, 3, 5: PyTorch's group norm of the channels in that order."""
    torch = pytest.importorskip("torch")
    order = [0, 2, 4, 1, 3, 5]
    arrays = [rng.standard_normal((2, *shape)), *parameters(rng, 6)]

    def build(g, *tensors):
        names = ["y", "mean", "inverse"]
        return g.create(ops.GroupNormalization, tensors, names, num_groups=2, epsilon=1e-3, strided=True).outputs[0]

    y, grad, found = bench.gradients(build, arrays)
    for r in range(2):
        x, scale, bias = (torch.tensor(a[r], requires_grad=True) for a in arrays)
        turned = torch.nn.functional.group_norm(x[:, order], 2, scale[order], bias[order], 1e-3)
        expected = turned[:, np.argsort(order)]
        expected.backward(torch.tensor(grad[r]))
        np.testing.assert_allclose(y[r], expected.detach().numpy(), rtol=1e-9, atol=1e-11)
        for mine, leaf in zip(found, (x, scale, bias), strict=True):
            np.testing.assert_allclose(mine[r], leaf.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_strided_groups_are_broadcast_along_vectors(bench):
    x, one = np.zeros((1, 4, 32, 14, 14), np.float16), np.zeros((1, 32), np.float16)
    plain, strided = (
        bench.op(ops.GroupNormalization, x, one, one, outputs=3, num_groups=16, strided=strided).work()
        for strided in (False, True)
    )
    names = [[work.vertex.partition("<")[0] for work in works] for works in (plain, strided)]
    assert names[0][2:4] == ["popops::BroadcastVectorOuter1D", "popops::BroadcastVectorOuter1DInPlace"]
    assert names[1][2:4] == ["popops::BroadcastVectorInner1D", "popops::BroadcastVectorInner1DInPlace"]


def group_norm_cycles(bench, chip, groups, strided, op=ops.GroupNormalization, channels=192):
    """Cycles of the vertices of a group norm of halves on a tile that has an even share of its elements."""
    x, one = np.zeros((1, 3, channels, 95, 95), np.float16), np.zeros((1, channels), np.float16)
    statistics = np.zeros((1, 3 * groups), np.float16)
    tensors = (x, one, one) if op is ops.GroupNormalization else (x, one, statistics, statistics, x)
    works = bench.op(op, *tensors, outputs=3, num_groups=groups, strided=strided).work()
    spread = [work for work in works if "Broadcast" in work.vertex or "BinaryOp" in work.vertex]
    return sum(int(work.cycles(np.array([x.size // 1472]), chip)[0]) for work in spread if work.elements == x.size)


@pytest.mark.parametrize("op", [ops.GroupNormalization, ops.GroupNormalizationGrad])
def test_strided_groups_cost_what_their_vectors_say(bench, mk2, op):
    """Any multiple of four groups costs the same: less than consecutive groups, and less than copies of short vectors.

    A single group and groups of one channel are the same strided or not.
    """
    cycles = {groups: group_norm_cycles(bench, mk2, groups, True, op) for groups in (1, 2, 4, 8, 16, 32, 192)}
    plain = {groups: group_norm_cycles(bench, mk2, groups, False, op) for groups in cycles}
    for groups in (4, 8, 16, 32):
        assert cycles[groups] == pytest.approx(cycles[8], rel=0.04)
        assert cycles[groups] < plain[groups]
    assert cycles[4] < cycles[2]
    assert (cycles[1], cycles[192]) == (plain[1], plain[192])


def test_batch_norm_inference(bench, rng):
    torch = pytest.importorskip("torch")
    arrays = batch_arrays(rng, (3, 4, 5))

    def build(g, *tensors):
        return g.create(ops.BatchNormalizationInference, tensors, ["y"], epsilon=1e-3).outputs[0]

    y, grad, found = bench.gradients(build, arrays, required=[0, 1, 2])
    for r in range(2):
        leaves = [torch.tensor(a[r]) for a in arrays]
        for leaf in leaves[:3]:
            leaf.requires_grad_()
        x, scale, bias, mean, variance = leaves
        expected = torch.nn.functional.batch_norm(x, mean, variance, scale, bias, False, 0.3, 1e-3)
        expected.backward(torch.tensor(grad[r]))
        np.testing.assert_allclose(y[r], expected.detach().numpy(), rtol=1e-9, atol=1e-11)
        for mine, leaf in zip(found, leaves, strict=False):
            np.testing.assert_allclose(mine[r], leaf.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_batch_norm_half_keeps_float_running_statistics(bench, rng):
    arrays = batch_arrays(rng, (8, 4, 5))
    half = [a.astype(np.float16) for a in arrays[:3]] + [a.astype(np.float32) for a in arrays[3:]]
    y, mean, variance, saved, inverse = bench.run(ops.BatchNormalization, *half, outputs=5)
    assert [a.dtype for a in (y, mean, variance, saved, inverse)] == [np.float16] + [np.float32] * 4
    wide = half[0].astype(np.float64)
    np.testing.assert_allclose(mean, 0.9 * half[3] + 0.1 * wide.mean((1, 3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, 0.9 * half[4] + 0.1 * wide.var((1, 3), ddof=1), rtol=1e-5)


def test_works(mk2, bench):
    x, one = np.zeros((1, 4, 12, 3), np.float16), np.zeros((1, 12), np.float16)
    cases = [
        bench.op(ops.GroupNormalization, x, one, one, outputs=3, num_groups=3),
        bench.op(ops.BatchNormalization, x, one, one, one, one, outputs=5),
        bench.op(ops.BatchNormalizationInference, x, one, one, one, one),
        bench.op(ops.BatchNormalizationGrad, x, one, one, one, x, outputs=3, frozen=True),
        bench.op(ops.BatchNormalizationGrad, x, one, one, one, x, outputs=3, frozen=False),
    ]
    statistics = np.zeros((1, 12), np.float32)
    cases.append(bench.op(ops.GroupNormalizationGrad, x, one, statistics, statistics, x, outputs=3, num_groups=3))
    for op in cases:
        works = op.work()
        assert len(works) >= 5
        for work in works:
            assert isinstance(work, Vertices | Reduction)
            cycles = work.cycles(np.array([0, 600, 6000]), mk2)
            assert cycles[0] == 0
            assert 0 < cycles[1] < cycles[2]


def test_group_norm_work_by_hand(mk2, bench):
    """[64, 384] float32 in one group: values and squares summed together, 64 inverse deviations, 4 passes."""
    x, one = np.zeros((1, 64, 384), np.float32), np.zeros((1, 384), np.float32)
    works = bench.op(ops.GroupNormalization, x, one, one, outputs=3, num_groups=1).work()
    sums, inverse, subtract, *_ = works
    assert (sums.inputs, sums.outputs, sums.flops) == (64 * 384, 2 * 64, 3 * 64 * 384)
    # each of 6 workers: 8 of 48 pieces of 8 neighbours, 12 and 4 words each, fixed 17, two reductions
    assert sums.cycles(np.array([384]), mk2)[0] == 2 * 6 * (17 + 8 * (12 + 4))
    assert inverse.elements == 64
    # 48 pieces of 8 neighbours on a tile, 8 for each worker; and 11
    assert subtract.cycles(np.array([384]), mk2)[0] == 6 * (15 + 8 * (7 + 2 * 4)) + 11
    assert [w.vertex.partition("<")[2].partition(",")[0] for w in works[2:]] == [
        "SUBTRACT", "MULTIPLY", "MULTIPLY", "ADD",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "statistics", "piece"),
    [
        ((64, 384), 64, 16),  # layer norm of rows: groupings of 16 columns
        ((64, 384), 64 * 32, 12),
        ((2, 64, 8, 8), 2 * 4, 0),  # images: 16 channels of a grouping and all positions are one piece
        ((2, 64, 8, 8), 2 * 16, 4),
    ],
)
def test_pieces_of_rows(shape, statistics, piece):
    assert row_piece(TensorSpec(shape, FLOAT16), statistics) == piece
    assert row_piece(TensorSpec(shape, FLOAT32), statistics) == min(piece, 8)


def test_stable_statistics_take_two_passes(mk2, bench):
    """The mean, a copy of the centred values, their squares; the rest as otherwise. Replicas share both in turn."""
    x, one = np.zeros((1, 64, 384), np.float32), np.zeros((1, 384), np.float32)
    plain, stable = (
        bench.op(ops.GroupNormalization, x, one, one, outputs=3, num_groups=1, stable=stable).work()
        for stable in (False, True)
    )
    mean, centre, power, *rest = stable
    assert [w.vertex.partition("<")[2].partition(",")[0] for w in (mean, centre, power)] == [
        "ADD", "SUBTRACT", "SQUARE_ADD",
    ]  # fmt: skip
    for sums in (mean, power):
        assert (sums.inputs, sums.outputs) == (64 * 384, 64)
        assert sums.cycles(np.array([384]), mk2)[0] == 6 * (17 + 8 * (12 + 4))
    assert (centre.elements, rest) == (64 * 384, plain[1:])
    graph, (x, scale) = graph_with(((2, 6, 3), FLOAT16), ((6,), FLOAT16), replicas=4)
    attributes = {"group": ReplicaGrouping(4, 1, 2), "stable": True}
    op = graph.create(ops.BatchNormalization, [x, *[scale] * 4], list("abcde"), **attributes)
    found = [work for work in op.work() if isinstance(work, GroupCollective)]
    assert [(one.elements, one.bytes) for one in found] == [(6, 6 * 2), (6, 6 * 4)]


def graph_with(*specs, replicas=1):
    graph = ir.Ir(replicas).create_graph("g")
    return graph, [graph.add_input(TensorSpec(shape, dtype), f"x{i}") for i, (shape, dtype) in enumerate(specs)]


def test_statistics_cannot_be_differentiated():
    graph, (x, scale) = graph_with(((4, 6), FLOAT32), ((6,), FLOAT32))
    op = graph.create(ops.GroupNormalization, [x, scale, scale], ["y", "mean", "inv"], num_groups=1)
    graph.add_output(op.outputs[1])
    with pytest.raises(IrError, match="is a statistic and cannot be differentiated"):
        ops.autodiff(graph)


def test_pieces_give_the_same(bench, rng, monkeypatch):
    """Group norm runs a few samples at a time; one sample at a time gives the same."""
    x, grad = rng.standard_normal((2, 2, 7, 4, 3))
    scale, bias = parameters(rng, 4)
    mean, inverse = rng.standard_normal((2, 2, 14))

    def both():
        forward = bench.run(ops.GroupNormalization, x, scale, bias, outputs=3, num_groups=2)
        inputs = (x, scale, mean, inverse, grad)
        return [*forward, *bench.run(ops.GroupNormalizationGrad, *inputs, outputs=3, num_groups=2)]

    whole = both()
    monkeypatch.setattr(normalisation, "BLOCK", 1)
    for a, b in zip(whole, both(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
