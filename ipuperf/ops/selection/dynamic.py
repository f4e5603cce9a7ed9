"""Slices at a position that is known at run time, and the counter that stashes use as their position.

Upstream: PopART ``willow/src/op/dynamic/*.cpp`` and ``incrementmod.cpp``, popops ``DynamicSlice``. A slice that
reaches beyond the end of an axis continues at its begin (the codelets count modulo the axis,
``codelets/DynamicSlice1D.cpp``). Upstream leaves open what an index outside of the axis does; here it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ipuperf.ir import DType, DTypeError, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import INTEGERS, NUMBER, Attribute

from .. import vertices
from ..axes import wrapped
from ..base import Arrays, Environment, Gradients, Kernel, Op, rows
from ..binding import sequence
from ..shape import copy_work
from ..work import SliceVertices, TileCycles, Vertices, Work

if TYPE_CHECKING:
    from ipuperf.machine import Chip

Region = tuple[tuple[slice, ...], tuple[slice, ...]]


class DynamicIndexError(IrError, IndexError):
    """An index outside of the axis that is sliced."""


def slice_cycles(dtype_size: int, count: int) -> TileCycles:
    """DynamicSlice1D (``docs/reference/cycles.md`` 4.3): ``25 + W * (39 + (24 + 2 * ceil(m / v)) * k)``.

    k = ``count`` positions of the slice, m elements of one position and worker, v the vector width. The update vertex
    moves the same elements and has the same estimate.
    """

    def cycles(elements: np.ndarray, chip: Chip) -> np.ndarray:
        tile_elements = np.asarray(elements, dtype=np.int64)
        region = vertices.ceil_div(tile_elements, count)
        # The elements of one position are shared by the workers of the tile.
        worker = vertices.ceil_div(region, chip.workers)
        words = vertices.ceil_div(worker, chip.vector_width(min(dtype_size, 4)))
        total = 25 + chip.workers * (39 + (24 + 2 * words) * count)
        return np.where(tile_elements > 0, total, 0).astype(np.int64)

    return cycles


def planned_slice_cycles(elements: np.ndarray, dtype_size: int, chip: Chip) -> np.ndarray:
    """DynamicSlice1D of one position as PopLibs' convolution planner expects it (``lib/poplin/ConvModel.cpp``): like
    :func:`slice_cycles` with whole vectors only, ``25 + W * (39 + 24 + 2 * floor(m / v))``.

    The difference, two cycles a worker where the last vector is not full, is intended. The planner compares plans by
    this figure, and the serial passes of the chosen plan are charged the same.
    """
    worker = vertices.ceil_div(elements, chip.workers)
    return 25 + chip.workers * (39 + 24 + 2 * (worker // chip.vector_width(dtype_size)))


def _sliced_axes(op: Dynamic, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of the base that are sliced, not negative."""
    sliced = tuple(wrapped(op, axis, len(op.base_shape())) for axis in axes)
    op.require(len(set(sliced)) == len(sliced), f"axes {sliced} name an axis twice")
    return sliced


class Dynamic(Op, abstract=True):
    """Base: operand ``index`` at 1 with one element per sliced axis; attributes ``axes``, ``sizes``.

    PopART's ``no_overlap`` (slices never overlap) is a hint for its gradients. It would change neither values nor
    cost, so it is absent.
    """

    axes = Attribute(INTEGERS, settle=_sliced_axes)
    sizes = Attribute(INTEGERS)

    def base_shape(self) -> tuple[int, ...]:
        """Shape of the tensor that is sliced."""
        return self.inputs[0].shape

    def slice_shape(self) -> tuple[int, ...]:
        """Shape of the slice."""
        shape = list(self.base_shape())
        for axis, size in zip(self.axes, self.sizes, strict=True):
            shape[axis] = size
        return tuple(shape)

    @property
    def base(self) -> Tensor:
        """The tensor that is sliced; it holds every position."""
        return self.inputs[0]

    @property
    def part(self) -> Tensor | None:
        """The slice; None when it is not a tensor."""
        return None

    def check(self) -> None:
        """Raise for sizes or an index that do not fit the base."""
        shape, axes, sizes = self.base_shape(), self.axes, self.sizes
        self.require(
            0 < len(axes) == len(sizes), f"axes {axes} and sizes {sizes} need the same number of entries, at least 1"
        )
        for axis, size in zip(axes, sizes, strict=True):
            self.require(
                0 < size <= shape[axis], f"size {size} on axis {axis}; allowed are 1 to {shape[axis]} for {shape}"
            )
        # The index is data, so only its type and size can be checked before a run.
        index = self.inputs[1]
        if index.dtype.name not in ("uint32", "int32"):
            raise DTypeError(f"{self.where()}: the index {index.id!r} is {index.dtype.name}; allowed are uint32, int32")
        self.require(
            index.spec.elements == len(axes),
            f"the index {index.id!r} has shape {index.shape}; {len(axes)} elements are needed, one per axis",
        )

    def check_slice(self, tensor: Tensor) -> None:
        """Raise unless ``tensor`` has the slice's shape."""
        slice_shape = self.slice_shape()
        self.require(
            tensor.shape == slice_shape, f"{tensor.id!r} has shape {tensor.shape}; the slice has {slice_shape}"
        )

    # -- values ----------------------------------------------------------------------------------------------------

    def locate(self, index: np.ndarray) -> Callable[[], list[list[Region]]]:
        """A function that returns, for each replica, the (base, slice) regions that hold the slice at the time of
        the call."""
        positions = index.reshape(index.shape[0], -1)
        lengths = tuple(self.base_shape()[axis] for axis in self.axes)
        known: dict[tuple[int, ...], list[Region]] = {}

        def read() -> list[list[Region]]:
            regions = []
            for start in map(tuple, positions.tolist()):
                # A loop visits few positions again and again, so
                # their regions are kept; the shapes never change.
                if start not in known:
                    self._check_index(start, lengths)
                    known[start] = self._regions(start, lengths)
                regions.append(known[start])
            return regions

        return read

    def _check_index(self, start: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        for axis, position, length in zip(self.axes, start, lengths, strict=True):
            if not 0 <= position < length:
                raise DynamicIndexError(
                    f"{self.where()}: index {position} on axis {axis}; allowed are 0 to {length - 1}"
                )

    def _regions(self, start: tuple[int, ...], lengths: tuple[int, ...]) -> list[Region]:
        """Up to two pieces per sliced axis: one up to its end, one that continues at its begin."""
        rank = len(self.base_shape())
        regions: list[Region] = [((slice(None),) * rank, (slice(None),) * rank)]
        for axis, position, size, length in zip(self.axes, start, self.sizes, lengths, strict=True):
            until_end = min(size, length - position)
            # A slice that passes the end of an axis continues
            # at its begin, as the device's codelets do.
            pieces = [(slice(position, position + until_end), slice(0, until_end))]
            if until_end < size:
                pieces.append((slice(0, size - until_end), slice(until_end, size)))
            regions = [
                ((*base[:axis], b, *base[axis + 1 :]), (*part[:axis], p, *part[axis + 1 :]))
                for base, part in regions
                for b, p in pieces
            ]
        return regions

    # -- cost ------------------------------------------------------------------------------------------------------

    def slicing(self, writes: bool) -> SliceVertices:
        """The compute set that reads or writes the slice."""
        dtype = self.inputs[0].dtype
        # Reading and writing have vertices of their own with the same estimate.
        name = "DynamicUpdateSlice1D" if writes else "DynamicSlice1D"
        return SliceVertices(
            f"popops::{name}<{vertices.poplar_type(dtype)}>",
            math.prod(self.slice_shape()),
            slice_cycles(dtype.size, math.prod(self.sizes)),
            writes,
        )


def _copied(target: np.ndarray, source: np.ndarray, read: Callable[[], list[list[Region]]], writes: bool) -> Kernel:
    """Copy the regions: from a slice ``source`` into the base ``target`` (``writes``), or from the base into the
    slice."""
    row_pairs = list(zip(rows(target), rows(source), strict=True))

    def run() -> None:
        for (target_row, source_row), regions in zip(row_pairs, read(), strict=True):
            for base_region, slice_region in regions:
                if writes:
                    target_row[base_region] = source_row[slice_region]
                else:
                    target_row[slice_region] = source_row[base_region]

    return run


class DynamicSlice(Dynamic):
    """``sizes`` elements along ``axes`` of t from position ``index`` on. Inputs ``t, index``."""

    @property
    def part(self) -> Tensor:
        """The result."""
        return self.outputs[0]

    def infer(self) -> list[TensorSpec]:
        """The slice's shape."""
        self.check()
        return [TensorSpec(self.slice_shape(), self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copies of the regions."""
        return _copied(outputs[0], inputs[0], self.locate(inputs[1]), writes=False)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Zeros with the gradient at the slice."""
        index = builder.forward(self.inputs[1])
        return [
            builder.op(DynamicSlicePadGrad, [grad, index], shape=self.base_shape(), **self.attributes),
            None,
        ]

    def work(self) -> Sequence[Work]:
        """One compute set."""
        return [self.slicing(writes=False)]


class DynamicSlicePadGrad(Dynamic):
    """Zeros of ``shape`` (attribute) with the operand at the slice. Inputs ``gradient, index``."""

    shape = Attribute(INTEGERS)
    axes = Attribute(INTEGERS, settle=_sliced_axes)

    @property
    def base(self) -> Tensor:
        """The result."""
        return self.outputs[0]

    @property
    def part(self) -> Tensor:
        """The gradient."""
        return self.inputs[0]

    def base_shape(self) -> tuple[int, ...]:
        """The given shape."""
        return self.shape

    def infer(self) -> list[TensorSpec]:
        """The given shape."""
        self.check()
        self.check_slice(self.inputs[0])
        return [TensorSpec(self.base_shape(), self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Clear, then copy the regions."""
        out = outputs[0]
        # The gradient of the elements outside of the slice is 0.
        return sequence(partial(out.fill, 0), _copied(out, inputs[0], self.locate(inputs[1]), writes=True))

    def work(self) -> Sequence[Work]:
        """Zeros everywhere, then the update."""
        out = self.outputs[0].spec
        return [vertices.fill(out.dtype, out.elements), self.slicing(writes=True)]


class DynamicUpdate(Dynamic):
    """t with the slice at ``index`` replaced by the update. Inputs ``t, index, update``."""

    @property
    def part(self) -> Tensor:
        """The update."""
        return self.inputs[2]

    def infer(self) -> list[TensorSpec]:
        """The base's spec."""
        self.check()
        self.same_dtype(self.inputs[0], self.inputs[2])
        self.check_slice(self.inputs[2])
        return [self.like(self.inputs[0])]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copy the base, then the regions."""
        write = _copied(outputs[0], inputs[2], self.locate(inputs[1]), writes=True)
        return sequence(partial(np.copyto, outputs[0], inputs[0]), write)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """For t the gradient without the slice; for the update the slice of the gradient."""
        operands = [grad, builder.forward(self.inputs[1])]
        return [
            builder.op(DynamicUpdateToUpdateGrad, operands, **self.attributes),
            None,
            builder.op(DynamicUpdateUpdaterGrad, operands, **self.attributes),
        ]

    def work(self) -> Sequence[Work]:
        """A copy of the base and the update."""
        # The out-of-place form leaves t unchanged, so it is copied first.
        return [*copy_work(self.outputs[0]), self.slicing(writes=True)]


class DynamicUpdateInplace(DynamicUpdate):
    """:class:`DynamicUpdate` in place; the output is t."""

    in_place = True

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copy the regions."""
        return _copied(inputs[0], inputs[2], self.locate(inputs[1]), writes=True)

    def work(self) -> Sequence[Work]:
        """The update."""
        return [self.slicing(writes=True)]


class DynamicUpdateUpdaterGrad(DynamicSlice):
    """Gradient of the update: the slice of the gradient. Inputs ``gradient, index``."""


class DynamicUpdateToUpdateGrad(Dynamic):
    """Gradient of the updated tensor: the gradient with zeros at the slice. Inputs ``gradient, index``."""

    def infer(self) -> list[TensorSpec]:
        """The gradient's spec."""
        self.check()
        return [self.like(self.inputs[0])]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copy, then clear the regions."""
        source, out, read = inputs[0], outputs[0], self.locate(inputs[1])
        out_rows = rows(out)

        def run() -> None:
            np.copyto(out, source)
            for row, regions in zip(out_rows, read(), strict=True):
                for base_region, _ in regions:
                    row[base_region] = 0

        return run

    def work(self) -> Sequence[Work]:
        """A copy of the gradient and an update with zeros."""
        return [*copy_work(self.outputs[0]), self.slicing(writes=True)]


class IncrementMod(Op):
    """``(t + increment) mod modulus``; the remainder has the sign of the sum, as in popops Rem.

    Attributes ``increment``, ``modulus``: for uint32 and int32 whole numbers that the type can hold, modulus at least
    1; for float16 and float32 any finite numbers, modulus above 0. As on the device the sum is taken in the type of t,
    so it wraps round where an integer type ends.
    """

    in_place: ClassVar[bool] = False

    increment = Attribute(NUMBER)
    modulus = Attribute(NUMBER)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        tensor = self.inputs[0]
        if tensor.dtype.name not in ("uint32", "int32", "float16", "float32"):
            allowed = "uint32, int32, float16, float32"
            raise DTypeError(f"{self.where()}: {tensor.id!r} is {tensor.dtype.name}; allowed are {allowed}")
        # Floats take any finite increment; integers need whole numbers in their range.
        if tensor.dtype.is_floating_point:
            finite = np.isfinite([self.increment, self.modulus]).all()
            self.require(bool(finite) and self.modulus > 0, f"modulus={self.modulus}; finite, above 0 is needed")
        else:
            self._check_whole(tensor.dtype)
        return [self.like(tensor)]

    def _check_whole(self, dtype: DType) -> None:
        """Raise IrError unless both numbers are whole and in the range of ``dtype``."""
        bounds = np.iinfo(dtype.numpy)
        for name, value, least in (("increment", self.increment, int(bounds.min)), ("modulus", self.modulus, 1)):
            if value != int(value) or not least <= value <= bounds.max:
                raise IrError(
                    f"{self.where()}: {name}={value:.10g}; a whole number from {least} to {bounds.max} is needed "
                    f"({dtype.name})"
                )

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Add, then take the remainder."""
        source, out = inputs[0], outputs[0]
        # In the type of t the sum wraps round as on the device.
        increment, modulus = (source.dtype.type(number) for number in (self.increment, self.modulus))
        return sequence(partial(np.add, source, increment, out=out), partial(np.fmod, out, modulus, out=out))

    def work(self) -> Sequence[Work]:
        """The fused expression Rem(Add(_1, increment), modulus) that PopART maps (``popx/op/incrementmodx.cpp``).

        Codelet generation has no published estimate. The cycles are the loops of the two broadcast scalar vertices
        with the overhead of one vertex, hence low confidence.
        """
        spec = self.inputs[0].spec
        # One fused vertex runs both operations' loops.
        loops = [vertices.BROADCAST_SCALAR[name][vertices.kind(spec.dtype)] for name in ("ADD", "REMAINDER")]

        def thread(m: vertices.Counts, chip: Chip) -> vertices.Counts:
            vector = vertices.vector_width(spec.dtype, chip)
            steps = [(cycles, vector if step == vertices.VECTOR else step) for cycles, step in loops]
            thread_cycles: vertices.Counts = 20 + np.sum(
                [cycles * vertices.ceil_div(m, step) for cycles, step in steps], axis=0
            )
            return thread_cycles

        name = "IncrementModInPlace" if self.in_place else "IncrementMod"
        return [
            Vertices(
                f"popops::map::{name}<{vertices.poplar_type(spec.dtype)}>",
                spec.elements,
                vertices.tile_cycles(thread, 11),
                low_confidence=True,
            )
        ]


class IncrementModInplace(IncrementMod):
    """:class:`IncrementMod` in place; the output is t."""

    in_place = True
