"""Constraints: expressions over factors with arithmetic, comparisons and logic, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import Any

from ipuperf.base.near_names import instead_of
from ipuperf.tools.errors import SweepError

_LONGEST = 1_000
"""The largest number of characters of an expression."""


def _numbers(operand: Any, text: str) -> Any:
    # Python multiplies texts and lists too, which could take any amount of memory.
    if not isinstance(operand, (int, float)):
        raise TypeError(f"{text!r} needs numbers")
    return operand


_FUNCTIONS = {f"{function.__name__}()": function for function in (min, max, abs, len)}
_GLOBALS: dict[str, object] = {"__builtins__": {}, "numbers()": _numbers, **_FUNCTIONS}
"""The functions that expressions call, by names that no factor has."""
_OPERATORS = (
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.UAdd, ast.USub),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.And, ast.Or, ast.Not),
)
_SYNTAX = (ast.Expression, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.List, ast.Tuple, ast.Load, *_OPERATORS)
_ALLOWED = "numbers, texts, lists, factors, + - * / // %, comparisons, in, and, or, not, min, max, abs, len"


class Constraint:
    """An expression that holds or does not hold for a configuration.

    Args:
        text: the expression, as in Python: ``stages * replicas <= 16 and machine != "pod4"``.
        factors: names that it may use.

    Raises:
        SweepError: the text is no expression, has something that is not allowed, or names an unknown factor.
    """

    def __init__(self, text: str, factors: Collection[str]) -> None:
        self.text = text
        if len(text) > _LONGEST:
            raise SweepError(f"constraint {text[:40]!r}...: {len(text):,} characters, allowed: {_LONGEST:,}")
        try:
            tree = _Checked(text, factors).visit(ast.parse(text.strip(), mode="eval"))
            self._code = compile(ast.fix_missing_locations(tree), "constraint", "eval")
        except SweepError:
            raise
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SweepError(f"constraint {text!r}: no expression: {getattr(error, 'msg', error)}") from None

    def holds(self, configuration: Mapping[str, Any]) -> bool:
        """Whether the constraint holds for a configuration.

        Raises:
            SweepError: it cannot be evaluated for these values (a division by zero, a text compared with a number).
        """
        try:
            # The tree was checked when it was made, so nothing but the allowed operations can run here.
            return bool(eval(self._code, _GLOBALS, configuration))
        except (TypeError, ValueError, ArithmeticError) as error:
            values = ", ".join(f"{name} = {value!r}" for name, value in configuration.items())
            raise SweepError(f"constraint {self.text!r}: {error}, for {values}") from None


class _Checked(ast.NodeTransformer):
    """Refuses what is not allowed, and makes a single name of each factor (such as ``config.hidden``)."""

    def __init__(self, text: str, factors: Collection[str]) -> None:
        self._text, self._factors = text, factors

    def generic_visit(self, node: ast.AST) -> ast.AST:
        operators = getattr(node, "ops", [getattr(node, "op", node)])
        if not all(isinstance(part, _SYNTAX) for part in (node, *operators)):
            # As it was typed: Python's versions space it differently.
            part = ast.get_source_segment(self._text.strip(), node) or ast.unparse(node)
            raise SweepError(f"constraint {self._text!r}: {part!r} is not allowed in one; {_ALLOWED} are")
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return node if isinstance(node.value, (int, float, str)) else self.generic_visit(node)

    def visit_Name(self, node: ast.Name | ast.Attribute) -> ast.AST:
        name = _name(node)
        if name is None:
            return self.generic_visit(node)
        if name not in self._factors:
            raise SweepError(f"constraint {self._text!r}: unknown factor {name!r}{instead_of(name, self._factors)}")
        return ast.Name(name, ast.Load())

    visit_Attribute = visit_Name

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        # TOML has lists alone, and Python takes no list for equal to a tuple.
        return self.generic_visit(ast.List(node.elts, node.ctx))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        # The text is taken first, because the operands become calls.
        text = ast.Constant(ast.unparse(node))
        self.generic_visit(node)
        for side in ("left", "right"):
            setattr(node, side, ast.Call(ast.Name("numbers()", ast.Load()), [getattr(node, side), text], []))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = f"{_name(node.func)}()"
        if name not in _FUNCTIONS or node.keywords:
            return self.generic_visit(node)
        return ast.Call(ast.Name(name, ast.Load()), [self.visit(argument) for argument in node.args], [])


def _name(node: ast.AST) -> str | None:
    """The name of a factor; None if the node is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        prefix = _name(node.value)
        return None if prefix is None else f"{prefix}.{node.attr}"
    return None
