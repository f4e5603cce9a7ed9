"""Seeds for the IPU's generators made on the host (upstream ``popxl.random_seed``): a seed is two words of 32 bits."""

from __future__ import annotations

import numpy as np

from .arguments import whole

MAX_UINT32 = 2**32 - 1
MAX_UINT64 = 2**64 - 1


def create_seeds(
    seed: int, offset: int = 0, batches_per_step: int = 1, gradient_accumulation_factor: int = 1, replicas: int = 1
) -> np.ndarray:
    """uint32 pairs (high, low word) of ``default_rng(seed + offset)``, bit by bit those of upstream.

    Returns:
        ``(batches_per_step, gradient_accumulation_factor, replicas, 2)`` without axes of length 1.
    """
    counts = {"batches_per_step": batches_per_step, "gradient_accumulation_factor": gradient_accumulation_factor}
    for name, value in {**counts, "replicas": replicas}.items():
        whole(value, f"create_seeds: {name}", 1)
    start = whole(seed, "create_seeds: seed") + whole(offset, "create_seeds: offset")
    whole(start, "create_seeds: seed + offset", 0)
    count = batches_per_step * gradient_accumulation_factor * replicas
    words = np.random.default_rng(start).integers(0, 2**64 - 1, endpoint=True, dtype=np.uint64, size=count)
    pairs = np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)
    return pairs.reshape(batches_per_step, gradient_accumulation_factor, replicas, 2).squeeze()


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
