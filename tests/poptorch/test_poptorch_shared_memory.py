"""Parameters and buffers of one model that share memory; PyTorch as the oracle."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402


class Shared(nn.Module):
    """``make`` gives parameters and buffers, ``function`` uses them."""

    def __init__(self, make: Any, function: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        for name, tensor in make(torch.randn(4, 3)).items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        self.function = function

    def forward(self, x: Any) -> Any:
        y = self.function(self, x)
        return y, poptorch.identity_loss(y.square().mean(), "none")


def parameter_and_buffer(w: Any) -> dict[str, Any]:
    w = nn.Parameter(w)
    return {"a": w, "b": w.data}


APART = {
    "side by side": (
        lambda w: {"a": nn.Parameter(w[:3]), "b": nn.Parameter(w[3])},
        lambda s, x: x @ s.a + s.b,
    ),
    "a parameter and its numbers": (parameter_and_buffer, lambda s, x: x.repeat(1, 2)[:, :4] @ (s.a * 2 + s.b)),
    "nothing changes": (
        lambda w: {"a": nn.Parameter(w), "b": nn.Parameter(w.t(), requires_grad=False), "c": nn.Parameter(w * 2)},
        lambda s, x: x @ s.b.mT.detach()[:3] + s.c[0],
    ),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_trained_as_in_pytorch(name: str) -> None:
    ours, theirs = (Shared(*APART[name]) for _ in range(2))
    model = poptorch.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(5, 3)
        optimizer.zero_grad()
        found, wanted = model(x), theirs(x)
        wanted[1].backward()
        optimizer.step()
        torch.testing.assert_close(found[1], wanted[1].detach())
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda w: {"a": nn.Parameter(w), "b": nn.Parameter(w.t())}, lambda s, x: x @ s.b @ s.a),
        (lambda w: {"a": nn.Parameter(w[:3]), "b": nn.Parameter(w[1:])}, lambda s, x: x @ s.b + x @ s.a),
        (lambda w: {"a": nn.Parameter(w[:3]), "b": w[2]}, lambda s, x: x @ s.a + s.b),
        (lambda w: {"a": nn.Parameter(w[:1].expand(3, 3)), "b": w * 2}, lambda s, x: x @ s.a + s.b[0]),
        (lambda w: {"a": nn.Parameter(w * 2), "b": w, "c": w[:2]}, lambda s, x: x @ s.a[:3] + s.c.add_(1)[0] + s.b[0]),
    ],
)
def test_elements_that_several_see_and_that_change(make: Any, function: Any) -> None:
    module = Shared(make, function)
    with pytest.raises(poptorch.Error, match=r"'[abc]'.*: a change of elements that several see is unsupported"):
        poptorch.trainingModel(module)(torch.randn(5, 3))
