"""The public names that the code of a generator uses, as a user writes them: ``popxl.ops.add``, ``torch.nn.Linear``."""

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def used_by(*modules: ModuleType) -> set[str]:
    """Every attribute of an imported module that the code of these modules names, its module in front of it."""
    return {name for module in modules for name in _used(module)}


def _used(module: ModuleType) -> Iterator[str]:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute):
            name = _qualified(node, vars(module))
            if name is not None:
                yield name


def _qualified(node: ast.Attribute, names: dict[str, Any]) -> str | None:
    """The full name of ``a.b.c`` where ``a`` is an imported module; None of anything else."""
    below: ast.expr = node.value
    parts = [node.attr]
    while isinstance(below, ast.Attribute):
        parts.append(below.attr)
        below = below.value
    root = names.get(below.id) if isinstance(below, ast.Name) else None
    if not inspect.ismodule(root):
        return None
    return ".".join([root.__name__.removeprefix("ipuperf.").removeprefix("frontends."), *reversed(parts)])
