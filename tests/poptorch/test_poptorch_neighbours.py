"""Results that no data reach, float16 parameters of each optimiser, changes in place across stages."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402


class Fixed(nn.Module):
    """Results that are the same for every sample, beside one that is not."""

    def forward(self, x: Any) -> Any:
        return x, torch.arange(3), torch.tensor(2.5)


@pytest.mark.parametrize(("mode", "count"), [("All", 8), ("Final", 2), ("Sum", 2), ("EveryN", 4)])
def test_a_constant_result_comes_back_as_often_as_others(mode: str, count: int) -> None:
    options = poptorch.Options().deviceIterations(4).replicationFactor(2)
    options.outputMode(poptorch.OutputMode[mode], 2 if mode == "EveryN" else None)
    same, whole, number = poptorch.inferenceModel(Fixed(), options)(torch.ones(8, 2))
    times = 4 if mode == "Sum" else 1
    assert same.shape == (count, 2)
    assert whole.tolist() == [0, times, 2 * times] * count
    assert number.tolist() == [2.5 * times] * count


OPTIMISERS = {
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "momentum": ("RMSprop", {"lr": 0.01, "momentum": 0.5}),
    "centered": ("RMSprop", {"lr": 0.01, "centered": True}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_parameters_of_float16(name: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2).half()

        def forward(self, x: Any) -> Any:
            return poptorch.identity_loss(self.linear(x).float().square().sum(), "none")

    torch.manual_seed(0)
    kind, numbers = OPTIMISERS[name]
    model, x = Model(), torch.randn(4, 3).half()
    theirs = copy.deepcopy(model)
    ours = poptorch.trainingModel(model, optimizer=getattr(torch.optim, kind)(model.parameters(), **numbers))
    optimiser = getattr(torch.optim, kind)(theirs.parameters(), **numbers)
    for _ in range(2):
        ours(x)
        optimiser.zero_grad()
        theirs(x).backward()
        optimiser.step()
    torch.testing.assert_close(model.linear.weight.data, theirs.linear.weight.data, rtol=2e-3, atol=1e-3)


def test_a_view_of_what_a_later_stage_changes() -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            with poptorch.Block("first", ipu_id=0):
                y = x * 2
                row, _ = y.unbind(0)
                turned = y.t()
            with poptorch.Block("second", ipu_id=1):
                y[:1].add_(10)
                return row, turned, y.sum()

    options = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
    x = torch.randn(2, 3)
    for result, expected in zip(poptorch.inferenceModel(Model(), options)(x), Model()(x), strict=True):
        torch.testing.assert_close(result, expected)
