"""``DotTree``: named values in nested namespaces, ``tree.fc1.weight``. The base of all named collections of addons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ipuperf.frontends.popxl.arguments import checked_arguments

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
U = TypeVar("U")
_MISSING: Any = object()


@checked_arguments
def sanitise(name: str) -> str:
    """``name`` as a key: what cannot stand in an identifier becomes an underscore, and one comes before a digit."""
    return re.sub(r"\W|^(?=\d)", "_", name)


@checked_arguments
def to_mapping(key: DotTree[T], value: DotTree[U]) -> dict[T, U]:
    """For the names that both trees have: value in ``key`` -> value in ``value``."""
    theirs = value.to_dict()
    return {source: theirs[name] for name, source in key.to_dict().items() if name in theirs}


def dotted(key: str | int) -> str:
    """``key`` as a dotted name; a number is the name of a member of a list.

    Raises:
        ValueError: a negative number, or a part that is neither a number nor an identifier.
    """
    if isinstance(key, int) and key < 0:
        raise ValueError(f"key {key}: a number must not be negative")
    name = str(key)
    if not all(part.isnumeric() or part.isidentifier() for part in name.split(".")):
        raise ValueError(f"key {name!r}: each part of a dotted name has to be a number or a Python identifier")
    return name


class _Known(KeyError, ValueError):
    """A key that is taken: upstream raises ValueError, programs of the older interface expect KeyError."""


class DotTree(Generic[T]):
    """Values by dotted name. Prints as the flat dictionary, in order of insertion.

    Numbers are names too: ``tree[0]``, ``tree["0"]`` and ``tree.get(0)`` are the same entry. A negative number counts
    back from one past the highest (``tree[-1]`` of entries 0, 1 and 3 is 3, ``tree[-2]`` does not exist).

    Args:
        trees: sub-trees or values by name.
    """

    _map: dict[str, Any]

    def __init__(self, **trees: Any) -> None:
        object.__setattr__(self, "_map", {})
        for name, value in trees.items():
            self.insert(name, value)

    # -- building --------------------------------------------------------------------------------------------------

    @classmethod
    @checked_arguments
    def from_dict(cls, values: Mapping[Any, Any]) -> Self:
        """A tree of ``values``; dots in the keys make sub-trees."""
        tree = cls()
        for name, value in values.items():
            tree._put(name, value)
        return tree

    @classmethod
    @checked_arguments
    def pack(cls, keys: Iterable[str | int], values: Iterable[Any]) -> Self:
        """A tree of names and values.

        Raises:
            ValueError: different numbers of names and values.
        """
        names, items = list(keys), list(values)
        if len(names) != len(items):
            raise ValueError(f"{cls.__name__}.pack: {len(names)} names for {len(items)} values")
        return cls.from_dict(dict(zip(names, items)))

    @checked_arguments
    def insert(self, key: str | int, value: Any, overwrite: bool = False) -> None:
        """Add a value or sub-tree under a dotted key.

        Args:
            overwrite: a value or sub-tree of the same key is replaced, and the key may lead into sub-trees that are
                there already.

        Raises:
            ValueError (and KeyError): the key, or the sub-tree it leads into, is there and ``overwrite`` is False (an
                empty sub-tree may always be replaced); ValueError: no possible key.
        """
        self._check_free(key, overwrite)
        self._put(key, value, overwrite)

    def _check_free(self, key: str | int, overwrite: bool = False) -> None:
        """The errors of :meth:`insert`."""
        head, dot, _ = dotted(key).partition(".")
        present = self._map.get(head)
        if overwrite or present is None:
            return
        if dot:
            raise _Known(f"{head!r} already exists; give overwrite=True to insert {key!r} into it")
        if not (isinstance(present, DotTree) and not present.to_dict()):
            raise _Known(f"{key!r} already exists in the {type(self).__name__}; keys must not repeat")

    def _put(self, key: str | int, value: Any, overwrite: bool = False) -> None:
        """:meth:`insert` that may lead into sub-trees."""
        head, dot, tail = dotted(key).partition(".")
        present = self._map.get(head)
        if dot:
            if present is None or (overwrite and not isinstance(present, DotTree)):
                present = type(self)()
            if not isinstance(present, DotTree):
                raise _Known(f"cannot insert {key!r}: {head!r} is a value, not a tree")
            present._put(tail, value, overwrite)
            self._map[head] = present
            return
        self._check_free(head, overwrite)
        self._map[head] = value

    @checked_arguments
    def update(self, values: DotTree[T] | Mapping[str, T], overwrite: bool = False) -> None:
        """Add all entries of another tree; with ``overwrite`` its values and sub-trees replace those of the same name.

        Raises:
            ValueError (and KeyError): a key repeats, without ``overwrite``.
        """
        tree = values.copy() if isinstance(values, DotTree) else self.from_dict(values)
        for name, value in (tree._map if overwrite else tree.to_dict()).items():
            self._put(name, value, overwrite)

    @checked_arguments
    def pop(self, key: str | int) -> Any:
        """Remove and return a value or sub-tree; KeyError when it does not exist."""
        head, dot, tail = self._found(key).partition(".")
        if head not in self._map:
            raise KeyError(f"{key!r} is not in the {type(self).__name__}; there are {list(self.to_dict())}")
        return self._map[head].pop(tail) if dot else self._map.pop(head)

    def _clear(self) -> None:
        """Remove all values; sub-trees stay, without values."""
        for name, value in list(self._map.items()):
            if isinstance(value, DotTree):
                value._clear()
            else:
                del self._map[name]

    # -- reading ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, T]:
        """Flat dictionary of dotted names and values, in order of insertion."""
        flat: dict[str, T] = {}
        for name, value in self._map.items():
            if isinstance(value, DotTree):
                flat.update({f"{name}.{path}": leaf for path, leaf in value.to_dict().items()})
            else:
                flat[name] = value
        return flat

    def unpack(self) -> tuple[list[str], list[T]]:
        """Names and values, sorted by name (programs zip those of several trees)."""
        flat = dict(sorted(self.to_dict().items(), key=lambda pair: pair[0]))
        return list(flat), list(flat.values())

    @checked_arguments
    def to_mapping(self, values: DotTree[U]) -> dict[T, U]:
        """For the names that both trees have: value here -> value there."""
        return to_mapping(self, values)

    @checked_arguments
    def map(self, fn: Callable[[T], Any]) -> Self:
        """A tree of the same type with ``fn`` applied to each value."""
        return type(self).from_dict({name: fn(value) for name, value in self.to_dict().items()})

    @checked_arguments
    def filter_keys(self, keys: Iterable[str | int]) -> Self:
        """A tree with the entries of the given keys and those below them, in the order of the keys.

        Raises:
            ValueError: a key is given twice; KeyError: one that does not exist.
        """
        paths = list(keys)
        if len(set(paths)) < len(paths):
            raise ValueError(f"filter_keys({paths}): a key is given twice")
        subtree = type(self)()
        for key in paths:
            value = self[key]
            subtree._put(key, value.copy() if isinstance(value, DotTree) else value, True)
        return subtree

    def copy(self) -> Self:
        """A tree of its own with the same values."""
        duplicate = type(self)()
        for name, value in self._map.items():
            duplicate._map[name] = value.copy() if isinstance(value, DotTree) else value
        return duplicate

    @checked_arguments
    def get(self, key: str | int, default: Any = _MISSING) -> Any:
        """The value or sub-tree under a dotted key, or ``default``; without one KeyError when there is none."""
        if default is _MISSING:
            return self[key]
        try:
            return self[key]
        except KeyError:
            return default

    def keys(self) -> list[str]:
        """Names of values and sub-trees at the top."""
        return list(self._map)

    def keys_flat(self) -> list[str]:
        """Dotted names of all values."""
        return list(self.to_dict())

    def values(self) -> list[Any]:
        """Values and sub-trees at the top."""
        return list(self._map.values())

    def values_flat(self) -> list[T]:
        """All values, in the order of :meth:`keys_flat`."""
        return list(self.to_dict().values())

    def items(self) -> list[tuple[str, Any]]:
        """Names at the top, each with its value or sub-tree (not upstream)."""
        return list(self._map.items())

    def len(self) -> int:
        """Number of values and sub-trees at the top."""
        return len(self._map)

    def len_flat(self) -> int:
        """Number of values."""
        return len(self.to_dict())

    def _found(self, key: str | int) -> str:
        """``key`` as a dotted name, a negative number counted from the end."""
        if isinstance(key, int) and key < 0:
            return str(1 + max((int(name) for name in self._map if name.isdigit()), default=-1) + key)
        return str(key)

    def __getitem__(self, key: str | int) -> Any:
        head, dot, tail = self._found(key).partition(".")
        if head not in self._map or (dot and not isinstance(self._map[head], DotTree)):
            raise KeyError(f"{key!r} is not in the {type(self).__name__}; there are {list(self.to_dict())}")
        return self._map[head][tail] if dot else self._map[head]

    def __contains__(self, key: object) -> bool:
        try:
            # In a list, so that a value that is false counts as there.
            return isinstance(key, (str, int)) and bool([self[key]])
        except KeyError:
            return False

    def __len__(self) -> int:
        return self.len()

    def __bool__(self) -> bool:
        return True  # as upstream: an empty tree is one

    def __getattr__(self, name: str) -> Any:
        # copy and pickle ask for names before `_map` exists.
        if name.startswith("__") or name == "_map":
            raise AttributeError(name)
        if name not in self._map:
            raise AttributeError(f"{type(self).__name__} has no entry {name!r}; there are {list(self._map)}")
        return self._map[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self.insert(name, value, overwrite=True)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._map]

    def __str__(self) -> str:
        return str(self.to_dict())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()})"
