"""Dropout, random tensors and seeds. Numbers follow from seed and op; see :mod:`ipuperf.ops.randomness`."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf import ops as _k
from ipuperf.ir import FLOAT32, INT32, UINT32, DType, Tensor

from .making import constant, make


def dropout(t: Tensor, seed_tensor: Tensor, p: float) -> Tensor:
    """``t / (1 - p)`` with each element zero with probability ``p``.

    The program has to change the seed (uint32, (2,)) from call to call and from replica to replica.

    Raises:
        IrError (``popart_exception``): another seed, or ``p`` outside of [0, 1).
    """
    return make(_k.Dropout, t, seed_tensor, p=float(p))


def shaped_dropout(t: Tensor, seed_tensor: Tensor, shape: Sequence[int], ratio: float) -> Tensor:
    """Like :func:`dropout`, with one decision for all elements along the axes where ``shape`` is 1.

    ``shape`` broadcasts to ``t``; leading axes may be left out.
    """
    # NumPy's rule of broadcasting: missing leading axes have length 1.
    mask = (1,) * (len(t.shape) - len(shape)) + tuple(int(length) for length in shape)
    return make(_k.Dropout, t, seed_tensor, name="shapeddropout_out", p=float(ratio), mask_shape=mask)


def random_uniform(
    seed_tensor: Tensor, shape: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: DType = FLOAT32
) -> Tensor:
    """A tensor of uniformly distributed numbers from ``low`` to ``high``."""
    return make(_k.RandomUniform, seed_tensor, shape=tuple(shape), low=low, high=high, dtype=dtype)


def random_normal(
    seed_tensor: Tensor, shape: Sequence[int], mean: float = 0.0, std: float = 1.0, dtype: DType = FLOAT32
) -> Tensor:
    """A tensor of normally distributed numbers."""
    return make(_k.RandomNormal, seed_tensor, shape=tuple(shape), mean=mean, std=std, dtype=dtype)


def random_integer(seed_tensor: Tensor, shape: Sequence[int], low: int, high: int, dtype: DType = INT32) -> Tensor:
    """A tensor of whole numbers from ``low`` to below ``high``."""
    return make(_k.RandomInteger, seed_tensor, shape=tuple(shape), low=low, high=high, dtype=dtype)


def create_random_seed(seed: Tensor, modifier: Tensor) -> Tensor:
    """A seed from another seed and a uint32 scalar.

    Raises:
        ValueError: the seed is not uint32 of shape (2,).
    """
    if seed.shape != (2,) or seed.dtype != UINT32:
        raise ValueError(f"create_random_seed: the seed {seed!r} must be uint32 of shape (2,)")
    return make(_k.ModifyRandomSeed, seed, modifier, name="modified_seed")


def split_random_seed(seed: Tensor, n: int = 2) -> tuple[Tensor, ...]:
    """``n`` seeds from one.

    Raises:
        ValueError: ``n`` is not from 1 to 2**16.
    """
    if not 0 < n <= 2**16:
        raise ValueError(f"split_random_seed: n is {n}; allowed: 1 to {2**16}")
    return tuple(create_random_seed(seed, constant(index, UINT32)) for index in range(n))
