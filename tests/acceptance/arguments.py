"""Parameters that no code reads.

    python tests/acceptance/arguments.py

prints them; ``test_arguments.py`` compares.

A parameter is *unread* when its name is loaded nowhere in the function, nested functions included (``del x`` does not
read), and *only stored* when ``__init__`` puts it into an attribute of that name which nothing in ipuperf loads.
Not looked at are

* names with an underscore in front, and private functions: no user gives these;
* functions that only raise, and bodies that are a docstring: nothing can read there;
* protocol hooks (``__exit__``, ``__array__`` ...) and methods that override one of a base class: others fix their
  signatures;
* below the front ends: functions that are handed on as values or registered by a decorator, for the same reason.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import syntax

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "ipuperf"
PLAIN_DECORATORS = frozenset({"staticmethod", "classmethod", "contextmanager", "cache", "lru_cache", "in_sequence"})
"""Decorators that leave it to the function which parameters it has."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Unread:
    """A parameter that no code reads: ``path`` is that of the file below ``ipuperf/``."""

    path: str
    function: str
    parameter: str

    def __str__(self) -> str:
        return f"{self.path}: {self.function}({self.parameter})"


class Sources:
    """All files of ipuperf as syntax trees, and what has to be known of all of them at once."""

    def __init__(self, folder: Path = PACKAGE) -> None:
        self.trees = {file.relative_to(folder).as_posix(): syntax.tree(file) for file in sorted(folder.rglob("*.py"))}
        self.index()

    def index(self) -> None:
        """Gather what is needed of all files."""
        nodes = [node for tree in self.trees.values() for node in syntax.nodes(tree)]
        self.classes: dict[str, list[ast.ClassDef]] = {}
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, []).append(node)
        self.loaded = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]
        called = {id(node.func) for node in self.calls}
        self.values = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in called
        }

    def unread(self) -> list[Unread]:
        """What no code reads, file by file."""
        return [
            Unread(path, name, parameter)
            for path, tree in self.trees.items()
            for name, function, owner in _functions(tree)
            if self._is_looked_at(path, function, owner)
            for loaded in [_loads(function)]
            if "locals" not in loaded  # hands all of them on
            for parameter in _parameters(function, owner)
            if parameter not in loaded
        ]

    def only_stored(self) -> list[Unread]:
        """Parameters of constructors of the front ends that end in an attribute which nothing loads."""
        return [
            Unread(path, name, attribute)
            for path, tree in self.trees.items()
            if _is_front_end(path)
            for name, function, owner in _functions(tree)
            if owner is not None and function.name == "__init__"
            for attribute in _stored(function)
            if attribute not in self.loaded
        ]

    def _is_looked_at(self, path: str, function: Function, owner: ast.ClassDef | None) -> bool:
        public = not function.name.startswith("_") or function.name in ("__init__", "__call__", "__new__")
        if not public or (owner is not None and owner.name.startswith("_")) or _only_raises(function):
            return False
        if owner is not None and function.name != "__init__" and self._overrides(function.name, owner):
            return False
        if _is_front_end(path):
            return True
        return function.name not in self.values and all(d in PLAIN_DECORATORS for d in _decorators(function))

    def _overrides(self, method: str, owner: ast.ClassDef) -> bool:
        """Whether a base class has the method; those from outside ipuperf may have any."""
        seen, waiting = {id(owner)}, [*owner.bases]
        while waiting:
            found = [c for c in self.classes.get(_name(waiting.pop()), ()) if id(c) not in seen]
            if not found or any(method in _methods(c) for c in found):
                return True
            seen.update(map(id, found))
            waiting += [base for c in found for base in c.bases]
        return False


def _is_front_end(path: str) -> bool:
    return path.startswith("frontends/")


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function, ast.ClassDef | None]]:
    """Functions of a module and of its classes, with their names below the module."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node, None
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{n.name}", n, node) for n in node.body if isinstance(n, Function))


def _methods(owner: ast.ClassDef) -> set[str]:
    return {node.name for node in owner.body if isinstance(node, Function)}


def _parameters(function: Function, owner: ast.ClassDef | None) -> list[str]:
    a = function.args
    listed = [
        *a.posonlyargs,
        *a.args,
        *([a.vararg] if a.vararg else []),
        *a.kwonlyargs,
        *([a.kwarg] if a.kwarg else []),
    ]
    names = [parameter.arg for parameter in listed]
    own = owner is not None and "staticmethod" not in _decorators(function)
    return [name for name in names[1 if own else 0 :] if not name.startswith("_")]


def _loads(function: Function) -> set[str]:
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _stored(function: Function) -> Iterator[str]:
    """Attributes of ``self`` whose value is a parameter that is read nowhere else in the function."""
    names = [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and names.count(node.attr.lstrip("_")) == 1
        ):
            yield node.attr


def _only_raises(function: Function) -> bool:
    """Whether a body is a docstring, ``...``, ``pass`` or an error and nothing else."""
    if isinstance(function.returns, ast.Name) and function.returns.id == "NoReturn":
        return True
    return all(
        isinstance(statement, ast.Raise | ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in function.body
    )


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Call | ast.Subscript):
        return _name(node.func if isinstance(node, ast.Call) else node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _decorators(function: Function) -> list[str]:
    return [_name(decorator) for decorator in function.decorator_list]


def uses(sources: Sources) -> list[str]:
    """What is given to ``EFFECTS.given`` anywhere, as patterns of rows: a ``*`` for each inserted value."""
    return [
        _pattern(node.args[0])
        for node in sources.calls
        if isinstance(node.func, ast.Attribute) and node.func.attr == "given" and _name(node.func.value) == "EFFECTS"
    ]


def _pattern(key: ast.expr) -> str:
    parts = key.values if isinstance(key, ast.JoinedStr) else [key]
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in parts)


if __name__ == "__main__":
    print(*Sources().unread(), *Sources().only_stored(), sep="\n")
