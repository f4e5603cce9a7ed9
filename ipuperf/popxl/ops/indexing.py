"""``tensor[...]``: integers, slices, ``...`` along the axes, as one slice op and, for integers, one reshape."""

from __future__ import annotations

from builtins import slice as _PySlice
from typing import Any

import numpy as np

from ..handle import Tensor
from .shape import reshape, slice


def _expanded(t: Tensor, key: Any) -> list[Any]:
    """One entry per axis."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError(f"index of {t.id!r}: only one `...` is allowed")
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    missing = t.rank - (len(parts) - 1)
    if missing < 0:
        raise IndexError(f"index of {t.id!r}: {len(parts) - 1} indices for {t.rank} axes")
    everything = _PySlice(None)
    return parts[:at] + [everything] * missing + parts[at + 1 :]


def getitem(t: Tensor, key: Any) -> Tensor:
    """``t[key]``: always a copy, also where every index is a full slice.

    Raises:
        IndexError: an integer outside of its axis, too many indices; TypeError: another kind of index.
    """
    starts: list[Any] = []
    stops: list[Any] = []
    steps: list[Any] = []
    axes: list[int] = []
    squeezed: list[int] = []
    for axis, part in enumerate(_expanded(t, key)):
        size = t.shape[axis]
        if isinstance(part, _PySlice):
            if part == _PySlice(None):
                continue
            start, stop, step = part.start, part.stop, part.step
        elif isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_)):
            if not -size <= part < size:
                raise IndexError(f"index {part} of {t.id!r}: axis {axis} has {size} elements")
            start = int(part) % size
            stop, step = start + 1, 1
            squeezed.append(axis)
        else:
            raise TypeError(
                f"index of {t.id!r}: {type(part).__name__} is not supported by ipuperf yet; allowed: int, slice, ..."
            )
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        axes.append(axis)
    result = slice(t, starts, stops, steps, axes)
    if squeezed:
        result = reshape(result, [n for i, n in enumerate(result.shape) if i not in squeezed])
    return result
