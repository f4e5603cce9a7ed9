"""Gradients of the parts that a forward pass reads are joined as PopART's pattern does, unless the options say no."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402


class Attention(nn.Module):
    """Queries, keys and values of one product; the last of eight rows of keys is read by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joint = self.joint(x)
        query, key, value = joint[..., :8], joint[..., 8:16], joint[..., 16:]
        scores = (query @ key[:, :7].transpose(-1, -2)).softmax(-1)
        return poptorch.identity_loss((scores @ value[:, :7]).square(), reduction="mean")


def trained(options: poptorch.Options) -> tuple[dict[str, int], list[torch.Tensor]]:
    """Gradient ops by type, and the parameters after a step."""
    torch.manual_seed(2)
    module = Attention()
    model = poptorch.trainingModel(module, options, poptorch.optim.SGD(module.parameters(), lr=0.5))
    model(torch.randn(3, 8, 8))
    model.copyWeightsToHost()
    (stage,) = model.compiled_model.pipeline.stages
    counted = [op.type for op in stage.derivative.graph.ops]
    return {name: counted.count(name) for name in ("Concat", "SliceGrad")}, [*module.parameters()]


def reference() -> list[torch.Tensor]:
    torch.manual_seed(2)
    module = Attention()
    x = torch.randn(3, 8, 8)
    joint = module.joint(x)
    query, key, value = joint[..., :8], joint[..., 8:16], joint[..., 16:]
    (((query @ key[:, :7].transpose(-1, -2)).softmax(-1) @ value[:, :7]).square().mean()).backward()
    return [p - 0.5 * p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("settings", "joined"),
    [
        ({}, True),
        ({"patterns": {"PadSum": False}}, False),
        ({"patterns": {}, "level": 1}, False),
        ({"patterns": {"PadSum": True}, "level": 0}, True),
    ],
)
def test_gradients_of_parts_are_joined(settings: dict[str, object], joined: bool) -> None:
    options = poptorch.Options()
    if settings:
        options._Popart.setPatterns(**settings)
    found, parameters = trained(options)
    assert found == ({"Concat": 1, "SliceGrad": 2} if joined else {"Concat": 0, "SliceGrad": 5})
    for got, want in zip(parameters, reference(), strict=True):
        torch.testing.assert_close(got, want)


def test_the_key_of_the_patterns_is_their_setter() -> None:
    options = poptorch.Options()
    options._Popart.set("patterns", {"PadSum": False})
    assert not options._Popart.joins_pads
    other = poptorch.Options()
    other._Popart.set("patterns_level", 1)
    assert not other._Popart.joins_pads
    with pytest.raises(AssertionError, match="expected an int"):
        other._Popart.set("patterns_level", "all")
    with pytest.raises(AssertionError, match="expected a dictionary"):
        options._Popart.set("patterns", 3)
