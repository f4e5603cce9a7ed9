"""Nested arguments and results: tensors in tuples, lists, dicts, named tuples and dataclasses, and back.

PyTorch's own trees (``torch.utils._pytree``) take a dataclass or a mapping that nobody registered for one leaf, and
registering a user's class is an effect on the whole process; so the few lines are here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


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


Structure = Leaf | Fixed | Branch


def flatten(value: Any, path: str = "") -> tuple[Structure, list[torch.Tensor], list[str]]:
    """``value`` as a structure, its tensors, and their paths (``batch.images``, ``pair.0``)."""
    tensors: list[torch.Tensor] = []
    paths: list[str] = []

    def walk(item: Any, here: str) -> Structure:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            paths.append(here)
            return Leaf(len(tensors) - 1)
        names, items = _members(item)
        if items is None:
            return Fixed(item)
        labels = names or range(len(items))
        children = [walk(i, f"{here}.{n}" if here else str(n)) for n, i in zip(labels, items, strict=True)]
        return Branch(type(item), tuple(names), tuple(children))

    return walk(value, path), tensors, paths


def _members(item: Any) -> tuple[Sequence[Any], list[Any] | None]:
    """(keys, members) of a container; members are None for anything else."""
    if isinstance(item, Mapping):
        return list(item), list(item.values())
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        names = [f.name for f in dataclasses.fields(item)]
        return names, [getattr(item, n) for n in names]
    if isinstance(item, (tuple, list)):
        return [], list(item)
    return [], None


def rebuild(structure: Structure, leaf: Callable[[int], Any]) -> Any:
    """The value again, with ``leaf(index)`` for each tensor."""
    if isinstance(structure, Fixed):
        return structure.value
    if isinstance(structure, Leaf):
        return leaf(structure.index)
    members = [rebuild(child, leaf) for child in structure.children]
    kind = structure.kind
    if dataclasses.is_dataclass(kind):
        return kind(**dict(zip(structure.keys, members, strict=True)))
    if issubclass(kind, Mapping):
        made = dict(zip(structure.keys, members, strict=True))
        return made if kind is dict else kind(made)  # type: ignore[call-arg]
    return kind(*members) if hasattr(kind, "_fields") else kind(members)  # type: ignore[call-arg]


def differences(compiled: Structure, given: Structure, path: str = "") -> list[str]:
    """What is not the same in two structures (values of tensors do not count)."""
    where = path or "arguments"
    if type(compiled) is not type(given):
        return [f"{where}: {_kind(given)} given, the model was compiled with {_kind(compiled)}"]
    if isinstance(compiled, Fixed) and isinstance(given, Fixed):
        same = compiled.value is given.value or bool(compiled.value == given.value)
        return [] if same else [f"{where}: {given.value!r} given, the model was compiled with {compiled.value!r}"]
    if isinstance(compiled, Branch) and isinstance(given, Branch):
        if compiled.keys != given.keys or len(compiled.children) != len(given.children):
            return [f"{where}: {_kind(given)} given, the model was compiled with {_kind(compiled)}"]
        labels = compiled.keys or range(len(compiled.children))
        found = []
        for label, a, b in zip(labels, compiled.children, given.children, strict=True):
            found += differences(a, b, f"{path}.{label}" if path else str(label))
        return found
    return []


def _kind(structure: Structure) -> str:
    if isinstance(structure, Leaf):
        return "a tensor"
    if isinstance(structure, Fixed):
        return repr(structure.value)
    inside = f"keys {list(structure.keys)}" if structure.keys else f"{len(structure.children)} members"
    return f"a {structure.kind.__name__} with {inside}"


class Signature:
    """How the arguments of ``forward`` are bound, by name whether they are given by position or by name."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._signature = inspect.signature(forward)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name; ``TypeError`` as for a call."""
        return dict(self._signature.bind(*args, **kwargs).arguments)

    def call(self, forward: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call with arguments by name."""
        args, kwargs = self.split(arguments)
        return forward(*args, **kwargs)

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by name as those of a call."""
        bound = inspect.BoundArguments(self._signature, dict(arguments))
        return bound.args, bound.kwargs
