"""The project's files as syntax trees, each read once for all tests that look at the sources."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    """What a file holds. Nobody changes it: the next test gets the same."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(root: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a tree, outer ones first."""
    return tuple(ast.walk(root))
