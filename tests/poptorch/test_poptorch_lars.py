"""LARS against its paper's formulas in NumPy: native steps, and as a program on the (simulated) IPU."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.ir import FLOAT16, FLOAT32  # noqa: E402
from ipuperf.poptorch.optimisers.classes import optimiser_description  # noqa: E402
from ipuperf.poptorch.optimisers.lars import LARS  # noqa: E402

LR, MU, DECAY, TRUST = 0.5, 0.9, 0.01, 0.02
STEPS = 3


class Squares(torch.nn.Module):
    """``sum((w x + b)**2) / 2`` over a batch."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.layer = torch.nn.Linear(4, 4)
        self.still = torch.nn.Parameter(torch.zeros(4, 4))
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Any) -> Any:
        y = self.layer(x) + x @ self.still
        return y, poptorch.identity_loss((y * y).sum() / 2, "none")


def made(module: Squares, **changes: Any) -> LARS:
    groups = [
        {"params": [module.layer.weight, module.still]},
        {"params": [module.layer.bias], "trust_coefficient": 0.0, "weight_decay": 0.0},
    ]
    return LARS(groups, **{"lr": LR, "momentum": MU, "weight_decay": DECAY, "trust_coefficient": TRUST, **changes})


def expected(x: np.ndarray, eps: float) -> dict[str, np.ndarray]:
    """Three steps in float64."""
    values = {name: p.detach().numpy().astype(np.float64) for name, p in Squares().named_parameters()}
    velocity = {name: np.zeros_like(value) for name, value in values.items()}
    for _ in range(STEPS):
        y = x @ values["layer.weight"].T + values["layer.bias"] + x @ values["still"]
        gradients = {"layer.weight": y.T @ x, "layer.bias": y.sum(0), "still": x.T @ y}
        for name, g in gradients.items():
            w, rate = values[name], LR
            if name == "layer.bias":
                velocity[name] = MU * velocity[name] + rate * g
            else:
                norms = np.linalg.norm(w), np.linalg.norm(g)
                if all(norms):
                    rate *= TRUST * norms[0] / (norms[1] + DECAY * norms[0] + eps)
                velocity[name] = MU * velocity[name] + rate * (g + DECAY * w)
            values[name] = w - velocity[name]
    return values


@pytest.mark.parametrize("eps", [0.0, 0.5])
@pytest.mark.parametrize("on_ipu", [False, True], ids=["native", "ipu"])
def test_three_steps(on_ipu: bool, eps: float) -> None:
    """``still`` begins as zeros: its first step has no rate of its own."""
    module, x = Squares(), np.linspace(-0.3, 0.2, 8).reshape(2, 4)
    optimizer, batch = made(module, eps=eps), torch.from_numpy(x).float()
    if on_ipu:
        training = poptorch.trainingModel(module, optimizer=optimizer)
        for _ in range(STEPS):
            training(batch)
    else:
        for _ in range(STEPS):
            optimizer.zero_grad()
            module(batch)[1].backward()
            optimizer.step()
    for name, value in expected(x, eps).items():
        mine = dict(module.named_parameters())[name].detach().numpy()
        np.testing.assert_allclose(mine, value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_shards_share_their_norms() -> None:
    """Two replicas with the state, and so the update, of the weight in shards: the steps of one replica."""
    results = []
    for sharded in (False, True):
        module, x = Squares(), torch.linspace(-0.3, 0.2, 16).reshape(4, 4)
        options = poptorch.Options().replicationFactor(2)
        location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(sharded)
        location.minElementsForReplicatedTensorSharding(8)
        options.TensorLocations.setOptimizerLocation(location)
        training = poptorch.trainingModel(module, options, optimizer=made(module))
        training(x)
        training(x)
        results.append(module.layer.weight.detach().numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-7)


def test_description() -> None:
    module = Squares()
    spec = optimiser_description(made(module, accum_type=torch.float16, velocity_accum_type=torch.float16))
    assert (spec.kind, spec.accum_dtype, spec.first_order_dtype) == ("lars", FLOAT16, FLOAT16)
    assert [group.values["trust_coefficient"] for group in spec.groups] == [TRUST, 0.0]
    assert optimiser_description(made(module)).first_order_dtype is FLOAT32
    assert not hasattr(poptorch.optim, "LARS")


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay", "trust_coefficient", "eps"])
def test_bad_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1; allowed: numbers from 0"):
        LARS([torch.nn.Parameter(torch.zeros(1))], **{name: -1})
