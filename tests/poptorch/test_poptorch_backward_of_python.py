"""What Python would do in a backward pass: checkpoints, ``detach_`` and hooks of tensors; masks that hide all."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf.poptorch import Options, inferenceModel, trainingModel  # noqa: E402
from ipuperf.poptorch.errors import UnsupportedError  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from atencases import noise  # noqa: E402

nn, F = torch.nn, torch.nn.functional
SOME, LINES = noise(3, 4), noise(2, 3, 4)
HIDING = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])


def detached(x: Any) -> Any:
    doubled = x * 2
    doubled.detach_()
    return doubled * x


def attended(mask: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=mask(m))


def hooked(x: Any) -> Any:
    """Two hooks of one tensor in turn, and one that was removed."""
    y = x.sin()
    y.register_hook(lambda grad: grad.clamp(-0.3, 0.3))
    y.register_hook(lambda grad: grad * 2)
    y.register_hook(lambda grad: grad * 0).remove()
    return y * x + y.square()


CASES = {
    "hooked": (hooked, SOME),
    "checkpoint": (
        lambda x: torch.utils.checkpoint.checkpoint(lambda t, n: t.sin() * n, x, 3, use_reentrant=True),
        SOME,
    ),
    "detach_": (detached, SOME),
    "all_hidden": (attended(lambda m: m > 0), LINES, HIDING.float()),
    "all_hidden_in_each": (attended(lambda m: m > 0), LINES, torch.stack([HIDING, HIDING.T]).float()),
    "all_hidden_constant": (attended(lambda m: HIDING), LINES, SOME),
    "all_hidden_added": (attended(lambda m: m.masked_fill(~HIDING, -math.inf)), LINES, SOME[:, :3]),
}


def test_values_and_gradients_are_pytorchs(check_all: Any) -> None:
    """Values and gradients."""
    functions = {name: case[0] for name, case in CASES.items()}
    check_all(functions, operands={name: list(case[1:]) for name, case in CASES.items()})


class Hooked(nn.Module):
    """A layer with a hook of its gradients, by the way that ``add`` puts it there."""

    def __init__(self, add: Callable[[Any], Any], inside: bool) -> None:
        super().__init__()
        self.layer, self.add, self.inside = nn.Linear(4, 2), add, inside
        if not inside:
            add(self.layer)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if self.inside:
            self.add(y)
        return y, y.square().mean()


HOOKS = {
    "hook that gives no gradient": (lambda t: t.register_hook(lambda g: None), True),
    "backward hook of a module": (lambda m: m.register_full_backward_hook(lambda *_: None), False),
    "hook of a parameter": (lambda m: m.weight.register_hook(lambda g: 2 * g), False),
}


@pytest.mark.parametrize("what", HOOKS)
def test_hooks_of_gradients_are_refused_in_training(what: str) -> None:
    """They would not be called; without a backward pass they do not matter."""
    model = Hooked(*HOOKS[what])
    training = trainingModel(model, Options(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UnsupportedError, match=f"{what}.*would not be called"):
        training(SOME)
    training.destroy()
    torch.testing.assert_close(inferenceModel(model)(SOME)[0], model.layer(SOME).detach())


def late(y: Any) -> None:
    y.sum()
    y.register_hook(lambda grad: grad)


@pytest.mark.parametrize(
    ("add", "inside", "text"),
    [
        (late, True, "register it before the tensor is used"),
        (
            lambda m: m.register_forward_pre_hook(lambda m, x: m.weight.register_hook(abs)),
            False,
            "a parameter is unsupp",
        ),
    ],
)
def test_hooks_of_tensors_that_come_late_or_are_given(add: Any, inside: bool, text: str) -> None:
    model = Hooked(add, inside)
    training = trainingModel(model, Options(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(
        UnsupportedError, match=rf"test_poptorch_backward_of_python.py:\d+: Tensor.register_hook.*{text}"
    ):
        training(SOME)
