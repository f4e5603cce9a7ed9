"""The rows of ``arguments.csv``: arguments of a vocabulary that do not reach the function, or not always."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from typing import Any

from .rows import table


@dataclass(frozen=True)
class Argument:
    """An argument of a function in one vocabulary.

    Attributes:
        vocabulary: ``popxl``.
        function: its name there.
        name: of the argument.
        place: among the arguments; None for an argument that the function has too.
        annotation: its type.
        default: :attr:`inspect.Parameter.empty` where a program has to give it.
        status: what it does (:mod:`ipuperf.runtime.effects`).
        reason: why.
        neutral: values, or elements of them, that ask for what happens anyway.
    """

    vocabulary: str
    function: str
    name: str
    place: int | None
    annotation: str
    default: Any
    status: str
    reason: str
    neutral: tuple[Any, ...]

    def asks(self, value: Any) -> bool:
        """Whether ``value`` asks for anything else than what happens anyway."""
        elements = value if isinstance(value, (list, tuple)) else [value]
        return value is not None and any(element not in self.neutral for element in elements)


def _literal(text: str, otherwise: Any) -> Any:
    return ast.literal_eval(text) if text else otherwise


ARGUMENTS = tuple(
    Argument(
        line["vocabulary"],
        line["function"],
        line["argument"],
        _literal(line["place"], None),
        line["annotation"],
        _literal(line["default"], inspect.Parameter.empty),
        line["status"],
        line["reason"],
        _literal(f"{line['neutral']}," if line["neutral"] else "", ()),
    )
    for line in table("arguments.csv")
)
