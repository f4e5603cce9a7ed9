"""Memory of compiled programs: blocks that intermediates share, and temporaries of kernels.

Buffers are assigned once, while a program is compiled, and live as long as it does. A step therefore allocates nothing,
and the pages that it writes are already mapped and often still in cache.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np

ALIGNMENT = 64
#: A free block is reused when it is at most this many times larger than needed.
SLACK = 2


def aligned_bytes(size: int) -> np.ndarray:
    """``size`` uninitialised bytes whose address is a multiple of :data:`ALIGNMENT`."""
    return _aligned(np.empty(size + ALIGNMENT, dtype=np.uint8), size)


def _aligned(raw: np.ndarray, size: int) -> np.ndarray:
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def aligned_zeros(shape: Sequence[int], dtype: np.dtype, subject: str = "an array") -> np.ndarray:
    """A new zeroed array, aligned. The pages of a large one are allocated when they are written.

    Raises:
        MemoryError: the host lacks the memory for it; ``subject`` names the array in the message.
    """
    size = math.prod(shape) * dtype.itemsize
    try:
        # zeros and not empty: the system then maps pages only when they are written.
        raw = np.zeros(max(size, 1) + ALIGNMENT, dtype=np.uint8)
    except MemoryError:
        raise MemoryError(
            f"{subject}: the values of all replicas are {size:,} bytes, more than this host gives"
        ) from None
    return _aligned(raw, size).view(dtype).reshape(tuple(shape))


class Block:
    """A piece of memory that holds one tensor at a time."""

    __slots__ = ("memory",)

    def __init__(self, size: int) -> None:
        self.memory = aligned_bytes(size)

    def array(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """The start of the block as an array."""
        size = math.prod(shape) * dtype.itemsize
        return self.memory[:size].view(dtype).reshape(tuple(shape))


class Pool:
    """Blocks, and which of them are free. It is used while compiling only."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int, Block]] = []  # (size, age, block), smallest first
        self._age = 0
        self.bytes = 0

    def acquire(self, shape: Sequence[int], dtype: np.dtype) -> Block:
        """A block for an array: the smallest free one that fits and is not much too large, or a new one."""
        size = max(math.prod(shape) * dtype.itemsize, 1)
        # Rounded up, so that blocks of nearly equal size can replace each other.
        size = -(-size // ALIGNMENT) * ALIGNMENT
        index = bisect.bisect_left(self._free, size, key=lambda entry: entry[0])
        if index < len(self._free) and self._free[index][0] <= SLACK * size:
            return self._free.pop(index)[2]
        self.bytes += size
        return Block(size)

    def release(self, block: Block) -> None:
        """Make a block free again. Among blocks of one size the one released last is reused first, as it is warm in the
        cache."""
        self._age += 1
        size = block.memory.size
        # The negated age sorts the block released last before others of its size.
        entry = (size, -self._age, block)
        index = bisect.bisect_left(
            self._free, (size, -self._age), key=lambda free_entry: (free_entry[0], free_entry[1])
        )
        self._free.insert(index, entry)


class Scratch:
    """Temporaries of kernels: one growing buffer per slot. Views bound earlier keep the buffer that they were made
    of."""

    def __init__(self) -> None:
        self._buffers: dict[int, np.ndarray] = {}

    def array(self, shape: Sequence[int], dtype: np.dtype | type, slot: int) -> np.ndarray:
        """Temporary memory of ``slot``."""
        numpy_dtype = np.dtype(dtype)
        size = math.prod(shape) * numpy_dtype.itemsize
        buffer = self._buffers.get(slot)
        if buffer is None or buffer.size < size:
            # The old buffer is not freed here, as kernels may hold views of it.
            buffer = self._buffers[slot] = aligned_bytes(max(size, ALIGNMENT))
        return buffer[:size].view(numpy_dtype).reshape(tuple(shape))

    @property
    def bytes(self) -> int:
        """Bytes of the present buffers."""
        return sum(buffer.size for buffer in self._buffers.values())
