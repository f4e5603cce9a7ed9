"""``DotTree``: named values in nested namespaces, ``tree.fc1.weight``. The base of all named collections of addons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
U = TypeVar("U")


def sanitise(name: str) -> str:
    """``name`` as a key: scopes and dots become underscores."""
    return name.replace("/", "_").replace(".", "_")


def dotted(key: str | int) -> str:
    """``key`` as a dotted name; a number is the name of a member of a list.

    Raises:
        ValueError: a negative number, or an empty part.
    """
    if isinstance(key, int) and key < 0:
        raise ValueError(f"key {key}: a number must not be negative")
    name = str(key)
    if not all(name.split(".")):
        raise ValueError(f"key {name!r}: no part of a dotted name may be empty")
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
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A tree of ``values``; dots in the keys make sub-trees."""
        tree = cls()
        for name, value in values.items():
            tree.insert(name, value)
        return tree

    @classmethod
    def pack(cls, names: Iterable[str], values: Iterable[Any]) -> Self:
        """A tree of names and values.

        Raises:
            ValueError: different numbers of names and values.
        """
        keys, items = list(names), list(values)
        if len(keys) != len(items):
            raise ValueError(f"{cls.__name__}.pack: {len(keys)} names for {len(items)} values")
        return cls.from_dict(dict(zip(keys, items)))

    def insert(self, key: str | int, value: Any, overwrite: bool = False) -> None:
        """Add a value or sub-tree under a dotted key.

        Raises:
            ValueError (and KeyError): the key is taken and ``overwrite`` is False (an empty sub-tree may always be
                replaced); ValueError: no possible key.
        """
        head, dot, rest = dotted(key).partition(".")
        if dot:
            branch = self._map.get(head)
            if branch is None or (overwrite and not isinstance(branch, DotTree)):
                branch = type(self)()
                self._map[head] = branch
            if not isinstance(branch, DotTree):
                raise _Known(f"cannot insert {key!r}: {head!r} is a value, not a tree")
            branch.insert(rest, value, overwrite)
            return
        present = self._map.get(head)
        if present is not None and not overwrite and not (isinstance(present, DotTree) and not present.to_dict()):
            raise _Known(f"{key!r} is already in the {type(self).__name__}; keys must not repeat")
        self._map[head] = value

    def update(self, other: DotTree[T] | Mapping[str, T]) -> None:
        """Add all entries of another tree; KeyError when a key repeats."""
        for name, value in (other.to_dict() if isinstance(other, DotTree) else other).items():
            self.insert(name, value)

    def pop(self, key: str | int) -> Any:
        """Remove and return a value or sub-tree; KeyError when it does not exist."""
        head, dot, rest = self._found(key).partition(".")
        if head not in self._map:
            raise KeyError(f"{key!r} is not in the {type(self).__name__}; there are {list(self.to_dict())}")
        return self._map[head].pop(rest) if dot else self._map.pop(head)

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
                flat.update({f"{name}.{inner}": leaf for inner, leaf in value.to_dict().items()})
            else:
                flat[name] = value
        return flat

    def unpack(self) -> tuple[list[str], list[T]]:
        """Names and values, sorted by name (programs zip those of several trees)."""
        flat = dict(sorted(self.to_dict().items(), key=lambda item: item[0]))
        return list(flat), list(flat.values())

    def to_mapping(self, other: DotTree[U]) -> dict[T, U]:
        """For the names that both trees have: value here -> value there."""
        theirs = other.to_dict()
        return {value: theirs[name] for name, value in self.to_dict().items() if name in theirs}

    def map(self, fn: Callable[[T], Any]) -> Self:
        """A tree of the same type with ``fn`` applied to each value."""
        return type(self).from_dict({name: fn(value) for name, value in self.to_dict().items()})

    def filter_keys(self, keys: Iterable[str]) -> Self:
        """A tree with the entries of the given keys and those below them."""
        wanted = tuple(keys)
        kept = {n: v for n, v in self.to_dict().items() if any(n == k or n.startswith(f"{k}.") for k in wanted)}
        return type(self).from_dict(kept)

    def copy(self) -> Self:
        """A tree of its own with the same values."""
        duplicate = type(self)()
        for name, value in self._map.items():
            duplicate._map[name] = value.copy() if isinstance(value, DotTree) else value
        return duplicate

    def get(self, key: str | int, default: Any = None) -> Any:
        """The value or sub-tree under a dotted key, or ``default``."""
        try:
            return self[key]
        except KeyError:
            return default

    def keys(self) -> Iterator[str]:
        """Dotted names."""
        return iter(self.to_dict())

    def items(self) -> Iterator[tuple[str, T]]:
        """Dotted names and values."""
        return iter(self.to_dict().items())

    def values(self) -> Iterator[T]:
        """Values, in the order of :meth:`keys`."""
        return iter(self.to_dict().values())

    def len(self) -> int:
        """Number of values."""
        return len(self.to_dict())

    def _found(self, key: str | int) -> str:
        """``key`` as a dotted name, a negative number counted from the end."""
        if isinstance(key, int) and key < 0:
            return str(1 + max((int(name) for name in self._map if name.isdigit()), default=-1) + key)
        return str(key)

    def __getitem__(self, key: str | int) -> Any:
        head, dot, rest = self._found(key).partition(".")
        if head not in self._map:
            raise KeyError(f"{key!r} is not in the {type(self).__name__}; there are {list(self.to_dict())}")
        return self._map[head][rest] if dot else self._map[head]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, int)) and self.get(key, _MISSING) is not _MISSING

    def __len__(self) -> int:
        return self.len()

    def __bool__(self) -> bool:
        return bool(self._map)

    def __getattr__(self, name: str) -> Any:
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

    def __repr__(self) -> str:
        return str(self.to_dict())


_MISSING = object()
