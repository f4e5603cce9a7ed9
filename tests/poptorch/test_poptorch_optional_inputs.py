"""Models that are called with and without their optional tensors."""

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402


class Shifted(torch.nn.Module):
    """A layer, and a shift where one is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.loss = torch.nn.MSELoss()

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> object:
        y = self.layer(x) if shift is None else self.layer(x) + shift
        return (y, self.loss(y, x)) if self.training else y


def test_inference_follows_its_optional_tensors() -> None:
    torch.manual_seed(0)
    module = Shifted().eval()
    model = poptorch.inferenceModel(module)
    x, shift = torch.randn(2, 4, 3)
    for call in ((x,), (x, shift), (x, None), (x, shift + 1)):
        torch.testing.assert_close(model(*call), module(*call))


def test_training_says_what_it_was_compiled_with() -> None:
    model = poptorch.trainingModel(Shifted().train())
    x, shift = torch.randn(2, 4, 3)
    model(x)
    with pytest.raises(poptorch.Error, match="shift: a tensor given, the model was compiled with None"):
        model(x, shift)


def test_a_tensor_of_another_shape_is_still_refused() -> None:
    model = poptorch.inferenceModel(Shifted().eval())
    model(torch.ones(4, 3))
    with pytest.raises(poptorch.Error, match="has shape"):
        model(torch.ones(5, 3))
