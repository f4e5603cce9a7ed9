"""``Precision.enableFloatingPointExceptions``: the op that makes infinity or NaN of numbers stops the program."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402


class Formula(torch.nn.Module):
    def __init__(self, formula: Callable[[Any], Any]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, x: Any) -> Any:
        return self.formula(x)


def ran(formula: Callable[[Any], Any], x: Any, enabled: bool = True) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Precision.enableFloatingPointExceptions(enabled)
    return poptorch.inferenceModel(Formula(formula), options)(x)


X = torch.tensor([[1.0, 0.0], [-2.0, 3.0]])
HALF = torch.tensor([[300.0, 2.0]], dtype=torch.half)
RAISING: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "division by zero": (lambda x: 1 / x, X, r"an overflow or a division by zero.*replica 0, element \(0, 1\)"),
    "logarithm of 0": (lambda x: torch.log(x.abs()), X, "an overflow or a division by zero"),
    "root of a negative": (torch.sqrt, X, r"an invalid operation.*element \(1, 0\)"),
    "0 / 0": (lambda x: x / x, X, "an invalid operation"),
    "overflow of half": (lambda x: x * x, HALF, "an overflow"),
    "overflow of a product": (lambda x: x @ x.T, HALF, "MatMul.*an overflow"),
    "infinity less infinity": (lambda x: x - x, X / 0, "an invalid operation"),
}


@pytest.mark.parametrize(("formula", "x", "said"), RAISING.values(), ids=list(RAISING))
def test_exceptions(formula: Callable[[Any], Any], x: Any, said: str) -> None:
    where = __file__.rpartition("/")[2]
    with pytest.raises(poptorch.Error, match=f"(?s)Floating point exception: .*{said}") as caught:
        ran(formula, x.nan_to_num(posinf=torch.inf, nan=torch.inf))
    assert where in str(caught.value), "the user's line"
    assert not ran(formula, x, enabled=False).isfinite().all()


NAN = torch.tensor([1.0, torch.nan])
QUIET: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    **{
        f"comparison {name}": (lambda x, name=name: getattr(torch, name)(x, 0.5), NAN, "a comparison.*not a number")
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "division by infinity": (lambda x: torch.ones(2) / x, torch.tensor([1.0, torch.inf]), "a division by infinity"),
    "reciprocal of infinity": (torch.reciprocal, torch.tensor([1.0, torch.inf]), "a division by infinity"),
    "remainder by infinity": (lambda x: torch.ones(2) % x, torch.tensor([1.0, torch.inf]), "a division by infinity"),
    "infinity by zero": (lambda x: x / 0, torch.tensor([1.0, torch.inf]), "a division by zero"),
}
"""What the hardware raises for, though no result tells of it (``poptorch:python/options.py``)."""


@pytest.mark.parametrize(("formula", "x", "said"), QUIET.values(), ids=list(QUIET))
def test_exceptions_that_no_result_tells_of(formula: Callable[[Any], Any], x: Any, said: str) -> None:
    with pytest.raises(poptorch.Error, match=f"(?s)Floating point exception: .*{said}"):
        ran(formula, x)
    torch.testing.assert_close(ran(formula, x, enabled=False), formula(x), equal_nan=True)


FINE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "infinity that comes in": (lambda x: x + 1, torch.tensor([torch.inf, 1.0])),
    "NaN that comes in": (lambda x: x * 2, torch.tensor([torch.nan, 1.0])),
    "NaN that is asked for": (lambda x: torch.isnan(x) | torch.isfinite(x), NAN),
    "a mask": (lambda x: torch.softmax(x.masked_fill(x < 0, -torch.inf), -1), torch.tensor([[1.0, -1.0, 2.0]])),
    "underflow": (lambda x: torch.exp(x), torch.tensor([-200.0])),
    "integers": (lambda x: x + x, torch.tensor([2**30], dtype=torch.int32)),
}


@pytest.mark.parametrize(("formula", "x"), FINE.values(), ids=list(FINE))
def test_no_exceptions(formula: Callable[[Any], Any], x: Any) -> None:
    torch.testing.assert_close(ran(formula, x), formula(x), equal_nan=True)


def test_exceptions_in_a_backward_pass() -> None:
    """``sqrt`` of 0 is fine, its gradient is not."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([4.0, 0.0]))

        def forward(self) -> Any:
            return poptorch.identity_loss(torch.sqrt(self.w), "sum")

    options = poptorch.Options().showCompilationProgressBar(False)
    options.Precision.enableFloatingPointExceptions(True)
    with pytest.raises(poptorch.Error, match="a division by zero"):
        poptorch.trainingModel(Model(), options)()


def test_training_without_exceptions_has_the_same_values() -> None:
    losses = []
    for enabled in (False, True):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
        )

        class Model(torch.nn.Module):
            def __init__(self, layers: Any) -> None:
                super().__init__()
                self.layers = layers

            def forward(self, x: Any, y: Any) -> Any:
                return torch.nn.functional.cross_entropy(self.layers(x), y)

        options = poptorch.Options().showCompilationProgressBar(False)
        options.Precision.enableFloatingPointExceptions(enabled)
        options.Training.gradientAccumulation(2)
        model = poptorch.trainingModel(Model(layers), options, poptorch.optim.AdamW(layers.parameters(), lr=0.1))
        x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        losses.append([model(x, y) for _ in range(3)])
    torch.testing.assert_close(*losses, rtol=0, atol=0)


def test_bad_input() -> None:
    with pytest.raises(AssertionError, match="enableFloatingPointExceptions needs to be set to a bool"):
        poptorch.Options().Precision.enableFloatingPointExceptions(1)
