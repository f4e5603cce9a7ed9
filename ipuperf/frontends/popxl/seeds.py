"""``popxl.create_seeds``: seeds for all micro-batches and replicas, made on the host."""

from __future__ import annotations

import numpy as np

from .arguments import whole


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
