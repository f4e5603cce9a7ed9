"""Loops and branches of ``torch._higher_order_ops`` in programs: results as PyTorch gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._higher_order_ops import cond, map, scan, while_loop  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402

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
