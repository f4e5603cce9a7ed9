"""The optimiser's state between host and IPUs, numbers that change, Nesterov's momentum, another loss scaling."""

import copy
import io
import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return poptorch.identity_loss(torch.tanh(self.lin(x)).square(), "mean")


X = torch.linspace(-1, 2, 12).reshape(4, 3)


def trained(module: Any, optimizer: Any, **changes: Any) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False)
    for name, value in changes.items():
        getattr(options, name)(*value)
    return poptorch.trainingModel(module, options, optimizer)


def test_states_and_numbers_are_those_of_pytorch() -> None:
    module = Model()
    host = copy.deepcopy(module)
    optimizer = poptorch.optim.AdamW(module.parameters(), lr=0.5, weight_decay=0.25)
    other = torch.optim.AdamW(host.parameters(), lr=0.5, weight_decay=0.25)
    assert optimizer.state_dict()["ipu_state"] is None
    model = trained(module, optimizer)
    for _ in range(3):
        model(X)
        other.zero_grad()
        host(X).backward()
        other.step()
    found = optimizer.state_dict()
    for name, parameter in host.named_parameters():
        for ours, kind in (("Accl1", "exp_avg"), ("Accl2", "exp_avg_sq"), ("Step", "step")):
            torch.testing.assert_close(found["ipu_state"][f"{ours}___{name}"], other.state[parameter][kind])
        assert found["ipu_param"]["lossScaling_FLOAT"] == 1.0
        assert found["ipu_param"][f"learningRate___specific___{name}"] == 0.5
        assert found["ipu_param"][f"weightDecay___specific___{name}"] == 0.25
    optimizer.param_groups[0]["lr"] = 0.125
    model.setOptimizer(optimizer)
    assert optimizer.state_dict()["ipu_param"]["learningRate___specific___lin.bias"] == 0.125


@pytest.mark.parametrize("where", ["another model", "the same model", "detached"])
def test_a_training_goes_on_from_a_checkpoint(where: str) -> None:
    module = Model()
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.25)
    model = trained(module, optimizer)
    model(X)
    model(X)
    kept = io.BytesIO()
    torch.save((module.state_dict(), optimizer.state_dict()), kept)
    wanted = [model(X), model(X)]
    kept.seek(0)
    weights, states = torch.load(kept)
    if where == "another model":
        module = Model()
        optimizer = poptorch.optim.Adam(module.parameters(), lr=0.75)
        model = trained(module, optimizer)
    if where == "detached":
        model.detachFromDevice()
    module.load_state_dict(weights)
    optimizer.load_state_dict(states)
    assert optimizer.param_groups[0]["lr"] == 0.25
    if where == "detached":
        model.attachToDevice()
    elif where == "the same model":
        model.copyWeightsToDevice()
    torch.testing.assert_close([model(X), model(X)], wanted, rtol=0, atol=0)


def test_detaching_keeps_the_state() -> None:
    losses = []
    for detach in (False, True):
        torch.manual_seed(2)
        module = Model()
        model = trained(module, torch.optim.Adam(module.parameters(), lr=0.25))
        model(X)
        if detach:
            model.detachFromDevice()
            model.attachToDevice()
        losses.append([model(X), model(X)])
    torch.testing.assert_close(*losses, rtol=0, atol=0)


def test_each_way_of_the_state_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    module = Model()
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.25)
    model = trained(module, optimizer)
    model(X)
    with caplog.at_level(logging.DEBUG, "poptorch"):
        optimizer.load_state_dict(optimizer.state_dict())
        model(X)
    ways = [text for text in caplog.messages if text.startswith("The optimiser's state ")]
    assert ways == ["The optimiser's state comes from the IPUs", "The optimiser's state goes to the IPUs"]


def test_what_is_left_out_stays_as_it_is() -> None:
    module = Model()
    optimizer = poptorch.optim.RMSprop(module.parameters(), lr=0.0, momentum=0.5)
    model = trained(module, optimizer)
    model(X)
    states = optimizer.state_dict()
    before = states["ipu_state"].pop("Accl1___lin.bias")
    states["ipu_state"]["Accl3___lin.bias"] += 1
    optimizer.load_state_dict(states)
    assert "Accl1___lin.bias" not in optimizer.state_dict()["ipu_state"]
    model.setOptimizer(optimizer)
    found = optimizer.state_dict()["ipu_state"]
    torch.testing.assert_close(found["Accl1___lin.bias"], before, rtol=0, atol=0)
    torch.testing.assert_close(found["Accl3___lin.bias"], states["ipu_state"]["Accl3___lin.bias"])


def test_states_that_cannot_be_loaded() -> None:
    module = Model()
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.5)
    with pytest.raises(RuntimeError, match="no ipu_state and ipu_param"):
        optimizer.load_state_dict(torch.optim.Adam(module.parameters()).state_dict())
    model = trained(module, optimizer)
    model(X)
    good = optimizer.state_dict()
    bad = {**good, "ipu_state": {**good["ipu_state"], "Accl1___lin.bias": torch.ones(7)}}
    optimizer.load_state_dict(bad)
    with pytest.raises(poptorch.Error, match=r"Accl1___lin.bias has shape \(7,\), the model's has \(2,\)"):
        model(X)
    scaled = {**good["ipu_param"], "lossScaling_FLOAT": torch.tensor(2.0)}
    optimizer.load_state_dict({**good, "ipu_param": scaled})
    with pytest.raises(poptorch.Error, match="lossScaling_FLOAT is 2.0, the model has 1.0"):
        model(X)
    with pytest.raises(RuntimeError, match="ipu_state of the state_dict is no dictionary"):
        optimizer.load_state_dict({**good, "ipu_state": [1]})


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_numbers_of_one_parameter(kind: str) -> None:
    """Numbers that differ within a group: from then on each parameter has its own, all else goes on."""
    word = {"SGD": "scaledLearningRate0", "Adam": "learningRate"}[kind]
    module, theirs = Model(), Model()
    theirs.load_state_dict(module.state_dict())
    optimizer = getattr(poptorch.optim, kind)(module.parameters(), lr=0.25)
    weights = [{"params": [theirs.lin.weight]}, {"params": [theirs.lin.bias]}]
    reference = getattr(torch.optim, kind)(weights, lr=0.25)
    model = trained(module, optimizer)

    def step() -> None:
        model(X)
        reference.zero_grad()
        theirs(X).backward()
        reference.step()

    step()
    states = optimizer.state_dict()
    states["ipu_param"][f"{word}___specific___lin.bias"] = torch.tensor(0.5)
    optimizer.load_state_dict(states)
    reference.param_groups[1]["lr"] = 0.5
    step()
    step()
    assert float(optimizer.state_dict()["ipu_param"][f"{word}___specific___lin.bias"]) == 0.5
    assert float(optimizer.state_dict()["ipu_param"][f"{word}___specific___lin.weight"]) == 0.25
    for own, other in zip(module.parameters(), theirs.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_an_offline_target_has_no_state_to_show() -> None:
    module = Model()
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.5)
    trained(module, optimizer, useOfflineIpuTarget=()).compile(X)
    found = optimizer.state_dict()
    assert (found["ipu_state"], found["ipu_param"]) == (None, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_another_loss_scaling_changes_nothing_else(dtype: Any) -> None:
    found = []
    for scaling in (4.0, 64.0):
        torch.manual_seed(1)
        module = Model().to(dtype)
        optimizer = poptorch.optim.AdamW(module.parameters(), lr=0.125, loss_scaling=4.0)
        model = trained(module, optimizer)
        model(X.to(dtype))
        optimizer.loss_scaling = scaling
        model.setOptimizer(optimizer)
        found.append([model(X.to(dtype)), model(X.to(dtype)), *module.state_dict().values()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_constant_loss_scaling_cannot_change() -> None:
    module = Model()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.125)
    model = trained(module, optimizer)
    model(X)
    optimizer.loss_scaling = 2.0
    with pytest.raises(ValueError, match="loss_scaling is already compiled in as 1.0"):
        model.setOptimizer(optimizer)


@pytest.mark.parametrize("decay", [0.0, 0.25])
def test_nesterov(decay: float) -> None:
    module = Model()
    host = copy.deepcopy(module)
    arguments = {"lr": 0.25, "momentum": 0.5, "nesterov": True, "weight_decay": decay}
    model = trained(module, torch.optim.SGD(module.parameters(), **arguments))
    other = torch.optim.SGD(host.parameters(), **arguments)
    for _ in range(4):
        model(X)
        other.zero_grad()
        host(X).backward()
        other.step()
    torch.testing.assert_close(dict(module.state_dict()), dict(host.state_dict()))


def test_accumulators_of_float16_take_means_while_they_run() -> None:
    for kind, wanted in ((torch.float32, "Post"), (torch.float16, "Running")):
        module = Model()
        model = trained(module, poptorch.optim.Adam(module.parameters(), lr=0.5, accum_type=kind))
        assert model.options.Training.meanAccumulationAndReplicationReductionStrategy.name == wanted


PRODUCTS: dict[str, Any] = {
    "SGD0": ({}, 1, {"scaledLearningRate0": 0.5 / 2, "weightDecayScaleFactor0": 1 - 0.5 * 0.25}),
    "SGD2": (
        {"momentum": 0.75, "dampening": 0.5},
        2,
        {"scaledLearningRate2": 0.5, "dampeningScaleFactor2": 0.5 / (2 * 2), "scaledMomentum2": 0.75,
         "scaledWeightDecay1": 0.5 * 0.25},
    ),
    "SGD1": (
        {"momentum": 0.75, "dampening": 0.5, "use_combined_accum": True, "velocity_scaling": 4.0},
        2,
        {"scaledLearningRate1": 0.5 / 4, "dampeningScaleFactor1": 0.5 * 4 / (2 * 2), "scaledMomentum1": 0.75,
         "scaledWeightDecay1": 0.5 * 4 * 0.25},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("more", "accumulation", "shown"), PRODUCTS.values(), ids=list(PRODUCTS))
def test_products_of_sgd(more: Any, accumulation: int, shown: dict[str, float]) -> None:
    """PopART's names and formulas; loaded ones are what the optimiser then works with."""
    losses = []
    for load in (False, True):
        torch.manual_seed(4)
        module = Model()
        numbers = {"lr": 0.5, "weight_decay": 0.25, **more} if not load else {"lr": 0.125, "weight_decay": 0.5, **more}
        optimizer = poptorch.optim.SGD(module.parameters(), loss_scaling=2.0, **numbers)
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(accumulation)
        model = poptorch.trainingModel(module, options, optimizer)
        model.compile(X)
        wanted = {f"{word}___specific___lin.{name}": torch.tensor(value)
                  for word, value in shown.items() for name in ("weight", "bias")}  # fmt: skip
        wanted["lossScaling_FLOAT"] = torch.tensor(2.0)
        if load:
            optimizer.load_state_dict({**optimizer.state_dict(), "ipu_param": wanted})
        else:
            assert optimizer.state_dict()["ipu_param"] == wanted
        losses.append([model(X) for _ in range(3)])
        assert optimizer.state_dict()["ipu_param"] == wanted
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)


def test_products_of_sgd_that_nothing_has() -> None:
    module = Model()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.5, weight_decay=0.25)
    model = trained(module, optimizer)
    model.compile(X)
    state = optimizer.state_dict()
    for name in ("lin.weight", "lin.bias"):
        state["ipu_param"][f"scaledLearningRate0___specific___{name}"] = torch.tensor(0.0)
    optimizer.load_state_dict(state)
    with pytest.raises(poptorch.Error, match="weightDecayScaleFactor0 says that weights decay"):
        model(X)


def test_a_loaded_loss_scaling_that_may_change() -> None:
    module = Model()
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.25, loss_scaling=2.0)
    model = trained(module, optimizer)
    model(X)
    state = optimizer.state_dict()
    state["ipu_param"]["lossScaling_FLOAT"] = torch.tensor(8.0)
    optimizer.load_state_dict(state)
    model(X)
    assert optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 8.0


@pytest.mark.parametrize("told", [True, False])
def test_numbers_set_before_the_first_call_count_more_than_those_of_a_checkpoint(told: bool) -> None:
    """As upstream, whose ``execute`` brings what ``setOptimizer`` was told after the state was written."""

    def adam(parameters: Any) -> Any:
        return poptorch.optim.AdamW(parameters, lr=0.01, eps=1e-4, weight_decay=0.0)

    module = Model()
    first = adam(module.parameters())
    trained(module, first)(X)
    kept = copy.deepcopy(first.state_dict())
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    found = []
    for rate in (0.01, 0.5):
        again = Model()
        again.load_state_dict(weights)
        optimizer = adam(again.parameters())
        optimizer.load_state_dict(kept)
        model = trained(again, optimizer)
        optimizer.param_groups[0]["lr"] = rate
        if told:
            model.setOptimizer(optimizer)
        model(X)
        found.append((again.lin.weight - weights["lin.weight"]).detach())
    expected = found[0] * (50 if told else 1)
    torch.testing.assert_close(found[1], expected, rtol=1e-3, atol=1e-5)
