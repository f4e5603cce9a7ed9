"""``poptorch.MultiConv``: values of the convolutions, options that reach them, bad input."""

import collections
import contextlib
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.ir import FLOAT16, FLOAT32  # noqa: E402
from ipuperf.ops import Conv, Convolutions  # noqa: E402

PARALLEL, SERIAL = poptorch.MultiConvPlanType.Parallel, poptorch.MultiConvPlanType.Serial


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
    options = poptorch.Options()
    options._Popart.set("enableOutlining", False)  # equal convolutions would be calls of a function
    model = poptorch.inferenceModel(Model(scope, channels), options)
    model.compile(torch.zeros(2, channels, 16, 16))
    return model


def convolutions(model: Any) -> list[Any]:
    (part,) = model.compiled_model.exported.parts
    found = []
    for op in part.graph.ops:
        found += op.members() if isinstance(op, Convolutions) else [op] if isinstance(op, Conv) else []
    return found


def test_values_are_those_of_the_convolutions() -> None:
    ours = Model(poptorch.MultiConv())
    x = torch.rand(2, 8, 16, 16)
    torch.testing.assert_close(poptorch.inferenceModel(ours)(x), ours(x), rtol=1e-4, atol=1e-5)


def test_options_reach_each_convolution_within() -> None:
    scope = poptorch.MultiConv().availableMemoryProportions([0.8, 0.2]).partialsTypes(torch.half)
    a, b, c = convolutions(compiled(scope))
    assert [op.available_memory_proportion for op in (a, b, c)] == [0.8, 0.2, None]
    assert [op.partials_dtype for op in (a, b, c)] == [FLOAT16, FLOAT16, FLOAT32]


def test_narrow_partial_sums_are_ignored_with_a_warning(caplog: Any) -> None:
    """The device has no half sums of floats: the warning names the line of the program, and nothing is faster."""
    half, plain = (compiled(scope) for scope in (poptorch.MultiConv().partialsTypes(torch.half), poptorch.MultiConv()))
    assert half.cycleCount() == plain.cycleCount()
    assert "ignoring torch.float16, which is smaller than the output type float32" in caplog.text
    assert "test_poptorch_multi_conv.py:" in caplog.text


def test_less_memory_takes_longer() -> None:
    def cycles(share: float) -> int:
        scope = poptorch.MultiConv().availableMemoryProportions(share).planType(poptorch.MultiConvPlanType.Serial)
        return compiled(scope, 64).cycleCount()

    assert cycles(0.6) <= cycles(0.01)


def ir_types(model: Any) -> list[str]:
    ops = json.loads(model._debugGetPopartIR())["maingraph"]
    return [op["type"] for op in ops if "Conv" in op["type"]]


def test_the_plan_type_and_its_options_change_time_and_nothing_else() -> None:
    x = torch.rand(2, 64, 16, 16)
    scopes = [
        poptorch.MultiConv().planType(SERIAL), poptorch.MultiConv().planType(PARALLEL).cycleBackOff(0.5),
        poptorch.MultiConv(), poptorch.MultiConv().perConvReservedTiles(700),
    ]  # fmt: skip
    models = [poptorch.inferenceModel(Model(scope, 64)) for scope in scopes]
    results = [model(x) for model in models]
    assert all(torch.equal(result, results[0]) for result in results)
    cycles = [model.cycleCount() for model in models]
    assert cycles[2] not in (cycles[0], cycles[1], cycles[3])
    assert max(cycles[1], cycles[3]) < cycles[0], "side by side, with tiles to share, is faster than in turn"


def test_serial_takes_what_the_convolutions_take_alone() -> None:
    alone = compiled(contextlib.nullcontext(), 64)
    together = compiled(poptorch.MultiConv().planType(SERIAL), 64)
    assert together.cycleCount() == alone.cycleCount()
    assert ir_types(alone) == ["Conv"] * 3
    assert ir_types(together) == ["MultiConv", "Conv"]


class Trained(nn.Module):
    def __init__(self, scope: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scope = scope
        self.first, self.a, self.b = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 3, stride=2, padding=5)

    def forward(self, x: Any, target: Any) -> Any:
        x = self.first(x)
        with self.scope:
            u = torch.relu(self.a(x))
            v = self.b(torch.sigmoid(x))
        return nn.functional.mse_loss((u + v).mean((2, 3)), target)


def test_training_is_pytorchs_and_gradients_are_one_op_each() -> None:
    x, target = torch.rand(3, 2, 12, 12), torch.rand(3, 6)
    scope = poptorch.MultiConv().planType(PARALLEL).cycleBackOff(1.0)
    ours, theirs = Trained(scope), Trained(contextlib.nullcontext())
    model = poptorch.trainingModel(ours, optimizer=poptorch.optim.SGD(ours.parameters(), lr=0.2))
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.2)
    for _ in range(3):
        optimiser.zero_grad()
        loss = theirs(x, target)
        loss.backward()
        optimiser.step()
        torch.testing.assert_close(model(x, target), loss.detach(), rtol=1e-5, atol=1e-6)
    for own, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
    counts = collections.Counter(ir_types(model))
    assert (counts["MultiConv"], counts["MultiConvDataGrad"], counts["MultiConvWeightsGrad"]) == (1, 1, 1)


class Dependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

    def forward(self, x: Any) -> Any:
        with poptorch.MultiConv():
            return self.b(self.a(x))


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
        (lambda: poptorch.inferenceModel(Dependent())(torch.ones(1, 1, 2, 2)), poptorch.Error, "needs the result of"),
        (lambda: poptorch.MultiConv().cycleBackOff(-0.1), AssertionError, "not negative"),
        (lambda: poptorch.MultiConv().perConvReservedTiles(-1), AssertionError, "not negative"),
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
