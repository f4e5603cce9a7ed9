"""How a convolution becomes matrix products in NumPy: its input is unrolled into columns."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .. import half
from .. import work as works
from ..base import Arrays, Environment, Kernel
from ..binding import Step, sequence, working_dtype

#: Columns of the smallest matrix product worth sharing rows for; below, all output positions go into one product.
FEWEST_COLUMNS = 64


def convolved(conv: Matrices, inputs: Arrays, outputs: np.ndarray, *, turned: bool = False) -> Kernel:
    """Per replica: unroll the input into columns, make one (batched) matrix product, copy it to the output's
    layout."""
    columns, matrix, product = conv.columns(), conv.weights(), conv.results()
    view = conv.turned_weight_view if turned else conv.weight_view
    steps: list[Step] = []
    for x, w, y in zip(inputs[0], inputs[1], outputs, strict=True):
        steps += columns.load(x)
        steps.append(half.copy(matrix.by_axis, view(w)))
        steps.append(partial(np.matmul, matrix.array[:, None], columns.windows, product.array))
        steps.append(half.copy(conv.output_view(y), product.by_axis))
    return sequence(*steps)


class _Grid:
    """Scratch memory seen both as matrices (``array``) and by the axes of a tensor (``by_axis``)."""

    def __init__(self, array: np.ndarray, by_axis: np.ndarray) -> None:
        self.array = array
        self.by_axis = by_axis


class Matrices:
    """How a convolution becomes matrix products in NumPy; all arrays are scratch memory of one replica.

    The batch is the innermost axis, so that all copies have long runs: the padded image is ``(G, H, C/G, *rest, N)``
    with H the first spatial axis. Only the other kernel axes are unrolled into the columns ``(G, H, C/G, *kernel rest,
    *output rest, N)``. One row of the output then needs K = kernel_H * C/G * kernel_rest values that are consecutive
    blocks of the columns. The windows of all rows are one overlapping view ``(G, output_H, K, Q)`` that BLAS takes as
    it is (Cho and Brand, "MEC: memory-efficient convolution", 2017).

    Rows cannot be shared when they are dilated or do not overlap. Sharing is not worth it when a product would have
    few columns. In these cases an axis of length 1 takes the place of H, all spatial axes are unrolled, and there is
    one product.
    """

    def __init__(self, conv: works.Convolution, dtype: np.dtype, env: Environment) -> None:
        self.env = env
        self.dtype = working_dtype(dtype)
        self.groups, self.batch = conv.groups, conv.batch
        self.channels_in, self.channels_out = conv.channels_in // conv.groups, conv.channels_out // conv.groups
        columns = math.prod(conv.output_size[1:]) * conv.batch
        shared = conv.dilation[0] == 1 and conv.kernel_size[0] > conv.strides[0] and columns >= FEWEST_COLUMNS
        # If the only spatial axis were H, products
        # would have no columns but those of the batch.
        lead = () if shared and len(conv.input_size) > 1 else (1,)
        self.size = (*lead, *conv.input_size)
        self.kernel = (*lead, *conv.kernel_size)
        self.strides = (*lead, *conv.strides)
        self.dilation = (*lead, *conv.dilation)
        self.padding = (*((0, 0) for _ in lead), *conv.padding)
        self.output = (*lead, *conv.output_size)
        self.depth = self.channels_in * math.prod(self.kernel)
        self.width = math.prod(self.output[1:]) * self.batch

    # -- tensors of one replica, with axes in the order of the scratch memory --------------------------------------

    def input_view(self, x: np.ndarray) -> np.ndarray:
        """``(N, C, *size)`` as ``(G, H, C/G, *rest, N)``."""
        return self._batch_last(x.reshape(self.batch, self.groups, self.channels_in, *self.size))

    def output_view(self, y: np.ndarray) -> np.ndarray:
        """``(N, O, *output)`` as ``(G, output_H, O/G, *rest, N)``."""
        return self._batch_last(y.reshape(self.batch, self.groups, self.channels_out, *self.output))

    def weight_view(self, w: np.ndarray) -> np.ndarray:
        """``(O, C/G, *kernel)`` as ``(G, O/G, kernel_H, C/G, *rest)``."""
        view: np.ndarray = w.reshape((self.groups, self.channels_out, self.channels_in, *self.kernel)).swapaxes(2, 3)
        return view

    def turned_weight_view(self, w: np.ndarray) -> np.ndarray:
        """The weights ``(C, O/G, *kernel)`` of the convolution whose input gradient this one computes, in the form
        of :meth:`weight_view`: channels swapped, the kernel read from its end."""
        shaped = w.reshape((self.groups, self.channels_in, self.channels_out, *self.kernel))
        view: np.ndarray = np.flip(shaped, tuple(range(3, shaped.ndim))).transpose([0, 2, 3, 1, *range(4, shaped.ndim)])
        return view

    @staticmethod
    def _batch_last(array: np.ndarray) -> np.ndarray:
        view: np.ndarray = array.transpose([1, 3, 2, *range(4, array.ndim), 0])
        return view

    # -- scratch memory --------------------------------------------------------------------------------------------

    def columns(self) -> _Columns:
        """Image and columns (slots 0 and 1)."""
        return _Columns(self)

    def weights(self) -> _Grid:
        """Matrices ``(G, O/G, K)`` (slot 2)."""
        array = self.env.scratch((self.groups, self.channels_out, self.depth), self.dtype, slot=2)
        shape = (self.groups, self.channels_out, self.kernel[0], self.channels_in, *self.kernel[1:])
        return _Grid(array, array.reshape(shape))

    def results(self) -> _Grid:
        """Matrices ``(G, output_H, O/G, Q)`` (slot 3)."""
        shape = (self.groups, self.output[0], self.channels_out)
        array = self.env.scratch((*shape, self.width), self.dtype, slot=3)
        return _Grid(array, array.reshape(*shape, *self.output[1:], self.batch))


class _Columns:
    """The padded image, its columns and the windows on them; see :class:`Matrices`.

    Attributes:
        image: ``(G, padded H, C/G, *padded rest, N)``.
        inner: the part of the image that is the input.
        windows: ``(G, output_H, K, Q)``, overlapping.
    """

    def __init__(self, conv: Matrices) -> None:
        padded = [
            n + pad_before + pad_after for n, (pad_before, pad_after) in zip(conv.size, conv.padding, strict=True)
        ]
        shape = (conv.groups, padded[0], conv.channels_in, *padded[1:], conv.batch)
        self.conv = conv
        self.image = conv.env.scratch(shape, conv.dtype, slot=0)
        parts = [slice(pad_before, pad_before + n) for n, (pad_before, _) in zip(conv.size, conv.padding, strict=True)]
        inside: tuple[Any, ...] = (slice(None), parts[0], slice(None), *parts[1:])
        self.inner = self.image[inside]
        kernel, output = conv.kernel[1:], conv.output[1:]
        #: There is nothing to unroll: the columns are the image.
        self.plain = math.prod(kernel) == 1 and output == tuple(padded[1:])
        unrolled = (*shape[:3], *kernel, *output, conv.batch)
        # A 1 x 1 kernel without strides reads each
        # element once: the image serves as its columns.
        self.array = self.image.reshape(unrolled) if self.plain else conv.env.scratch(unrolled, conv.dtype, slot=1)
        item_bytes = conv.dtype.itemsize
        self.windows = as_strided(
            self.array,
            (conv.groups, conv.output[0], conv.depth, conv.width),
            (self.array.strides[0], conv.strides[0] * self.array.strides[1], conv.width * item_bytes, item_bytes),
        )

    def load(self, x: np.ndarray) -> list[Step]:
        """Fill image and columns from ``(N, C, *size)``."""
        steps: list[Step] = []
        # Other kernels use this scratch memory too, so the padding is cleared each time.
        if self.inner.size != self.image.size:
            steps.append(partial(self.image.fill, 0))
        steps.append(half.copy(self.inner, self.conv.input_view(x)))
        if not self.plain:
            image, conv = self.image.strides, self.conv
            spatial_strides = image[3:-1]
            strides = (
                *image[:3],
                *(s * d for s, d in zip(spatial_strides, conv.dilation[1:], strict=True)),
                *(s * t for s, t in zip(spatial_strides, conv.strides[1:], strict=True)),
                image[-1],
            )
            steps.append(partial(np.copyto, self.array, as_strided(self.image, self.array.shape, strides)))
        return steps

    def collect(self, weights: np.ndarray, grads: np.ndarray, part: np.ndarray) -> list[Step]:
        """The reverse of :meth:`load`.

        Add ``weights (G, K, O/G) @ grads[:, row] (G, O/G, Q)`` to the windows of each row, then the columns to the
        image. ``part`` is a temporary of one window.
        """
        steps: list[Step] = []
        rows = grads.shape[1]
        # A single window that covers the columns can be written directly.
        if rows == 1 and self.array.shape[1] == self.conv.kernel[0]:
            steps.append(partial(np.matmul, weights, grads[:, 0], self.windows[:, 0]))
        else:
            steps.append(partial(self.array.fill, 0))
            # Windows of neighbouring rows overlap, so they are added one after the other.
            for row in range(rows):
                window = self.windows[:, row]
                steps.append(partial(np.matmul, weights, grads[:, row], part))
                steps.append(partial(np.add, window, part, window))
        if self.plain:
            return steps
        steps.append(partial(self.image.fill, 0))
        conv = self.conv
        leading: tuple[Any, ...] = (slice(None), slice(None), slice(None))
        # For one kernel position all target elements
        # differ, so one addition per position is exact.
        for position in itertools.product(*(range(k) for k in conv.kernel[1:])):
            spans = [
                slice(i * d, i * d + (n - 1) * s + 1, s)
                for i, d, n, s in zip(position, conv.dilation[1:], conv.output[1:], conv.strides[1:], strict=True)
            ]
            image_index, column_index = (*leading, *spans), (*leading, *position)
            target, source = self.image[image_index], self.array[column_index]
            steps.append(partial(np.add, target, source, target))
        return steps
