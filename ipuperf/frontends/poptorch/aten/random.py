"""Random numbers in ``forward``: keyed by op, micro-batch, replica and run, as those of dropout.

They follow ``poptorch.Options.randomSeed``; a seed set in ``forward`` is a call of the host, and changes none, and a
generator is refused when a module is exported. Numbers are drawn in float32 and rounded, so that no draw
is rounded up to the end of its range before it is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipuperf.functions import arithmetic as f
from ipuperf.functions import selection
from ipuperf.functions.arranging import broadcast, reshaped
from ipuperf.ir import FLOAT32, INT32, DType, Tensor
from ipuperf.ops import Dropout, RandomInteger, RandomNormal, RandomUniform

from .lowering import Handler, Lowering, Value, each


def dropped(low: Lowering, x: Tensor, p: float) -> Tensor:
    """Dropout with its own random numbers."""
    return low.op(Dropout, [x, low.seed()], p=float(p), key=low.next_key())


def _uniform(low: Lowering, lowest: float = 0.0, highest: float = 1.0, dtype: DType = FLOAT32) -> Tensor:
    drawn: dict[str, Any] = {"shape": low.shape, "dtype": dtype, "key": low.next_key()}
    return low.op(RandomUniform, [low.seed()], low=float(lowest), high=float(highest), **drawn)


def _normal(low: Lowering, mean: float = 0.0, std: float = 1.0) -> Tensor:
    drawn: dict[str, Any] = {"shape": low.shape, "dtype": low.dtype, "key": low.next_key()}
    return low.op(RandomNormal, [low.seed()], mean=float(mean), std=float(std), **drawn)


def _whole(low: Lowering, lowest: int, highest: int) -> Tensor:
    """Whole numbers from ``lowest`` to below ``highest``, in the result's type."""
    dtype = low.dtype if low.dtype.is_integer else INT32
    drawn: dict[str, Any] = {"shape": low.shape, "dtype": dtype, "key": low.next_key()}
    return low.tensor(low.op(RandomInteger, [low.seed()], low=int(lowest), high=int(highest), **drawn), low.dtype)


# -- of a size, or like a tensor ---------------------------------------------------------------------------------------


def rand(low: Lowering, *_: Any, **__: Any) -> Tensor:
    """Uniform from 0 to 1: rand, rand_like."""
    return _uniform(low, dtype=low.dtype)


def randn(low: Lowering, *_: Any, **__: Any) -> Tensor:
    """Of the standard normal distribution: randn, randn_like."""
    return _normal(low)


def randint(low: Lowering, high: int, _size: Any, **_: Any) -> Tensor:
    """Whole numbers from 0 to below ``high``."""
    return _whole(low, 0, high)


def randint_between(low: Lowering, lowest: int, high: int, _size: Any, **_: Any) -> Tensor:
    """Whole numbers from ``lowest`` to below ``high``."""
    return _whole(low, lowest, high)


def randint_like(low: Lowering, _value: Value, first: int, second: int | None = None, **_: Any) -> Tensor:
    """Whole numbers to below the last number given."""
    return _whole(low, 0, first) if second is None else _whole(low, first, second)


def randperm(low: Lowering, n: int, **_: Any) -> Tensor:
    """The numbers below ``n`` in a random order: that of as many random numbers, sorted."""
    if not n:
        return low.constant([], low.dtype)
    return low.tensor(selection.topk(_uniform(low), n, 0)[1], low.dtype)


# -- in the place of a tensor ------------------------------------------------------------------------------------------


def uniform(low: Lowering, _value: Value, *bounds: float, **named: Any) -> Tensor:
    """Uniform between two bounds, by default 0 and 1."""
    given = [*bounds, *[float(named.get(name, k)) for k, name in enumerate(("from", "to"))][len(bounds) :]]
    lowest, highest = given
    return _uniform(low, lowest, highest, low.dtype)


def exponential(low: Lowering, _value: Value, lambd: float = 1.0, **_: None) -> Tensor:
    """Exponentially distributed: ``-log(1 - u) / lambd`` of a uniform ``u``."""
    # u stays below 1, so the logarithm is finite.
    return low.tensor(f.log(1 - _uniform(low)) * (-1.0 / lambd), low.dtype)


# -- with parameters that are tensors ----------------------------------------------------------------------------------


def _fixed(low: Lowering, value: Value) -> Tensor:
    """A parameter of a distribution, to which no gradient flows (as in PyTorch)."""
    x = low.tensor(value, low.dtype)
    return f.detach(x) if low.training else x


def normal(low: Lowering, mean: Value, std: Value = 1.0, _size: Any = None, **_: Any) -> Tensor:
    """Normally distributed around numbers, or tensors of numbers."""
    if isinstance(mean, (int, float)) and isinstance(std, (int, float)):
        return _normal(low, mean, std)
    drawn = _normal(low)
    spread = drawn * std if isinstance(std, (int, float)) else drawn * _fixed(low, std)
    return spread + mean if isinstance(mean, (int, float)) else spread + _fixed(low, mean)


def normal_in_place(low: Lowering, _value: Value, mean: float = 0, std: float = 1, **_: None) -> Tensor:
    """Normally distributed, in the shape of a tensor."""
    return _normal(low, mean, std)


def log_normal(low: Lowering, _value: Value, mean: float = 1, std: float = 2, **_: None) -> Tensor:
    """The exponential of normally distributed numbers."""
    return f.exp(_normal(low, mean, std))


def bernoulli(low: Lowering, value: Value, p: Value = None, **_: None) -> Tensor:
    """1 with probability ``p``, a number (by a dropout of ones) or a tensor (where uniform numbers are below it); by
    default with the probabilities that the operand holds."""
    if isinstance(p, (int, float)):
        kind = low.dtype if low.dtype.is_floating_point else FLOAT32
        ones = broadcast(low.constant(1, kind), low.shape)
        # A dropout of everything would divide by zero.
        return low.tensor((ones if p in (0, 1) else dropped(low, ones, 1 - p)) * p, low.dtype)
    chance = low.tensor(value if p is None else p, FLOAT32)
    return low.tensor(f.less(_uniform(low), chance), low.dtype)


def rrelu(
    low: Lowering,
    x: Tensor,
    noise: Value,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *_: None,
    **__: None,
) -> tuple[Tensor, Tensor]:
    """Leaky ReLU, in training with a random slope for each element; and the slopes, 1 where the operand is above 0."""
    if not training:
        return f.leaky_relu(x, (lower + upper) / 2), low.tensor(noise)
    slopes = f.where(x > 0, 1, _uniform(low, lower, upper, low.dtype))
    return x * slopes, slopes


def multinomial(low: Lowering, value: Value, num_samples: int, replacement: bool = False, **_: None) -> Tensor:
    """Positions along the last axis with the probabilities that the operand holds: the largest of ``log p`` less the
    logarithm of exponentially distributed numbers; with replacement of numbers drawn anew for each sample."""
    weights = low.tensor(value, FLOAT32)
    lead, classes = weights.shape[:-1], weights.shape[-1]
    shape = (*lead, num_samples, classes) if replacement else weights.shape
    drawn = low.op(RandomUniform, [low.seed()], shape=shape, dtype=FLOAT32, key=low.next_key())
    waits = -f.log(1 - drawn)
    logs = f.log(reshaped(weights, (*lead, 1, classes)) if replacement else weights)
    keys = logs - f.log(waits)
    found = selection.topk(keys, 1 if replacement else num_samples, len(shape) - 1)[1]
    return low.tensor(reshaped(found, low.shape), low.dtype)


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    **each("rand rand_like", rand),
    **each("randn randn_like", randn),
    "bernoulli": bernoulli,
    "exponential": exponential,
    "log_normal": log_normal,
    "multinomial": multinomial,
    "normal": normal,
    "normal_functional": normal_in_place,
    "randint": randint,
    "randint.low": randint_between,
    "randint_like": randint_like,
    "randperm": randperm,
    "rrelu_with_noise_functional": rrelu,
    "uniform": uniform,
}
