"""Mutants of a source file: the small faults that a test should notice, and which of them is which.

A mutant is one change at one node of the syntax tree. Left alone is what no test of behaviour can see or what only says
something: annotations, decorators, docstrings and other texts, ``raise`` with its message, ``__repr__``, ``strict=`` of
``zip``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPARED |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
COMPUTED |= {ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult}
JOINED = {ast.And: ast.Or, ast.Or: ast.And}

SILENT = {"annotation", "returns", "decorator_list", "msg", "type_params"}
"""Fields of syntax nodes that nothing is changed in."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file: ``number`` counts the nodes of its tree as :func:`ast.walk` meets them."""

    file: str
    number: int
    line: int
    last: int
    kind: str
    before: str
    after: str
    importing: bool
    """Whether the line runs when the module is imported (constants, defaults, class bodies)."""
    statement: int
    """First line of the statement: literals inside one have no code of their own."""


def mutants_of(file: str, root: Path) -> list[Mutant]:
    """Every mutant of a file, in the order of its tree."""
    tree = ast.parse((root / file).read_text())
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    found = []
    for node, statement, importing in _open_nodes(tree):
        changed = _changed(node)
        if changed:
            first, last = (node.lineno, node.end_lineno) if hasattr(node, "lineno") else (statement.lineno, 0)
            kind, new = changed
            texts = ast.unparse(node), ast.unparse(new)
            place = (file, numbers[id(node)], first, last or first)
            found.append(Mutant(*place, kind, *texts, importing, statement.lineno))
    return found


def mutated(mutant: Mutant, root: Path) -> ast.Module:
    """The tree of the file with the change in it."""
    tree = ast.parse((root / mutant.file).read_text())
    old = next(node for number, node in enumerate(ast.walk(tree)) if number == mutant.number)
    _, new = _changed(old) or ("", None)
    if new is None or (ast.unparse(old), ast.unparse(new)) != (mutant.before, mutant.after):
        raise ValueError(f"{mutant.file}:{mutant.line} is not {mutant.before!r} any more")
    return ast.fix_missing_locations(_Replace(old, ast.copy_location(new, old)).visit(tree))


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _open_nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.stmt, bool]]:
    """(node, its statement, whether it runs on import) of all that may be changed."""
    waiting: list[tuple[ast.AST, ast.stmt, bool]] = [(s, s, True) for s in reversed(tree.body)]
    while waiting:
        node, statement, importing = waiting.pop()
        if _is_silent(node):
            continue
        yield node, statement, importing
        for field, child in reversed(list(_children(node))):
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and field == "body"
            nearest = child if isinstance(child, ast.stmt) else statement
            waiting.append((child, nearest, importing and not inside))


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field not in SILENT:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield field, child


def _is_silent(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__")
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    texts = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return texts or isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _changed(node: ast.AST) -> tuple[str, ast.AST] | None:
    """(kind, the node instead), if this kind of node is one that gets changed."""
    for kind, change in CHANGES.items():
        new = change(node)
        if new is not None:
            return kind, new
    return None


def _comparison(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Compare):
        return None
    new = copy.deepcopy(node)
    new.ops[0] = COMPARED[type(node.ops[0])]()
    return new


def _arithmetic(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.BinOp | ast.AugAssign) or type(node.op) not in COMPUTED:
        return None
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    if any(isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides):
        return None
    new = copy.deepcopy(node)
    new.op = COMPUTED[type(node.op)]()
    return new


def _boolean(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BoolOp):
        new = copy.deepcopy(node)
        new.op = JOINED[type(node.op)]()
        return new
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return copy.deepcopy(node.operand)
    return None


def _constant(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, bool | int | float):
        return None
    if isinstance(node.value, bool):
        return ast.Constant(not node.value)
    return ast.Constant(node.value + 1 if isinstance(node.value, int) or not node.value else node.value * 1.11)


def _deletion(node: ast.AST) -> ast.AST | None:
    stored = isinstance(node, ast.Assign) and all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return ast.Pass() if stored or called else None


def _swap(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Call) or len(node.args) < 2 or any(isinstance(a, ast.Starred) for a in node.args[:2]):
        return None
    if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "max", "min", "zip"):
        return None
    if ast.dump(node.args[0]) == ast.dump(node.args[1]):
        return None
    new = copy.deepcopy(node)
    new.args[:2] = reversed(new.args[:2])
    return new


CHANGES = {
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "boolean": _boolean,
    "constant": _constant,
    "deletion": _deletion,
    "swapped arguments": _swap,
}
"""What is changed, by kind: one operator, one constant, one statement, two arguments."""
