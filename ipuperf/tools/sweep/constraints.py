"""Constraints: expressions over factors with arithmetic, comparisons and logic, and nothing else."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from .errors import SweepError

_LONGEST = 1_000
"""The largest number of characters of an expression."""
_TWO: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType({
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
})  # fmt: skip
_ONE: Mapping[type[ast.unaryop], Callable[[Any], Any]] = MappingProxyType(
    {ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos}
)
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = MappingProxyType({
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
})  # fmt: skip
_CALLED: Mapping[str, Callable[..., Any]] = MappingProxyType({"min": min, "max": max, "abs": abs, "len": len})
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
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SweepError(f"constraint {text!r}: no expression: {getattr(error, 'msg', error)}") from None
        self._check(self._tree, factors)

    def holds(self, configuration: Mapping[str, Any]) -> bool:
        """Whether the constraint holds for a configuration.

        Raises:
            SweepError: it cannot be evaluated for these values (a division by zero, a text compared with a number).
        """
        try:
            return bool(_value(self._tree, configuration))
        except (TypeError, ValueError, ArithmeticError) as error:
            raise SweepError(f"constraint {self.text!r}: {error}, for {_said(configuration)}") from None

    def _check(self, node: ast.AST, factors: Collection[str]) -> None:
        name = _name(node)
        if name is not None:
            if name not in factors:
                raise SweepError(f"constraint {self.text!r}: unknown factor {name!r}, allowed: {', '.join(factors)}")
            return
        if not _is_allowed(node):
            raise SweepError(f"constraint {self.text!r}: {ast.unparse(node)!r} is not allowed in one; {_ALLOWED} are")
        for operand in _operands(node):
            self._check(operand, factors)


def _name(node: ast.AST) -> str | None:
    """The name of a factor (such as ``config.hidden``); None if the node is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        prefix = _name(node.value)
        return None if prefix is None else f"{prefix}.{node.attr}"
    return None


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float, str))
    if isinstance(node, ast.BinOp):
        return type(node.op) in _TWO
    if isinstance(node, ast.UnaryOp):
        return type(node.op) in _ONE
    if isinstance(node, ast.Compare):
        return all(type(comparison) in _COMPARED for comparison in node.ops)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _CALLED and not node.keywords
    return isinstance(node, (ast.BoolOp, ast.List, ast.Tuple))


def _operands(node: ast.AST) -> list[ast.expr]:
    """The operands of an allowed node."""
    if isinstance(node, ast.Call):
        return node.args
    return [operand for operand in ast.iter_child_nodes(node) if isinstance(operand, ast.expr)]


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    name = _name(node)
    if name is not None:
        return values[name]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BoolOp):
        parts = (bool(_value(operand, values)) for operand in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare):
        return _compared(node, values)
    operands = [_value(operand, values) for operand in _operands(node)]
    if isinstance(node, ast.BinOp):
        # Python multiplies texts and lists too, which could take any amount of memory.
        if not all(isinstance(operand, (int, float)) for operand in operands):
            raise TypeError(f"{ast.unparse(node)!r} needs numbers")
        return _TWO[type(node.op)](*operands)
    if isinstance(node, ast.UnaryOp):
        return _ONE[type(node.op)](*operands)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _CALLED[node.func.id](*operands)
    return operands


def _compared(node: ast.Compare, values: Mapping[str, Any]) -> bool:
    sides = [_value(operand, values) for operand in (node.left, *node.comparators)]
    return all(_COMPARED[type(comparison)](*pair) for comparison, pair in zip(node.ops, zip(sides, sides[1:])))


def _said(configuration: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in configuration.items())
