"""``Options.anchorTensor``: activations, gradients and variables against PyTorch's."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402


class Model(nn.Module):
    """Two layers, on one IPU or two."""

    def __init__(self, ipus: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("counts", torch.zeros(2))
        self.ipus = ipus

    def forward(self, x: Any) -> Any:
        with poptorch.Block("first", ipu_id=0):
            y = torch.relu(self.first(x))
        with poptorch.Block("second", ipu_id=self.ipus - 1):
            y = self.second(y)
            self.counts += 1
            return y, poptorch.identity_loss((y * y).sum(), "none")


def by_hand(model: nn.Module, x: Any) -> dict[str, Any]:
    """Activations and gradients of one micro-batch."""
    y = torch.relu(model.first(x))
    y.retain_grad()
    loss = (model.second(y) ** 2).sum()
    loss.backward()
    grads = {f"Gradient___{name}": p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return {"relu": y.detach(), "Gradient___relu": y.grad, **grads}


NAMES = ["relu", "Gradient___relu", "Gradient___first.weight", "Gradient___second.bias"]


@pytest.mark.parametrize("ipus", [1, 2])
@pytest.mark.parametrize("mode", [poptorch.OutputMode.All, poptorch.OutputMode.Final, poptorch.OutputMode.Sum])
def test_gradients_and_activations_of_micro_batches(mode: Any, ipus: int) -> None:
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(4)
    for name in NAMES:
        options.anchorTensor(name, name, mode)
    model = Model(ipus)
    x = torch.rand(8, 4, generator=torch.Generator().manual_seed(3))
    trained = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.0))
    trained(x)
    slices = [by_hand(Model(), row[None]) for row in x]
    for name in NAMES:
        values = [found[name] for found in slices]
        expected = {"All": torch.cat(values), "Final": values[-1], "Sum": sum(values)}[mode.name]
        torch.testing.assert_close(trained.getAnchoredTensor(name), expected)
        assert name in trained.getTensorNames()


def test_variables_after_the_call() -> None:
    options = poptorch.Options()
    options.anchorTensor("w", "UpdatedVar___first.weight").anchorTensor("c", "counts")
    options.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    ours = Model()
    model = poptorch.trainingModel(ours, options, torch.optim.SGD(ours.parameters(), lr=0.1))
    for _ in range(2):
        model(torch.ones(1, 4))
    assert torch.equal(model.getAnchoredTensor("w"), ours.first.weight)
    assert model.getAnchoredTensor("c").tolist() == [2, 2]


def test_replicas_give_their_own_and_it_takes_time() -> None:
    options = poptorch.Options().replicationFactor(2).broadcastBuffers(False)
    plain = poptorch.trainingModel(Model(), options.clone())
    options.anchorTensor("g", "Gradient___second.bias").anchorTensor("y", "relu")
    model = poptorch.trainingModel(Model(), options)
    x = torch.rand(2, 4)
    model(x)
    plain(x)
    slices = [by_hand(Model(), row[None]) for row in x]
    expected = torch.cat([found["Gradient___second.bias"] for found in slices])
    torch.testing.assert_close(model.getAnchoredTensor("g"), expected)
    torch.testing.assert_close(model.getAnchoredTensor("y"), torch.cat([found["relu"] for found in slices]))
    assert model.cycleCount() > plain.cycleCount()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_inference(dtype: Any) -> None:
    options = poptorch.Options().deviceIterations(2)
    options.anchorTensor("last", "linear", poptorch.OutputMode.Final).anchorTensor("all", "relu")
    model = Model().to(dtype)
    x = torch.rand(2, 4).to(dtype)
    program = poptorch.inferenceModel(model, options)
    program(x)
    assert program.getAnchoredTensor("last").dtype == dtype
    torch.testing.assert_close(program.getAnchoredTensor("last"), model.first(x[1:]), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(program.getAnchoredTensor("all"), torch.relu(model.first(x)), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Gradient___first.wight", "no tensor of this name; candidates: .*Gradient___first.weight"),
        ("nothing", "no tensor of this name; candidates: "),
        ("Gradient___counts", "no tensor of this name"),
        ("Gradient___", "no tensor of this name"),
    ],
)
def test_an_anchor_that_does_not_exist(name: str, message: str) -> None:
    options = poptorch.Options()
    options.anchorTensor("a", name)
    with pytest.raises(poptorch.Error, match=message):
        poptorch.trainingModel(Model(), options).compile(torch.ones(1, 4))


def test_other_mistakes() -> None:
    options = poptorch.Options().deviceIterations(2)
    options.anchorTensor("w", "first.weight", poptorch.OutputMode.All)
    with pytest.raises(poptorch.UnsupportedError, match="All of a variable is unsupported; allowed: Final"):
        poptorch.inferenceModel(Model(), options).compile(torch.ones(2, 4))
    options = poptorch.Options()
    options.anchorTensor("y", "relu")
    model = poptorch.inferenceModel(Model(), options)
    model.compile(torch.ones(1, 4))
    with pytest.raises(poptorch.Error, match="has not been run"):
        model.getAnchoredTensor("y")
    with pytest.raises(poptorch.Error, match="no anchor of this name; anchored: y"):
        model.getAnchoredTensor("x")
