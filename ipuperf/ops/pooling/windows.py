"""Windows over the spatial axes of ``(N, C, *spatial)``, and passes over one axis after the other.

A window is a product of ranges, so a reduction over it is done one axis after the other. The stage of an axis goes
over the positions in the window; each position is a pair of equally long slices (:class:`Windows`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..base import Environment
from ..binding import Step

#: (outputs, inputs): which results take which elements at one position of the window.
Pair = tuple[slice, slice]


@dataclass(frozen=True)
class Windows:
    """The windows along one axis.

    Attributes:
        size, outputs: the number of elements and of windows.
        pairs: a pair of slices for each position in the window, in order.
        counts: for each window the number of elements over which its average is taken.
        full: every position exists in every window.
        disjoint: no element lies in two windows.
    """

    size: int
    outputs: int
    pairs: tuple[Pair, ...]
    counts: tuple[int, ...]
    full: bool
    disjoint: bool

    @property
    def identity(self) -> bool:
        """Whether each element is a window of its own."""
        return self.full and len(self.pairs) == 1 and self.size == self.outputs

    @property
    def visits(self) -> int:
        """Number of pairs of a window and an element of it."""
        return sum(o.stop - o.start for o, _ in self.pairs)

    @property
    def covered(self) -> int:
        """Number of elements that lie in a window."""
        return len(
            {at for _, elements in self.pairs for at in range(elements.start, elements.stop, elements.step or 1)}
        )


def regular_windows(
    size: int,
    outputs: int,
    kernel: int,
    stride: int,
    padding: tuple[int, int],
    dilation: int = 1,
    include_padding: bool = False,
) -> Windows:
    """Windows of ``kernel`` elements, ``dilation`` apart, every ``stride`` elements of the padded axis."""
    pad_before, pad_after = padding
    pairs = []
    for position in range(kernel):
        offset = position * dilation - pad_before
        # Only windows whose element at this position lies inside the axis take part.
        first_output = max(0, -(offset // stride))
        end_output = min(outputs, (size - 1 - offset) // stride + 1)
        if first_output < end_output:
            start = first_output * stride + offset
            pairs.append(
                (
                    slice(first_output, end_output),
                    slice(start, start + (end_output - first_output - 1) * stride + 1, stride),
                )
            )
    # Padding counts as elements only if the average includes it.
    low, high = (-pad_before, size + pad_after) if include_padding else (0, size)
    starts = [i * stride - pad_before for i in range(outputs)]
    counts = tuple(sum(low <= s + j * dilation < high for j in range(kernel)) for s in starts)
    full = len(pairs) == kernel and all((o.start, o.stop) == (0, outputs) for o, _ in pairs)
    return Windows(size, outputs, tuple(pairs), counts, full, dilation == 1 and kernel <= stride)


def adaptive_windows(size: int, outputs: int) -> Windows:
    """PyTorch's windows from ``floor(i size / outputs)`` to ``ceil((i + 1) size / outputs)``."""
    if size % outputs == 0:
        return regular_windows(size, outputs, size // outputs, size // outputs, (0, 0))
    spans = [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]
    # Windows differ in length, so each pair of a window and an element stands alone.
    pairs = [(slice(i, i + 1), slice(at, at + 1)) for i, (start, stop) in enumerate(spans) for at in range(start, stop)]
    return Windows(size, outputs, tuple(pairs), tuple(b - a for a, b in spans), False, False)


@dataclass(frozen=True)
class AxisPass:
    """The reduction of one axis of arrays ``(L, *spatial)``; ``axis`` counts from the array's first axis."""

    axis: int
    windows: Windows

    def views(self, pair: Pair, coarse: np.ndarray, fine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The results and the elements of one position in the window."""
        lead = (slice(None),) * self.axis
        outputs: tuple[slice, ...] = (*lead, pair[0])
        inputs: tuple[slice, ...] = (*lead, pair[1])
        return coarse[outputs], fine[inputs]

    def shape(self, fine: Sequence[int]) -> tuple[int, ...]:
        """Shape after the stage."""
        return (*fine[: self.axis], self.windows.outputs, *fine[self.axis + 1 :])

    def reduce(self, ufunc: np.ufunc, identity: float, fine: np.ndarray, coarse: np.ndarray) -> list[Step]:
        """Steps for ``coarse[i] = ufunc over the window i of fine``."""
        views = [self.views(pair, coarse, fine) for pair in self.windows.pairs]
        # Some windows lack positions at the border, so they all begin with the neutral value.
        if not self.windows.full:
            return [partial(coarse.fill, identity), *(partial(ufunc, o, i, out=o) for o, i in views)]
        # One position in the window: nothing to combine.
        if len(views) == 1:
            return [partial(np.copyto, *views[0])]
        combine_two = partial(ufunc, views[0][1], views[1][1], out=coarse)
        return [combine_two, *(partial(ufunc, o, i, out=o) for o, i in views[2:])]

    def spread(self, coarse: np.ndarray, fine: np.ndarray) -> list[Step]:
        """The transpose of a sum: steps for ``fine[j] = sum of coarse over the windows that j lies in``."""
        views = [self.views(pair, coarse, fine) for pair in self.windows.pairs]
        clear = [] if self.covers else [partial(fine.fill, 0)]
        # Each element gets at most one value, so a copy is enough.
        if self.windows.disjoint:
            return [*clear, *(partial(np.copyto, i, o) for o, i in views)]
        return [*clear, *(partial(np.add, i, o, out=i) for o, i in views)]

    @property
    def covers(self) -> bool:
        """Whether every element lies in exactly one window."""
        return self.windows.disjoint and self.windows.visits == self.windows.size


def temporaries(
    shape: Sequence[int], stages: Sequence[AxisPass], dtype: np.dtype, env: Environment, slot: int
) -> list[np.ndarray]:
    """Scratch arrays between the stages, from slot ``slot`` on."""
    arrays = []
    for index, stage in enumerate(stages[:-1]):
        shape = stage.shape(shape)
        arrays.append(env.scratch(shape, dtype, slot=slot + index))
    return arrays


def flat(array: np.ndarray) -> np.ndarray:
    """``(R, N, C, *spatial)`` as ``(R * N * C, *spatial)``; the array is contiguous."""
    return array.reshape(math.prod(array.shape[:3]), *array.shape[3:])
