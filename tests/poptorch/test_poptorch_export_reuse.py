"""A program that was simplified before is not simplified again, and one that differs is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch.export import trace as export_trace  # noqa: E402
from ipuperf.poptorch.export.reuse import Kept, Unknown, _value  # noqa: E402
from ipuperf.poptorch.export.structure import Signature, flatten  # noqa: E402
from ipuperf.poptorch.export.surroundings import quiet  # noqa: E402

F = torch.nn.functional


class Network(torch.nn.Module):
    """A layer of seeded weights, a constant, an option, and what is done with the result."""

    def __init__(
        self, *, size: int = 3, constant: float = 0.5, slope: float = 0.1, tied: bool = False, last: Any = torch.tanh
    ) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(size, size), torch.nn.Linear(size, size)
        if tied:
            self.two.weight = self.one.weight
        self.constant = constant
        self.slope, self.last = slope, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.leaky_relu(self.two(self.one(x)), self.slope).reshape(-1) + torch.tensor(self.constant)
        return self.last(y.add_(1.0))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Nothing is kept yet."""
    monkeypatch.setattr(export_trace, "_KEPT", Kept())
    return export_trace._KEPT


@pytest.fixture
def simplified(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Programs that are simplified."""
    seen: list[Any] = []
    done = export_trace._simplified
    monkeypatch.setattr(export_trace, "_simplified", lambda program: done(seen.append(program) or program))
    return seen


def _trace(module: torch.nn.Module, *shape: int, dtype: Any = torch.float32) -> Any:
    arguments, leaves, _ = flatten({"x": torch.zeros(*shape, dtype=dtype)})
    return export_trace.trace(module, Signature(module.forward), arguments, leaves)


@pytest.mark.usefixtures("kept")
def test_equal_programs_are_simplified_once(simplified: list[Any]) -> None:
    first, second = (_trace(Network(), 2, 3) for _ in range(2))
    assert len(simplified) == 1
    assert first.program.graph is second.program.graph
    assert first.program.constants.keys() == second.program.constants.keys()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    "other",
    [
        lambda: _trace(Network(), 4, 3),
        lambda: _trace(Network(size=4), 2, 4),
        lambda: _trace(Network(constant=0.25), 2, 3),
        lambda: _trace(Network(slope=0.2), 2, 3),
        lambda: _trace(Network(tied=True), 2, 3),
        lambda: _trace(Network(last=torch.sigmoid), 2, 3),
        lambda: _trace(Network().half(), 2, 3, dtype=torch.float16),
    ],
)
def test_another_program_is_another(other: Callable[[], Any], simplified: list[Any]) -> None:
    _trace(Network(), 2, 3)
    other()
    assert len(simplified) == 2


@pytest.mark.usefixtures("kept")
def test_numbers_are_those_of_the_second_model(simplified: list[Any]) -> None:
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Network().eval()
        np.testing.assert_allclose(poptorch.inferenceModel(model)(x), model(x).detach(), rtol=1e-5, atol=1e-6)
    assert len(simplified) == 1


@pytest.mark.parametrize(
    "constant",
    [
        torch.zeros(()),
        torch.zeros(0),
        torch.ones(2, 3).T,
        torch.ones(3).bfloat16(),
        torch.tensor([True, False]),
        torch.empty(5, device="meta"),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_constants_of_every_kind_are_told_apart(constant: torch.Tensor) -> None:
    assert _value(constant) == _value(constant.detach().requires_grad_(constant.requires_grad))
    if constant.numel() and constant.device.type != "meta":
        assert _value(constant) != _value(constant.detach().logical_not().to(constant.dtype))


def test_what_has_no_numbers_that_can_be_told_is_not_kept() -> None:
    with pytest.raises(Unknown):
        _value(torch.ones(2, dtype=torch.complex64))
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(2)
    with pytest.raises(Unknown):
        _value(fake)


@pytest.mark.heavy
def test_what_was_not_used_for_long_goes() -> None:
    small = Kept(nodes=2 * len(_trace(Network(), 2, 3).program.graph.nodes))
    with quiet():
        programs = [torch.export.export(Network(size=n), (torch.zeros(2, n),), strict=False) for n in (3, 4, 5)]
    calls: list[Any] = []

    def simplify(program: Any) -> Any:
        calls.append(program)
        with quiet():
            return export_trace._simplified(program)

    for index in (0, 1, 0, 2, 0, 1):
        small.simplified(programs[index], simplify, export_trace._annotation)
    assert [programs.index(p) for p in calls] == [0, 1, 2, 1]


@pytest.mark.usefixtures("kept")
def test_an_op_of_the_users_own_is_simplified_each_time(simplified: list[Any]) -> None:
    @torch.library.custom_op("ipuperf_reuse_test::same", mutates_args=())
    def same(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @same.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    for _ in range(2):
        _trace(Network(last=same), 2, 3)
    assert len(simplified) == 2
