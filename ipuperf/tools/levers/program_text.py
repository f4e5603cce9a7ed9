"""The lines of a PopTorch program that a change needs, as a diff.

The text of the program is only read. A call that is not in it, as in a module that it imports, counts as missing, and
the call to add is given instead.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

_WRAPPERS = ("trainingModel", "inferenceModel")


@dataclass(frozen=True)
class ProgramText:
    """The text of a program.

    Attributes:
        text: the Python code; text that is none has no calls.
    """

    text: str

    def called(self, call: str, arguments: str) -> tuple[str, ...]:
        """The diff with which a method of the options, such as ``Training.gradientAccumulation``, is called so."""
        added = f"{self.options}.{call}({arguments})"
        present = [found for found in self._calls if f".{ast.unparse(found.func)}".endswith(f".{call}")]
        if call.endswith(".set"):  # the first argument is the key
            key = arguments.split(",")[0]
            present = [found for found in present if found.args and ast.unparse(found.args[0]) == key]
        # A program may have options for several models.
        present = [found for found in present if _root(found) == self.options] or present
        if not present:
            return (f"+ {added}",)
        last = present[-1]
        segment = ast.get_source_segment(self.text, last) or ""
        function = ast.get_source_segment(self.text, last.func) or ""
        return (*(f"- {line}" for line in segment.splitlines()), f"+ {function}({arguments})")

    def keyword(self, name: str, factor: Fraction, function: str = "") -> tuple[str, ...]:
        """The diff in which each argument called ``name`` (in calls of ``function``) is ``factor`` times as large."""
        pairs: dict[str, str] = {}
        for call in self._calls:
            if not ast.unparse(call.func).endswith(function):
                continue
            for keyword in call.keywords:
                if keyword.arg == name:
                    value = ast.get_source_segment(self.text, keyword.value) or ""
                    new_value = _multiplied(keyword.value, value, factor)
                    pairs[ast.get_source_segment(self.text, keyword) or ""] = f"{name}={new_value}"
        return tuple(line for old, new in pairs.items() if old != new for line in (f"- {old}", f"+ {new}"))

    @property
    def options(self) -> str:
        """The name of the options of the model."""
        return self._argument(1, "options")

    @property
    def module(self) -> str:
        """The name of the module that becomes the model."""
        return self._argument(0, "model")

    def _argument(self, place: int, name: str) -> str:
        for call in self._calls:
            if ast.unparse(call.func).split(".")[-1] in _WRAPPERS:
                named = [keyword.value for keyword in call.keywords if keyword.arg == name]
                found = named or call.args[place : place + 1]
                if found and isinstance(found[0], ast.Name | ast.Attribute):
                    return ast.unparse(found[0])
        return name

    @cached_property
    def _calls(self) -> tuple[ast.Call, ...]:
        try:
            tree = ast.parse(self.text)
        except SyntaxError:
            return ()
        return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _root(call: ast.Call) -> str:
    """The name of the object at the start of ``a.b.c(...)``; "" if it is no name."""
    node: ast.expr = call.func
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _multiplied(node: ast.expr, value: str, factor: Fraction) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return str(math.floor(node.value * factor))
    atom = value if isinstance(node, ast.Name | ast.Attribute) else f"({value})"
    return f"{atom} // {factor.denominator}" if factor < 1 else f"{factor} * {atom}"
