"""Within ``forward`` tensors are on an IPU, and what is made where they are works; PyTorch as the oracle."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402

QUIET = poptorch.Options().showCompilationProgressBar(False)


class Formula(torch.nn.Module):
    """A formula, with a parameter and a buffer."""

    def __init__(self, formula: Any) -> None:
        super().__init__()
        self.formula = formula
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("state", torch.arange(3.0))
        self.layer = torch.nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.formula(self, x)


def _within(device: Any) -> Any:
    with device:
        return torch.ones(3)


def _cast(module: Any, x: Any) -> Any:
    with torch.autocast(device_type=x.device.type, enabled=False):
        return module.layer(x, x, x)[0]


MADE = {
    "zeros": lambda m, x: x + torch.zeros(3, device=x.device),
    "like another": lambda m, x: x + torch.arange(3, device=m.weight.device) + x.new_ones(3, device=m.state.device),
    "by name": lambda m, x: x + torch.full((3,), 2.0, device=str(x.device)) + torch.eye(3, device=f"ipu:{0}")[0],
    "of numbers": lambda m, x: x + torch.tensor([1.0, 2, 3], device=x.device) + torch.as_tensor(2.0, device=x.device),
    "like": lambda m, x: torch.ones_like(x, device=x.device) + torch.empty_like(x, device=x.device).zero_(),
    "moved": lambda m, x: x.to(x.device) + x.to(device=x.device, dtype=torch.float32) + x.to(x.device, torch.float32),
    "moved to another's": lambda m, x: x.to(m.weight) + m.state.to(x.device, non_blocking=True) + x.to("ipu"),
    "a default": lambda m, x: x + _within(x.device),
    "compared": lambda m, x: x + (1 if x.device == m.weight.device == (x + 1).device == m.state.device else 2),
    "without casts": _cast,
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_where_tensors_are(name: str) -> None:
    torch.manual_seed(1)
    model, x = Formula(MADE[name]).eval(), torch.randn(2, 4, 3)
    if name in ("by name", "moved to another's"):  # PyTorch itself has no IPU
        formula = {"by name": lambda m, x: x + 2 + torch.eye(3)[0], "moved to another's": lambda m, x: 2 * x + m.state}
        expected = formula[name](model, x)
    else:
        expected = model(x)
    torch.testing.assert_close(poptorch.inferenceModel(model, QUIET)(x), expected.detach())


def test_tensors_say_that_they_are_on_an_ipu() -> None:
    """In ``forward``, to the program alone; not before or afterwards."""
    seen: list[Any] = []

    def look(module: Any, x: Any) -> Any:
        made, parameter = torch.zeros(3) + x, next(module.parameters())
        for tensor in (x, made, parameter, module.state, torch.tensor([1.0])):
            seen.append((tensor.device, tensor.device.type, tensor.is_ipu, tensor.is_cpu, tensor.is_cuda))
        seen.append((x.get_device(), x.device.index))
        return made

    model, x = Formula(look), torch.randn(3, 3)
    result = poptorch.inferenceModel(model, QUIET)(x)
    assert set(seen[:5]) == {(torch.device("ipu", 0), "ipu", True, False, False)}
    assert seen[5] == (0, 0)
    assert {t.device.type for t in (x, result, model.weight, model.state)} == {"cpu"}


def test_libraries_choose_fixed_shapes() -> None:
    """A dense batch of a graph library: as many rows as there may be, where the device asks for fixed shapes."""

    def dense(x: Any, batch: Any, rows: int) -> Any:
        if x.device.type != "ipu":
            return torch.stack([torch.cat([p, p.new_zeros(rows - len(p), x.shape[1])]) for p in
                                (x[batch == i] for i in range(int(batch.max()) + 1))])  # fmt: skip
        counts = torch.zeros(3, dtype=torch.long, device=x.device).scatter_add(0, batch, torch.ones_like(batch))
        place = torch.arange(len(batch), device=x.device) - (counts.cumsum(0) - counts)[batch] + batch * rows
        return torch.zeros(3 * rows, x.shape[1], device=x.device).index_copy(0, place, x).view(3, rows, -1)

    class Dense(torch.nn.Module):
        def forward(self, x: Any, batch: Any) -> Any:
            return dense(x, batch, 4)

    x, batch = torch.randn(7, 2), torch.tensor([0, 0, 1, 1, 1, 2, 2])
    torch.testing.assert_close(poptorch.inferenceModel(Dense(), QUIET)(x, batch), Dense()(x, batch))


def test_autocast_of_the_ipu_casts_to_float16() -> None:
    class Cast(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            with torch.autocast(x.device.type):
                return x @ w

    x, w = torch.randn(2, 3), torch.randn(3, 4)
    result = poptorch.inferenceModel(Cast(), QUIET)(x, w)
    assert result.dtype == torch.float16
    torch.testing.assert_close(result, (x.half() @ w.half()), rtol=2e-3, atol=2e-3)


def test_an_op_of_a_library_with_shapes_of_its_own_is_refused() -> None:
    """Its shapes are computed by the program's code, which may make tensors where its operands are."""

    @torch.library.custom_op("ipuperf_tests::doubled", mutates_args=(), schema="(Tensor x) -> Tensor")
    def doubled(x: Any) -> Any:
        return x * 2

    doubled.register_fake(lambda x: torch.empty(x.shape, device=x.device, dtype=x.dtype))
    doubled.register_autograd(lambda context, gradient: gradient * 2)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return poptorch.identity_loss(doubled(self.layer(x)), "sum")

    model = Model()
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="ipuperf_tests::doubled is unsupported"):
        step(torch.ones(2, 2))
