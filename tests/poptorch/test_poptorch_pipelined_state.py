"""A buffer that ``forward`` reads and then changes: each backward has the value that its forward had."""

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402

BATCHES = 8


class Drift(torch.nn.Module):
    """A scale that follows the activations."""

    def __init__(self, direct: bool) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.direct = direct

    def forward(self, x):
        scale = self.scale.clone()
        y = x * scale if self.direct else torch.sin(x * (1 + scale))
        with torch.no_grad():
            self.scale.mul_(0.9).add_(0.3 * x.detach().mean(0))
        return y


class Network(torch.nn.Module):
    def __init__(self, direct: bool, blocks: bool) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), Drift(direct))
        self.second = torch.nn.Sequential(torch.nn.Linear(3, 3), Drift(direct), torch.nn.Linear(3, 2))
        if blocks:
            poptorch.BeginBlock(self.second, "second", ipu_id=1)

    def forward(self, x, y):
        loss = ((self.second(self.first(x)) - y) ** 2).mean()
        return poptorch.identity_loss(loss, "none")


@pytest.mark.parametrize("recomputation", [0, 3])
@pytest.mark.parametrize("direct", [True, False])
def test_pipelines_accumulate_what_pytorch_accumulates(direct, recomputation, monkeypatch):
    torch.manual_seed(0)
    x, y = torch.randn(2 * BATCHES, 4), torch.randn(2 * BATCHES, 2)
    plain, network = Network(direct, False), Network(direct, True)
    network.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(poptorch, "identity_loss", lambda loss, reduction: loss)
        for a, b in zip(x.split(2), y.split(2), strict=True):
            (plain(a, b) / BATCHES).backward()
    optimizer.step()
    options = poptorch.Options()
    options.Training.gradientAccumulation(BATCHES)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options._Popart.set("autoRecomputation", recomputation)
    poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=0.1))(x, y)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value, msg=lambda text, name=name: f"{name}: {text}")
