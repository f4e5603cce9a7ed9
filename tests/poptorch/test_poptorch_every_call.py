"""Calls of PyTorch with arguments of every kind: values and gradients as PyTorch's, and the ops they become."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from outcomes import outcome
from rows import Golden

torch = pytest.importorskip("torch")

from callcases import SUBJECTS, called, calls_of  # noqa: E402
from stageruns import case_module  # noqa: E402

from ipuperf.poptorch.export.module import export_model  # noqa: E402

PLACE = str(Path(__file__).parent / "callcases.py")
TOGETHER = 14
"""Calls in one export: PyTorch takes longer for an export than for what is in it."""
CASES = {
    f"{subject} {first}": calls[first : first + TOGETHER]
    for subject in SUBJECTS
    for calls in [calls_of(subject)]
    for first in range(0, len(calls), TOGETHER)
}


def exported(check_all: Any, calls: list[str]) -> Any:
    """The calls in one export; where that is not as PyTorch says, each alone tells which."""

    def check(numbers: list[int]) -> Any:
        made = {f"call{n}": called(calls[n - 1], n, PLACE) for n in numbers}
        functions = {name: function for name, (function, _) in made.items()}
        return check_all(functions, operands={name: given for name, (_, given) in made.items()})

    numbers = list(range(1, len(calls) + 1))
    try:
        return check(numbers)
    except Exception:
        for number in numbers:
            try:
                check([number])
            except Exception as error:
                raise AssertionError(f"{calls[number - 1]}: {error}") from error
        raise


def ops_of(model: Any) -> dict[int, list[str]]:
    """The ops of an export by the line of the call they come from."""
    found: dict[int, list[str]] = defaultdict(list)
    for part in model.parts:
        for op in part.graph.ops:
            file, _, line = op.location.rpartition(":")
            if file == PLACE:
                found[int(line)].append(type(op).__name__ + (drawn(op.attributes) if "key" in op.attributes else ""))
    return found


def drawn(attributes: Any) -> str:
    """What random numbers are drawn: their values cannot be compared."""
    return f"({', '.join(f'{name}={value}' for name, value in attributes.items() if name != 'key')})"


def model_of(calls: list[str], first: int = 1) -> Any:
    """The export of some calls, for training; ``first`` is the line of the first."""
    made = {f"call{n}": called(call, n, PLACE) for n, call in enumerate(calls, first)}
    functions = {name: function for name, (function, _) in made.items()}
    case = case_module()(functions, {name: given for name, (_, given) in made.items()})
    return export_model(case, (torch.zeros(()),), training=True)


@pytest.mark.heavy
@pytest.mark.parametrize("group", CASES)
def test_calls_are_pytorchs(group: str, check_all: Any, golden: Golden) -> None:
    model = exported(check_all, CASES[group])
    golden(rows_of(CASES[group], model))


def rows_of(calls: list[str], model: Any) -> list[str]:
    """A line for each call: its ops, sorted, as releases of PyTorch order them each in its way."""
    ops = ops_of(model)
    return [f"{call}: {' '.join(sorted(ops[n]))}" for n, call in enumerate(calls, 1)]


@pytest.mark.heavy
def test_what_random_calls_draw(golden: Golden) -> None:
    calls = calls_of("random")
    golden(rows_of(calls, model_of(calls)))


@pytest.mark.parametrize("call", calls_of("refused"))
def test_calls_that_are_refused(call: str, golden: Golden) -> None:
    def told() -> str:
        return str(model_of([call], first=9999))

    text = outcome(told, str).replace(str(Path(PLACE).parent), "")
    assert "Error: " in text, f"works: {text[:100]}"
    golden(text[:300])


MODULES = {
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.fft": torch.fft,
    "F": torch.nn.functional,
}
#: Tools of the module itself, and products in formats of floating point that no IPU has.
NO_CALLS = {
    *("Optional", "assert_int_or_pair", "boolean_dispatch", "handle_torch_function", "has_torch_function"),
    *("has_torch_function_unary", "has_torch_function_variadic", "scaled_grouped_mm", "scaled_mm"),
}  # fmt: skip


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="a later PyTorch has functions of its own")
@pytest.mark.parametrize("module", MODULES)
def test_every_public_function_is_called(module: str) -> None:
    """Each works or is refused in a line of the cases."""
    text = "\n".join(call for subject in (*SUBJECTS, "random", "refused") for call in calls_of(subject))
    names = [name for name, value in vars(MODULES[module]).items() if callable(value) and not isinstance(value, type)]
    missing = [name for name in names if not re.search(rf"\b{re.escape(module)}\.{name}\(", text)]
    assert {name for name in missing if not name.startswith("_")} <= NO_CALLS


def test_gradients_stop_where_a_function_of_pytorch_detaches(stages: Any) -> None:
    """A hard sample has the gradient of the soft one: PyTorch takes what makes it hard without one."""
    (found,) = stages(model_of(["F.gumbel_softmax(x, hard=True)"]), [torch.zeros(())]).gradients.values()
    assert abs(found).max() > 1e-3
    assert abs(found.sum(1)).max() < 1e-6
