"""Buffers that ``forward`` changes and reads: gradients are those of the numbers it had; PyTorch as the oracle."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402


def changed_after(state: Any, x: Any) -> Any:
    factor = state.clone()
    state.mul_(0.5).add_(x.mean(0))
    return factor


def changed_before(state: Any, x: Any) -> Any:
    return state.mul_(0.5).add_(x.mean(0))


def replaced(state: Any, x: Any) -> Any:
    factor = 2 * state
    state.copy_(x.amax(0))
    return factor


class Model(nn.Module):
    """A state that is a factor and an offset, in the first of two stages; a norm whose statistics wait for nothing."""

    def __init__(self, change: Any, ipus: int, marked: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("state", torch.ones(4))
        self.change, self.ipus, self.marked = change, ipus, marked

    def forward(self, x: Any, y: Any) -> Any:
        with poptorch.Block("a", ipu_id=0):
            h = self.norm(self.first(x))
            h = poptorch.recomputationCheckpoint(h) if self.marked else h
            with torch.no_grad():
                factor = self.change(self.state, x)
            h = torch.tanh(self.middle(torch.tanh(h * factor - factor)))
            h = poptorch.recomputationCheckpoint(h) if self.marked else h
        with poptorch.Block("b", ipu_id=self.ipus - 1):
            return nn.functional.cross_entropy(self.last(h), y)


@pytest.mark.parametrize("change", [changed_after, changed_before, replaced])
@pytest.mark.parametrize(
    ("ipus", "accumulation", "recomputation"),
    [(1, 1, 0), (1, 3, 4), (1, 3, 1), (2, 4, 0), (2, 4, 3)],
)
def test_gradients_are_those_of_the_forward(change: Any, ipus: int, accumulation: int, recomputation: int) -> None:
    torch.manual_seed(3)
    ours = Model(change, ipus, recomputation in (1, 4))
    theirs = copy.deepcopy(ours)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    options._Popart.set("autoRecomputation", recomputation)
    model = poptorch.trainingModel(ours, options, optimizer=torch.optim.SGD(ours.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(2):
        x, y = torch.randn(5 * accumulation, 4), torch.randint(0, 3, (5 * accumulation,))
        model(x, y)
        optimizer.zero_grad()
        for a, b in zip(x.split(5), y.split(5), strict=True):
            (theirs(a, b) / accumulation).backward()
        optimizer.step()
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("strategy", ["ShardedExecution", "SerialPhasedExecution", "PipelinedExecution"])
def test_a_buffer_that_a_later_stage_changes(strategy: str, caplog: Any) -> None:
    """Without a pipeline the numbers are PyTorch's; a pipeline cannot have them, and says so."""
    phased = strategy == "SerialPhasedExecution"

    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
            self.register_buffer("state", torch.ones(4))

        def forward(self, x: Any, y: Any) -> Any:
            with poptorch.Block("a", ipu_id=0):
                h = torch.tanh(self.first(x)) * self.state.clone()
            with poptorch.Block("b", ipu_id=0 if phased else 1):
                h = torch.tanh(h + 1)
            with poptorch.Block("c", ipu_id=0):
                self.state.mul_(0.5).add_(h.detach().mean(0))
                return nn.functional.cross_entropy(self.second(h), y)

    torch.manual_seed(3)
    ours = Later()
    theirs = copy.deepcopy(ours)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(6)
    kind, stages = getattr(poptorch, strategy), [poptorch.Stage(name) for name in "abc"]
    options.setExecutionStrategy(kind(*(poptorch.Phase(s) if phased else s for s in stages)))
    model = poptorch.trainingModel(ours, options, optimizer=torch.optim.SGD(ours.parameters(), lr=0.5))
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    with caplog.at_level("WARNING", logger="poptorch"):
        model(x, y)
    late = "state is read in stage 0 and changed in stage 2" in caplog.text
    assert late == (strategy == "PipelinedExecution")
    for a, b in zip(x.split(2), y.split(2), strict=True):
        (theirs(a, b) / 6).backward()
    torch.optim.SGD(theirs.parameters(), lr=0.5).step()
    if not late:
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.detach(), b.detach())


def test_statistics_of_norms_take_no_stash() -> None:
    """Running statistics change in each forward, but no gradient needs them."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4)
    model = poptorch.trainingModel(Model(lambda state, x: 2.0, 2, False), options)
    model(torch.randn(20, 4), torch.randint(0, 3, (20,)))
    names = {
        tensor.name for stash in model.compiled_model.pipeline.stashes for tensor in stash.by_tensor if stash.ipu == 0
    }
    assert names == {"x"}


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


@pytest.mark.heavy
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
