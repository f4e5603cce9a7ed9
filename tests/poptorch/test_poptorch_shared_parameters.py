"""Training models with parameters in common, as the generator and the discriminator of a GAN; PyTorch as oracle."""

import copy
import gc
import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402

BCE = nn.functional.binary_cross_entropy_with_logits


class GeneratorStep(nn.Module):
    """The generator's loss: the discriminator takes its results for real."""

    def __init__(self, generator: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.generator, self.critic = generator, critic

    def forward(self, z: Any) -> Any:
        found = self.critic(self.generator(z))
        return poptorch.identity_loss(BCE(found, torch.ones_like(found)), "none")


class CriticStep(GeneratorStep):
    """The discriminator's loss."""

    def forward(self, x: Any, z: Any) -> Any:
        real, made = self.critic(x), self.critic(self.generator(z).detach())
        return poptorch.identity_loss(BCE(real, torch.ones_like(real)) + BCE(made, torch.zeros_like(made)), "none")


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)), nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1))


def adam(module: nn.Module) -> Any:
    return torch.optim.Adam(module.parameters(), lr=0.02)


def wrapped(generator: nn.Module, critic: nn.Module) -> tuple[Any, Any]:
    make = GeneratorStep(generator, critic), CriticStep(generator, critic)
    return tuple(poptorch.trainingModel(m, optimizer=adam(o)) for m, o in zip(make, (generator, critic), strict=True))


def batches() -> Any:
    torch.manual_seed(3)
    return [(torch.randn(6, 4), torch.randn(6, 3)) for _ in range(4)]


def expected() -> list[Any]:
    """Losses and weights of both steps in turn."""
    generator, critic = networks()
    steps, optimizers = (
        (GeneratorStep(generator, critic), CriticStep(generator, critic)),
        (adam(generator), adam(critic)),
    )
    losses = []
    for x, z in batches():
        for step, optimizer, given in ((steps[1], optimizers[1], (x, z)), (steps[0], optimizers[0], (z,))):
            optimizer.zero_grad()
            losses.append(step(*given))
            losses[-1].backward()
            optimizer.step()
    return [*losses, *generator.parameters(), *critic.parameters()]


def told(model: Any, other: Any) -> None:
    """Upstream's way, said in full."""
    model.copyWeightsToHost()
    other.copyWeightsToDevice()


@pytest.mark.parametrize("tell", [told, lambda model, other: other.copyWeightsToDevice()])
def test_two_steps_in_turn(tell: Any) -> None:
    generator, critic = networks()
    make, judge = wrapped(generator, critic)
    make.compile(batches()[0][1])
    losses = []
    for x, z in batches():
        losses.append(judge(x, z))
        tell(judge, make)
        losses.append(make(z))
        tell(make, judge)
    for a, b in zip([*losses, *generator.parameters(), *critic.parameters()], expected(), strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-4, atol=1e-5)


def test_models_that_are_not_told_go_on_with_what_they_have(caplog: pytest.LogCaptureFixture) -> None:
    """As upstream; but a warning says so, and each writes back what it trains."""
    generator, critic = networks()
    make, judge = wrapped(generator, critic)
    alone = CriticStep(copy.deepcopy(generator), copy.deepcopy(critic))
    optimizer = adam(alone.critic)
    (x, z), _, *_ = batches()
    judge.compile(x, z)
    with caplog.at_level(logging.WARNING, logger="poptorch"):
        for _ in range(2):
            make(z)
            found = judge(x, z)
            optimizer.zero_grad()
            wanted = alone(x, z)
            wanted.backward()
            optimizer.step()
            torch.testing.assert_close(found, wanted.detach())
    assert "another training model has changed parameters" in caplog.text
    for a, b in zip(critic.parameters(), alone.critic.parameters(), strict=True):
        torch.testing.assert_close(a.detach(), b.detach())
    assert not torch.equal(generator[0].weight, alone.generator[0].weight)


@pytest.mark.heavy
def test_one_goes_and_the_other_stays() -> None:
    generator, critic = networks()
    make, judge = wrapped(generator, critic)
    x, z = batches()[0]
    judge(x, z)
    judge.destroy()
    before = critic[0].weight.clone()
    make(z)
    assert torch.equal(before, critic[0].weight)
    make(z)
    newest = [p.clone() for p in generator.parameters()]
    del make
    gc.collect()
    assert type(generator[0].weight) is nn.Parameter
    assert all(torch.equal(a, b) for a, b in zip(newest, generator.parameters(), strict=True))
    infer = poptorch.inferenceModel(generator)
    torch.testing.assert_close(infer(z), generator(z).detach())
