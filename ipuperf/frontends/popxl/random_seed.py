"""Seeds for the IPU's generators made on the host (upstream ``popxl.random_seed``): a seed is two words of 32 bits."""

from __future__ import annotations

from .arguments import whole
from .seeds import create_seeds

MAX_UINT32 = 2**32 - 1
MAX_UINT64 = 2**64 - 1


def uint64_to_two_uint32(num: int) -> tuple[int, int]:
    """The high and the low word; ValueError outside of 0 to 2**64 - 1."""
    return divmod(_within(num, MAX_UINT64), 2**32)


def two_uint32_to_uint64(a: int, b: int) -> int:
    """The number whose high word is ``a`` and whose low word is ``b``; ValueError outside of 0 to 2**32 - 1."""
    return (_within(a, MAX_UINT32) << 32) + _within(b, MAX_UINT32)


def _within(number: int, most: int) -> int:
    if whole(number, "a seed or word of a seed", 0) > most:
        raise ValueError(f"a seed or word of a seed is {number}; allowed: 0 to {most}")
    return int(number)


__all__ = ["MAX_UINT32", "MAX_UINT64", "create_seeds", "two_uint32_to_uint64", "uint64_to_two_uint32"]
