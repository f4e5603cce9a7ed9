"""Plans from plain arguments: how is this matrix product or convolution split over the tiles of that chip, and why.

    >>> plan = plan_matmul("gc200", 1, 1024, 1024, 1024, "f16", "f16")
    >>> plan.total, plan.tiles, plan.out_split
    (29904, 1408, 22)

The search is that of :mod:`.works`; a matrix product is planned as the 1x1 convolution that PopLibs makes of it. A plan
tells its splits, cycles by term and temporary bytes (``explain``, ``values``).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import SupportsIndex

from ipuperf.base.near_names import instead_of
from ipuperf.ir import FLOAT16, FLOAT32, DType
from ipuperf.machine import Chip, MachineError, load_machine
from ipuperf.ops.work import Convolution, MatMul

from . import works
from .plan import ConvolutionPlan

#: Names of chips -> the machine with one of them; PopLibs calls the first two generations Mk1 and Mk2.
CHIPS = {"gc2": "gc2-1", "mk1": "gc2-1", "gc200": "gc200-1", "mk2": "gc200-1", "bow": "bow-1"}

_DTYPES = {"f16": FLOAT16, "half": FLOAT16, "float16": FLOAT16, "f32": FLOAT32, "float": FLOAT32, "float32": FLOAT32}


@lru_cache(maxsize=64)
def _chip_of(name: str) -> Chip:
    try:
        return load_machine(CHIPS.get(name.lower(), name)).chip
    except MachineError as error:
        # A user who names a file needs that file's own error, not a list of chips.
        if name.endswith(".toml"):
            raise
        raise ValueError(
            f"chip is {name!r}{instead_of(name, CHIPS)}, or the name or file of a machine (its chip)"
        ) from error


def chip_named(chip: Chip | str) -> Chip:
    """The chip of this name, or of the machine of this name or ``.toml`` file.

    Raises:
        ValueError: an unknown name; :class:`~ipuperf.machine.MachineError`: a wrong file.
    """
    if isinstance(chip, Chip):
        return chip
    return _chip_of(chip if isinstance(chip, str) else repr(chip))


def dtype_named(dtype: DType | str, argument: str = "dtype") -> DType:
    """``f16``, ``f32`` (or ``half``, ``float16``, ``float``, ``float32``) as a type; ``argument`` names it in errors.

    Raises:
        ValueError: any other type.
    """
    named_type = dtype if isinstance(dtype, DType) else _DTYPES.get(str(dtype).lower())
    if named_type not in (FLOAT16, FLOAT32):
        raise ValueError(f"{argument} is {dtype!r}{instead_of(dtype, ('f16', 'f32'))}")
    return named_type


def whole(value: SupportsIndex, argument: str) -> int:
    """``value`` as an int.

    Raises:
        ValueError: not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{argument} is {value!r}; a whole number is needed") from None


def _pair(value: SupportsIndex | Sequence[int], argument: str) -> tuple[int, ...]:
    """One number for both spatial axes, or one each (any number of axes)."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(whole(number, argument) for number in value)
    return (whole(value, argument),) * 2


def _types(dtype: DType | str, partials: DType | str, output: DType | str | None) -> tuple[DType, DType, DType]:
    """The types of operands, partial sums and result."""
    inputs, sums = dtype_named(dtype), dtype_named(partials, "partials")
    return inputs, sums, inputs if output is None else dtype_named(output, "output")


def _axes(spatial: Mapping[str, int | Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The spatial arguments of a convolution, each with one number for every axis."""
    axes = {name: _pair(value, name) for name, value in spatial.items()}
    # A plain number stands for every axis, so its number of axes follows from the other arguments.
    count = max(len(axes["size"]), len(axes["kernel"]))
    for name, value in spatial.items():
        if not isinstance(value, Sequence):
            axes[name] = axes[name][:1] * count
        if len(axes[name]) != count:
            raise ValueError(f"{name} is {value!r}; a number, or one for each of {count} spatial axes is needed")
    if min(axes["padding"]) < 0:
        raise ValueError(f"padding is {spatial['padding']!r}; allowed: 0 and more")
    return axes


def plan_matmul(
    chip: Chip | str,
    groups: int,
    m: int,
    k: int,
    n: int,
    dtype: DType | str = "f16",
    partials: DType | str = "f32",
    pass_: str = "nonemm",
    amp: float = 0.6,
    output: DType | str | None = None,
) -> ConvolutionPlan:
    """The cheapest plan for ``[groups, m, k] x [groups, k, n]`` on one IPU; the same shape is planned once.

    Args:
        chip: a chip, its name (``gc2``, ``gc200``, ``bow``; ``mk1``, ``mk2``), or the name or file of a machine.
        groups, m, k, n: the product's dimensions.
        dtype, partials, output: ``f16`` or ``f32``: of the operands, the partial sums, the result (default: operands).
        pass_: ``nonemm`` or, of a fully connected layer, ``fcinf``, ``fcfwd``, ``fcbwd``, ``fcwu``.
        amp: ``availableMemoryProportion``, above 0 and at most 1. When no plan fits into it, see
            :func:`~.works.plan_convolution`.

    Raises:
        ValueError: an unknown chip, type or pass, an impossible dimension or proportion.
    """
    inputs, sums, result = _types(dtype, partials, output)
    if sums.size < inputs.size:
        raise ValueError(f"partials are {sums} for {inputs} operands; they have to be at least as wide")
    sizes = (whole(groups, "groups"), whole(m, "m"), whole(k, "k"), whole(n, "n"))
    return works.plan_product(chip_named(chip), MatMul(*sizes, inputs, result, sums, pass_, amp))


def plan_convolution(
    chip: Chip | str,
    batch: int,
    channels_in: int,
    channels_out: int,
    size: int | Sequence[int],
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dtype: DType | str = "f16",
    partials: DType | str = "f32",
    pass_: str = "fwd",
    amp: float = 0.6,
    output: DType | str | None = None,
) -> ConvolutionPlan:
    """The cheapest plan for one pass of a convolution on one IPU; the same shape is planned once.

    Args:
        chip, dtype, partials, amp, output: as for :func:`plan_matmul`.
        batch, channels_in, channels_out, groups: of the forward convolution; channels are counted over all groups.
        size, kernel, stride, padding (on each side), dilation: one number for both spatial axes, or one for each of any
            number of axes.
        pass_: ``fwd``, ``bwd`` (gradient of the input) or ``wu`` (of the weights).

    Raises:
        ValueError: an unknown chip, type or pass, an impossible size or proportion.
    """
    inputs, sums, result = _types(dtype, partials, output)
    axes = _axes({"size": size, "kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation})
    convolution = Convolution(
        whole(batch, "batch"),
        whole(channels_in, "channels_in"),
        whole(channels_out, "channels_out"),
        axes["size"],
        axes["kernel"],
        axes["stride"],
        tuple((side, side) for side in axes["padding"]),
        axes["dilation"],
        whole(groups, "groups"),
        inputs,
        result,
        sums,
        pass_,
        amp,
    )
    return works.plan_convolution(chip_named(chip), convolution)
