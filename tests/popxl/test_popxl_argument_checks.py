"""What the checks of arguments make of values, by the annotation of a parameter: a golden row for each annotation."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from answers import answer
from rows import Golden

from ipuperf import popxl
from ipuperf.popxl import arguments

ANNOTATIONS = """
int; int | None; Sequence[int]; Sequence[int] | None; Iterable[int]; tuple[int, ...]; int | Tensor; int | Sequence[int]
int | float; float; bool; str; str | int; Tensor; TensorByRef; Operand; ndarray; dtype; DType | None; Sequence[Tensor]
Mapping[str, int]; Callable[..., Any]; Any; print; int | list[int]
"""
CHECKS = {
    "arguments": arguments.checked_arguments,
    "kinds": arguments.checked_kinds(),
    "own": arguments.checked_kinds("a"),
}


@pytest.fixture
def values() -> Iterator[list[Any]]:
    ir = popxl.Ir()
    with ir.main_graph:
        yield [
            None, 0, 3, -1, True, 1.5, 2.0, "x", "float32", [], [1, 2], (1, 2.0), (True,), [[1], [2]], range(2), {1: 2},
            {"a": 1}, np.int8(3), np.bool_(True), np.float32(2), np.array(3), np.array(1.5), np.array([1, 2]),
            popxl.variable(1.0, name="v"), [popxl.variable(2.0, name="u")], popxl.float16,
            np.float32, np.dtype("int8"), len,
        ]  # fmt: skip


def shortened(text: str, value: Any) -> str:
    """An answer. Releases of NumPy write its numbers in two ways: of them, whether there is an error."""
    if not isinstance(value, np.generic | np.dtype):
        return text
    return text[:3] if "Error: " in text else "."


@pytest.mark.parametrize("annotation", ANNOTATIONS.strip().replace("\n", "; ").split("; "))
def test_every_annotation(annotation: str, golden: Golden, values: list[Any]) -> None:
    """Given in place, by name, and by name alone."""
    names: dict[str, Any] = {}
    exec(f"def f(a: '{annotation}' = 5, *, b: '{annotation}' = 6): return a, b", names)
    lines = []
    for name, check in CHECKS.items():
        call = check(names["f"])
        lines += [name, answer(lambda call=call: call("x"))]
        for way in (lambda v, call=call: call(v), lambda v, call=call: call(a=v), lambda v, call=call: call(b=v)):
            lines += [shortened(answer(lambda v=v, way=way: way(v)), v) for v in values]
    golden(lines)


@pytest.mark.parametrize(
    ("value", "least"),
    [
        (3, None),
        (3, 3),
        (2, 3),
        (-1, None),
        (0, 1),
        (True, None),
        (2.0, None),
        ("3", None),
        (np.array(5), None),
    ],
)
def test_whole_numbers(value: Any, least: int | None, golden: Golden) -> None:
    golden({
        "one": answer(lambda: arguments.whole(value, "n", least)),
        "several": answer(lambda: arguments.wholes([7, value], "n", least)),
        "not several": answer(lambda: arguments.wholes(value, "n", least)),
    })  # fmt: skip
