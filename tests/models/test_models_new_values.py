"""What a model's optimiser is brought before each call (``RunOptions.new_values``), counted by hand."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def run(installed_front_ends: Callable[[], Any]) -> Iterator[Any]:
    """The module that models share."""
    with installed_front_ends():
        yield importlib.import_module("ipuperf.models.ipu_run")


class Two(torch.nn.Module):
    """Two weights, two biases and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)

    def forward(self, x: Any, y: Any) -> Any:
        found = self.last(self.norm(self.first(x)))
        return found, torch.nn.functional.mse_loss(found, y)


def executable_of(run: Any, **options: Any) -> Any:
    given = run.RunOptions(gradient_accumulation=2, **options)
    data = (
        torch.zeros(2, 8, device="meta", dtype=torch.float16),
        torch.zeros(2, 4, device="meta", dtype=torch.float16),
    )
    return run.compiled_of(Two, given, data, "gc200-1").executable


@pytest.mark.parametrize(
    ("new_values", "scalars", "shared"),
    [("set_optimizer", 6 * 3 + 1, 0), ("rates and betas", 2 * 4, 3)],  # rate, epsilon, loss scaling
)
def test_the_call_comes_after_new_values(run: Any, new_values: str, scalars: int, shared: int) -> None:
    plain, found = executable_of(run), executable_of(run, new_values=new_values)
    assert (found.options.new_values.scalars, found.options.new_values.shared) == ((scalars,), shared)
    assert found.simulated_run_cycles == plain.simulated_run_cycles + found.value_run_cycles
    assert found.host_start_cycles == plain.host_start_cycles + found.value_run_cycles


def test_wrong_choices_are_refused(run: Any) -> None:
    with pytest.raises(ValueError, match=r"new_values 'all'; allowed: none, set_optimizer, rates and betas"):
        run.RunOptions(new_values="all")
    with pytest.raises(ValueError, match=r"new_values 'set_optimizer' in inference: allowed in training"):
        run.RunOptions(training=False, new_values="set_optimizer")
