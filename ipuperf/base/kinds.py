"""Kinds of arguments: values of a wrong kind are refused when arguments are bound, by a function's annotations.

An annotation states what is allowed: ``Tensor``, ``int``, ``float``, ``bool``, ``str``, ``None``, sequences and
mappings, ``Literal`` (whose values the function compares itself), classes, and unions of these. A front end defines the
meaning of its own names (``Tensor``, ``DType``). Unknown names allow everything. Other code checks whether a number is
whole or in its range (``ipuperf.popxl.arguments``, the function). Where a ``Sequence`` is needed, an iterator, a view
of a dictionary or another iterable is read into a tuple.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, get_origin

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
Holds = Callable[[Any], bool]


@dataclass(frozen=True)
class ArgumentKind:
    """The values that an argument may have.

    Attributes:
        holds: whether a value is of this kind.
        words: the name of the kind in errors.
        exact: types whose values are all of this kind; :meth:`ParameterKinds.check` tests them first.
        ordered: whether the kind is, or may be, a sequence.
    """

    holds: Holds
    words: str
    exact: frozenset[type] = frozenset()
    ordered: bool = False


def is_number(value: Any) -> bool:
    """Whether ``value`` is a real number of Python or NumPy, or an array of one."""
    return isinstance(value, (bool, int, float, np.number, np.bool_)) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf"
    )


def _is_truth(value: Any) -> bool:
    """Whether ``value`` is True, False, or the number that equals one of them."""
    return isinstance(value, (bool, np.bool_)) or (is_number(value) and value in (0, 1))


def _is_class(module: str, name: str) -> Holds:
    """Test whether a value is of a module's class. Before the module is imported, no value can be."""
    return lambda value: isinstance(value, getattr(sys.modules.get(module), name, ()))


@cache
def _imports(module: str) -> Mapping[str, tuple[str, str]]:
    """Return the names that a module's source imports, including imports for type checkers alone.

    Each maps to its module and its name there ("" for the module itself).
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # a program typed at a prompt
        return {}
    package = sys.modules[module].__package__
    names: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname: (alias.name, "") for alias in node.names if alias.asname})
        if isinstance(node, ast.ImportFrom):
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names.update({alias.asname or alias.name: (source, alias.name) for alias in node.names})
    return names


def _one(name: str) -> str:
    """Name one object of a class, as errors call it."""
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _is_path(value: Any) -> bool:
    """Whether ``value`` is a path, or the text of one."""
    return isinstance(value, str) or hasattr(value, "__fspath__")


ANYTHING = ArgumentKind(lambda value: True, "anything")
NUMBER = ArgumentKind(is_number, "a number", frozenset([int, float]))
#: Integers, for front ends that have no rule of their own for them.
WHOLE = ArgumentKind(_is_whole, "a whole number", frozenset([int]))
#: Kinds of the names that annotations use.
PLAIN: Mapping[str, ArgumentKind] = {
    "int": ArgumentKind(
        lambda value: is_number(value) or hasattr(value, "__index__"), "a whole number", frozenset([int])
    ),
    "float": NUMBER,
    "bool": ArgumentKind(_is_truth, "True or False", frozenset([bool])),
    "str": ArgumentKind(lambda value: isinstance(value, str), "a string", frozenset([str])),
    "None": ArgumentKind(lambda value: value is None, "None", frozenset([type(None)])),
    "Callable": ArgumentKind(callable, "a function"),
    **dict.fromkeys(("Path", "PathLike"), ArgumentKind(_is_path, "a path")),
}
_SEQUENCES = frozenset(["Sequence", "list", "tuple", "List", "Tuple"])
_ITERABLES = frozenset(["Iterable", "Collection"])
_MAPPINGS = frozenset(["Mapping", "dict", "Dict", "MutableMapping"])


def _union(kinds: Sequence[ArgumentKind]) -> ArgumentKind:
    """Return the kind that holds values of any of several kinds."""
    if len(kinds) == 1:
        return kinds[0]
    if any(kind is ANYTHING for kind in kinds):
        return ANYTHING
    words = list(dict.fromkeys(kind.words for kind in kinds))
    return ArgumentKind(
        lambda value: any(kind.holds(value) for kind in kinds),
        f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0],
        frozenset().union(*(kind.exact for kind in kinds)),
        any(kind.ordered for kind in kinds),
    )


def _several(name: str, element_kind: ArgumentKind) -> ArgumentKind:
    """Return the kind of several values of ``element_kind``, in an annotation called ``name``.

    A string never holds, and a mapping does not where order counts. The elements of an iterator are not checked.
    """
    ordered = name in _SEQUENCES

    def holds(value: Any) -> bool:
        if isinstance(value, np.ndarray) and value.ndim == 0:
            return False
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            return False
        if ordered and isinstance(value, Mapping):
            return False
        # Checking the elements of an iterator would consume them.
        return (
            element_kind is ANYTHING or not isinstance(value, Collection) or all(element_kind.holds(v) for v in value)
        )

    several = element_kind.words.removeprefix("a ").removeprefix("an ")
    return ArgumentKind(
        holds, "a sequence" if element_kind is ANYTHING else f"a sequence of {several}s", ordered=ordered
    )


def _in_order(value: Any) -> Any:
    """Return ``value``, or a tuple of its elements if it is an iterable but no sequence."""
    if isinstance(value, (list, tuple, str, bytes, Mapping)) or not isinstance(value, Iterable):
        return value
    # Arrays and tensors are sequences of their own kind, and a range is one already.
    return value if hasattr(value, "shape") or isinstance(value, range) else tuple(value)


def _mapping() -> ArgumentKind:
    return ArgumentKind(lambda value: isinstance(value, Mapping), "a mapping", frozenset([dict]))


def _said(tree: ast.expr, scope: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return a name of an annotation and the scope to look it up in: for ``module.name``, the module."""
    if not isinstance(tree, ast.Attribute):
        return getattr(tree, "id", ""), scope
    root, root_scope = _said(tree.value, scope)
    if root in root_scope:
        return tree.attr, getattr(root_scope[root], "__dict__", {})
    module, _ = _imports(root_scope.get("__name__", "")).get(root, (ast.unparse(tree.value), ""))
    return tree.attr, {"__later__": module}


class Kinds:
    """The kinds of a front end: the meaning of its names.

    Args:
        names: kinds by their names in annotations.
    """

    def __init__(self, names: Mapping[str, ArgumentKind]) -> None:
        self._names = {**PLAIN, **names}

    def checked(self, *skipped: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function or constructor, see :func:`checked`; it checks the parameters ``skipped`` itself."""
        return checked(self, skipped)

    def of(self, annotation: str, scope: Mapping[str, Any]) -> ArgumentKind:
        """Return the kind of an annotation, whose names are looked up in ``scope`` (the globals of the function)."""
        try:
            tree = ast.parse(annotation.strip() or "Any", mode="eval").body
        except SyntaxError:
            return ANYTHING
        return self._read(tree, scope)

    def _read(self, tree: ast.expr, scope: Mapping[str, Any]) -> ArgumentKind:
        """Return the kind of a part of an annotation."""
        if isinstance(tree, ast.Constant):
            return self._names["None"] if tree.value is None else self.of(str(tree.value), scope)
        if isinstance(tree, ast.BinOp):
            return _union([self._read(tree.left, scope), self._read(tree.right, scope)])
        if isinstance(tree, ast.Subscript):
            return self._read_of(tree, scope)
        return self._named(*_said(tree, scope))

    def _read_of(self, tree: ast.Subscript, scope: Mapping[str, Any]) -> ArgumentKind:
        """Return the kind of ``Name[...]``."""
        name, where = _said(tree.value, scope)
        parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        if name in _SEQUENCES | _ITERABLES:
            plain = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is Ellipsis)]
            return _several(name, _union([self._read(part, scope) for part in plain]))
        if name in _MAPPINGS:
            return _mapping()
        if name == "Literal":
            return _literal([ast.literal_eval(part) for part in parts])
        if name in ("Union", "Optional"):
            kinds = [self._read(part, scope) for part in parts]
            return _union([*kinds, self._names["None"]] if name == "Optional" else kinds)
        return self._named(name, where)

    def _named(self, name: str, scope: Mapping[str, Any]) -> ArgumentKind:
        """Return the kind of a name: the front end's, or the object of that name in the function's module."""
        if name in self._names:
            return self._names[name]
        if name in ("", "Any", "object"):
            return ANYTHING
        if name in _SEQUENCES | _ITERABLES:
            return _several(name, ANYTHING)
        if name in _MAPPINGS:
            return _mapping()
        meant = scope.get(name)
        if meant is Any or getattr(meant, "_is_protocol", False):
            return ANYTHING
        if inspect.isclass(meant) and get_origin(meant) is None:  # Python 3.10 calls dict[...] a class
            return ArgumentKind(lambda value: isinstance(value, meant), _one(name), frozenset([meant]))
        if get_origin(meant) is not None:
            return self.of(str(meant).replace("typing.", "").replace("NoneType", "None"), {**scope, name: None})
        if name in scope:
            return ANYTHING
        # Imports for type checkers alone are not in the scope; the module's source names them.
        later = (scope["__later__"], name) if "__later__" in scope else _imports(scope.get("__name__", "")).get(name)
        return ArgumentKind(_is_class(*later), _one(name)) if later else ANYTHING

    def parameters(
        self, function: Callable[..., Any], skipped: Collection[str]
    ) -> list[tuple[int | slice | None, str, ArgumentKind]]:
        """Return place, name and kind of the parameters whose kind is known.

        The place is None for a keyword-only parameter, and a slice for ``*`` parameters.
        """
        plain = inspect.unwrap(function)
        code, scope = plain.__code__, plain.__globals__
        count = code.co_argcount + code.co_kwonlyargcount
        starred = bool(code.co_flags & inspect.CO_VARARGS)
        places = [
            *range(code.co_argcount),
            *[None] * code.co_kwonlyargcount,
            *[slice(code.co_argcount, None)] * starred,
        ]
        names = code.co_varnames[: count + starred]
        notes = plain.__annotations__
        parameters = [
            (place, name, self.of(str(notes.get(name, "")), scope))
            for place, name in zip(places, names, strict=True)
            if name not in skipped
        ]
        return [parameter for parameter in parameters if parameter[2] is not ANYTHING]


def _literal(values: Sequence[Any]) -> ArgumentKind:
    """Return the kind of a few values. Only their type is checked: the function names the allowed values itself."""
    types = tuple({type(value) for value in values})
    return ArgumentKind(lambda value: isinstance(value, types), " or ".join(repr(value) for value in values))


class ParameterKinds:
    """The kinds of a function's parameters, read on its first call.

    Args:
        function: its annotations state the kinds.
        name: its name in errors.
        kinds: the meaning of names.
        skipped: names of parameters that are checked elsewhere.
    """

    def __init__(self, function: Callable[..., Any], name: str, kinds: Kinds, skipped: Collection[str] = ()) -> None:
        self._function = function
        self._skipped = skipped
        self._name = name
        self._kinds = kinds
        self._parameters: list[tuple[int | slice | None, str, ArgumentKind]] | None = None

    def order(self, positional: list[Any], named: dict[str, Any]) -> None:
        """Replace iterables by tuples where sequences are needed."""
        for place, name, kind in self._known():
            if kind.ordered:
                if type(place) is int and place < len(positional):
                    positional[place] = _in_order(positional[place])
                elif name in named:
                    named[name] = _in_order(named[name])

    def _known(self) -> list[tuple[int | slice | None, str, ArgumentKind]]:
        """Return the parameters whose kind is known."""
        # Reading annotations parses sources, which functions that are never called should not pay for.
        if self._parameters is None:
            self._parameters = self._kinds.parameters(self._function, self._skipped)
        return self._parameters

    def check(self, positional: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Compare arguments with the kinds of their parameters.

        Raises:
            TypeError: an argument is of another kind; the message names function, parameter, value and what is allowed.
        """
        count = len(positional)
        for place, name, kind in self._known():
            if type(place) is slice:
                for value in positional[place]:
                    self._compare(name, value, kind)
            elif place is not None and place < count:
                self._compare(name, positional[place], kind)
            elif name in named:
                self._compare(name, named[name], kind)

    def _compare(self, name: str, value: Any, kind: ArgumentKind) -> None:
        """See :meth:`check`."""
        # The set of exact types decides most calls; ``holds`` is slower.
        if type(value) not in kind.exact and not kind.holds(value):
            raise TypeError(f"{self._name}: {name} is {told(value)}; {kind.words} is needed")


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function in errors: with its class; a constructor is named as its class."""
    name: str = inspect.unwrap(function).__qualname__
    return name.rpartition("<locals>.")[2].removesuffix(".__init__")


def checked(kinds: Kinds | None = None, skipped: Collection[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: its arguments must be of the kinds of their annotations, see :meth:`ParameterKinds.check`.

    Parameters named in ``skipped`` are checked elsewhere. Without ``kinds``, names have their meaning in Python.
    """
    kinds = kinds or Kinds({})

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        signature = ParameterKinds(function, name_of(function), kinds, skipped)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            positional: list[Any] = list(args)
            signature.order(positional, kwargs)
            signature.check(positional, kwargs)
            return function(*positional, **kwargs)

        return call

    return decorated


#: Types that are evident from a value's text.
_SHOWN = (bool, int, float, str, list, tuple, dict, type(None))


def told(value: Any) -> str:
    """Return a value as errors show it: short, with its type if its text does not show that."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a program's own class may have a repr that fails
        text = "a value"
    text = f"{text[:57]}..." if len(text) > 60 else text
    return text if type(value) in _SHOWN else f"{text} ({type(value).__name__})"
