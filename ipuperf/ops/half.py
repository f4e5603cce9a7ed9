"""Conversions between float16 and the type in which arithmetic is done, as fast as the installed libraries allow.

NumPy converts float32 to float16 one value at a time. It spends some 60 ns on each value that becomes subnormal or
zero, and gradients and first moments are full of those. PyTorch's vectorised conversion takes 0.1 ns for any value. It
is used where PyTorch is already loaded; nothing loads PyTorch for this. Both round to nearest even and give the same
bits, except the payload of NaN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .crew import cut, share, together

Step = Callable[[], Any]

_PAIR = {np.dtype(np.float16), np.dtype(np.float32)}

#: Below this magnitude float16 has a spacing of 2**-24, which is float32's between 0.5 and 1.
_FINE = np.float32(2**-13)
_SHIFT = np.float32(0.75)


def copy(out: np.ndarray, source: np.ndarray) -> Step:
    """A step for ``out[...] = source``, converted to ``out``'s type (of the same kind) and broadcast to its shape."""
    if {out.dtype, source.dtype} == _PAIR:
        return together([_torch_copy(*part) or _numpy_copy(*part) for part in cut(out, [source], share(out.size))])
    return partial(np.copyto, out, source, casting="same_kind")


def _torch_copy(out: np.ndarray, source: np.ndarray) -> Step | None:
    """The conversion by PyTorch, or None where it is not loaded or cannot use the arrays."""
    torch = sys.modules.get("torch")
    # PyTorch may be blocked (None), or still in the midst of its import.
    if getattr(torch, "from_numpy", None) is None or not (visible(out) and visible(source)):
        return None
    assert torch is not None
    return partial(torch.from_numpy(out).copy_, torch.from_numpy(source))


def visible(array: np.ndarray) -> bool:
    """Whether PyTorch can use the array as it is: writable, no axis backwards, whole elements between neighbours."""
    return array.flags.writeable and all(s >= 0 and s % array.itemsize == 0 for s in array.strides)


def _numpy_copy(out: np.ndarray, source: np.ndarray) -> Step:
    if out.dtype == np.float32:
        return partial(np.copyto, out, source)
    return partial(_narrow, out, source)


def _narrow(out: np.ndarray, source: np.ndarray) -> None:
    """Convert float32 to float16 with NumPy.

    Small values are first rounded to float16's spacing, by adding and subtracting a number of that spacing. The
    conversion is then exact and takes its fast path.
    """
    rounded = np.empty(source.shape, np.float32)
    np.add(source, _SHIFT, out=rounded)
    np.subtract(rounded, _SHIFT, out=rounded)
    # The difference of equal numbers is +0, so negative values would lose their sign.
    np.copysign(rounded, source, out=rounded)
    # Larger values need no rounding in advance, and NaN must stay as it is.
    large = np.greater_equal(np.absolute(source), _FINE)
    np.copyto(rounded, source, where=np.logical_or(large, np.isnan(source)))
    np.copyto(out, rounded, casting="same_kind")
