"""Gradients where formulas change: equal extremes, edges of limits, norms of nothing, losses without labels."""

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf.poptorch import Error, Options, identity_loss, inferenceModel, trainingModel  # noqa: E402
from ipuperf.poptorch.optimisers import classes as optim  # noqa: E402
from ipuperf.poptorch.optimisers.classes import optimiser_description  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from atencases import noise  # noqa: E402

F = torch.nn.functional
TIES = torch.round(noise(2, 3, 4))
SOME = noise(3, 4)
BEHIND = torch.tensor([[3, 0, -1, 1], [0, -1, 2, 1], [1, 2, 3, 0]])
NONE = torch.full((3,), -100)
PLACES = torch.tensor([[0, 0, 2, 2], [1, 0, 1, 0], [0, 0, 2, 0]])
AT_EDGES = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 0.5])


def norms(x: Any) -> list[Any]:
    orders = (0.5, 1, 1.5, 2, 2.5, 3, math.inf)
    return [torch.linalg.vector_norm(x, order, dim=-1) for order in orders]


CASES = {
    "largest": (lambda x: (x.amax((0, 2)), x.max(), x.max(1)[0], x.amin(1, keepdim=True), x.min(-1)[0]), TIES),
    "larger": (lambda x, y: (torch.maximum(x, y), torch.minimum(x, y[0])), TIES, TIES.flip(0)),
    "scattered": (
        lambda x, y: [
            found
            for how in ("amax", "amin", "prod")
            for found in (
                torch.scatter_reduce(x, 0, PLACES, y, how),
                torch.index_reduce(x, 0, PLACES[:, 0], y, how),
            )
        ],
        TIES[0],
        TIES[1],
    ),
    "pooled": (lambda x: F.max_pool2d(x, 3, 2, 1), torch.relu(noise(1, 2, 6, 6))),
    "norms": (norms, TIES),
    "norms_of_zero": (norms, torch.zeros(2, 3)),
    "negative_norms": (lambda x: torch.linalg.vector_norm(x, -math.inf, dim=1), TIES),
    "spread_of_equals": (lambda x: (x.std(0), x.std(correction=0)), torch.ones(3, 2)),
    "limits": (lambda x: (F.hardtanh(x), F.relu6(x), F.hardswish(x), F.hardsigmoid(x)), AT_EDGES),
    "no_labels": (
        lambda x: [
            F.cross_entropy(x, NONE, weight=weight, label_smoothing=smoothing).nan_to_num(3.0)
            for weight, smoothing in [(None, 0.0), (torch.ones(4), 0.0), (None, 0.1)]
        ],
        SOME,
    ),
    "saturated": (
        lambda x: F.binary_cross_entropy(x.sigmoid(), torch.tensor([1.0, 0.0, 1.0, 1.0])),
        torch.tensor([40.0, -200.0, 17.5, 0.3]),
    ),
    "margins": (
        lambda x: [F.multilabel_margin_loss(x, BEHIND, reduction=how) for how in ("mean", "sum", "none")],
        SOME,
    ),
}

FUNCTIONS = {
    "remainders": (lambda x, y: (x % y, x % 0.3, y % 0.7), SOME, SOME.flip(0) + 3),
    "spreads": (lambda x: (x.std(1), x.std(), x.std(0, correction=2)), SOME),
    "running_sums": (lambda x: (x.cumsum(1), x.cumsum(0), x[:1].cumprod(1)), SOME),
    "running_extremes": (lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 0), *torch.cummax(x, -1)), TIES),
    "signs": (lambda x, y: (torch.copysign(x, y), torch.copysign(x, -2.0), torch.hypot(x, y)), SOME, SOME.flip(0)),
    "xlogy": (lambda x, y: (torch.xlogy(x, y), torch.xlogy(x, 2.0), torch.xlogy(1.5, y)), SOME.round(), SOME.exp()),
    "decimals": (lambda x: (torch.round(x, decimals=1) + x, torch.round(x * 1000, decimals=-2)), SOME),
    "repeats": (lambda x: torch.repeat_interleave(x, torch.tensor([1, 0, 2]), dim=0, output_size=3), SOME),
    "uneven_pooling": (
        lambda x: (F.adaptive_max_pool2d(x, (5, None)), F.adaptive_max_pool1d(x[0], 4)),
        torch.relu(noise(2, 3, 7, 9)),
    ),
}
"""What needs an op of its own here."""
CASES |= FUNCTIONS


INF, NAN = math.inf, math.nan
RUN = torch.tensor([1.0, 2.0, INF, 4.0, NAN, 1.0])
NUMBERS = torch.tensor([[16777217, 1], [1, 1], [1, 2**31 - 1]], dtype=torch.int32)
DIVIDENDS = torch.tensor([5.0, -5, 5, -5, 0, INF, NAN, 5, 5, 1e30, 1e10, 3.5, -1e30, 0.3])
DIVISORS = torch.tensor([INF, INF, -INF, -INF, INF, 2, 2, NAN, 0, 3, 7, 1e-30, 3, 0.1])
HUGE = torch.tensor([[1e38, -1e38, 2e38], [1e-30, 2e-30, 3e-30], [1.0, 1.0, 1.0]])
UNUSED = torch.full((1, 2, 2), NAN)
ONES = torch.ones(1, 2, 2)
EXTREMES = {
    "sums of whole numbers": (lambda x: [torch.cumsum(x, d, dtype=torch.int32) for d in (0, 1, -1)], NUMBERS),
    "products of whole numbers": (lambda x: torch.cumprod(x, 0, dtype=torch.int32), NUMBERS),
    "sums of truths": (lambda x: torch.cumsum(x > 1, 0), NUMBERS),
    "sums of bytes": (lambda x: torch.cumsum(x, 0), torch.tensor([200, 200, 3], dtype=torch.uint8)),
    "runs with NaN": (lambda x: (x.cumsum(0), x.cumprod(0), *x.cummax(0), *x.cummin(0), x.half().cumsum(0)), RUN),
    "spreads": (lambda x: (x.std(1), x.std(1, correction=0), x.var(1), x.norm(dim=1), torch.std_mean(x, 0)[0]), HUGE),
    "sides": (
        torch.hypot,
        torch.tensor([0.0, INF, NAN, 3e38, 1e-30, -3]),
        torch.tensor([1e20, NAN, 1, 3e38, 1e-30, 4]),
    ),
    "remainders": (
        lambda x, y: (
            [f(x, y) for f in (torch.remainder, torch.fmod, torch.floor_divide)]
            + [x % 3.0, x // 3.0, torch.div(x, y, rounding_mode="floor"), torch.remainder(x.half(), y)]
        ),
        DIVIDENDS,
        DIVISORS,
    ),
    "an unused product": (
        lambda x, n: [
            torch.addmm(x[0], n[0], x[0], alpha=0),
            torch.addmv(x[0, 0], n[0], x[0, 0], alpha=0, beta=0.5),
            torch.addbmm(x[0], n, x, alpha=0, beta=2),
            torch.addr(x[0], n[0, 0], x[0, 0], alpha=0),
        ],
        ONES,
        UNUSED,
    ),
    "an unused term": (
        lambda x, n: [
            torch.addmm(n[0], x[0], x[0], beta=0),
            torch.addmv(n[0, 0], x[0], x[0, 0], alpha=0.5, beta=0),
            torch.addbmm(n[0], x, x, beta=0),
            torch.baddbmm(n, x, x, beta=0),
            torch.addr(n[0], x[0, 0], x[0, 0], beta=0),
        ],
        ONES,
        UNUSED,
    ),
}
"""Values where a formula overflows, vanishes, is exact or is not asked for."""


@pytest.mark.parametrize("name", EXTREMES)
def test_values_at_the_ends_of_the_range(name: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, *operands: Any) -> Any:
            found = EXTREMES[name][0](*operands)
            return tuple(found) if isinstance(found, (list, tuple)) else (found,)

    operands = EXTREMES[name][1:]
    options = Options().showCompilationProgressBar(False)
    for result, expected in zip(inferenceModel(Model(), options)(*operands), Model()(*operands), strict=True):
        torch.testing.assert_close(result, expected.to(result.dtype), rtol=2e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_a_mask_of_bytes_is_a_mask(dtype: torch.dtype) -> None:
    """With the warning that PyTorch gives."""

    class Masked(torch.nn.Module):
        def forward(self, t: Any, mask: Any) -> Any:
            t, u = t.clone(), t.clone()
            t[mask] = 0.5
            u.index_put_((mask,), torch.tensor(2.0), accumulate=True)
            return t, u

    class Read(torch.nn.Module):
        def forward(self, t: Any, mask: Any) -> Any:
            return t[mask]

    t, mask = torch.arange(1.0, 7.0).view(3, 2), torch.tensor([1, 0, 0], dtype=dtype)
    options = Options().showCompilationProgressBar(False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        results = inferenceModel(Masked(), options)(t, mask)
    assert any("torch.bool" in str(w.message) for w in told) is (dtype == torch.uint8)
    for result, expected in zip(results, Masked()(t, mask.bool()), strict=True):
        torch.testing.assert_close(result, expected)
    with pytest.raises(Error, match="depends on data"):
        inferenceModel(Read(), options)(t, mask)


@pytest.mark.heavy
def test_values_and_gradients_are_pytorchs(check_all: Any) -> None:
    """Values and gradients."""
    functions = {name: case[0] for name, case in CASES.items()}
    check_all(functions, operands={name: list(case[1:]) for name, case in CASES.items()})


@pytest.mark.parametrize(
    ("limits", "slopes"), [((-1.0, 1.0), [0, 0, 1, 0, 0, 0, 1]), ((AT_EDGES - 1, AT_EDGES), [0.5] * 7)]
)
def test_the_gradient_on_the_limits_of_a_clamp_is_one_for_all_releases(
    limits: tuple[Any, Any], slopes: list[float]
) -> None:
    """PopART's, and PyTorch's since 2.14: none on a number, half of it where a tensor is met."""

    class Clamped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(AT_EDGES.clone())

        def forward(self, x: Any) -> Any:
            return identity_loss(torch.clamp(self.weight, *limits).sum() + x.sum(), "none")

    model = Clamped()
    trainingModel(model, Options(), optimizer=torch.optim.SGD(model.parameters(), lr=1.0))(torch.zeros(1))
    assert (AT_EDGES - model.weight.detach()).tolist() == slopes


def test_adam_with_decoupled_decay_is_adamw() -> None:
    """The decay is read from the parameter groups."""
    weight = torch.nn.Parameter(torch.ones(2))
    assert optimiser_description(torch.optim.Adam([weight], decoupled_weight_decay=True)).kind == "adamw"
    assert optimiser_description(torch.optim.Adam([weight], weight_decay=0.1)).kind == "adam"
    assert optimiser_description(optim.AdamW([weight])).kind == "adamw"
    groups = [{"params": [weight]}, {"params": [torch.nn.Parameter(torch.ones(1))], "decoupled_weight_decay": True}]
    with pytest.raises(AssertionError, match="decoupled_weight_decay"):
        optimiser_description(torch.optim.Adam(groups))


def test_two_wrapped_models_cannot_share_their_buffers() -> None:
    """A clear error, as upstream has one; parameters may be shared (test_poptorch_shared_parameters.py)."""
    layer = torch.nn.BatchNorm1d(2)
    first = trainingModel(torch.nn.Sequential(layer), Options(), optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
    with pytest.raises(Error, match="part of another"):
        trainingModel(torch.nn.Sequential(layer), Options(), optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
    first.destroy()
    trainingModel(torch.nn.Sequential(layer), Options(), optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))


def test_running_statistics_of_instances() -> None:
    """InstanceNorm with running statistics trains and evaluates as PyTorch's."""
    model = torch.nn.InstanceNorm1d(3, affine=True, track_running_stats=True, momentum=0.3)
    other = torch.nn.InstanceNorm1d(3, affine=True, track_running_stats=True, momentum=0.3)
    x = noise(2, 3, 5) * 2 + 1

    class Training(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = model

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            return y, identity_loss(y.square().sum(), "none")

    training = trainingModel(Training(), Options(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    training(x)
    other(x).square().sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    training.copyWeightsToHost()
    for mine, wanted in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
    model.eval(), other.eval()
    torch.testing.assert_close(inferenceModel(model)(x), other(x).detach(), rtol=1e-5, atol=1e-5)
