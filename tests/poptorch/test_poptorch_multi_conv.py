"""``poptorch.MultiConv``: values of the convolutions, options that reach them, bad input."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.ir import FLOAT16, FLOAT32  # noqa: E402
from ipuperf.ops import Conv  # noqa: E402


class Model(nn.Module):
    """Two convolutions in a scope, one outside of it."""

    def __init__(self, scope: Any, channels: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scope = scope
        self.a, self.b = nn.Conv2d(channels, channels, 3), nn.Conv2d(channels, channels, 3, bias=False)
        self.c = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Any) -> Any:
        y = torch.abs(x)
        with self.scope:
            u = self.a(x)
            v = self.b(y)
        return self.c(u - v)


def compiled(scope: Any, channels: int = 8) -> Any:
    model = poptorch.inferenceModel(Model(scope, channels))
    model.compile(torch.zeros(2, channels, 16, 16))
    return model


def convolutions(model: Any) -> list[Any]:
    (part,) = model.compiled_model.exported.parts
    return [op for op in part.graph.ops if isinstance(op, Conv)]


def test_values_are_those_of_the_convolutions() -> None:
    ours = Model(poptorch.MultiConv())
    x = torch.rand(2, 8, 16, 16)
    torch.testing.assert_close(poptorch.inferenceModel(ours)(x), ours(x), rtol=1e-4, atol=1e-5)


def test_options_reach_each_convolution_within() -> None:
    scope = poptorch.MultiConv().availableMemoryProportions([0.8, 0.2]).partialsTypes(torch.half)
    a, b, c = convolutions(compiled(scope))
    assert [op.available_memory_proportion for op in (a, b, c)] == [0.8, 0.2, None]
    assert [op.partials_dtype for op in (a, b, c)] == [FLOAT16, FLOAT16, FLOAT32]


def test_less_memory_takes_longer() -> None:
    def cycles(share: float) -> int:
        scope = poptorch.MultiConv().availableMemoryProportions(share).planType(poptorch.MultiConvPlanType.Serial)
        return compiled(scope, 64).cycleCount()

    assert cycles(0.6) <= cycles(0.01)


class Nested(nn.Module):
    def forward(self, x: Any) -> Any:
        with poptorch.MultiConv(), poptorch.MultiConv():
            return x * 2


class Empty(nn.Module):
    def forward(self, x: Any) -> Any:
        with poptorch.MultiConv():
            return x * 2


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: poptorch.inferenceModel(Nested())(torch.ones(2)), poptorch.Error, "Nested poptorch.MultiConv"),
        (lambda: poptorch.inferenceModel(Empty())(torch.ones(2)), poptorch.Error, "Unexpected end_multi_conv"),
        (lambda: compiled(poptorch.MultiConv().partialsTypes([torch.half] * 3)), poptorch.Error, "3 values for 2"),
        (lambda: poptorch.MultiConv().partialsTypes("half"), ValueError, "Invalid partials types"),
        (lambda: poptorch.MultiConv().planType("parallel"), AssertionError, "Invalid plan type"),
        (lambda: poptorch.MultiConv().availableMemoryProportions(2.0), AssertionError, "Invalid available memory"),
        (lambda: poptorch.MultiConv().enableConvDithering(1), ValueError, "must be bool or list of bools"),
        (lambda: poptorch.MultiConv().cycleBackOff("a"), AssertionError, "expected a float"),
        (lambda: poptorch.MultiConv().perConvReservedTiles(1.5), AssertionError, "expected an int"),
    ],
)
def test_bad_input(call: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
