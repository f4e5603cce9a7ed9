"""Names of PopTorch's native library: name scopes by hooks, errors of the device."""

import importlib

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch.poptorch_core import TestErrorType, _throwTestError  # noqa: E402


def test_name_scopes_pushed_by_hooks_leave_the_model_as_it_is() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    x = torch.randn(2, 4)
    expected = model(x).detach()
    for name, part in model.named_modules():
        part.register_forward_pre_hook(lambda _, __, name=name: torch.ops.poptorch.push_name_scope(name))
        part.register_forward_hook(lambda _, __, ___: torch.ops.poptorch.pop_name_scope())
    torch.testing.assert_close(model(x).detach(), expected)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["enums", "optim", "options", "poptorch_core", "profiling"])
def test_modules_of_upstream_are_imported_by_their_names(name: str) -> None:
    assert importlib.import_module(f"ipuperf.poptorch.{name}") is getattr(poptorch, name)


def test_whether_there_is_a_program() -> None:
    model = poptorch.inferenceModel(torch.nn.Linear(4, 3))
    assert not model._executable
    model(torch.randn(2, 4))
    assert model._executable is model.compiled_model
    model.destroy()
    assert not model._executable


@pytest.mark.parametrize("kind", TestErrorType.__members__.values())
def test_an_error_of_the_device_says_component_message_and_place(kind: TestErrorType) -> None:
    with pytest.raises(poptorch.Error) as found:
        _throwTestError(kind)
    error = found.value
    assert error.message in str(error)
    assert f"'{error.type}'" in str(error)
    for place in ("throwTestError::bottomLevel", "throwTestError::topLevel"):
        assert place in error.location
        assert place in error.args[0]
        assert place not in error.message
    assert isinstance(error, poptorch.UnrecoverableError) == (kind is TestErrorType.PoplarUnrecoverable)
    assert isinstance(error, poptorch.RecoverableError) == (kind is TestErrorType.PoplarRecoverableFullReset)
    if isinstance(error, poptorch.RecoverableError):
        assert (error.recovery_action, error.type) == ("FULL_RESET", "poplar_recoverable_runtime_error")


def test_an_error_of_poptorch_itself() -> None:
    model = poptorch.inferenceModel(torch.nn.Linear(4, 3))
    with pytest.raises(poptorch.Error) as found:
        model.copyWeightsToHost()
    assert (found.value.type, found.value.location) == ("poptorch_py_error", "")
    assert found.value.message == str(found.value)


def test_what_pipelines_of_optimum_read_of_an_executor() -> None:
    """The module, and the arguments it was compiled with, none before and after."""

    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            return x if y is None else x + y

    module = Sum()
    model = poptorch.inferenceModel(module)
    assert model._user_model is module
    assert model._executable_inputs is None
    model(y=torch.ones(4, 2), x=torch.ones(4, 2))
    assert [tensor.shape for tensor in model._executable_inputs.args] == [(4, 2), (4, 2)]
    model.destroy()
    assert model._executable_inputs is None
    assert model(torch.ones(3, 2)).shape == (3, 2)
