"""Extreme operands of every operation that PopTorch documents, against PyTorch: values and gradients."""

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from extremes import FLOAT, LIMITS, Difference, check, differ, filled

torch = pytest.importorskip("torch")

from supportedcases import CASES, COMPARISONS, POINTWISE, Supported, X, Y, case  # noqa: E402

from ipuperf import poptorch  # noqa: E402

pytestmark = pytest.mark.heavy

OTHERS = "atan2 copysign div fmod hypot logaddexp logaddexp2 remainder xlogy".split()
UNDOCUMENTED = {f"torch.{name}": case(getattr(torch, name), X, Y) for name in OTHERS if f"torch.{name}" not in CASES}
"""Functions of two tensors that PopTorch's documentation does not list."""
EVERY = {**CASES, **UNDOCUMENTED}
ELEMENTWISE = {*POINTWISE, *COMPARISONS, *UNDOCUMENTED}

FIXED = {"torch.bucketize": {1}, "torch.nn.BCELoss": {0, 1}}
"""Operands that have to be as they are: rising limits, probabilities."""
WHOLE = "add sub mul floor_divide remainder fmod maximum minimum bitwise_and bitwise_xor eq lt".split()
TOGETHER = 12


def in_type(case: Supported, half: bool) -> list[Any]:
    return [o.half() if half and o.is_floating_point() else o for o in case.operands]


class Together:
    """Cases in one export."""

    def __init__(self, cases: dict[str, Supported], half: bool, tools: ModuleType) -> None:
        from ipuperf.poptorch.export.module import export_model

        self.cases, self.tools = cases, tools
        self.keys = {name: f"case{number}" for number, name in enumerate(cases)}
        functions = {key: cases[name].function for name, key in self.keys.items()}
        operands = {key: in_type(cases[name], half) for name, key in self.keys.items()}
        self.module, self.start = tools.case_module()(functions, operands), torch.zeros(())
        self.exported = export_model(self.module, (self.start,), training=True)

    def fill(self, kind: str) -> None:
        """Give all operands other values, on both sides."""
        for name, key in self.keys.items():
            for number in range(len(self.cases[name].operands)):
                tensor = getattr(self.module, f"{key}_{number}").data
                if tensor.is_floating_point() and number not in FIXED.get(name, ()):
                    values = filled(kind, tensor.numpy(), number)
                    tensor.copy_(torch.from_numpy(values))
                    if (variable := self.exported.variables.get(f"{key}_{number}")) is not None:
                        variable.data[...] = values

    def exact(self, name: str) -> tuple[list[Any], dict[str, Any]]:
        """Results and gradients of PyTorch in float64; none where a function keeps to its type."""
        key = self.keys[name]
        operands = [getattr(self.module, f"{key}_{i}").data for i in range(len(self.cases[name].operands))]
        double = [o.double() if o.is_floating_point() else o for o in operands]
        module = self.tools.case_module()({key: self.cases[name].function}, {key: double})
        try:
            results, loss = module(self.start.double())
            if loss.requires_grad:
                loss.backward()
        except RuntimeError:
            return [], {}
        gradients = {of: p.grad.numpy() for of, p in module.named_parameters() if p.grad is not None}
        return [result.detach().numpy() for result in results[key]], gradients

    def differences(self) -> Iterator[tuple[str, str]]:
        """Operations whose values or gradients differ."""
        outcome = self.tools.run_stages(self.exported, [self.start])
        found, _ = self.exported.result_of(list(zip(outcome.outputs, self.exported.outputs, strict=True)))
        self.module.zero_grad()
        results, loss = self.module(self.start)
        if loss.requires_grad:
            loss.backward()
        parameters = dict(self.module.named_parameters())
        for name, key in self.keys.items():
            rows = name in ELEMENTWISE
            exact, slopes = self.exact(name)
            for number, ((mine, _), tensor) in enumerate(zip(found[key], results[key], strict=True)):
                if differ(mine, tensor.detach().numpy(), exact[number] if exact else None, rows=rows):
                    yield name, "values"
            for of, parameter in parameters.items():
                if of.startswith(f"{key}_"):
                    zero = np.zeros(parameter.shape, parameter.detach().numpy().dtype)
                    gradient = zero if parameter.grad is None else parameter.grad.numpy()
                    if differ(outcome.gradients.get(of, zero), gradient, slopes.get(of), rows=False):
                        yield name, "gradients"


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float16", marks=pytest.mark.slow(reason="as much again in the other type"))]
)
def test_extreme_operands_are_pytorchs(dtype: str) -> None:
    half, tools = dtype == "float16", importlib.import_module("stageruns")
    cases = {
        name: case
        for name, case in EVERY.items()
        if not case.random and (case.float16 or not half) and any(o.is_floating_point() for o in case.operands)
    }
    names, found = list(cases), set[Difference]()
    for first in range(0, len(names), TOGETHER):
        part = Together({name: cases[name] for name in names[first : first + TOGETHER]}, half, tools)
        for kind in FLOAT:
            part.fill(kind)
            found |= {(name, kind, dtype, of) for name, of in part.differences()}
    check("PopTorch", [dtype], found)


def test_whole_numbers_at_their_limits_are_pytorchs() -> None:
    pairs = [(x, y) for x in LIMITS for y in LIMITS if y and (x, y) != (-(2**31), -1)]
    x, y = (torch.tensor(side, dtype=torch.int32) for side in zip(*pairs, strict=True))

    class Whole(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> list[Any]:
            one = [-x, x.abs(), x << 1, torch.sign(x), x.sum(dtype=torch.int32), x.cumsum(0, dtype=torch.int32)]
            return [*(getattr(torch, name)(x, y) for name in WHOLE), *one]

    for result, reference in zip(poptorch.inferenceModel(Whole())(x, y), Whole()(x, y), strict=True):
        torch.testing.assert_close(result, reference, rtol=0, atol=0)
