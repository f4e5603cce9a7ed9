"""The rows of ``arguments.csv``: arguments of a vocabulary that do not reach the function, or not always."""

from __future__ import annotations

import ast
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
        default: where there is one.
        required: a program has to give it, also where the function has a default.
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
    required: bool
    status: str
    reason: str
    neutral: tuple[Any, ...]

    def asks(self, value: Any) -> bool:
        """Whether ``value`` asks for anything else than what happens anyway."""
        if self.status == "applied":
            return False
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
        None if line["default"] == "required" else _literal(line["default"], None),
        line["default"] == "required",
        line["status"],
        line["reason"],
        # The comma makes a tuple of a single value.
        _literal(f"{line['neutral']}," if line["neutral"] else "", ()),
    )
    for line in table("arguments.csv")
)
