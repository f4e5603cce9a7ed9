"""Twenty-one models train five steps with the losses of PyTorch: float32 to 1e-5, float16 to 5e-3."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import modelcases  # noqa: E402

from ipuperf import poptorch  # noqa: E402

STEPS = 5


def train(model: Any, step: Callable[..., Any], given: Any) -> list[float]:
    """The losses of five steps on one batch."""
    return [float(step(*given)) for _ in range(STEPS)]


def native_losses(model: Any, given: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(*given: Any) -> Any:
        optimizer.zero_grad()
        loss = model(*given)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train(model, step, given)


def device_losses(model: Any, given: Any) -> list[float]:
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, use_combined_accum=False)
    return train(model, poptorch.trainingModel(model, None, optimizer), given)


@pytest.mark.heavy
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", modelcases.CASES)
def test_five_steps_have_the_losses_of_pytorch(name: str, half: bool) -> None:
    torch.manual_seed(3)
    model, given = modelcases.CASES[name]()
    if half:  # PyTorch's model in float32 begins with the values that float16 can hold
        model.half()
        given = tuple(tensor.half() if tensor.is_floating_point() else tensor for tensor in given)
    reference = copy.deepcopy(model).float()
    exact = tuple(tensor.float() if tensor.is_floating_point() else tensor for tensor in given)
    theirs = native_losses(reference, exact)
    assert theirs[-1] < theirs[0]
    assert device_losses(model, given) == pytest.approx(theirs, rel=5e-3 if half else 1e-5, abs=5e-3 if half else 1e-5)
