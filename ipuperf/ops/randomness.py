"""Random numbers on the device: dropout, random tensors, and seeds derived from seeds.

Every value is a pure function of the seed's two words, the op's ``key`` and the position of the element. Each time an
op runs, it sets up a Philox generator (counter based) from (seed, key). An op that runs again with the same seed
(recomputation, the gradient) therefore gives the same numbers, and no mask is saved. The replica is not part of the
function: equal seeds give equal numbers on all replicas, and the caller gives each replica a seed of its own.

The numbers are not those of the IPU's generator (xoroshiro128aox, one per worker). Costs: poprand,
``lib/poprand/RandomGen.cpp`` and ``poprandCycleEstimators.cpp``. Each op reads the hardware's seeds, sets them from
the seed tensor, generates, and restores them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ipuperf.ir import INT32, UINT32, DType, DTypeError, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import DTYPE, INTEGER, INTEGERS, NAMED_FLOATING, NUMBER, Attribute, optional

from . import half, vertices
from .base import Arrays, Environment, Gradients, Kernel, Op, rows
from .binding import elementwise, sequence, working_dtype
from .formula import compile_formula
from .work import Vertices, Work

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Probabilities are whole multiples of 2^-16, as in poprand's bernoulli and dropout vertices.
LEVELS = 1 << 16

#: Elements of one piece of a mask (a multiple of 4: one generator word gives four): it stays in the level-2 cache.
PIECE = 1 << 15

# -- cost --------------------------------------------------------------------------------------------------------------


def seeded(generate: Vertices) -> list[Work]:
    """``generate`` between reading, setting and restoring the hardware seeds of each tile.

    GetSeeds takes ``14 + 7 W``, SetSeed ``14 + 27 W`` (poprandCycleEstimators.cpp). SetSeeds, which restores them, has
    no estimate. It is assumed to take as long as GetSeeds, which moves the same words, with low confidence.
    """
    return [
        _seeds("poprand::GetSeedsSupervisor", generate.elements, 7, False),
        _seeds("poprand::SetSeedSupervisor", generate.elements, 27, False),
        generate,
        _seeds("poprand::SetSeedsSupervisor", generate.elements, 7, True),
    ]


def _seeds(vertex: str, elements: int, per_worker: int, low_confidence: bool) -> Vertices:
    # Seeds take the same time whatever the number of elements; `m` only gives the shape.
    cycles = vertices.tile_cycles(lambda m, chip: per_worker + 0 * m, 14)
    return Vertices(vertex, elements, cycles, low_confidence=low_confidence)


def _vectors(fixed: int, per_vector: int, dtype: DType) -> Callable[[np.ndarray, Chip], np.ndarray]:
    """Thread cycles ``fixed + per_vector`` for each vector of the worker."""

    def thread(m: np.ndarray, chip: Chip) -> np.ndarray:
        return fixed + per_vector * vertices.ceil_div(m, vertices.vector_width(dtype, chip))

    return thread


def dropout_vertex(dtype: DType, elements: int) -> Vertices:
    """poprand Dropout (poprandCycleEstimators.cpp): ``W * (24 + 2 * ceil(m / v)) + 6``."""
    name = f"poprand::DropoutSupervisor<{vertices.poplar_type(dtype)}>"
    return Vertices(name, elements, vertices.tile_cycles(_vectors(24, 2, dtype), 6), elements)


def normal_vertex(dtype: DType, elements: int) -> Vertices:
    """poprand Normal (same source): ``W * (22 + 4 * ceil(m / v)) + 4``, 24 instead of 22 for half."""
    fixed = 24 if dtype.size == 2 else 22
    name = f"poprand::NormalSupervisor<{vertices.poplar_type(dtype)}>"
    return Vertices(name, elements, vertices.tile_cycles(_vectors(fixed, 4, dtype), 4), 2 * elements)


def uniform_vertex(dtype: DType, elements: int) -> Vertices:
    """poprand Uniform: ``W * (10 + 3 * ceil(m / v)) + 4`` for floating point, ``W * (5 + 23 m) + 4`` for integers.

    The formula is the estimator of PopLibs' earlier worker vertex. The later one divides by the wrong width
    (``docs/reference/cycles.md`` 6.4), so the figure has low confidence.
    """
    thread = _vectors(10, 3, dtype) if dtype.is_floating_point else lambda m, chip: 5 + 23 * m
    name = f"poprand::UniformSupervisor<{vertices.poplar_type(dtype)}>"
    return Vertices(name, elements, vertices.tile_cycles(thread, 4), 2 * elements, low_confidence=True)


# -- generator ---------------------------------------------------------------------------------------------------------


def generator(seed: np.ndarray, key: int) -> np.random.Philox:
    """The generator of one replica: keyed by the seed's two words and by ``key``, its counter at 0."""
    # The two words of the seed are one 64-bit key word, the op's key is the other.
    low, high = int(seed[0]), int(seed[1])
    return np.random.Philox(key=np.array([low | high << 32, key], dtype=np.uint64))


def _key(op: Op, key: int | None) -> int:
    """The attribute ``key`` (None: the op's number)."""
    number = op.id if key is None else key
    if not 0 <= number < 1 << 64:
        raise IrError(f"{op.where()}: key={key!r}; a whole number from 0 to 2^64 - 1 is needed")
    return number


def _check_seed(op: Op, tensor: Tensor) -> None:
    if tensor.dtype != UINT32 or tensor.shape != (2,):
        raise DTypeError(f"{op.where()}: the seed {tensor.id!r} is {tensor.spec}; (2,) uint32 is needed")


# -- dropout -----------------------------------------------------------------------------------------------------------


def _mask_shape(op: Op, requested: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of the decisions (None: x's), which has to broadcast to x's shape."""
    whole = op.inputs[0].shape
    shape = requested or whole
    op.require(
        len(shape) == len(whole) and all(m in (1, n) for m, n in zip(shape, whole, strict=True)),
        f"mask_shape {shape} does not broadcast to x {whole}: each axis must be as x's or 1",
    )
    return shape


class Dropout(Op):
    """``x / (1 - p)`` where an element is kept, 0 elsewhere; each is dropped with probability ``p``.

    Inputs ``x``, ``seed`` (uint32[2]). Attributes: ``p`` (0 <= p < 1, rounded to a multiple of 2^-16 as on the device;
    the scale uses p itself), ``key``, and ``mask_shape`` (default x's shape; elements along axes of length 1 share the
    decision, as in PopART's ShapedDropout). fp16 is scaled in float32 and rounded once.
    """

    p = Attribute(NUMBER)
    key = Attribute(optional(INTEGER), None, settle=_key)
    mask_shape = Attribute(optional(INTEGERS), None, settle=_mask_shape)

    def infer(self) -> list[TensorSpec]:
        """Like x."""
        self.require(len(self.inputs) == 2, f"needs x and seed, got {len(self.inputs)} operands")
        x, seed = self.inputs
        self.floating(x)
        _check_seed(self, seed)
        if not 0 <= self.p < 1:
            raise IrError(f"{self.where()}: p={self.p}; a number of at least 0 and less than 1 is needed")
        return [TensorSpec(x.shape, x.dtype, x.meta_shape)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Scale, then clear the dropped elements, replica by replica and piece by piece."""
        x, out, seed = inputs[0], outputs[0], inputs[1]
        p, key = self.p, self.key
        # The largest threshold is below 2^16, so p close to 1 still keeps a few elements.
        threshold = np.uint16(min(round(p * LEVELS), LEVELS - 1))
        scaled = compile_formula(lambda value: value * (1 / (1 - p)), 1)
        steps: list[Callable[[], Any]] = [elementwise(scaled, [x], out, env)]
        shape = self.mask_shape
        for part, replica_seed in zip(rows(out), rows(seed), strict=True):
            # A full mask of contiguous memory is drawn in pieces that stay in cache.
            if shape == self.inputs[0].shape and out.flags.c_contiguous:
                steps.append(partial(_drop, part.reshape(-1), replica_seed, key, threshold))
            else:
                steps.append(partial(_drop_shaped, part, shape, replica_seed, key, threshold))
        return sequence(*steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Apply the same dropout to the gradient."""
        inputs = [grad, builder.forward(self.inputs[1])]
        return [builder.op(DropoutGrad, inputs, **self.attributes), None]

    def work(self) -> list[Work]:
        """One dropout vertex between setting and restoring seeds; for a shaped mask on the mask, then a product."""
        x = self.inputs[0].spec
        if not x.elements:
            return []
        shape = self.mask_shape
        if shape == x.shape:
            return seeded(dropout_vertex(x.dtype, x.elements))
        # Only the mask is drawn; a product spreads it over the operand.
        mask = math.prod(shape)
        return [
            *seeded(dropout_vertex(x.dtype, mask)),
            vertices.broadcast_outer("MULTIPLY", x.dtype, x.elements, max(x.elements // max(mask, 1), 1)),
        ]


class DropoutGrad(Dropout):
    """Gradient of :class:`Dropout`: a dropout with the same seed and key. Its own gradient is the same again."""


def _drop(out: np.ndarray, seed: np.ndarray, key: int, threshold: np.uint16) -> None:
    """Clear the dropped elements of a flat ``out``: those whose 16 random bits are below ``threshold``."""
    source = generator(seed, key)
    for at in range(0, out.size, PIECE):
        piece = out[at : at + PIECE]
        _clear(piece, source.random_raw(-(-piece.size // 4)).view(np.uint16)[: piece.size], threshold)


def _drop_shaped(out: np.ndarray, shape: tuple[int, ...], seed: np.ndarray, key: int, threshold: np.uint16) -> None:
    """Clear the dropped elements of ``out``, with one decision per element of ``shape``, which broadcasts to
    ``out``."""
    size = math.prod(shape)
    _clear(out, generator(seed, key).random_raw(-(-size // 4)).view(np.uint16)[:size].reshape(shape), threshold)


def _clear(out: np.ndarray, bits: np.ndarray, threshold: np.uint16) -> None:
    """Zero the elements whose ``bits`` (which broadcast) are below ``threshold``. A mask of all ones or zeros is
    quicker than a masked copy, and turns infinities into 0 as well."""
    # As integers of the same size, all bits can be cleared at once.
    words = out.view(f"i{out.itemsize}")
    mask = np.negative(np.greater_equal(bits, threshold).view(np.int8), dtype=words.dtype)
    np.bitwise_and(words, mask, out=words)


# -- random tensors ----------------------------------------------------------------------------------------------------


class _Random(Op):
    """Base: input ``seed`` (uint32[2]); attributes ``shape``, ``dtype`` (a :class:`DType` or its name), ``key``."""

    flat = True
    vertex: ClassVar[staticmethod[[DType, int], Vertices]] = staticmethod(uniform_vertex)

    shape = Attribute(INTEGERS)
    dtype = Attribute(NAMED_FLOATING, "float32")
    key = Attribute(optional(INTEGER), None, settle=_key)

    def infer(self) -> list[TensorSpec]:
        """The given shape and type."""
        self.require(len(self.inputs) == 1, f"needs a seed, got {len(self.inputs)} operands")
        _check_seed(self, self.inputs[0])
        self.require(all(n >= 0 for n in self.shape), f"shape {self.shape} has a negative length")
        return [TensorSpec(self.shape, self.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Draw in working type, scale and shift, then round."""
        out, seed, key = outputs[0], inputs[0], self.key
        dtype = working_dtype(out.dtype)
        # NumPy's generators fill contiguous float32 and float64 arrays only.
        direct = out.dtype == dtype and out.flags.c_contiguous
        draws = out if direct else env.scratch(out.shape, dtype, slot=0)
        factor, offset = (np.asarray(v, dtype=dtype) for v in self.affine())
        steps: list[Callable[[], Any]] = [
            partial(self.draw, part.reshape(-1), replica_seed, key)
            for part, replica_seed in zip(rows(draws), rows(seed), strict=True)
        ]
        steps += [partial(np.multiply, draws, factor, draws), partial(np.add, draws, offset, draws)]
        if not direct:
            steps.append(half.copy(out, draws))
        return sequence(*steps)

    def work(self) -> list[Work]:
        """One vertex of the distribution between setting and restoring seeds."""
        out = self.outputs[0].spec
        return seeded(self.vertex(out.dtype, out.elements)) if out.elements else []

    def affine(self) -> tuple[float, float]:
        """Factor and summand that take the drawn numbers to the distribution."""
        raise NotImplementedError

    def draw(self, out: np.ndarray, seed: np.ndarray, key: int) -> None:
        """Fill a flat array with numbers of the standard distribution."""
        raise NotImplementedError


class RandomNormal(_Random):
    """Normally distributed numbers; attributes ``mean`` (0), ``std`` (1, at least 0)."""

    vertex = staticmethod(normal_vertex)

    mean = Attribute(NUMBER, 0.0)
    std = Attribute(NUMBER, 1.0)

    def infer(self) -> list[TensorSpec]:
        """The given shape and type."""
        specs = super().infer()
        if not self.std >= 0:
            raise IrError(f"{self.where()}: std={self.std}; a number of at least 0 is needed")
        return specs

    def affine(self) -> tuple[float, float]:
        """Standard deviation and mean."""
        return self.std, self.mean

    def draw(self, out: np.ndarray, seed: np.ndarray, key: int) -> None:
        """Standard normal."""
        np.random.Generator(generator(seed, key)).standard_normal(dtype=out.dtype.type, out=out)


class RandomUniform(_Random):
    """Uniformly distributed numbers; attributes ``low`` (0), ``high`` (1, not below low). ``high`` itself is
    only reached by rounding to the type."""

    low = Attribute(NUMBER, 0.0)
    high = Attribute(NUMBER, 1.0)

    def infer(self) -> list[TensorSpec]:
        """The given shape and type."""
        specs = super().infer()
        if not self.low <= self.high:
            raise IrError(f"{self.where()}: low={self.low} is above high={self.high}; low <= high is needed")
        return specs

    def affine(self) -> tuple[float, float]:
        """Width and lower end."""
        return self.high - self.low, self.low

    def draw(self, out: np.ndarray, seed: np.ndarray, key: int) -> None:
        """Uniform in [0, 1)."""
        np.random.Generator(generator(seed, key)).random(dtype=out.dtype.type, out=out)


class RandomInteger(_Random):
    """Whole numbers from ``low`` to below ``high`` (attributes; default 0 and 2^31 - 1), all equally likely."""

    low = Attribute(INTEGER, 0)
    high = Attribute(INTEGER, (1 << 31) - 1)
    dtype = Attribute(DTYPE, INT32)

    def infer(self) -> list[TensorSpec]:
        """The given shape and type."""
        specs = super().infer()
        if not self.dtype.is_integer:
            raise DTypeError(f"{self.where()}: dtype={self.dtype.name}; a whole-number type is needed")
        limits = np.iinfo(self.dtype.numpy)
        if not limits.min <= self.low < self.high <= limits.max + 1:
            raise IrError(
                f"{self.where()}: low={self.low}, high={self.high}; low < high is needed, within {self.dtype.name}"
            )
        return specs

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Draw and copy, replica by replica."""
        pairs = list(zip(rows(outputs[0]), rows(inputs[0]), strict=True))
        return sequence(*(partial(self._fill, out, seed) for out, seed in pairs))

    def _fill(self, out: np.ndarray, seed: np.ndarray) -> None:
        source = np.random.Generator(generator(seed, self.key))
        np.copyto(out, source.integers(self.low, self.high, out.shape, self.dtype.numpy))


# -- seeds -------------------------------------------------------------------------------------------------------------


class ModifyRandomSeed(Op):
    """A seed for another stream: ``(seed [L, R], modifier) -> [L, random(L, R + modifier)]`` (PopART
    popx/op/modifyrandomseedx.cpp).

    ``modifier`` is a uint32 scalar; the sum wraps. Equal operands give equal seeds in every such op.
    """

    #: Philox key of the second word's generator: its own stream, so that it shares no bits with masks (keys of ops
    #: count from 100).
    STREAM = (1 << 64) - 1

    def infer(self) -> list[TensorSpec]:
        """The seed's spec."""
        self.require(len(self.inputs) == 2, f"needs seed and modifier, got {len(self.inputs)} operands")
        seed, modifier = self.inputs
        _check_seed(self, seed)
        if modifier.dtype != UINT32 or modifier.shape != ():
            raise DTypeError(f"{self.where()}: modifier {modifier.id!r} is {modifier.spec}; () uint32 is needed")
        return [TensorSpec(seed.shape, seed.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One random word per replica."""
        (seed, modifier), out = inputs, outputs[0]

        def run() -> None:
            np.copyto(out, seed)
            # The generator is keyed by the changed seed, so equal operands give equal seeds.
            np.add(seed[:, 1], modifier, out=out[:, 1])
            for row in out:
                row[1] = generator(row, self.STREAM).random_raw() & 0xFFFFFFFF

        return run

    def work(self) -> list[Work]:
        """Add, one random integer, cast; each works on one element on one tile."""
        return [
            vertices.binary("ADD", UINT32, 1),
            *seeded(uniform_vertex(INT32, 1)),
            vertices.cast(INT32, UINT32, 1),
        ]
