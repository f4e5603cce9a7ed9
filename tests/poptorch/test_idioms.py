"""Models in today's idioms (``idiomcases``) train five steps as in PyTorch: plain, in two stages, on two replicas."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import idiomcases  # noqa: E402

from ipuperf import poptorch  # noqa: E402

STEPS, SAMPLES = 5, 8
#: Micro-batches of a step: those of one replica behind each other, and replicas.
WAYS = {"plain": (1, 1), "pipelined": (4, 1), "replicated": (1, 2)}


def block(name: str, ipu: int) -> AbstractContextManager[Any]:
    return poptorch.Block(name, ipu_id=ipu)


def no_block(name: str, ipu: int) -> AbstractContextManager[Any]:
    return nullcontext()


def eager_losses(model: Any, parts: int, x: Any, y: Any) -> list[float]:
    """The mean loss of the micro-batches of each step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        several = [model(*pair) for pair in zip(x.chunk(parts), y.chunk(parts), strict=True)]
        torch.stack(several).sum().backward()
        # Gradients need not be proportional to the loss: a backward of the user's may limit them.
        for parameter in model.parameters():
            parameter.grad /= parts
        optimizer.step()
        losses.append(float(torch.stack(several).detach().mean()))
    return losses


def device_losses(model: Any, accumulated: int, replicas: int, x: Any, y: Any) -> list[float]:
    options = poptorch.Options().replicationFactor(replicas).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulated)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, use_combined_accum=False)
    training = poptorch.trainingModel(model, options, optimizer)
    losses = [float(training(x, y).mean()) for _ in range(STEPS)]
    training.destroy()
    return losses


def check(make: Callable[[Any], Any], way: str) -> None:
    torch.manual_seed(5)
    accumulated, replicas = WAYS[way]
    model = make(block if way == "pipelined" else no_block)
    reference = copy.deepcopy(model)
    x, y = torch.randn(SAMPLES, 6), torch.randn(SAMPLES, 1)
    theirs = eager_losses(reference, accumulated * replicas, x, y)
    assert len(set(theirs)) == STEPS
    assert device_losses(model, accumulated, replicas, x, y) == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    for trained, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", idiomcases.CASES)
def test_five_steps_have_the_losses_of_pytorch(name: str, way: str) -> None:
    check(lambda blocks: idiomcases.Model(idiomcases.CASES[name], blocks), way)


@pytest.mark.parametrize("way", WAYS)
def test_complex_parameters_and_buffers_are_pairs(way: str) -> None:
    check(idiomcases.Spectral, way)
