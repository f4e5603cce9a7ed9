"""The rows of ``functions.csv``."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ipuperf import ops
from ipuperf.functions.families import of_op


@dataclass(frozen=True)
class Row:
    """A function and its names.

    Attributes:
        function: its name below ``ipuperf.functions`` (``arithmetic.exp``), or the op that it makes of its operands
            (``ops.Exp``), where there is nothing else to it.
        popxl: names in ``popxl.ops``.
        aten: operations of PyTorch, with the overload where overloads differ (``max.other``); their arguments come in
            the order of the function's.
        tensorflow: types of ops in TensorFlow's graphs, whose operands are those of the function.
        keras: activations of Keras, which TensorFlow writes as ops of its graphs.
        types: the rule for the types of PyTorch's operands (``frontends/poptorch/aten/rules.py``); by default they take
            the type of the result. The other vocabularies compute in the type of the operands.
        oracle: the function of PyTorch that gives the same.
        operands: arguments to compare with: kinds of tensors (``tests/catalogue/drawing.py``), and numbers.
        cost: the kinds of work of its ops (classes of ``ops/work.py``).
    """

    function: str
    popxl: tuple[str, ...]
    aten: tuple[str, ...]
    tensorflow: tuple[str, ...]
    keras: tuple[str, ...]
    types: str
    oracle: str
    operands: str
    cost: tuple[str, ...]

    @property
    def implementation(self) -> Callable[..., Any]:
        """The function itself."""
        module, _, name = self.function.partition(".")
        if module == "ops":
            return of_op(getattr(ops, name))
        function: Callable[..., Any] = getattr(import_module(f"ipuperf.functions.{module}"), name)
        return function


def table(name: str) -> list[dict[str, str]]:
    """The lines of a table of the catalogue, by column."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _row(line: dict[str, str]) -> Row:
    names: dict[str, Any] = {key: tuple(line[key].split()) for key in ("popxl", "aten", "tensorflow", "keras", "cost")}
    return Row(**{**line, **names})


ROWS = tuple(_row(line) for line in table("functions.csv"))
