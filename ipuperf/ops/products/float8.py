"""Casts to and from 8-bit floats, products and convolutions of them.

8-bit floats are operands of these ops only (popart: willow/src/op/pow2scalethencast.cpp, castthenpow2scale.cpp,
matmul.cpp, conv.cpp; python/popxl/python_files/ops/matmul.py). Products are accumulated in float32 here, multiplied by
``2**log2_scale`` and rounded once to float16; the device accumulates in half, as upstream asks. A value that is too
large becomes NaN when it is cast to 8 bits (the device's NANOO), and infinity as a float16 result, as everywhere here.
No op has a gradient: upstream uses them for inference.

Only IPUs of architecture ``ipu21`` have vertices for them (PopLibs: ``__IPU_ARCH_VERSION__ >= 21``); lowering refuses
other machines (:attr:`Float8Op.needs`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import (
    FLOAT16,
    INT8,
    INT32,
    ApplicationRuntimeError,
    DType,
    DTypeError,
    GradientBuilder,
    Ir,
    IrError,
    Tensor,
    TensorSpec,
    float8,
)
from ipuperf.ir.attributes import DTYPE, Attribute

from .. import half, vertices
from .. import work as works
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, sequence
from .convolution import Conv, ConvTranspose
from .matmul import MatMul

SCALES = range(-32, 32)
"""Allowed values of ``log2_scale``."""


class Float8Op(Op, abstract=True):
    """Base: the last operand is ``log2_scale``, a scalar of type int32.

    Class attributes:
        needs: architecture of the IPU that has the op's vertices.
    """

    needs: ClassVar[str] = "ipu21"

    def scale_operand(self) -> None:
        """Check the last operand."""
        scale = self.inputs[-1]
        if scale.dtype != INT32:
            raise DTypeError(f"{self.where()}: log2_scale {scale.id!r} is {scale.dtype.name}; int32 is needed")
        self.require(scale.shape == (), f"log2_scale {scale.id!r} has shape {scale.shape}; a scalar is needed")

    def eight(self, *tensors: Tensor) -> None:
        """Check that tensors are 8-bit floats."""
        for tensor in tensors:
            if tensor.dtype.category != "float8":
                raise DTypeError(
                    f"{self.where()}: {tensor.id!r} is {tensor.dtype.name}; allowed: float8_143, float8_152"
                )

    def scales(self, array: np.ndarray, rank: int) -> np.ndarray:
        """``log2_scale`` of each replica, with axes of length 1 to broadcast against arrays of ``rank`` axes.

        Raises:
            ApplicationRuntimeError: a value outside of -32 to 31 (upstream: ``throwIfLog2ScaleTensorNotInRange``).
        """
        if array.size and not (array.min() in SCALES and array.max() in SCALES):
            allowed = f"{SCALES[0]} to {SCALES[-1]}"
            raise ApplicationRuntimeError(f"{self.where()}: log2_scale is {array.tolist()}; allowed: {allowed}")
        # One scale per replica; all elements of a replica share it.
        return array.reshape(-1, *([1] * (rank - 1)))

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """None, as upstream.

        Raises:
            IrError: always.
        """
        raise IrError(f"{self.where()}: ops of 8-bit floats have no gradient, differentiate in float16")

    def cast(self) -> works.Work:
        """A Cast1D between the types of operand and result; low confidence."""
        source, result = self.inputs[0].dtype, self.outputs[0]
        # PopLibs has no estimate for casts of 8-bit floats.
        return replace(vertices.cast(source, result.dtype, result.spec.elements), low_confidence=True)

    def metadata(self) -> works.Work:
        """The compute set that makes format and scale of a tensor: one element, priced as a cast; low confidence."""
        return replace(vertices.cast(INT32, INT8, 1), low_confidence=True)


def needed_architecture(program: Ir) -> tuple[Float8Op, str] | None:
    """The first op that only some IPUs have, and their architecture."""
    float8_ops = [op for graph in program.all_graphs() for op in graph.ops if isinstance(op, Float8Op)]
    return (float8_ops[0], float8_ops[0].needs) if float8_ops else None


class Pow2ScaleThenCast(Float8Op):
    """``(x, log2_scale) -> x * 2**log2_scale`` as 8-bit floats of type ``dtype`` (attribute;
    :mod:`ipuperf.ir.float8`).

    Values that are too large, infinity included, become NaN.
    """

    dtype = Attribute(DTYPE)

    def infer(self) -> list[TensorSpec]:
        """The operand's shape."""
        self.scale_operand()
        if self.dtype.category != "float8":
            raise DTypeError(f"{self.where()}: dtype {self.dtype.name}; allowed: float8_143, float8_152")
        tensor = self.inputs[0]
        self.floating(tensor)
        return [TensorSpec(tensor.shape, self.dtype, tensor.meta_shape)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One pass of the encoder, which allocates."""
        array, scale = inputs

        def run() -> None:
            outputs[0][...] = float8.encoded(array, self.dtype, self.scales(scale, array.ndim), nan_on_overflow=True)

        return run

    def work(self) -> list[works.Work]:
        """The metadata, and a Cast1D with one element per cycle. Both have low confidence, as there is no estimate
        for 8-bit floats."""
        return [self.metadata(), self.cast()]


class CastThenPow2Scale(Float8Op):
    """``(x, log2_scale) -> x * 2**log2_scale`` as ``dtype`` (attribute): float16 or float32 of 8-bit floats."""

    dtype = Attribute(DTYPE)

    def infer(self) -> list[TensorSpec]:
        """The operand's shape."""
        self.scale_operand()
        tensor = self.inputs[0]
        self.eight(tensor)
        if not self.dtype.is_floating_point:
            raise DTypeError(f"{self.where()}: dtype {self.dtype.name}; allowed: float16, float32")
        return [TensorSpec(tensor.shape, self.dtype, tensor.meta_shape)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Lookup, scale and rounding; float32 in between is exact."""
        array, scale = inputs
        source = self.inputs[0].dtype
        wide = env.scratch(array.shape, np.float32, slot=0)
        return sequence(
            partial(_decode, array, source, wide),
            # A power of two changes the exponent only, so float32 stays exact.
            lambda: np.ldexp(wide, self.scales(scale, wide.ndim), out=wide),
            half.copy(outputs[0], wide),
        )

    def work(self) -> list[works.Work]:
        """As :class:`Pow2ScaleThenCast`."""
        return [self.metadata(), self.cast()]


class _Product(Float8Op):
    """Base of products: two 8-bit floating-point operands of either format, then ``log2_scale``; the result is
    float16.

    The op of float operands does the rest; it is given the decoded values, which are exact. The cost is that of a half
    product with half as many inner channels (:mod:`ipuperf.lowering.planner.works`).
    """

    extra_operands = 1

    def same_dtype(self, *tensors: Tensor) -> DType:
        """float16, the type of the result."""
        self.eight(*tensors[:2])
        return FLOAT16

    def floating(self, *tensors: Tensor) -> None:
        """Checked by :meth:`same_dtype`."""
        self.eight(*tensors[:2])

    def infer(self) -> list[TensorSpec]:
        """The shape rule of float operands."""
        # The shape rule of float operands looks at the first two operands only.
        self.require(len(self.inputs) == 3, f"needs 3 operands, got {len(self.inputs)}")
        self.scale_operand()
        return [replace(spec, dtype=FLOAT16) for spec in super().infer()]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Decode both operands, run the kernel of float32 operands, scale."""
        scale, out = inputs[2], outputs[0]
        steps: list[Step] = []
        wide = []
        for number, (array, tensor) in enumerate(zip(inputs[:2], self.inputs[:2], strict=True)):
            # Slots from 10 on: the kernel of float operands uses the lower ones.
            wide.append(env.scratch(array.shape, np.float32, slot=10 + number))
            steps.append(partial(_decode, array, tensor.dtype, wide[-1]))
        product = env.scratch(out.shape, np.float32, slot=12)
        steps.append(super().kernel(wide, [product], env))
        # The scale is applied to float32 sums, before the only rounding.
        steps.append(lambda: np.ldexp(product, self.scales(scale, product.ndim), out=product))
        steps.append(half.copy(out, product))
        return sequence(*steps)

    def work(self) -> list[works.Work]:
        """The metadata of both operands, and the product."""
        return [self.metadata(), self.metadata(), *super().work()]


class MatMulPow2Scaled(_Product, MatMul):
    """``(lhs, rhs, log2_scale) -> (lhs @ rhs) * 2**log2_scale`` of 8-bit floats, in float16."""

    operator = ""


class ConvPow2Scaled(_Product, Conv):
    """``(x, w, log2_scale) -> y``: a convolution of 8-bit floats, times ``2**log2_scale``, in float16."""


class ConvTransposePow2Scaled(_Product, ConvTranspose):
    """``(x, w, log2_scale) -> y``: a transposed convolution of 8-bit floats, times ``2**log2_scale``, in float16."""


def _decode(array: np.ndarray, dtype: DType, out: np.ndarray) -> None:
    """Look up the values of 8-bit codes."""
    np.take(float8.values(dtype), array.view(np.uint8).reshape(array.shape), out=out, mode="clip")
