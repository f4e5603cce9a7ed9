"""Weights come from the IPUs when somebody looks; a module has one executor that trains it (upstream:
weights_writing_test.py)."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch import _impl  # noqa: E402


class Normed(nn.Module):
    """Parameters, buffers and a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> Any:
        out = self.norm(self.linear(x)) * self.scale
        return (out, poptorch.identity_loss((out - 1.0) ** 2, "mean")) if self.training else out


X = torch.arange(12.0).reshape(4, 3) / 7


def trained(copies: list[int] | None = None) -> tuple[Normed, poptorch.PoplarExecutor]:
    """A module after two steps; the copies to the host are counted in a list."""
    torch.manual_seed(3)
    module = Normed()
    model = poptorch.trainingModel(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    really = model.copyWeightsToHost

    def counted() -> None:
        if copies is not None:
            copies.append(1)
        really()

    model.copyWeightsToHost = counted
    for _ in range(2):
        model(X)
    return module, model


def native() -> Normed:
    """The same two steps by PyTorch."""
    torch.manual_seed(3)
    module = Normed()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        module(X)[1].backward()
        optimiser.step()
    return module


LOOKS: dict[str, Callable[[Normed], torch.Tensor]] = {
    "a parameter": lambda m: m.linear.weight.detach(),
    "its data": lambda m: m.linear.weight.data,
    "named_parameters": lambda m: dict(m.named_parameters())["linear.weight"],
    "state_dict": lambda m: m.state_dict()["linear.weight"],
    "arithmetic": lambda m: m.linear.weight + 0.0,
    "copy": lambda m: copy.deepcopy(m).linear.weight,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)).linear.weight,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=list(LOOKS))
def test_whoever_looks_gets_what_was_trained(look: Callable[[Normed], torch.Tensor]) -> None:
    copies: list[int] = []
    module, model = trained(copies)
    assert not copies, "training copies nothing"
    found = look(module)
    torch.testing.assert_close(found.detach(), native().linear.weight.detach())
    look(module)
    assert len(copies) == 1, "once is enough"
    assert module.copyWeightsToHostIfNeeded() is False
    assert model.copyWeightsToHostIfNeeded() is False


def test_running_the_module_and_reading_its_buffers() -> None:
    module, _ = trained()
    expected = native()
    torch.testing.assert_close(module.norm.running_mean + 0, expected.norm.running_mean)
    torch.testing.assert_close(module.eval()(X), expected.eval()(X))
    other, _ = trained()
    assert not torch.equal(torch.zeros(3), other.norm.running_mean)


def test_an_inference_model_has_the_trained_weights() -> None:
    copies: list[int] = []
    module, _ = trained(copies)
    inference = poptorch.inferenceModel(module)
    torch.testing.assert_close(inference(X), native().eval()(X))
    inference(X)
    assert len(copies) == 1


def test_copies_are_plain() -> None:
    module, _ = trained()
    for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(made) is Normed
        assert type(made.linear.weight) is nn.Parameter
        assert type(made.norm.running_mean) is torch.Tensor
        poptorch.trainingModel(made)
    assert type(copy.deepcopy(module.scale)) is nn.Parameter
    assert repr(module) == repr(native())
    assert isinstance(module, Normed)
    assert isinstance(module.scale, nn.Parameter)


def test_loading_onto_the_ipus_drops_what_was_trained() -> None:
    """As upstream: copyWeightsToDevice does not fetch."""
    torch.manual_seed(3)
    before = Normed().linear.weight.detach()
    module, model = trained()
    model.copyWeightsToDevice()
    torch.testing.assert_close(module.linear.weight.detach(), before)


def test_one_executor_trains_a_module() -> None:
    module, model = trained()
    with pytest.raises(poptorch.Error, match=r"already been wrapped in 'poptorch.trainingModel'.*destroy\(\)"):
        poptorch.trainingModel(module)
    with pytest.raises(poptorch.Error, match="already been wrapped"):
        poptorch.trainingModel(model)
    module.destroy()
    assert not model.isCompiled()
    with pytest.raises(poptorch.Error, match="has been destroyed"):
        model.copyWeightsToHost()
    assert type(module) is Normed
    torch.testing.assert_close(module.scale.detach(), native().scale.detach())
    again = poptorch.trainingModel(model)
    again(X)
    again.destroy()
    assert type(module.scale) is nn.Parameter


def test_a_destroyed_executor_can_train_again() -> None:
    module, model = trained()
    model.destroy()
    model(X)
    assert type(module) is Normed
    assert not torch.equal(module.scale, native().scale)


@pytest.mark.heavy
def test_an_executor_that_goes_leaves_its_weights() -> None:
    module, model = trained()
    del model
    gc.collect()
    assert type(module) is Normed
    torch.testing.assert_close(module.scale.detach(), native().scale.detach())


def test_a_program_that_ends_leaves_no_module() -> None:
    """Sweeps and levers run a program many times in one process; a module that stays keeps all of its program."""
    module, model = trained()
    kept = weakref.ref(module)
    del module, model
    gc.collect()
    assert kept() is None


def test_unwrapping_for_a_while() -> None:
    module, model = trained()
    _impl.unwrapModelIfNecessary(module)
    assert type(module) is Normed
    assert type(module.scale) is nn.Parameter
    torch.testing.assert_close(module.scale.detach(), native().scale.detach())
    model(X)
    assert not torch.equal(module.scale, native().scale), "a plain module is written at once"
    _impl.rewrapModelIfNecessary(module)
    assert type(module) is not Normed
    with pytest.raises(poptorch.Error, match="already been wrapped"):
        poptorch.trainingModel(module)
    _impl.rewrapModelIfNecessary(nn.Linear(1, 1))
    with pytest.raises(poptorch.Error, match="expected torch.nn.Module"):
        _impl.unwrapModelIfNecessary(3)


def test_detaching_brings_the_weights() -> None:
    copies: list[int] = []
    module, model = trained(copies)
    model.detachFromDevice()
    assert len(copies) == 1
    torch.testing.assert_close(module.scale.detach(), native().scale.detach())
    model(X)
    assert len(copies) == 1


def test_a_module_that_trains_can_be_simulated() -> None:
    """Offline programs tie nothing."""
    module, _ = trained()
    assert poptorch.compile_offline(module, None, X).executable.simulated_run_cycles
    assert type(module) is not Normed
    torch.testing.assert_close(module.scale.detach(), native().scale.detach())


def test_buffers_have_to_be_tensors() -> None:
    class Other(torch.Tensor):
        pass

    module = Normed()
    module.register_buffer("odd", torch.zeros(2).as_subclass(Other))
    with pytest.raises(poptorch.Error, match="a buffer of the module is a"):
        poptorch.trainingModel(module)
