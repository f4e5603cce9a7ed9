"""Nested arguments and results: tensors in tuples, lists, dicts, named tuples, dataclasses and registered classes, and
back.

PyTorch's own trees (``torch.utils._pytree``) take a dataclass or a mapping that nobody registered for one leaf, and
registering a user's class is an effect on the whole process; so the few lines are here. A user registers a parser of a
class: it says which tensors an object holds, and makes another object with others
(``poptorch: docs/user_guide/overview.rst``).
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ipuperf.runtime.run_context import RUN

from ..errors import CallError, MissingArgumentError, require


@dataclass(frozen=True)
class Leaf:
    """The tensor of this index."""

    index: int


@dataclass(frozen=True)
class Fixed:
    """A value that is no tensor: None, a number, a string ..."""

    value: Any


@dataclass(frozen=True)
class Branch:
    """A container.

    Attributes:
        kind: its type.
        keys: of a dict, or names of fields; empty for a sequence.
        children: in order.
    """

    kind: type
    keys: tuple[Any, ...]
    children: tuple[Structure, ...]


@dataclass(frozen=True)
class Custom:
    """An object of a class with a parser (:func:`~ipuperf.poptorch.registerCustomArgParser`).

    Attributes:
        original: the object.
        parser: of its class.
        children: its tensors.
    """

    original: Any
    parser: ICustomArgParser
    children: tuple[Structure, ...]


Structure = Leaf | Fixed | Branch | Custom


def flatten(
    value: Any, path: str = "", like: Structure | None = None
) -> tuple[Structure, list[torch.Tensor], list[str]]:
    """``value`` as a structure, its tensors, and their paths (``batch.images``, ``pair.0``).

    Args:
        like: a structure whose order of keys is taken where a mapping has the same ones.
    """
    tensors: list[torch.Tensor] = []
    paths: list[str] = []

    def walk(value_here: Any, place: str, like: Structure | None) -> Structure:
        if isinstance(value_here, torch.Tensor):
            tensors.append(value_here)
            paths.append(place)
            return Leaf(len(tensors) - 1)
        parser = parser_of(value_here)
        names, items = ([], list(parser.yieldTensors(value_here))) if parser else _members(value_here)
        if items is None:
            return Fixed(value_here)
        if names and isinstance(like, Branch) and set(names) == set(like.keys):
            items = [items[names.index(name)] for name in like.keys]
            names = like.keys
        labels = names or range(len(items))
        known = like.children if isinstance(like, (Branch, Custom)) and len(like.children) == len(items) else ()
        children = tuple(
            walk(member, f"{place}.{label}" if place else str(label), known[n] if known else None)
            for n, (label, member) in enumerate(zip(labels, items, strict=True))
        )
        return Custom(value_here, parser, children) if parser else Branch(type(value_here), tuple(names), children)

    return walk(value, path, like), tensors, paths


def fixed_values(structure: Structure) -> Iterator[Any]:
    """What is no tensor in it."""
    if isinstance(structure, Fixed):
        yield structure.value
    elif isinstance(structure, (Branch, Custom)):
        for child in structure.children:
            yield from fixed_values(child)


def _members(value: Any) -> tuple[Sequence[Any], list[Any] | None]:
    """(keys, members) of a container; members are None for anything else."""
    if isinstance(value, Mapping):
        return list(value), list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return names, [getattr(value, n) for n in names]
    if isinstance(value, (tuple, list)):
        return [], list(value)
    return [], None


def rebuild(structure: Structure, leaf: Callable[[int], Any]) -> Any:
    """The value again, with ``leaf(index)`` for each tensor."""
    if isinstance(structure, Fixed):
        return structure.value
    if isinstance(structure, Leaf):
        return leaf(structure.index)
    members = [rebuild(child, leaf) for child in structure.children]
    if isinstance(structure, Custom):
        return structure.parser.reconstruct(structure.original, iter(members))
    kind: Any = structure.kind
    if dataclasses.is_dataclass(structure.kind):
        return kind(**dict(zip(structure.keys, members, strict=True)))
    if issubclass(kind, Mapping):
        mapping = dict(zip(structure.keys, members, strict=True))
        return mapping if kind is dict else kind(mapping)
    # Named tuples take their members one by one.
    return kind(*members) if hasattr(kind, "_fields") else kind(members)


def differences(compiled: Structure, called: Structure, path: str = "") -> list[str]:
    """What is not the same in two structures (values of tensors do not count)."""
    where = path or "arguments"
    if type(compiled) is not type(called):
        return [f"{where}: {_kind(called)} given, the model was compiled with {_kind(compiled)}"]
    if isinstance(compiled, Fixed) and isinstance(called, Fixed):
        # Identity comes first, because NaN is not equal to itself.
        same = compiled.value is called.value or bool(compiled.value == called.value)
        return [] if same else [f"{where}: {called.value!r} given, the model was compiled with {compiled.value!r}"]
    if isinstance(compiled, Custom) and isinstance(called, Custom):
        if _kind(compiled) != _kind(called):
            return [f"{where}: {_kind(called)} given, the model was compiled with {_kind(compiled)}"]
        pairs = zip(compiled.children, called.children, strict=True)
        return [text for n, (a, b) in enumerate(pairs) for text in differences(a, b, f"{path}.{n}" if path else str(n))]
    if isinstance(compiled, Branch) and isinstance(called, Branch):
        alike = compiled.kind is called.kind and compiled.keys == called.keys
        if not alike or len(compiled.children) != len(called.children):
            return [f"{where}: {_kind(called)} given, the model was compiled with {_kind(compiled)}"]
        labels = compiled.keys or range(len(compiled.children))
        complaints = []
        for label, a, b in zip(labels, compiled.children, called.children, strict=True):
            complaints += differences(a, b, f"{path}.{label}" if path else str(label))
        return complaints
    return []


def _kind(structure: Structure) -> str:
    if isinstance(structure, Leaf):
        return "a tensor"
    if isinstance(structure, Fixed):
        return repr(structure.value)
    if isinstance(structure, Custom):
        return f"a {type(structure.original).__name__} with {len(structure.children)} tensors"
    inside = f"keys {list(structure.keys)}" if structure.keys else f"{len(structure.children)} members"
    return f"a {structure.kind.__name__} with {inside}"


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature:
    """How the arguments of ``forward`` are bound, by name whether they are given by position or by name."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._signature = inspect.signature(forward)

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The arguments with their kinds and defaults."""
        return list(self._signature.parameters.values())

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, with defaults, which are inputs of a program too (poptorch: ``python/_args_parser.py``).

        Raises:
            MissingArgumentError: one without a default is not given. CallError: there is no such argument, or it is
                given twice.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            missing = str(error).startswith("missing")
            raise (MissingArgumentError if missing else CallError)(str(error)) from None
        bound.apply_defaults()
        # Empty *args and **kwargs are no arguments.
        return {n: v for n, v in bound.arguments.items() if self._signature.parameters[n].kind not in _VARIABLE or v}

    def call(self, forward: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call with arguments by name."""
        args, kwargs = self.spread(arguments)
        return forward(*args, **kwargs)

    def spread(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by name as those of a call: ``*args`` and ``**kwargs`` of ``forward`` as it takes them."""
        bound = inspect.BoundArguments(self._signature, dict(arguments))
        return bound.args, bound.kwargs


class ICustomArgParser(ABC):
    """What PopTorch needs to know of a class; register it with :func:`registerCustomArgParser`."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """The tensors of an object, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """An object like ``original_structure`` with the tensors of ``tensor_iterator``, which come in the order of
        :meth:`yieldTensors`."""


_LASTING: dict[type, ICustomArgParser] = {}


class CustomArgParsers:
    """The parsers of this process by their classes (``RUN.of(CustomArgParsers)``)."""

    def __init__(self) -> None:
        self.by_class: dict[type, ICustomArgParser] = dict(_LASTING)


def registerCustomArgParser(arg_type: type, parser: ICustomArgParser) -> None:
    """Let models take and return objects of ``arg_type`` (and its subclasses); a parser given before is replaced.

    Raises:
        AssertionError: ``arg_type`` is no class, or ``parser`` no :class:`ICustomArgParser`.
    """
    require(isinstance(arg_type, type), f"registerCustomArgParser: arg_type is {arg_type!r}, expected a class")
    require(
        isinstance(parser, ICustomArgParser),
        f"registerCustomArgParser: parser is a {type(parser).__name__}, expected an object of ICustomArgParser",
    )
    RUN.of(CustomArgParsers).by_class[arg_type] = parser


def register_for_all_runs(arg_type: type, parser: ICustomArgParser) -> None:
    """:func:`registerCustomArgParser` by a front end: for later runs too, which import it no second time."""
    _LASTING[arg_type] = parser
    registerCustomArgParser(arg_type, parser)


def parser_of(value: Any) -> ICustomArgParser | None:
    """The parser of the nearest registered class of an object."""
    known = RUN.of(CustomArgParsers).by_class
    return next((known[kind] for kind in type(value).__mro__ if kind in known), None) if known else None
