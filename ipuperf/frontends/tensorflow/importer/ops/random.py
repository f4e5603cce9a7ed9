"""Random numbers, keyed as all of ipuperf's (:mod:`ipuperf.ops.randomness`): they are not TensorFlow's numbers.

A stateful op draws others in each execution, iteration, micro-batch, replica and run; its seeds, where the program
gives any, tell ops apart. A stateless op is a function of its seed. What a generator keeps in a variable is replaced by
the program's own seed: the variable does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipuperf.functions import arithmetic, constant, make, reductions, selection
from ipuperf.functions.arranging import reshaped
from ipuperf.ir import FLOAT32, UINT32, Op, Tensor
from ipuperf.ops import RandomInteger, RandomNormal, RandomUniform

from ..node import Node
from ..table import Family
from ..values import Value
from .elementwise import erf_inverse

FAMILY = Family("Random numbers")
op = FAMILY.op


@dataclass(frozen=True)
class RandomSource:
    """Where random numbers come from: the key and counter of TensorFlow's generators.

    Attributes:
        seed: ``uint32``, shape (2,).
        key: tells draws with the same seed apart.
    """

    seed: Tensor
    key: int


def stateful(node: Node) -> RandomSource:
    """The source of an op that draws others each time."""
    first, second = node.attr("seed") & 0xFFFFFFFF, node.attr("seed2") & 0xFFFFFFFF
    key = first << 32 | second
    return RandomSource(node.place.seed(), key or node.place.random_key())


def of_seed(node: Node, seed: Value) -> RandomSource:
    """The source that a seed of two whole numbers is."""
    if isinstance(seed, np.ndarray):
        return RandomSource(constant(seed.astype(np.int64).astype(np.uint32), UINT32), 1)
    return RandomSource(arithmetic.cast(node.tensor(seed), UINT32), 1)


def of_key(node: Node, key: Value, _counter: Value, _algorithm: Value) -> RandomSource:
    """The source that a key is."""
    if not isinstance(key, RandomSource):
        raise node.error("its key comes neither from a seed nor from a generator")
    return key


# -- distributions -----------------------------------------------------------------------------------------------------


def draw(node: Node, op_class: type[Op], source: RandomSource, shape: Value, **attributes: Any) -> Tensor:
    """New numbers of the op's shape and type."""
    dims = node.integers(shape, "the shape")
    return make(op_class, node.place.get(source.seed), shape=dims, dtype=node.dtype(), key=source.key, **attributes)


def _uniform(node: Node, source: RandomSource, shape: Value) -> Tensor:
    return draw(node, RandomUniform, source, shape)


def _normal(node: Node, source: RandomSource, shape: Value) -> Tensor:
    return draw(node, RandomNormal, source, shape)


def _truncated(node: Node, source: RandomSource, shape: Value) -> Tensor:
    """Normal numbers within two standard deviations: the inverse distribution of uniform ones."""
    edge = math.erf(2 / math.sqrt(2))
    dims = node.integers(shape, "the shape")
    drawn = make(
        RandomUniform, node.place.get(source.seed), shape=dims, dtype=FLOAT32, key=source.key, low=-edge, high=edge
    )
    samples, dtype = erf_inverse(drawn) * math.sqrt(2), node.dtype()
    return samples if samples.dtype == dtype else arithmetic.cast(samples, dtype)


def _integers(node: Node, source: RandomSource, shape: Value, low: Value, high: Value) -> Tensor:
    limits = (node.integer(low, "minval"), node.integer(high, "maxval"))
    return draw(node, RandomInteger, source, shape, low=limits[0], high=limits[1])


def _any(node: Node, source: RandomSource, shape: Value) -> Tensor:
    """Whole numbers from the whole range of the type."""
    limits = np.iinfo(node.dtype().numpy)
    return draw(node, RandomInteger, source, shape, low=int(limits.min), high=int(limits.max) + 1)


#: How many operands say what the source of an op is; they stand behind the shape.
_OPERANDS = {stateful: 0, of_seed: 1, of_key: 3}


def _drawing(name: str, meaning: str, source: Callable[..., RandomSource], numbers: Callable[..., Tensor]) -> None:
    """Declare an op of a shape, what its source is, and the limits of its numbers."""
    count = _OPERANDS[source]

    def handler(node: Node, shape: Value, *rest: Value) -> Tensor:
        return numbers(node, source(node, *rest[:count]), shape, *rest[count:])

    handler.__doc__ = meaning
    op(name, folds=False)(handler)


_drawing("RandomUniform", "Uniform numbers from 0 to 1.", stateful, _uniform)
_drawing("RandomStandardNormal", "Normal numbers.", stateful, _normal)
_drawing("TruncatedNormal", "Normal numbers within two standard deviations.", stateful, _truncated)
_drawing("RandomUniformInt", "Whole numbers from low to below high.", stateful, _integers)
_drawing("StatelessRandomUniform", "Uniform numbers of a seed.", of_seed, _uniform)
_drawing("StatelessRandomNormal", "Normal numbers of a seed.", of_seed, _normal)
_drawing("StatelessTruncatedNormal", "Normal numbers within two standard deviations, of a seed.", of_seed, _truncated)
_drawing("StatelessRandomUniformInt", "Whole numbers of a seed.", of_seed, _integers)
_drawing("StatelessRandomUniformFullInt", "Whole numbers of a seed from the whole range of the type.", of_seed, _any)
_drawing("StatelessRandomUniformV2", "Uniform numbers of a key.", of_key, _uniform)
_drawing("StatelessRandomNormalV2", "Normal numbers of a key.", of_key, _normal)
_drawing("StatelessTruncatedNormalV2", "Normal numbers within two standard deviations, of a key.", of_key, _truncated)
_drawing("StatelessRandomUniformIntV2", "Whole numbers of a key.", of_key, _integers)
_drawing("StatelessRandomUniformFullIntV2", "Whole numbers of a key from the whole range of the type.", of_key, _any)


# -- orders and classes ------------------------------------------------------------------------------------------------


@op("RandomShuffle", folds=False)
def random_shuffle(node: Node, value: Value) -> Tensor:
    """The rows in a random order: that of random numbers."""
    tensor, source = node.tensor(value), stateful(node)
    rows = tensor.shape[0]
    drawn = make(RandomUniform, source.seed, shape=(rows,), dtype=FLOAT32, key=source.key)
    return selection.gather(tensor, selection.topk(drawn, rows)[1], 0)


def _chosen(node: Node, source: RandomSource, logits: Value, count: Value) -> Tensor:
    """Classes drawn by their logits: the largest of each row after Gumbel noise is added."""
    scores, samples = node.tensor(logits), node.integer(count, "num_samples")
    rows, classes = scores.shape
    seed = node.place.get(source.seed)
    drawn = make(RandomUniform, seed, shape=(rows, samples, classes), dtype=FLOAT32, key=source.key, low=1e-7)
    noise = -arithmetic.log(-arithmetic.log(drawn))
    picks = reductions.argmax(reshaped(arithmetic.cast(scores, FLOAT32), (rows, 1, classes)) + noise, 2)
    dtype = node.dtype()
    return picks if picks.dtype == dtype else arithmetic.cast(picks, dtype)


@op("Multinomial", folds=False)
def multinomial(node: Node, logits: Value, count: Value) -> Tensor:
    """Classes drawn by their logits."""
    return _chosen(node, stateful(node), logits, count)


@op("StatelessMultinomial", folds=False)
def stateless_multinomial(node: Node, logits: Value, count: Value, seed: Value) -> Tensor:
    """Classes drawn by their logits, of a seed."""
    return _chosen(node, of_seed(node, seed), logits, count)


# -- keys and counters -------------------------------------------------------------------------------------------------


@op("StatelessRandomGetKeyCounter", folds=False)
def key_and_counter(node: Node, seed: Value) -> list[Value]:
    """The source that a seed is, as key and as counter."""
    source = of_seed(node, seed)
    return [source, source]


@op("StatelessRandomGetKeyCounterAlg", folds=False)
def key_counter_and_algorithm(node: Node, seed: Value) -> list[Value]:
    """The same with the number of the algorithm."""
    source = of_seed(node, seed)
    return [source, source, np.array(1, np.int32)]


@op("StatelessRandomGetAlg", folds=False)
def algorithm(_node: Node) -> np.ndarray:
    """The number of TensorFlow's counter-based algorithm."""
    return np.array(1, np.int32)


@op("RngReadAndSkip", folds=False)
def read_and_skip(node: Node, _handle: Value, *_operands: Value) -> RandomSource:
    """The state of a generator: the program's own seed."""
    return RandomSource(node.place.seed(), node.place.random_key())


@op("Bitcast")
def bitcast(node: Node, value: Value) -> Value:
    """The state of a generator under another type; the bits of other tensors are not available."""
    if isinstance(value, RandomSource):
        return value
    raise node.error("the bits of a tensor under another type; use tf.cast")
