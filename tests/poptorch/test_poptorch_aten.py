"""Element-wise aten ops: value and gradients against PyTorch autograd; what a row of the catalogue names is compared by
``tests/catalogue``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from atencases import noise, positive  # noqa: E402

from ipuperf.poptorch.export.module import export_model  # noqa: E402

F = torch.nn.functional


A, B = noise(3, 4), noise(3, 4).flip(0) * 1.5

UNARY = {
    "round": lambda x: x.detach().round(),
    "relu": torch.relu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu_alpha": lambda x: F.elu(x, 0.5),
    "hardtanh": F.hardtanh,
    "softsign": F.softsign,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "clamp_max": lambda x: x.clamp_max(0.1),
    "pow2": lambda x: x**2,
    "pow3": lambda x: x**3,
    "tanhshrink": F.tanhshrink,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "isfinite": torch.isfinite,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "logical_not": torch.logical_not,
    "to_int": lambda x: (x * 10).int(),
    "to_bool": lambda x: x.bool(),
    "clone": torch.clone,
    "identity": torch.nn.Identity(),
    "softmax0": lambda x: x.softmax(0),
    "softmin": lambda x: F.softmin(x, 1),
    "normalize": F.normalize,
}

POSITIVE = {
    "pow_half": lambda x: x**0.5,
    "pow_minus": lambda x: x**-1,
    "pow_minus_half": lambda x: x**-0.5,
    "pow_other": lambda x: x**1.7,
    "prod": torch.prod,
    "two_to": lambda x: 2.0**x,
}

BINARY = {
    "add": torch.add,
    "add_alpha": lambda a, b: torch.add(a, b, alpha=2),
    "sub": torch.sub,
    "mul": torch.mul,
    "rsub": lambda a, b: torch.rsub(a, b, alpha=0.5),
    "div": lambda a, b: a / (b.abs() + 1),
    "div_floor": lambda a, b: torch.div(a, b.abs() + 0.1, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b.abs() + 0.1, rounding_mode="trunc"),
    "where": lambda a, b: torch.where(a > b, a, b),
    "where_scalar": lambda a, b: torch.where(a > 0, b, 1.5),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, -3.0),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b.abs() + 1, value=0.5),
    "logical_and": torch.logical_and,
    "logical_xor": lambda a, b: torch.logical_xor(a > 0, b > 0),
    "bitwise": lambda a, b: ((a > 0) & (b > 0)) | ~(a > b) ^ (b > 0.5),
    "add_scalar": lambda a, b: a + 2 + b * 3 - 1,
    "clamp_tensor": lambda a, b: torch.clamp(a, b.detach() - 0.1, b.detach() + 0.1),
    "in_place": lambda a, b: (a * 1).add_(b).mul_(2).relu_(),
    "broadcast": lambda a, b: a[:, :1] * b[:1],
    "cosine": F.cosine_similarity,
    "set_item": lambda a, b: _set(a, b),
    "set_mask": lambda a, b: _set_mask(a, b),
}


def _set(a: Any, b: Any) -> Any:
    c = a * 1
    c[:, 1] = b[:, 0]
    c[0:2, 2:] = 5.0
    return c


def _set_mask(a: Any, b: Any) -> Any:
    c = a * 1
    c[b > 0] = 0.0
    return c


def test_functions(check_all: Any) -> None:
    check_all(UNARY, A)


def test_gelu_is_the_tanh_form_whatever_is_asked_for(stages: Any) -> None:
    """PopTorch makes PopART's Gelu of both; the error function would differ from it in the fourth digit."""
    x = torch.linspace(-4, 4, 65)
    exported = export_model(torch.nn.GELU(), (x,))
    assert [op.type for op in exported.parts[0].graph.ops] == ["Gelu"]
    (result,) = stages(exported, [x]).outputs
    np.testing.assert_allclose(result, F.gelu(x, approximate="tanh").numpy(), rtol=1e-5, atol=1e-6)
    assert 1e-4 < np.abs(result - F.gelu(x).numpy()).max() < 1e-3


def test_conversion_to_half(check_all: Any) -> None:
    check_all({"only": lambda x: (x.half(), x.half().float() * 2)}, A, rtol=2e-3, atol=2e-3)


def test_functions_of_positive_numbers(check_all: Any) -> None:
    check_all(POSITIVE, positive(3, 4))


def test_two_operands(check_all: Any) -> None:
    check_all(BINARY, A, B)


WHOLE = {
    "arithmetic": lambda a, b: (a + b, a - b, a * b, a // b, a % b, torch.fmod(a, b), a.abs(), -a, a.clamp(0, 5)),
    "mixed": lambda a, b: (a / b, a + 0.5, a.float() * 2, a > 3, a == b, a.bool() & b.bool(), a**2),
    "reductions": lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), a.sum(), a.max(), a.cumsum(0), a.sign()),
}


def test_whole_numbers(check_all: Any) -> None:
    check_all(WHOLE, torch.tensor([7, -7, 7, -7, 6]), torch.tensor([2, 2, -2, -2, 3]))
