"""CTC: its loss against PyTorch's, its beam search against all paths."""

import itertools

import numpy as np
import pytest

from ipuperf import ops


def log_softmax(x):
    return x - np.logaddexp.reduce(x, -1, keepdims=True)


LABELS = np.array([[1, 2, 2], [3, 1, 0]], np.int32)
TIMES, LENGTHS = np.array([6, 5], np.int32), np.array([3, 2], np.int32)


@pytest.mark.parametrize("blank", [0, 4])
def test_loss(bench, rng, blank):
    torch = pytest.importorskip("torch")
    arrays = [log_softmax(rng.standard_normal((2, 6, 2, 5))), *(np.stack([a, a]) for a in (LABELS, TIMES, LENGTHS))]
    arrays[1] = arrays[1] + (blank == 0)

    def reference(logs, labels, times, lengths):
        return torch.nn.functional.ctc_loss(logs, labels, times, lengths, blank, "none").float()

    build = lambda g, *t: g.create(ops.CtcLoss, t, ["y"], blank=blank).outputs[0]  # noqa: E731
    bench.check(build, reference, arrays, rtol=2e-6, atol=1e-6)


def test_what_no_path_reaches(bench, rng):
    logs = log_softmax(rng.standard_normal((1, 2, 1, 4)))
    rest = [np.array(a, np.int32)[None] for a in ([[1, 1, 2]], [2], [3])]
    assert np.isinf(bench.run(ops.CtcLoss, logs, *rest)).all()
    assert (bench.run(ops.CtcLoss, logs, *rest, zero_infinity=True) == 0).all()
    grad = np.ones((1, 1), np.float32)
    assert (bench.run(ops.CtcLossGrad, grad, logs, *rest, zero_infinity=True) == 0).all()


def best_of_all(logs, blank):
    """Labels by the probability of all their paths."""
    found = {}
    for path in itertools.product(range(logs.shape[1]), repeat=len(logs)):
        labels = tuple(k for k, _ in itertools.groupby(path) if k != blank)
        chance = sum(logs[t, k] for t, k in enumerate(path))
        found[labels] = np.logaddexp(found.get(labels, -np.inf), chance)
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("blank", [0, 2])
def test_beam_search_finds_the_likeliest_labels(bench, rng, blank):
    logs, lengths = log_softmax(2 * rng.standard_normal((1, 5, 2, 3))), np.array([[5, 3]], np.int32)
    chances, sizes, labels = bench.run(
        ops.CtcBeamSearchDecoder, logs, lengths, outputs=3, blank=blank, beam_width=200, top_paths=3
    )
    assert labels.shape == (1, 2, 3, 5)
    for number, length in enumerate(lengths[0]):
        wanted = best_of_all(logs[0, :length, number], blank)[:3]
        for rank, (path, chance) in enumerate(wanted):
            assert tuple(labels[0, number, rank, : sizes[0, number, rank]]) == path
            np.testing.assert_allclose(chances[0, number, rank], chance, rtol=1e-5)


def test_costs_are_of_low_confidence(bench):
    logs, count = np.zeros((1, 4, 2, 3), np.float32), np.zeros((1, 2), np.int32)
    (work,) = bench.op(ops.CtcLoss, logs, np.zeros((1, 2, 2), np.int32), count, count).work()
    assert work.elements == 4 * 2 * 5
    assert work.low_confidence
