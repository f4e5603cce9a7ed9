"""Decompression of weights in groups of 4-bit numbers: custom ops of popxl-addons
(``popxl_addons/ops/group_quantize_decompress``) and of Optimum Graphcore
(``optimum/graphcore/custom_ops/group_quantize_decompress``); FlexGen, arXiv:2303.06865."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ipuperf.ir import DType, DTypeError, TensorSpec
from ipuperf.ir.attributes import ANYTHING, Attribute

from .. import vertices
from ..custom import CustomOp
from ..work import Vertices, Work

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: 4-bit numbers in a 16-bit word, and how far each is shifted, the first one in the highest bits.
PACKED = 4
SHIFTS = np.array([12, 8, 4, 0], np.uint16)
#: Words of a block in Optimum's layout.
BLOCK = 4
#: Up to so many groups on a tile PopLibs gives each its own scalar (``lib/popops/ElementWise.cpp``
#: splitIntoScalarBroadcastPatterns).
SCALARS = 256


def unpacked(words: np.ndarray) -> np.ndarray:
    """``(..., n)`` 16-bit words as ``(..., 4 n)`` numbers from 0 to 15, in the words' type."""
    return ((words[..., np.newaxis] >> SHIFTS) & 15).reshape(*words.shape[:-1], words.shape[-1] * PACKED)


def with_groups(name: str, dtype: DType, elements: int, group: int, *, in_place: bool = False) -> Vertices:
    """``name`` (ADD or MULTIPLY) of ``elements`` numbers and one value for each ``group`` of neighbours.

    The numbers are mapped linearly, so a tile begins and ends within a group. PopLibs then takes no vertex for rows
    (``lib/popops/ElementWise.cpp`` constructBroadcastBinaryOp). Up to 256 groups on a tile are regions of
    BroadcastScalar2D, ``W * (20 + regions * (28 + 2 * ceil(group / vector)))``. Of more groups the values are repeated,
    in atoms of one element, for a plain BinaryOp1D. The copies' rate is that of rearrangements, hence low confidence.
    """
    whole = vertices.binary(name, dtype, elements, in_place=in_place)

    def cycles(count: np.ndarray, chip: Chip) -> np.ndarray:
        count = np.asarray(count, dtype=np.int64)
        # One group more: the first and the last one of a tile are parts.
        groups = vertices.ceil_div(count, group) + 1
        vectors = -(-group // vertices.vector_width(dtype, chip))
        scalars = chip.workers * (20 + vertices.ceil_div(groups, chip.workers) * (28 + 2 * vectors))
        repeated = whole.cycles(count, chip) + vertices.rearranged(count, dtype.size, dtype.size, chip)
        return np.where(count > 0, np.where(groups <= SCALARS, scalars, repeated), 0).astype(np.int64)

    vertex = f"popops::BroadcastScalar2D{'InPlace' if in_place else ''}<{name},{vertices.poplar_type(dtype)}>"
    return Vertices(vertex, elements, cycles, elements, low_confidence=True)


def turned(dtype: DType, elements: int) -> Vertices:
    """What a product moves whose right operand lies by rows, as decompressed numbers do.

    It sums over the rows, so blocks of 32 x 32 bytes are gathered, transposed and copied to the plan's layout
    (``lib/poplin/Convolution.cpp`` convolutionPreprocess, ``lib/popops/Rearrange.cpp`` regroupTensor).
    """
    side = 32 // dtype.size

    def of_tile(count: int, chip: Chip) -> int:
        blocks = -(-count // side**2)
        copies = 2 * chip.rearrangement.cycles({8: count * dtype.size})
        return copies + vertices.transpose_cycles(blocks, side, side, dtype.size, chip) if count else 0

    def cycles(count: np.ndarray, chip: Chip) -> np.ndarray:
        sizes, places = np.unique(np.asarray(count, dtype=np.int64), return_inverse=True)
        return np.array([of_tile(size, chip) for size in sizes.tolist()], np.int64)[places]

    return Vertices("popops::Transpose", elements, cycles, operands=(0, 0, 0))


class GroupQuantizeDecompress(CustomOp):
    """``(words [rows, groups, n] uint16, scale [rows, groups, 1], bias [rows, groups, 1]) -> [rows, groups * 4 n]``:
    each 4-bit number times its group's scale plus its group's bias, in their type. No gradient, as upstream."""

    words_dtype: ClassVar[str] = "uint16"

    def infer(self) -> list[TensorSpec]:
        """All groups of a row side by side, in the type of the scale; raises for other ranks, shapes and types."""
        words, scale, bias = self.inputs
        if words.dtype.name != self.words_dtype:
            raise DTypeError(f"{self.where()}: {words.id!r} is {words.dtype.name}; {self.words_dtype} is needed")
        self.floating(scale, bias)
        self.same_dtype(scale, bias)
        self.require(len(words.shape) == 3, f"t has shape {words.shape}; rank 3 (rows, groups, words) is needed")
        parameter_shape = (*words.shape[:2], 1)
        for name, tensor in (("group_scale", scale), ("group_bias", bias)):
            self.require(
                tensor.shape == parameter_shape,
                f"{name} has shape {tensor.shape}; {parameter_shape} is needed for t {words.shape}",
            )
        rows, groups, words_per_group = words.shape
        return [TensorSpec((rows, groups * words_per_group * PACKED), scale.dtype)]

    def value(self, *operands: np.ndarray) -> np.ndarray:
        """Shift, mask, scale and add."""
        words, scale, bias = operands
        values: np.ndarray = (unpacked(words) * scale + bias).reshape(self.outputs[0].shape)
        return values

    def work(self) -> Sequence[Work]:
        """The decompressing codelet, then a product and a sum (``group_quantize_decompressx.cpp``).

        The numbers lie where their words do. Upstream's expression of the two is no generated vertex, as its operands
        have different shapes (``lib/popops/ExpressionGenerator.cpp`` analyseExpr).
        """
        scale, out = self.inputs[1].spec, self.outputs[0].spec
        if not out.elements:
            return []
        size, values = out.elements // scale.elements, scale.elements
        codelet = replace(self.codelet(out.dtype, out.elements), operands=(0, 0, 0))
        product = with_groups("MULTIPLY", out.dtype, out.elements, size)
        total = with_groups("ADD", out.dtype, out.elements, size, in_place=True)
        work: list[Work] = [codelet, replace(product, operands=(0, values, 0)), replace(total, operands=(0, 0, values))]
        if any(reader.type == "MatMul" for reader in self.outputs[0].consumers):
            work.append(turned(out.dtype, out.elements))
        return work

    @staticmethod
    def codelet(dtype: DType, elements: int) -> Vertices:
        """DecompressPacked4BitTensor: 100 cycles and 30 for each word on each worker, upstream's own guess."""
        cycles = vertices.tile_cycles(lambda m, chip: 100 + 30 * vertices.ceil_div(m, PACKED), 0)
        return Vertices(
            f"DecompressPacked4BitTensor<{vertices.poplar_type(dtype)}>", elements, cycles, low_confidence=True
        )


class BlockQuantizeDecompress(GroupQuantizeDecompress):
    """Optimum Graphcore's variant with int16 words. Each four words hold a block of 16 numbers: first the lowest four
    bits of each word, then the next ones.

    Attributes:
        root_path: where the C++ of the codelet is; nothing reads it here.
    """

    words_dtype: ClassVar[str] = "int16"

    root_path = Attribute(ANYTHING, "")

    def infer(self) -> list[TensorSpec]:
        """Also check that the words are whole blocks."""
        specs = super().infer()
        words = self.inputs[0].spec
        self.require(
            words.elements % BLOCK == 0, f"t {words.shape} has {words.elements} words; blocks of {BLOCK} words"
        )
        return specs

    def value(self, *operands: np.ndarray) -> np.ndarray:
        """Shift, mask, scale and add."""
        words, scale, bias = operands
        # Axis 1 goes over the four shifts, axis 2 over the words of a block.
        blocks = words.reshape(-1, 1, BLOCK).view(np.uint16) >> SHIFTS[::-1].reshape(1, PACKED, 1)
        numbers = (blocks & 15).reshape(*words.shape[:2], words.shape[2] * PACKED)
        values: np.ndarray = (numbers * scale + bias).reshape(self.outputs[0].shape)
        return values

    @staticmethod
    def codelet(dtype: DType, elements: int) -> Vertices:
        """It loads a block of 16 numbers at once and takes about 20 instructions for it (counted in its source)."""
        cycles = vertices.tile_cycles(lambda m, chip: 20 + 20 * vertices.ceil_div(m, PACKED * BLOCK), 0)
        name = f"DecompressPacked4BitTensorV1<{vertices.poplar_type(dtype)}>"
        return Vertices(name, elements, cycles, low_confidence=True)
