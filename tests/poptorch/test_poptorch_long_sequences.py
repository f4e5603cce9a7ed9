"""Causal attention over long sequences: right numbers, and a mask that takes no memory on the host."""

import tracemalloc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from ipuperf.frontends import poptorch  # noqa: E402

LONG = 32_768


class Attention(torch.nn.Module):
    """Two causal attentions over the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(2):
            x = F.scaled_dot_product_attention(x * self.scale, x, x, is_causal=True)
        return x, poptorch.identity_loss(x.square().mean(), "none")


@pytest.mark.heavy
def test_a_long_causal_mask_gives_the_same_numbers() -> None:
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(1, 4_100, 2)  # from 4,096 queries on the mask is a view
    expected, expected_loss = model(x)
    expected_loss.backward()
    gradient = model.scale.grad
    training = poptorch.trainingModel(model, poptorch.Options(), poptorch.optim.SGD(model.parameters(), lr=1.0))
    result, loss = training(x)
    np.testing.assert_allclose(result, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(loss, expected_loss.detach(), rtol=1e-5)
    np.testing.assert_allclose(1 - model.scale.item(), gradient.item(), rtol=1e-4)


@pytest.mark.heavy
def test_the_mask_of_a_long_sequence_takes_no_memory() -> None:
    model, x = Attention().half(), torch.zeros(1, LONG, 8).half()
    tracemalloc.start()
    poptorch.compile_offline(model, poptorch.Options(), x, training=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < LONG * LONG / 8, "a mask of bytes is eight times as large"
