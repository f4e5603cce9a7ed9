"""Operands of float16 and float32 in one op: float32, as PopTorch promotes (user guide, 16-bit float migration). A
layer gives the type of its data."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402

F = torch.nn.functional
X = torch.linspace(-1, 1, 64).reshape(2, 4, 8)


def _half(*shape: int) -> torch.Tensor:
    return torch.linspace(-0.5, 1, torch.Size(shape).numel()).reshape(shape).half()


CASES = {
    "linear": (F.linear, _half(3, 8), _half(3)),
    "matmul": (torch.matmul, _half(8, 3)),
    "operator": (lambda x, w: x @ w, _half(8, 3)),
    "bmm": (torch.bmm, _half(2, 8, 3)),
    "baddbmm": (lambda x, a, b: torch.baddbmm(a, x, b), _half(2, 4, 3), _half(2, 8, 3)),
    "einsum": (lambda x, w: torch.einsum("abc,cd->abd", x, w), _half(8, 3)),
    "conv1d": (F.conv1d, _half(5, 4, 3), _half(5)),
    "conv_transpose1d": (F.conv_transpose1d, _half(4, 5, 3), _half(5)),
    "prelu": (F.prelu, _half(4)),
    "attention": (F.scaled_dot_product_attention, _half(2, 4, 8), _half(2, 4, 8)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), _half(8), _half(8)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), _half(4), _half(4)),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), _half(4), _half(4)),
}


class _Call(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.weights = torch.nn.ParameterList(CASES[name][1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return CASES[self.name][0](x, *self.weights)


@pytest.mark.parametrize("name", CASES)
def test_mixed_operands_become_float32(name: str) -> None:
    found = poptorch.inferenceModel(_Call(name).eval())(X)
    expected = CASES[name][0](X, *(weight.float() for weight in CASES[name][1:]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


LAYERS = {
    "linear": lambda: torch.nn.Linear(8, 3),
    "conv1d": lambda: torch.nn.Conv1d(4, 5, 3),
    "conv_transpose1d": lambda: torch.nn.ConvTranspose1d(4, 5, 3, bias=False),
    "layer_norm": lambda: torch.nn.LayerNorm(8),
}


@pytest.mark.parametrize("name", LAYERS)
def test_float16_with_parameters_of_float32_stays_float16(name: str) -> None:
    """It is computed in float32 and rounded once."""
    torch.manual_seed(0)
    model = LAYERS[name]().eval()
    found = poptorch.inferenceModel(torch.nn.Sequential(model))(X.half())
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, model(X.half().float()).half(), rtol=1e-3, atol=1e-3)


def test_float16_data_train_parameters_of_float32() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return torch.nn.functional.cross_entropy(self.net(x).flatten(0, 1), y.flatten())

    torch.manual_seed(0)
    model, y = Model(), torch.randint(3, (2, 4))
    expected = copy.deepcopy(model)
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimiser = torch.optim.SGD(expected.parameters(), lr=0.1)
    for _ in range(3):
        loss = step(X.half(), y)
        optimiser.zero_grad()
        wanted = expected(X.half().float(), y)
        wanted.backward()
        optimiser.step()
        assert loss.dtype == torch.float16
        torch.testing.assert_close(loss.float(), wanted.detach(), rtol=2e-3, atol=0)
    for found, want in zip(model.parameters(), expected.parameters(), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, want, rtol=5e-3, atol=5e-4)


class _Images(torch.nn.Module):
    """Blocks on two IPUs, running statistics in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 4, 3)
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.out(self.norm(self.conv(x)))
        return y, poptorch.identity_loss((y**2).mean(), "none")


def test_training_a_float16_model_with_float32_inputs() -> None:
    torch.manual_seed(0)
    model = _Images().half()
    expected = copy.deepcopy(model).float()
    model.out = poptorch.BeginBlock(model.out, ipu_id=1)
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    step = poptorch.trainingModel(model, options, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
    optimiser = torch.optim.SGD(expected.parameters(), lr=0.1)
    for _ in range(3):
        step(X.repeat(3, 1, 1))
        optimiser.zero_grad()
        for _ in range(3):
            (expected(X)[1] / 3).backward()
        optimiser.step()
    for found, want in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.float(), want, rtol=1e-2, atol=1e-3)
    assert model.norm.running_mean.dtype == torch.float16
    torch.testing.assert_close(model.norm.running_mean.float(), expected.norm.running_mean, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(model.norm.running_var.float(), expected.norm.running_var, rtol=1e-2, atol=1e-3)


def test_a_cast_in_a_later_block_belongs_there() -> None:
    class Cast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(8, 8)
            self.weight = torch.nn.Parameter(_half(3, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            with poptorch.Block("second", ipu_id=1):
                return F.linear(y, self.weight.float())

    model = Cast().eval()
    options = poptorch.Options().deviceIterations(2)
    found = poptorch.inferenceModel(model, options)(X.repeat(2, 1, 1))
    torch.testing.assert_close(found, model(X).repeat(2, 1, 1), rtol=1e-5, atol=1e-5)


def test_relu_of_whole_numbers_and_extremes_of_truths() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            truths = x > 0
            return (
                torch.relu(x),
                truths.amax(0),
                truths.min(),
                truths.max(1).values,
                truths.min(1)[1],
                x[:0].split(2)[0],
            )

    x = torch.tensor([[-2, 0, 3], [1, 2, 0]])
    for result, expected in zip(poptorch.inferenceModel(Model())(x), Model()(x), strict=True):
        assert result.shape == expected.shape
        assert result.tolist() == expected.tolist()
