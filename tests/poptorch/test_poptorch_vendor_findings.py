"""What programs like the vendor's tests do that once failed: each against PyTorch."""

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from ipuperf import poptorch  # noqa: E402


def quiet() -> poptorch.Options:
    """Options without a progress bar."""
    return poptorch.Options().showCompilationProgressBar(False)


ONE, TWO = torch.tensor([1, 2]), torch.tensor([3, 4])


class Constants(nn.Module):
    """No argument at all; the results are constants and what becomes of them."""

    def forward(self) -> Any:
        return ONE + TWO, ([ONE, TWO], [TWO]), TWO


def test_a_module_without_arguments() -> None:
    total, (both, last), two = poptorch.inferenceModel(Constants(), quiet())()
    assert [t.tolist() for t in (total, *both, *last, two)] == [[4, 6], [1, 2], [3, 4], [3, 4], [3, 4]]


class Masked(nn.Module):
    """An encoder and decoder whose masks are arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True)

    def forward(self, source: Any, target: Any, mask: Any) -> Any:
        return self.layers(source, target, tgt_mask=mask[0])


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("causal", [True, False])
def test_masks_of_transformers(causal: bool) -> None:
    torch.manual_seed(3)
    model = Masked().eval()
    mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else torch.randn(5, 5)
    given = torch.randn(1, 3, 4), torch.randn(1, 5, 4), mask[None]
    torch.testing.assert_close(poptorch.inferenceModel(model, quiet())(*given), model(*given), rtol=1e-4, atol=1e-5)


class TwoStarts(nn.Module):
    """A slice of each axis, both from a tensor on."""

    def forward(self, x: Any, row: Any, column: Any) -> Any:
        return x[row : row + 2 : 1, column : column + 4 : 2]


def test_slices_of_two_axes_from_tensors_on() -> None:
    x = torch.randn(4, 8)
    starts = torch.tensor([1]), torch.tensor([2])
    model = nn.Module()
    model.forward = lambda x: TwoStarts()(x, *starts)
    torch.testing.assert_close(poptorch.inferenceModel(model, quiet())(x), x[1:3, 2:6:2])


class Updated(nn.Module):
    """``dynamic_update`` with a source of another type."""

    def forward(self, x: Any, source: Any, start: Any) -> Any:
        return poptorch.dynamic_update(x, source, 0, start, 1)


@pytest.mark.filterwarnings("ignore:float64 is float32")
def test_types_of_a_dynamic_update_are_the_devices() -> None:
    x, start = torch.arange(8.0), torch.tensor([1])
    with pytest.raises(poptorch.Error, match="input is torch.float32, src torch.int32"):
        poptorch.inferenceModel(Updated(), quiet()).compile(x, torch.tensor([-1]), start)
    got = poptorch.inferenceModel(Updated(), quiet())(x, torch.tensor([-1.0], dtype=torch.float64), start)
    assert got.tolist() == [0, -1, 2, 3, 4, 5, 6, 7]


# -- optimisers --------------------------------------------------------------------------------------------------------


class Loss(nn.Module):
    """A layer and its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Any, labels: Any) -> Any:
        result = self.layer(x)
        return result, nn.functional.cross_entropy(result, labels)


BATCH = torch.linspace(-1, 1, 24).reshape(4, 6), torch.tensor([0, 2, 1, 0])


class Uncorrected(poptorch.optim.AdamW):
    """A subclass, as programs write it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.02, weight_decay=0.1, bias_correction=False)


def test_adamw_without_bias_correction_steps_natively_as_on_the_ipu() -> None:
    native, wrapped = Loss(), Loss()
    by_hand = Uncorrected(native.parameters())
    on_ipu = poptorch.trainingModel(wrapped, quiet(), Uncorrected(wrapped.parameters()))
    before = native.layer.weight.detach().clone()
    for step in range(4):
        by_hand.zero_grad()
        native(*BATCH)[1].backward()
        gradient = native.layer.weight.grad.clone()
        by_hand.step()
        on_ipu(*BATCH)
        if step == 0:  # moments of one step: (1 - beta) times the gradient and its square
            move = 0.02 * 0.1 * gradient / ((0.001 * gradient**2).sqrt() + 1e-8)
            torch.testing.assert_close(native.layer.weight.detach(), before * (1 - 0.02 * 0.1) - move)
    torch.testing.assert_close(wrapped.layer.weight.detach(), native.layer.weight.detach(), rtol=1e-4, atol=1e-5)


def test_a_step_of_ones_own_is_refused() -> None:
    class Own(poptorch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return None

    model = Loss()
    with pytest.raises(poptorch.Error, match="its step\\(\\) is its own"):
        poptorch.trainingModel(model, quiet(), Own(model.parameters()))


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_wrapped_model_compiles_its_own_program(copied: Any) -> None:
    model = Loss()
    first = poptorch.trainingModel(model, quiet(), torch.optim.SGD(model.parameters(), lr=0.1))
    first(*BATCH)
    second = copied(first)
    assert not second.isCompiled()
    assert second.model is not model
    torch.testing.assert_close(second(*BATCH)[1], first(*BATCH)[1])
    torch.testing.assert_close(second.model.layer.weight.detach(), model.layer.weight.detach())
