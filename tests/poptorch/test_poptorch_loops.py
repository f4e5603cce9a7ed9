"""Loops, branches and ``flex_attention`` of ``torch._higher_order_ops`` in programs: results as PyTorch gives them."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._higher_order_ops import cond, map, scan, while_loop  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

from ipuperf import poptorch  # noqa: E402

X = torch.linspace(0.2, 1, 12).reshape(4, 3)


def halved(limit: float) -> Callable[[Any], Any]:
    return lambda x: while_loop(
        lambda i, z: (i < 6) & (z.sum() > limit), lambda i, z: (i + 1, z * 0.5), (torch.tensor(0), x)
    )


CASES: dict[str, Callable[[Any], Any]] = {
    "ends_early": halved(1.0),
    "ends_at_once": halved(100.0),
    "ends_at_its_limit": halved(-1.0),
    "counted": lambda x: while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z + i), (torch.tensor(0), x)),
    "scan": lambda x: scan(lambda a, b: (a * 0.5 + b, {"sum": a + b}), torch.zeros(3), x),
    "scan_backwards": lambda x: scan(lambda a, b: (a + b, a * 1.0), torch.zeros(4), x, dim=1, reverse=True),
    "map": lambda x: map(lambda row, k: torch.sin(row) * k, x, x.mean(0)),
    "associative_scan": lambda x: associative_scan(torch.mul, x, 0, combine_mode="generic"),
    "pointwise_scan": lambda x: associative_scan(lambda a, b: a + b, x, 1, combine_mode="generic", reverse=True),
    "cond": lambda x: cond(x.sum() > 0, lambda z: z.sin(), lambda z: z.cos(), (x,)),
}


Q = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
BIAS = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
CAUSAL = create_block_mask(lambda b, h, q, k: q >= k, None, None, 8, 8, device="cpu", BLOCK_SIZE=8)
ATTENTION: dict[str, Callable[[Any], Any]] = {
    "bias": lambda q: flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + BIAS[h, j] + 0.1 * (i - j)),
    "causal": lambda q: flex_attention(q, q, q, block_mask=CAUSAL, scale=0.3),
    "compiled": lambda q: torch.compile(flex_attention)(q, q, q, score_mod=lambda s, b, h, i, j: 2 * torch.tanh(s / 2)),
    "groups": lambda q: flex_attention(q, q[:, :2], q[:, 2:], enable_gqa=True),
}


class Call(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return torch.utils._pytree.tree_leaves(self.function(x))


@pytest.mark.parametrize("name", CASES)
def test_a_loop_gives_what_pytorch_gives(name: str) -> None:
    expected = Call(CASES[name])(X)
    for found, value in zip(poptorch.inferenceModel(Call(CASES[name]))(X), expected, strict=True):
        torch.testing.assert_close(found, value.to(found.dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ATTENTION)
def test_flex_attention_is_its_formula(name: str) -> None:
    (found,) = poptorch.inferenceModel(Call(ATTENTION[name]))(Q)
    with torch.no_grad():
        torch.testing.assert_close(found, ATTENTION[name](Q), rtol=1e-5, atol=2e-6)


class Window(torch.nn.Module):
    """Attention with learned slopes and a window, by ``flex_attention`` or by hand: that has no backward on the CPU."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.slopes, self.by_hand = torch.nn.Parameter(torch.tensor([0.5, 0.2, 0.1, 0.3])), by_hand

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        def score(scores: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.where((i >= j) & (i - j < 3), scores - self.slopes[h] * (i - j), -torch.inf)

        if not self.by_hand:
            return poptorch.identity_loss(flex_attention(q, q, q, score_mod=score).square().sum(), "none")
        i, j = torch.arange(8)[:, None], torch.arange(8)
        scores = score(q @ q.mT / 8**0.5, None, torch.arange(4)[:, None, None], i, j)
        return (scores.softmax(-1) @ q).square().sum()


def test_flex_attention_is_trained() -> None:
    model, reference = Window(False), Window(True)
    reference(Q).backward()
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    training(Q)
    torch.testing.assert_close(reference.slopes.detach() - model.slopes, reference.slopes.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [None, 5000])
def test_a_loop_without_a_bound_is_refused(limit: int | None) -> None:
    def holds(i: Any, z: Any) -> Any:
        return z.sum() > 1.0 if limit is None else (i < limit) & (z.sum() > 1.0)

    model = Call(lambda x: while_loop(holds, lambda i, z: (i + 1, z * 0.5), (torch.tensor(0), x)))
    with pytest.raises(poptorch.UnsupportedError, match=r"test_poptorch_loops.py:\d+: while_loop: no number"):
        poptorch.inferenceModel(model)(X)


def test_a_loop_that_counts_what_it_is_given_is_refused() -> None:
    model = Call(lambda x: while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z), (x[0, 0].long(), x)))
    with pytest.raises(poptorch.UnsupportedError, match="begins with a number"):
        poptorch.inferenceModel(model)(X)
