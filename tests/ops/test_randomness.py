"""Dropout, random tensors and seeds: statistics, replay, independence, and costs."""

import itertools

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT16, FLOAT32, INT32, UINT32, DTypeError, IrError, ShapeError, TensorSpec
from ipuperf.ops import randomness


def seeds(*pairs):
    return np.array(pairs, np.uint32)


def kept(bench, seed, key=100, p=0.5, n=4096):
    """Which of n elements stay, per replica."""
    return bench.run(ops.Dropout, np.ones((len(seed), n), np.float32), seed, p=p, key=key) != 0


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_keep_rate_and_scale(bench, p):
    n = 200_000  # several pieces
    y = bench.run(ops.Dropout, np.full((2, n), 3, np.float32), seeds((1, 2), (3, 4)), p=p, key=7)
    assert set(np.unique(y)) == {np.float32(0), np.float32(3) * np.float32(1 / (1 - p))}
    rates = np.count_nonzero(y, axis=1) / n
    np.testing.assert_allclose(rates, 1 - p, atol=5 * np.sqrt(p * (1 - p) / n) + 2**-17)


def test_a_rate_close_to_one_keeps_a_few(bench):
    """The rates are multiples of 2^-16: of a million elements 16 are expected."""
    assert 1 <= np.count_nonzero(kept(bench, seeds((1, 2)), p=1 - 1e-6, n=2**20)) <= 60


def test_no_dropout_for_p_zero(bench, rng):
    x = rng.standard_normal((1, 1000)).astype(np.float32)
    np.testing.assert_array_equal(bench.run(ops.Dropout, x, seeds((1, 2)), p=0.0), x)


def test_decisions_are_independent(bench):
    """Neighbours, and the four decisions of one generator word, are uncorrelated."""
    mask = kept(bench, seeds((5, 6)), n=100_000)[0].astype(float) - 0.5
    for lag in (1, 2, 3, 4, 8, 32768):
        assert abs(np.mean(mask[lag:] * mask[:-lag])) < 5 * 0.25 / np.sqrt(len(mask) - lag)


def test_replay_and_difference(bench):
    """The same seed and key: the same mask; any other: an uncorrelated one."""
    base = kept(bench, seeds((1, 2)))[0]
    np.testing.assert_array_equal(base, kept(bench, seeds((1, 2)))[0])
    others = [
        kept(bench, seeds((2, 1)))[0],
        kept(bench, seeds((1, 3)))[0],
        kept(bench, seeds((1, 2)), key=101)[0],
        kept(bench, seeds((2, 2)), key=99)[0],
    ]
    for a, b in itertools.combinations([base, *others], 2):
        assert abs(np.mean(a == b) - 0.5) < 5 * 0.5 / np.sqrt(len(a))


def test_replicas_follow_their_seeds(bench):
    a, b, c = kept(bench, seeds((1, 2), (3, 4), (1, 2)))
    np.testing.assert_array_equal(a, c)
    assert (a != b).any()


def test_prefix_does_not_depend_on_size_or_type(bench):
    short, long = kept(bench, seeds((1, 2)), n=999), kept(bench, seeds((1, 2)), n=100_000)
    np.testing.assert_array_equal(short[0], long[0, :999])
    for dtype in (np.float16, np.float64):
        y = bench.run(ops.Dropout, np.ones((1, 999), dtype), seeds((1, 2)), p=0.5, key=100)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y[0] != 0, short[0])


def test_half_is_rounded_once(bench, rng):
    x = rng.standard_normal((1, 5000)).astype(np.float16)
    y = bench.run(ops.Dropout, x, seeds((1, 2)), p=0.3)
    stays = y != 0
    expected = (x.astype(np.float32) * np.float32(1 / 0.7)).astype(np.float16)
    np.testing.assert_array_equal(y[stays], expected[stays])


def test_dropped_infinities_become_zero(bench):
    y = bench.run(ops.Dropout, np.full((1, 1000), -np.inf, np.float32), seeds((1, 2)), p=0.5)
    assert set(np.unique(y)) == {-np.inf, 0}
    assert not np.signbit(y[y == 0]).any()


def test_gradient_replays_the_mask(bench, rng):
    x, seed = rng.standard_normal((2, 64, 9)), seeds((1, 2), (3, 4))
    y, grad, (found,) = bench.gradients(
        lambda g, x, s: g.create(ops.Dropout, [x, s], ["y"], p=0.25).outputs[0], [x, seed]
    )
    mask = np.where(y != 0, 1 / 0.75, 0)
    np.testing.assert_allclose(y, x * mask)
    np.testing.assert_allclose(found, grad * mask)


def test_keys_default_to_the_op(run_graph):
    """Two dropouts of one graph drop differently."""
    graph = ir.Ir().create_graph("g")
    x, seed = graph.add_input(TensorSpec((500,), FLOAT32), "x"), graph.add_input(TensorSpec((2,), UINT32), "seed")
    first, second = (graph.create(ops.Dropout, [x, seed], ["y"], p=0.5).outputs[0] for _ in range(2))
    values = run_graph(graph, {x: np.ones((1, 500), np.float32), seed: seeds((1, 2))})
    assert (values[first] != values[second]).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_scalars_are_drawn_as_vectors_of_one_element(bench, dtype):
    seed = seeds(*itertools.product(range(8), repeat=2))
    for op, attributes in ((ops.RandomNormal, {}), (ops.RandomUniform, {"low": 1.0, "high": 2.0})):
        kind = ir.dtype_of(np.empty(0, dtype))
        scalars, vectors = (bench.run(op, seed, shape=s, dtype=kind, key=5, **attributes) for s in ((), (1,)))
        np.testing.assert_array_equal(scalars, vectors[:, 0])
        assert len(np.unique(scalars)) > 32
    x = np.ones(64, dtype)
    masks = [bench.run(ops.Dropout, x.reshape(64, *s), seed, p=0.5, key=5) for s in ((), (1,))]
    np.testing.assert_array_equal(masks[0], masks[1][:, 0])
    assert set(masks[0]) == {0, 2}


def test_shaped_dropout(bench):
    y = bench.run(
        ops.Dropout, np.ones((2, 40, 5, 30), np.float32), seeds((1, 2), (3, 4)), p=0.5, mask_shape=(40, 1, 30)
    )
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :, :1], y.shape))
    assert 0.4 < np.mean(y != 0) < 0.6
    whole = bench.run(ops.Dropout, np.ones((2, 40), np.float32), seeds((1, 2), (3, 4)), p=0.5, key=3)
    shaped = bench.run(
        ops.Dropout, np.ones((2, 40, 3), np.float32), seeds((1, 2), (3, 4)), p=0.5, key=3, mask_shape=(40, 1)
    )
    np.testing.assert_array_equal(shaped, np.broadcast_to(whole[..., None], shaped.shape))


def test_seed_is_read_when_the_kernel_runs(bench):
    """Kernels are bound once; a new micro-batch brings another seed into the same array."""
    x, seed, out = np.ones((1, 500), np.float32), seeds((1, 2)), np.empty((1, 500), np.float32)
    run = bench.op(ops.Dropout, x, seed, p=0.5, key=1).kernel([x, seed], [out], None)
    run()
    first = out.copy()
    seed[:] = (3, 4)
    run()
    assert (out != first).any()
    seed[:] = (1, 2)
    run()
    np.testing.assert_array_equal(out, first)


# -- random tensors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_normal(bench, dtype):
    n = 50_000
    y = bench.run(ops.RandomNormal, seeds((1, 2), (3, 4)), shape=(n,), dtype=dtype, mean=2.0, std=3.0)
    assert y.dtype == dtype
    wide = y.astype(np.float64)
    np.testing.assert_allclose(wide.mean(1), 2, atol=5 * 3 / np.sqrt(n))
    np.testing.assert_allclose(wide.std(1), 3, atol=5 * 3 / np.sqrt(2 * n))
    np.testing.assert_allclose(np.mean(np.abs(wide - 2) < 3, 1), 0.6827, atol=5 * np.sqrt(0.2166 / n))
    assert (y[0] != y[1]).mean() > 0.99


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32])
def test_uniform(bench, dtype):
    n = 50_000
    y = bench.run(ops.RandomUniform, seeds((1, 2), (3, 4)), shape=(n // 2, 2), dtype=dtype, low=-1.0, high=3.0, key=5)
    wide = y.reshape(2, n).astype(np.float64)
    assert wide.min() >= -1
    assert wide.max() <= 3
    np.testing.assert_allclose(wide.mean(1), 1, atol=5 * 4 / np.sqrt(12 * n))
    counts = np.apply_along_axis(lambda row: np.histogram(row, 16, (-1, 3))[0], 1, wide)
    np.testing.assert_allclose(counts / n, 1 / 16, atol=5 * np.sqrt(1 / 16 / n))
    again = bench.run(ops.RandomUniform, seeds((3, 4)), shape=(n // 2, 2), dtype=dtype, low=-1.0, high=3.0, key=5)
    np.testing.assert_array_equal(again[0], y[1])


def test_modified_seeds(bench):
    """The first word stays; the second depends on the sum of the second and the modifier only, which wraps."""
    modifier = np.array([5, 5, 6, 4, 5], np.uint32)
    seed = seeds((1, 2), (1, 2), (1, 2), (1, 3), (7, 2))
    found = bench.run(ops.ModifyRandomSeed, seed, modifier)
    np.testing.assert_array_equal(found[:, 0], seed[:, 0])
    second = found[:, 1]
    assert second[0] == second[1] == second[3]
    assert len({int(second[0]), int(second[2]), int(second[4])}) == 3
    wrapped = bench.run(ops.ModifyRandomSeed, seeds((1, 2**32 - 1), (1, 0)), np.array([1, 0], np.uint32))
    assert wrapped[0, 1] == wrapped[1, 1]
    many = bench.run(ops.ModifyRandomSeed, seeds(*[(1, 2)] * 2000), np.arange(2000, dtype=np.uint32))[:, 1]
    assert len(np.unique(many)) == 2000
    assert abs(many.mean() / 2**32 - 0.5) < 5 / np.sqrt(12 * 2000)


# -- cost --------------------------------------------------------------------------------------------------------------


def test_cycles_by_hand(mk2):
    """600 elements on a tile: 100 per worker, 25 half or 50 float vectors."""
    n = np.array([600, 0])
    np.testing.assert_array_equal(randomness.dropout_vertex(FLOAT16, 1).cycles(n, mk2), [6 * (24 + 2 * 25) + 6, 0])
    np.testing.assert_array_equal(randomness.dropout_vertex(FLOAT32, 1).cycles(n, mk2), [6 * (24 + 2 * 50) + 6, 0])
    np.testing.assert_array_equal(randomness.normal_vertex(FLOAT16, 1).cycles(n, mk2), [6 * (24 + 4 * 25) + 4, 0])
    np.testing.assert_array_equal(randomness.normal_vertex(FLOAT32, 1).cycles(n, mk2), [6 * (22 + 4 * 50) + 4, 0])
    np.testing.assert_array_equal(randomness.uniform_vertex(FLOAT32, 1).cycles(n, mk2), [6 * (10 + 3 * 50) + 4, 0])
    np.testing.assert_array_equal(randomness.uniform_vertex(INT32, 1).cycles(n, mk2), [6 * (5 + 23 * 100) + 4, 0])


def test_seeds_are_set_and_restored(mk2, bench):
    n = np.array([600])
    works = bench.op(ops.Dropout, np.zeros((1, 6000), np.float16), seeds((1, 2)), p=0.1).work()
    assert [w.vertex.partition("::")[2].partition("<")[0] for w in works] == [
        "GetSeedsSupervisor", "SetSeedSupervisor", "DropoutSupervisor", "SetSeedsSupervisor",
    ]  # fmt: skip
    assert [int(w.cycles(n, mk2)[0]) for w in works] == [14 + 7 * 6, 14 + 27 * 6, 6 * 74 + 6, 14 + 7 * 6]
    assert [w.low_confidence for w in works] == [False, False, False, True]
    shaped = bench.op(ops.Dropout, np.zeros((1, 60, 100), np.float16), seeds((1, 2)), p=0.1, mask_shape=(60, 1)).work()
    assert [w.elements for w in shaped] == [60, 60, 60, 60, 6000]
    assert len(bench.op(ops.RandomNormal, seeds((1, 2)), shape=(5,)).work()) == 4
    assert len(bench.op(ops.ModifyRandomSeed, seeds((1, 2)), np.zeros((1,), np.uint32)).work()) == 6


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors(bench):
    x, seed = np.zeros((1, 4, 6), np.float32), seeds((1, 2))
    for p in (1.0, -0.1, float("nan")):
        with pytest.raises(IrError, match="a number of at least 0 and less than 1 is needed"):
            bench.op(ops.Dropout, x, seed, p=p)
    with pytest.raises(DTypeError, match=r"the seed 'test.*' is \(2,\) int32; \(2,\) uint32 is needed"):
        bench.op(ops.Dropout, x, seed.astype(np.int32), p=0.5)
    with pytest.raises(ShapeError, match=r"mask_shape \(4, 2\) does not broadcast"):
        bench.op(ops.Dropout, x, seed, p=0.5, mask_shape=(4, 2))
    with pytest.raises(IrError, match="key=-1; a whole number"):
        bench.op(ops.Dropout, x, seed, p=0.5, key=-1)
    with pytest.raises(DTypeError, match="dtype='int32'; allowed: float16, float32, float64"):
        bench.op(ops.RandomNormal, seed, shape=(3,), dtype="int32")
    with pytest.raises(IrError, match="std=-1.0"):
        bench.op(ops.RandomNormal, seed, shape=(3,), std=-1)
    with pytest.raises(IrError, match="low=2.0 is above high=1.0"):
        bench.op(ops.RandomUniform, seed, shape=(3,), low=2)
    with pytest.raises(DTypeError, match=r"modifier .* is \(1,\) uint32; \(\) uint32 is needed"):
        bench.op(ops.ModifyRandomSeed, seed, np.zeros((1, 1), np.uint32))
