"""Random numbers in ``forward``: their distributions, and that they follow the seed alone."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf.poptorch import Error, Options, inferenceModel  # noqa: E402


class _Called(torch.nn.Module):
    """A function as a module; the seed set in ``forward`` changes nothing."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        torch.manual_seed(42)
        return self.function(x * 1)


def drawn(function: Any, x: Any, seed: int = 8) -> Any:
    """What a model gives in its first call."""
    return inferenceModel(_Called(function), Options().randomSeed(seed))(x)


N = 20000
FLAT = torch.full((N,), 0.25)
#: Function, mean and variance of its numbers.
DISTRIBUTIONS = {
    "rand": (lambda x: torch.rand(x.shape), 1 / 2, 1 / 12),
    "rand_like": (torch.rand_like, 1 / 2, 1 / 12),
    "uniform_": (lambda x: x.uniform_(-1, 2), 1 / 2, 9 / 12),
    "randn": (lambda x: torch.randn(N), 0, 1),
    "randn_like": (torch.randn_like, 0, 1),
    "normal": (lambda x: torch.normal(1.0, 2.0, (N,)), 1, 4),
    "normal_mean": (lambda x: torch.normal(x, 3.0), 0.25, 9),
    "normal_std": (lambda x: torch.normal(3.0, x), 3, 1 / 16),
    "normal_both": (lambda x: torch.normal(x, x), 0.25, 1 / 16),
    "normal_": (lambda x: x.normal_(1, 2), 1, 4),
    "log_normal_": (lambda x: x.log_normal_(0, 0.5), np.exp(1 / 8), (np.exp(1 / 4) - 1) * np.exp(1 / 4)),
    "exponential_": (lambda x: x.exponential_(2), 1 / 2, 1 / 4),
    "bernoulli": (torch.bernoulli, 1 / 4, 3 / 16),
    "bernoulli_": (lambda x: x.bernoulli_(0.3), 0.3, 0.21),
    "bernoulli_of_tensor": (lambda x: torch.empty_like(x).bernoulli_(x), 1 / 4, 3 / 16),
    "randint": (lambda x: torch.randint(5, 100, (N,)).float(), 52, (95**2 - 1) / 12),
    "randint_like": (lambda x: torch.randint_like(x, 10), 4.5, 99 / 12),
    "random_": (lambda x: x.random_(5, 100), 52, (95**2 - 1) / 12),
    "random_below": (lambda x: x.random_(10), 4.5, 99 / 12),
    "random_float": (lambda x: x.random_(), 2**23, ((2**24 + 1) ** 2 - 1) / 12),
    "random_half": (lambda x: x.half().random_(), 2**10, ((2**11 + 1) ** 2 - 1) / 12),
    "random_int": (lambda x: x.int().random_(), 2**30, 2**62 / 12),
    "randperm": (lambda x: torch.randperm(N).float(), (N - 1) / 2, (N**2 - 1) / 12),
    "multinomial": (
        lambda x: torch.multinomial(torch.tensor([1.0, 0.0, 3.0]), N, replacement=True).float(), 1.5, 0.75),
    "Normal": (lambda x: torch.distributions.Normal(x, x.sqrt()).sample(), 0.25, 1 / 4),
    "Uniform": (lambda x: torch.distributions.Uniform(0.0, 10.0).sample((N,)), 5, 100 / 12),
    "Bernoulli": (lambda x: torch.distributions.Bernoulli(x).sample(), 1 / 4, 3 / 16),
    "Exponential": (lambda x: torch.distributions.Exponential(x).sample(), 4, 16),
    "rrelu": (lambda x: -torch.nn.functional.rrelu(-torch.ones_like(x), 0.1, 0.3, training=True), 0.2, 0.04 / 12),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str) -> None:
    function, mean, variance = DISTRIBUTIONS[name]
    found = drawn(function, FLAT).double().numpy()
    assert found.shape == (N,)
    np.testing.assert_allclose(found.mean(), mean, atol=6 * np.sqrt(variance / N))
    np.testing.assert_allclose(found.var(), variance, rtol=0.15)


@pytest.mark.parametrize("name", ["rand_like", "randn_like", "normal_", "bernoulli", "random_below", "rrelu"])
def test_float16(name: str) -> None:
    function, mean, variance = DISTRIBUTIONS[name]
    found = drawn(function, FLAT.half())
    assert found.dtype == torch.float16
    np.testing.assert_allclose(found.double().mean(), mean, atol=6 * np.sqrt(variance / N) + 1e-3)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_certain_draws(p: float) -> None:
    assert bool((drawn(torch.bernoulli, torch.full((500,), p)) == p).all())


def test_numbers_follow_the_seed_alone() -> None:
    def function(x: Any) -> Any:
        return torch.rand_like(x), torch.rand_like(x)

    x = torch.zeros(50)
    first, second = drawn(function, x)
    again, other = drawn(function, x)[0], drawn(function, x, seed=9)[0]
    np.testing.assert_array_equal(first, again)
    assert not (first == second).any()
    assert not (first == other).all()


def test_each_call_draws_anew() -> None:
    model = inferenceModel(_Called(torch.rand_like), Options().randomSeed(8))
    x = torch.zeros(50)
    assert not (model(x) == model(x)).all()


def test_a_permutation_has_each_number_once() -> None:
    found = drawn(lambda x: torch.randperm(100) + 0, torch.zeros(1))
    assert found.dtype == torch.int32
    assert sorted(found.tolist()) == list(range(100))


@pytest.mark.parametrize("shape", [(), (1,), (2, 0)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    assert drawn(lambda x: (torch.rand_like(x), torch.bernoulli(x)), torch.ones(shape))[0].shape == shape


def test_whole_numbers_stay_within_their_bounds() -> None:
    found = drawn(lambda x: x.random_(5, 8), torch.zeros(500, dtype=torch.int32))
    assert found.dtype == torch.int32
    assert set(found.tolist()) == {5, 6, 7}


def test_a_generator_is_refused() -> None:
    with pytest.raises(Error, match="randomSeed"):
        drawn(lambda x: torch.rand(3, generator=torch.Generator()) + x, torch.zeros(3))
