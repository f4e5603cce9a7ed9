"""Changes in place that autograd does not see, and what ``forward`` may do with attributes; PyTorch as the oracle."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402


def _quietly(change: Any) -> Any:
    def run(h: Any) -> None:
        with torch.no_grad():
            change(h)

    return run


def _twice(h: Any) -> None:
    view = h[0]
    view.mul_(2)
    view.add_(1)


def _flat(h: Any) -> None:
    h.view(-1)[2:4].zero_()


def _row(row: Any) -> None:
    with torch.no_grad():
        row.mul_(3)


def _all_rows(h: Any) -> None:
    h[:] = h * 2
    with torch.no_grad():
        h[-2:] += 1


def _of_data(h: Any) -> None:
    h.data[h.data < 0] = 0
    h.data = h.data + 1


def _of_detached(h: Any) -> None:
    turned = h.detach().t()
    turned.mul_(2)
    turned[0] = 1


CHANGES = {
    "add_": _quietly(lambda h: h.add_(1)),
    "a row": _quietly(lambda h: h.__setitem__(0, 0.5)),
    "views": _quietly(_twice),
    "rows that are all": _all_rows,
    "a flat view": _quietly(_flat),
    "a row of the gradient": lambda h: _row(h[0]),
    "out=": _quietly(lambda h: torch.mul(h, 2, out=h)),
    "inplace=": _quietly(lambda h: nn.functional.relu(h, inplace=True)),
    "data": _of_data,
    "detach()": _of_detached,
    "seen": lambda h: h.mul_(3),
}


class Changed(nn.Module):
    """A loss for each change."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in CHANGES)

    def forward(self, x: Any) -> Any:
        found = []
        for layer, change in zip(self.layers, CHANGES.values(), strict=True):
            h = layer(x) * 2
            change(h)
            found.append(torch.tanh(h) * h)
        return found, poptorch.identity_loss(torch.stack(found).square().sum(), "none")


@pytest.mark.heavy
def test_gradients_flow_as_if_nothing_was_changed() -> None:
    torch.manual_seed(1)
    model = Changed()
    theirs = copy.deepcopy(model)
    x = torch.randn(2, 3)
    ours = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    results, _ = ours(x)
    expected, loss = theirs(x)
    loss.backward()
    for name, result, want, ipu, cpu in zip(CHANGES, results, expected, model.layers, theirs.layers, strict=True):
        torch.testing.assert_close(result, want.detach(), msg=name)
        torch.testing.assert_close(ipu.weight.data, cpu.weight.detach() - 0.1 * cpu.weight.grad, msg=name)


class Attributes(nn.Module):
    """Something done to the buffer ``state``, or to other attributes."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2))
        self.change = change

    def forward(self, x: Any) -> Any:
        self.change(self, x)
        return x + getattr(self, "state", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m, x: setattr(m, "state", x),
            r"state is reassigned: .* self\.state\.copy_\(new\)",
        ),
        (lambda m, x: m._buffers.update(state=x + 1), "Buffer state is reassigned"),
        (lambda m, x: m._buffers.pop("state"), "Buffer state is removed from the model"),
        (lambda m, x: setattr(m.state, "data", x[:1]), r"shape \(1,\) given; allowed is .* shape \(2,\)"),
    ],
)
def test_a_buffer_that_is_replaced_is_an_error(change: Any, message: str) -> None:
    model = Attributes(change)
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(model)(torch.ones(2))
    assert type(model.state) is torch.Tensor
    assert model.state.tolist() == [0.0, 0.0]


def test_numbers_of_a_buffer_change_and_attributes_leave_nothing_behind() -> None:
    def change(model: Any, x: Any) -> None:
        model.state.data = model.state.data + x
        model.seen = x * 2
        model.register_buffer("late", x * 3)

    model = Attributes(change)
    program = poptorch.inferenceModel(model)
    assert [program(torch.ones(2)).tolist() for _ in range(2)] == [[2.0, 2.0], [3.0, 3.0]]
    assert not hasattr(model, "seen")
    assert set(model._buffers) == {"state"}


@pytest.mark.parametrize("change", [torch.Tensor.zero_, lambda view: view.fill_(5), lambda view: view.add_(1)])
def test_a_change_of_an_expanded_view_is_refused(change: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            y = x * 1.0
            change(y.expand(2, 3))
            return y + 1

    message = (
        r"shape \(2, 3\) several elements of which are one \(a view by expand\); allowed: change what was expanded"
    )
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(Model())(torch.ones(1, 3))


def test_a_row_of_an_expanded_view_is_changed_as_in_pytorch() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            y = x * 1.0
            y.expand(2, 3)[0].add_(1)
            return y + 1

    x = torch.tensor([[2.0, 3.0, 4.0]])
    assert torch.equal(poptorch.inferenceModel(Model())(x), Model()(x))
