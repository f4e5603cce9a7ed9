"""Caches with a bound. A cache that is full is emptied: what is still in use comes back at once."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dictionary of at most ``limit`` entries, as long as they are added with :meth:`put`."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, key: K, value: V) -> V:
        """Add an entry; returns ``value``."""
        if len(self) >= self._limit:
            self.clear()
        self[key] = value
        return value


class IdentityCache(Generic[K, V]):
    """Values for objects that are slow to compare and come as the same object each time.

    Each entry holds its object, so that no other object can have the same identity.
    """

    def __init__(self, limit: int) -> None:
        self._entries: Cache[tuple[int, object], tuple[K, V]] = Cache(limit)

    def get(self, key: K, detail: object = None) -> V | None:
        """The value for the object ``key`` and this ``detail``, which is compared as usual."""
        entry = self._entries.get((id(key), detail))
        return None if entry is None else entry[1]

    def put(self, key: K, value: V, detail: object = None) -> V:
        """Add an entry; returns ``value``."""
        self._entries.put((id(key), detail), (key, value))
        return value
