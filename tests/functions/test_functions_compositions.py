"""Functions composed of others: values against PyTorch, and against NumPy where it has them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipuperf.functions import activations, arranging, elementary, losses, networks, reductions
from ipuperf.ir import FLOAT32

RNG = np.random.default_rng(11)
X = (RNG.normal(size=(4, 6)) * 3).astype(np.float32)
Y = RNG.normal(size=(4, 6)).astype(np.float32)
P = RNG.uniform(0.05, 0.95, (4, 6)).astype(np.float32)
SPECIAL = np.array([np.nan, np.inf, -np.inf, -2.5, 2.5, 0.0], np.float32)
POSITIONS = RNG.integers(0, 4, (4, 6)).astype(np.int32)
NUMBERS, DIVISORS = np.array([-7, 7, -7, 7, 6, 0], np.int32), np.array([2, -2, -2, 2, 3, 5], np.int32)

NUMPY: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "floor_div": (elementary.floor_div, np.floor_divide, (X, Y)),
    "floor_div of integers": (elementary.floor_div, np.floor_divide, (NUMBERS, DIVISORS)),
    "remainder": (elementary.remainder, np.remainder, (X, Y)),
    "remainder of integers": (elementary.remainder, np.remainder, (NUMBERS, DIVISORS)),
    "nan_to_num": (elementary.nan_to_num, np.nan_to_num, (SPECIAL,)),
    "cube": (lambda t: elementary.number_power(t, 3), lambda x: x**3, (Y,)),
    "inverse root": (lambda t: elementary.number_power(t, -0.5), lambda x: x**-0.5, (P,)),
    "other power": (lambda t: elementary.number_power(t, 1.7), lambda x: x**1.7, (P,)),
    "variance": (lambda t: reductions.variance(t, (1,), 1), lambda x: x.var(1, ddof=1), (X,)),
    **{
        f"norm {order}": (
            lambda t, order=order: reductions.norm(t, order, 1),
            lambda x, order=order: np.linalg.norm(x, order, axis=1),
            (X,),
        )
        for order in (0, 1, 2, 3, np.inf, -np.inf)
    },
    "moved": (lambda t: arranging.moved(t, [0], [-1]), lambda x: np.moveaxis(x, 0, -1), (X,)),
    "replaced": (
        lambda t, u: arranging.replaced(t, u, 1, 2, 4),
        lambda x, y: np.concatenate([x[:, :2], y, x[:, 4:]], 1),
        (X, Y[:, :2]),
    ),
    "interleaved": (
        lambda t: arranging.interleaved(t, {0: 2, 1: 3}),
        lambda x: x.repeat(2, 0).repeat(3, 1),
        (X,),
    ),
    "rolled": (lambda t: arranging.rolled(t, 8, 1), lambda x: np.roll(x, 8, 1), (X,)),
    "padded": (
        lambda t: arranging.padded(t, {1: (2, 1)}, 7.0),
        lambda x: np.pad(x, ((0, 0), (2, 1)), constant_values=7),
        (X,),
    ),
    **{
        mode: (
            lambda t, mode=mode: arranging.bordered(t, {0: (1, 0), 1: (2, 3)}, mode),
            lambda x, other=other: np.pad(x, ((1, 0), (2, 3)), other),
            (X,),
        )
        for mode, other in (("circular", "wrap"), ("replicate", "edge"), ("reflect", "reflect"))
    },
    "picked": (
        lambda t, p: arranging.picked(t, p, 1),
        lambda x, p: np.take_along_axis(x, p, 1),
        (X, POSITIONS),
    ),
    "picked rows": (
        lambda t, p: arranging.picked(t, p, 0),
        lambda x, p: np.take_along_axis(x, p, 0),
        (X, POSITIONS),
    ),
    "triangle": (lambda t: arranging.triangle(t, True, 1), lambda x: np.tril(x, 1), (X,)),
    "one_hot": (lambda t: arranging.one_hot(t, 3, FLOAT32), lambda x: np.eye(3)[x], (np.array([2, 0, 1], np.int32),)),
    "running_sum": (lambda t: arranging.running_sum(t, 0), lambda x: x.cumsum(0), (X,)),
}

TORCH: dict[str, tuple[Callable[..., Any], str, tuple[np.ndarray, ...]]] = {
    "elu": (lambda t: activations.elu(t, 1.3), "lambda x: F.elu(x, 1.3)", (X,)),
    "squared_error": (losses.squared_error, "lambda x, y: F.mse_loss(x, y, reduction='none')", (X, Y)),
    "absolute_error": (losses.absolute_error, "lambda x, y: F.l1_loss(x, y, reduction='none')", (X, Y)),
    "huber": (
        lambda t, y: losses.huber(t, y, 0.7, 0.7),
        "lambda x, y: F.huber_loss(x, y, 'none', 0.7)",
        (X, Y),
    ),
    "binary_cross_entropy": (
        losses.binary_cross_entropy,
        "lambda x, y: F.binary_cross_entropy(x, y, reduction='none')",
        (P, P[::-1].copy()),
    ),
    "with logits": (
        losses.binary_cross_entropy_with_logits,
        "lambda x, y, p: F.binary_cross_entropy_with_logits(x, y, reduction='none', pos_weight=p)",
        (X, P, P[0] * 3),
    ),
    "kl_divergence": (losses.kl_divergence, "lambda x, y: F.kl_div(x, y, reduction='none')", (X, P)),
    "poisson_nll": (
        lambda t, y: losses.poisson_nll(t, y, False, True, 1e-8),
        "lambda x, y: F.poisson_nll_loss(x, y, False, True, reduction='none')",
        (P, P * 8),
    ),
    "soft_margin": (
        losses.soft_margin,
        "lambda x, y: F.soft_margin_loss(x, y, reduction='none')",
        (X, np.sign(Y)),
    ),
    "rms_norm": (lambda t: networks.rms_norm(t, (1,), 0.1), "lambda x: F.rms_norm(x, (6,), eps=0.1)", (X,)),
}


def _given(arrays: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    return {f"x{i}": array for i, array in enumerate(arrays)}


@pytest.mark.parametrize("name", NUMPY)
def test_value_is_that_of_numpy(run, name) -> None:
    function, reference, arrays = NUMPY[name]
    (found,), _ = run(lambda **tensors: function(*tensors.values()), _given(arrays))
    expected = reference(*arrays)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", TORCH)
def test_value_is_that_of_torch(run, name) -> None:
    torch = pytest.importorskip("torch")
    function, reference, arrays = TORCH[name]
    expected = eval(reference, {"F": torch.nn.functional})(*(torch.tensor(a.astype(np.float64)) for a in arrays))
    (found,), _ = run(lambda **tensors: function(*tensors.values()), _given(arrays))
    np.testing.assert_allclose(found, expected.numpy(), rtol=2e-5, atol=2e-5)


def test_nothing_is_made_where_nothing_changes(run) -> None:
    def write(x0: Any) -> None:
        same = [
            arranging.reshaped(x0, (4, -1)),
            arranging.permuted(x0, (0, 1)),
            arranging.broadcast(x0, (4, 6)),
            arranging.cut(x0, 1, 0, 6),
            arranging.joined([x0], 0),
            arranging.flipped(x0, []),
            arranging.rolled(x0, 6, 1),
            elementary.scaled(x0, 1),
        ]
        assert all(t is x0 for t in same)

    run(write, {"x0": X})


def test_smoothed_labels(run) -> None:
    torch = pytest.importorskip("torch")
    labels = np.array([1, 5, -100, 0], np.int32)

    def write(x0: Any, x1: Any) -> Any:
        found, ignored = losses.smoothed_nll(networks.log_softmax(x0, 1), x1, 0.2, -100)
        return losses.mean_of_kept(found, ignored), losses.soft_label_nll(networks.log_softmax(x0, 1), x0, 0.2)

    (hard, soft), _ = run(write, {"x0": X, "x1": labels})
    wide, cross = torch.tensor(X.astype(np.float64)), torch.nn.functional.cross_entropy
    expected = cross(wide, torch.tensor(labels.astype(np.int64)), label_smoothing=0.2)
    np.testing.assert_allclose(hard, expected.numpy(), rtol=1e-5)
    expected = cross(wide, wide, label_smoothing=0.2, reduction="none")
    np.testing.assert_allclose(soft, expected.numpy(), rtol=1e-4, atol=1e-4)
