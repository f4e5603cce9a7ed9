"""What ``forward`` does to the layout of tensors in place and to views whose elements overlap; PyTorch as oracle."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402

X = torch.arange(6.0).reshape(1, 2, 3)


class Applied(nn.Module):
    """``function`` of the input; or of a buffer, whose elements come back."""

    def __init__(self, function: Any, buffer: Any = None) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("state", buffer)

    def forward(self, x: Any) -> Any:
        return self.function(x) if self.state is None else (self.function(self.state), self.state * x.sum())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.unsqueeze_(1) + 1,
        lambda x: x.squeeze_(0).mul_(2),
        lambda x: x.swapdims_(0, 2).transpose_(0, 1)[0] * 3,
        lambda x: x.squeeze_().t_().add_(1).sum(1),
        lambda x: x.transpose_(1, 2).transpose_(1, 2) + 1,
    ],
)
def test_inputs_are_reshaped_for_the_model_only(function: Any) -> None:
    ours, theirs = X.clone(), X.clone()
    found = poptorch.inferenceModel(Applied(function))(ours)
    assert torch.equal(found, function(theirs))
    assert torch.equal(ours.flatten(), theirs.reshape(1, 2, 3).flatten() if theirs.is_contiguous() else ours.flatten())
    assert ours.shape == X.shape


def test_reshaped_inputs_of_stages() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x: Any, y: Any) -> Any:
            with poptorch.Block("first", ipu_id=0):
                h = self.first(x.squeeze_(1).mul_(2))
            with poptorch.Block("second", ipu_id=1):
                z = self.second(h + x)
                return z, poptorch.identity_loss((z - y.unsqueeze_(1)).square().mean(), "none")

    torch.manual_seed(1)
    ours = Model()
    theirs = copy.deepcopy(ours)
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    model = poptorch.trainingModel(ours, options, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1))
    x, y = torch.randn(8, 1, 3), torch.randn(8)
    before = x.clone()
    model(x, y)
    assert torch.equal(x, 2 * before)
    losses = [theirs(a.clone(), b)[1] for a, b in zip(before.split(2), y.split(2), strict=True)]
    (sum(losses) / 4).backward()
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["t_", "squeeze_", "unsqueeze_", "transpose_", "swapdims_"])
def test_buffers_keep_their_layout(name: str) -> None:
    axes = {"unsqueeze_": (0,), "transpose_": (0, 1), "swapdims_": (0, 1)}.get(name, ())
    model = poptorch.inferenceModel(Applied(lambda b: getattr(b, name)(*axes).sum(), torch.ones(1, 3)))
    with pytest.raises(poptorch.Error, match="forward changes the layout of buffer 'state' in place.*keeps its shape"):
        model(X)


def test_buffers_that_end_as_they_were() -> None:
    module = Applied(lambda b: b.t_().add_(torch.arange(6.0).reshape(3, 2)).t_().sum(1), torch.zeros(2, 3))
    other = copy.deepcopy(module)
    model = poptorch.inferenceModel(module)
    for _ in range(2):
        for a, b in zip(model(X), other(X), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.unfold(2, 2, 1).add_(1),
        lambda x: x.unfold(2, 2, 1)[0, 1].zero_(),
        lambda x: x.as_strided((2, 2), (1, 1)).mul_(2),
        lambda x: x.as_strided((2, 2), (1, 1))[0].mul_(2),
    ],
)
def test_overlapping_views_are_not_changed(change: Any) -> None:
    def function(x: Any) -> Any:
        y = x * 1
        change(y)
        return y

    with pytest.raises(poptorch.Error, match="test_poptorch_layouts_in_place.py:.*(overlap|several elements)"):
        poptorch.inferenceModel(Applied(function))(X)


def test_overlapping_views_are_read_and_windows_side_by_side_changed() -> None:
    def function(x: Any) -> Any:
        y = x + 0
        y.flatten().unfold(0, 3, 3).mul_(2)
        return y.flatten().unfold(0, 2, 1).sum(1)

    assert torch.equal(poptorch.inferenceModel(Applied(function))(X), function(X))


@pytest.mark.parametrize(("shape", "layer"), [((6, 3), nn.BatchNorm1d), ((4, 3, 2, 2), nn.BatchNorm2d)])
def test_cumulative_statistics_of_batch_norms(shape: tuple[int, ...], layer: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = layer(3, momentum=None)

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            return y, poptorch.identity_loss((y * x).sum(), "none")

    torch.manual_seed(1)
    ours = Model()
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    model = poptorch.trainingModel(ours, optimizer=optimizers[0])
    for _ in range(3):
        x = torch.randn(shape) * 2 + 1
        _, expected = theirs(x)
        optimizers[1].zero_grad()
        expected.backward()
        optimizers[1].step()
        torch.testing.assert_close(model(x)[1], expected)
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert int(a) == 3 if name.endswith("tracked") else torch.allclose(a, b, atol=1e-5), name
    x = torch.randn(shape)
    torch.testing.assert_close(poptorch.inferenceModel(ours.eval())(x)[0], theirs.eval()(x)[0])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32])
def test_truths_drawn_in_place(dtype: Any) -> None:
    def function(x: Any) -> Any:
        drawn = torch.zeros(4000, dtype=dtype).bernoulli_(0.25)
        return drawn, torch.ones(5, dtype=dtype).bernoulli_(0), torch.zeros(5, dtype=dtype).bernoulli_(1)

    drawn, never, always = poptorch.inferenceModel(Applied(function))(X)
    assert drawn.dtype == dtype
    assert abs(float(drawn.float().mean()) - 0.25) < 0.03
    assert not never.any()
    assert always.all()
