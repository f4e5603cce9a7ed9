"""Tensors with explicit storage: one address space per dtype, a tensor is an array of addresses.

Views share addresses, in-place ops write to them; nothing else is needed for aliasing, also of concatenations. The
leading axis of every value has twice as many rows as there are replicas: the second half holds the same program whose
inexact results are disturbed by a few roundings, so that their distance tells how far rounding may carry a value, and
with it what tolerance a comparison needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

ROUNDING = {"float16": 2.0**-10, "float32": 2.0**-21, "float64": 2.0**-48}
"""The relative disturbance: about two units in the last place of a result of order one."""


class Memory:
    """The storage of one run of a program."""

    def __init__(self, replicas: int, seed: int) -> None:
        self.replicas = replicas
        self.rows = 2 * replicas
        self._cells: dict[str, np.ndarray] = {}
        self._used: dict[str, int] = {}
        self._random = np.random.default_rng(seed)

    def new(self, value: Any, dtype: str, *, inexact: bool = False) -> Shadow:
        """A new tensor with this value ``(rows, *shape)``."""
        value = np.asarray(value)
        made = Shadow(self, dtype, self._allocate(value.shape[1:], dtype))
        made.write(value, inexact=inexact)
        return made

    def cells(self, dtype: str) -> np.ndarray:
        """All cells ``(rows, addresses)`` of a dtype."""
        return self._cells[dtype]

    def disturbed(self, value: np.ndarray, dtype: str) -> np.ndarray:
        """``value`` whose second half of rows has other roundings."""
        noise = self._random.uniform(0.5, 1, value.shape[1:]) * self._random.choice([-1, 1], value.shape[1:])
        noise = noise * ROUNDING[dtype]
        moved = np.array(value)
        moved[self.replicas :] += (noise * (np.abs(value[self.replicas :]) + 1)).astype(value.dtype)
        return moved

    def _allocate(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        count = int(np.prod(shape, dtype=int))
        begin = self._used.get(dtype, 0)
        self._used[dtype] = begin + count
        cells = self._cells.setdefault(dtype, np.zeros((self.rows, 1024), np.dtype(dtype)))
        if begin + count > cells.shape[1]:
            more = np.zeros((self.rows, begin + 2 * count), cells.dtype)
            self._cells[dtype] = np.concatenate([cells, more], axis=1)
        return np.arange(begin, begin + count).reshape(shape)


class Shadow:
    """A tensor: addresses (in its shape) of cells of a dtype."""

    def __init__(self, memory: Memory, dtype: str, addresses: np.ndarray) -> None:
        self.memory, self.dtype, self.addresses = memory, dtype, addresses

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape on one replica."""
        return self.addresses.shape

    def read(self) -> np.ndarray:
        """The value ``(rows, *shape)``; float16 as float32, in which everything is computed."""
        value = self.memory.cells(self.dtype)[:, self.addresses]
        return value.astype(np.float32) if self.dtype == "float16" else value

    def write(self, value: np.ndarray, *, inexact: bool = False) -> None:
        """Put a value of this shape into the cells, rounded to the dtype."""
        if inexact and self.dtype in ROUNDING:
            value = self.memory.disturbed(value, self.dtype)
        cells = self.memory.cells(self.dtype)
        cells[:, self.addresses] = value.astype(cells.dtype)

    def view(self, addresses: np.ndarray) -> Shadow:
        """Another tensor on the same storage."""
        return Shadow(self.memory, self.dtype, addresses)

    def copy(self) -> Shadow:
        """The same value on new storage."""
        return self.memory.new(self.read(), self.dtype)


def differences(name: str, got: np.ndarray, rows: np.ndarray, dtype: str) -> tuple[list[str], int]:
    """How ``got`` (replicas, *shape) differs from the reference rows, and how many elements could be compared.

    Elements that rounding may carry anywhere (not finite, or above 1e4) are left out.
    """
    half = len(rows) // 2
    want, other = rows[:half], rows[half:]
    if got.shape != want.shape:
        return [f"{name}: shape {got.shape}, expected {want.shape}"], 0
    if dtype not in ROUNDING:
        bad = got != want
        return _described(name, got, want, bad), bad.size
    got, want, other = (a.astype(np.float64) for a in (got, want, other))
    comparable = np.isfinite(want) & np.isfinite(other) & (np.abs(want) < 1e4)
    spread = np.abs(want - other)[comparable].max(initial=0)
    bad = comparable & ~(np.abs(got - want) <= 16 * spread + 4 * ROUNDING[dtype] * (1 + np.abs(want)))
    return _described(name, got, want, bad), int(comparable.sum())


def _described(name: str, got: np.ndarray, want: np.ndarray, bad: np.ndarray) -> list[str]:
    if not bad.any():
        return []
    return [f"{name}: {bad.sum()} of {bad.size} elements differ, got {got[bad][:3]}, expected {want[bad][:3]}"]
