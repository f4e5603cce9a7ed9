"""Whole models in today's idioms (``modelsoftoday``) train as in PyTorch: plain, in two stages, on two replicas.

A normal run has each model in one of the three ways, the heavy one in the others too.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils._pytree as pytree  # noqa: E402
from modelsoftoday import MODELS, Model  # noqa: E402

from ipuperf import poptorch  # noqa: E402

STEPS = 5
#: Micro-batches of a step: those of one replica behind each other, and replicas.
WAYS = {"plain": (1, 1), "pipelined": (4, 1), "replicated": (1, 2)}
CASES = [
    pytest.param(name, way, id=f"{name}-{way}", marks=() if (number + place) % 3 == 0 else pytest.mark.heavy)
    for number, name in enumerate(MODELS)
    for place, way in enumerate(WAYS)
]


def loss_of(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result
    return result.loss if hasattr(result, "loss") else result[-1]


def chosen(function: Callable[[Any], Any], samples: Any) -> Any:
    return pytree.tree_map(function, samples)


def state_of(model: Model) -> list[Any]:
    """What a replica has of its own: what no gradient reaches."""
    return [*model.buffers(), *(p.data for p in model.parameters() if not p.requires_grad)]


def optimizer_of(module: Any, model: Model, **named: Any) -> Any:
    return module.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9, **named)


def eager_losses(model: Model, accumulated: int, replicas: int, samples: Any) -> list[float]:
    """The mean loss of the micro-batches of each step. Each replica has its own buffers; those of the first stay."""
    optimizer, losses, parts = optimizer_of(torch.optim, model), [], accumulated * replicas
    states = [chosen(torch.clone, state_of(model)) for _ in range(replicas)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        for replica in range(replicas):
            if replicas > 1:
                with torch.no_grad():
                    for state, own in zip(state_of(model), states[replica], strict=True):
                        state.copy_(own)
            for part in range(replica * accumulated, (replica + 1) * accumulated):
                loss = loss_of(model(**chosen(lambda x, part=part: x.chunk(parts)[part], samples))) / parts
                loss.backward()
                losses.append(float(loss.detach()))
            states[replica] = chosen(torch.clone, state_of(model))
        optimizer.step()
    with torch.no_grad():
        for state, own in zip(state_of(model), states[0], strict=True):
            state.copy_(own)
    return [sum(losses[n : n + parts]) for n in range(0, STEPS * parts, parts)]


def device_losses(model: Model, accumulated: int, replicas: int, samples: Any) -> list[float]:
    options = poptorch.Options().replicationFactor(replicas).outputMode(poptorch.OutputMode.All)
    options.broadcastBuffers(False)
    options.Training.gradientAccumulation(accumulated)
    training = poptorch.trainingModel(model, options, optimizer_of(poptorch.optim, model, use_combined_accum=False))
    losses = [float(loss_of(training(**samples)).mean()) for _ in range(STEPS)]
    training.destroy()
    return losses


@pytest.mark.parametrize(("name", "way"), CASES)
def test_five_steps_are_those_of_pytorch(name: str, way: str) -> None:
    torch.manual_seed(5)
    model, (accumulated, replicas) = MODELS[name](), WAYS[way]
    samples, reference = model.samples(), copy.deepcopy(model)
    if way == "pipelined":
        model.block = lambda ipu: poptorch.Block(f"block{ipu}", ipu_id=ipu)
    theirs = eager_losses(reference, accumulated, replicas, samples)
    assert len(set(theirs)) == STEPS
    assert device_losses(model, accumulated, replicas, samples) == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    for name, trained in model.state_dict().items():
        torch.testing.assert_close(
            trained, reference.state_dict()[name], rtol=1e-5, atol=3e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
