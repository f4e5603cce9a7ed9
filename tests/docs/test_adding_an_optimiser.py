"""``docs/how-to/adding-an-optimiser.md``, followed to the letter: its optimiser trains in PopTorch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf.functions import updates

BLOCKS = re.findall(
    r"^```python\n(.*?)^```",
    (Path(__file__).parents[2] / "docs" / "how-to" / "adding-an-optimiser.md").read_text(encoding="utf-8"),
    flags=re.S | re.M,
)
RATE, MOMENTUM, STEPS = 0.05, 0.75, 4
RNG = np.random.default_rng(11)
X, W = RNG.normal(size=(STEPS, 6, 4)).astype(np.float32), RNG.normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Of the module of updates and of the first block."""
    from ipuperf.functions.arithmetic import sign

    found = {**vars(updates), "sign": sign}
    exec(BLOCKS[0], found)
    return found


def expected() -> np.ndarray:
    """Weights after the steps on ``sum((x w)^2) / 2``, whose gradient is ``x^T x w``; in float64."""
    w, m = W.astype(np.float64), np.zeros(W.shape)
    for x in X.astype(np.float64):
        m = MOMENTUM * m + (1 - MOMENTUM) * (x.T @ x @ w)
        w = w - RATE * np.sign(m)
    return w


def test_it_trains_a_model_of_poptorch(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from ipuperf import poptorch
    from ipuperf.poptorch.optimisers import update_rules
    from ipuperf.poptorch.optimisers.classes import OptimiserGroup, OptimiserSpec

    found = names | {"torch": torch, "OptimiserGroup": OptimiserGroup, "OptimiserSpec": OptimiserSpec}
    exec(BLOCKS[1], found)
    monkeypatch.setattr(update_rules, "UPDATES", {**update_rules.UPDATES, **found["row"]})

    class Squares(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.from_numpy(W.copy()))

        def forward(self, x: Any) -> Any:
            return poptorch.identity_loss(((x @ self.w) ** 2).sum() / 2, "none")

    module = Squares()
    optimizer = found["Signum"](module.parameters(), lr=RATE, momentum=MOMENTUM)
    training = poptorch.trainingModel(module, optimizer=optimizer)
    for x in X:
        training(torch.from_numpy(x))
    np.testing.assert_allclose(module.w.detach().numpy(), expected(), rtol=1e-5, atol=1e-6)
