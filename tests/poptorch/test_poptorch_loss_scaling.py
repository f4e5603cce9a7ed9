"""``Training.setAutomaticLossScaling`` against counts of PyTorch's gradients."""

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402

ROWS = 3


class Model(torch.nn.Module):
    def __init__(self, stages: int) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.stages = stages
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        with poptorch.Block("0", ipu_id=0):
            x = torch.tanh(self.first(x))
        with poptorch.Block("1", ipu_id=self.stages - 1):
            return poptorch.identity_loss(self.second(x).square(), "sum")


def options(accumulation: int, replicas: int, **settings: float) -> poptorch.Options:
    made = poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation).setAutomaticLossScaling(True)
    for name, value in settings.items():
        made._Popart.set(f"automaticLossScalingSettings.{name}", value)
    return made


CASES = {
    "plain": (1, 1, 1, False),
    "accumulation": (4, 1, 1, False),
    "replicas": (1, 2, 1, False),
    "pipeline and replicas": (4, 2, 2, False),
    "clipping": (1, 1, 1, True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("accumulation", "replicas", "stages", "clips"), CASES.values(), ids=list(CASES))
def test_the_scale_follows_the_gradients(
    accumulation: int, replicas: int, stages: int, clips: bool, dtype: Any
) -> None:
    largest = float(np.finfo(np.float32 if dtype is torch.float32 else np.float16).max)
    edge, threshold = 2.0, 0.04
    module = Model(stages).to(dtype)
    plain = copy.deepcopy(module).float()
    limit = {"max_grad_norm": 100.0} if clips else {}
    optimiser = poptorch.optim.AdamW(module.parameters(), lr=0.01, eps=1e-2, loss_scaling=4.0, **limit)
    made = options(accumulation, replicas, binEdgeLocation=edge / largest, thresholdUpperCountProportion=threshold)
    model = poptorch.trainingModel(module, made, optimiser)
    native = torch.optim.AdamW(plain.parameters(), lr=0.01, eps=1e-2)
    x = torch.randn(accumulation * replicas * ROWS, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    scale, seen = 4.0, []
    for _ in range(6):
        model(x)
        native.zero_grad()
        above = total = 0
        for part in x.float().split(ROWS):
            grads = torch.autograd.grad(plain(part), list(plain.parameters()))
            above += sum(int((g.abs() * scale >= edge).sum()) for g in grads)
            total += sum(g.numel() for g in grads)
            for parameter, grad in zip(plain.parameters(), grads, strict=True):
                share = grad / (accumulation * replicas)
                parameter.grad = share if parameter.grad is None else parameter.grad + share
        native.step()
        scale *= 0.5 if above / total > threshold else 2.0
        seen.append(scale)
        assert optimiser.state_dict()["ipu_param"]["lossScaling_FLOAT"] == scale
    assert len(set(seen)) < len(seen), "it went both ways"
    loose = {"rtol": 1e-5, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 5e-3}
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().float(), theirs.detach(), **loose)


def test_the_defaults_double_until_the_range_ends() -> None:
    """A sixteenth of the largest float16."""
    module = Model(1).half()
    optimiser = poptorch.optim.SGD(module.parameters(), lr=0.0, loss_scaling=1.0)
    model = poptorch.trainingModel(module, options(1, 1), optimiser)
    x = torch.randn(ROWS, 4).half()
    scales = []
    for _ in range(16):
        model(x)
        scales.append(float(optimiser.state_dict()["ipu_param"]["lossScaling_FLOAT"]))
    greatest = max(float(g.abs().max()) for g in torch.autograd.grad(module(x), list(module.parameters())))
    assert scales[:3] == [2.0, 4.0, 8.0]
    assert greatest * max(scales) / 2 < 65504 / 16 <= greatest * max(scales) * 1.01
    assert set(scales[-4:]) == {max(scales), max(scales) / 2}


def test_another_optimiser_keeps_the_factor() -> None:
    module = Model(1)
    optimiser = poptorch.optim.SGD(module.parameters(), lr=0.1, loss_scaling=8.0)
    model = poptorch.trainingModel(module, options(1, 1), optimiser)
    x = torch.randn(ROWS, 4)
    model(x)
    optimiser.param_groups[0]["lr"] = 0.05
    model.setOptimizer(optimiser)
    model(x)
    assert optimiser.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 32.0
    optimiser.loss_scaling = 2.0
    model.setOptimizer(optimiser)
    assert optimiser.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 8.0


def test_counting_takes_time() -> None:
    cycles = []
    for enabled in (False, True):
        module = Model(1)
        made = options(1, 1)
        made.Training.setAutomaticLossScaling(enabled)
        model = poptorch.trainingModel(module, made, torch.optim.SGD(module.parameters(), lr=0.1))
        model.compile(torch.randn(ROWS, 4))
        cycles.append(model.cycleCount())
    assert cycles[0] < cycles[1]


def test_what_does_not_go_together() -> None:
    module = Model(1)
    optimiser = poptorch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5, use_combined_accum=True)
    with pytest.raises(poptorch.UnsupportedError, match="setAutomaticLossScaling with use_combined_accum"):
        poptorch.trainingModel(module, options(2, 1), optimiser)(torch.randn(2 * ROWS, 4))
    with pytest.raises(AssertionError, match="expected a number between 0 and 1"):
        options(1, 1, binEdgeLocation=2.0)
    with pytest.raises(AssertionError, match="setAutomaticLossScaling"):
        poptorch.Options().Training.setAutomaticLossScaling(1)
