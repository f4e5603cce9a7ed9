"""Operands of float16 and float32 in one op: products, convolutions and norms for which PyTorch wants one type.

PopTorch's rule for every op is PyTorch's for ``+``: the result and all operands are float32 (``poptorch:
docs/user_guide/supported_ops.rst``, 16-bit float migration; ``poptorch: scripts/PopParse.py``, the ops that cast). So a
model after ``half()`` takes images of float32. What PyTorch itself computes with mixed operands is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

PRODUCTS = frozenset({
    "__matmul__", "__rmatmul__", "addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "dot", "einsum", "linear", "matmul", "mm", "mv",
    "prelu", "scaled_dot_product_attention", "vdot",
})  # fmt: skip
"""Names of functions all of whose operands become float32."""

NORMS = frozenset({"batch_norm", "group_norm", "instance_norm", "layer_norm"})
"""Names of functions whose parameters become float32 when the first operand is. (That float16 is normalised with
parameters of float32 is PyTorch's own rule.)"""


_FIRST_STATISTIC = {
    torch.nn.functional.batch_norm: 1,
    torch.nn.functional.instance_norm: 1,
    torch.batch_norm: 3,
    torch.instance_norm: 3,
}
"""Where the running mean, followed by the running variance, stands among positional arguments."""
_TRAINING = 5
"""Where it is said that they are to be changed."""


def call(func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``func(*args, **kwargs)``, with float32 where the function ``name`` is given float16 and float32."""
    if not _is_mixed(name, (*args, *kwargs.values())):
        return func(*args, **kwargs)
    raised, named = [_raised(value) for value in args], {key: _raised(value) for key, value in kwargs.items()}
    result = func(*raised, **named)
    if func in _FIRST_STATISTIC and _in_training(args, kwargs):
        first = _FIRST_STATISTIC[func]
        pairs = [*zip(args, raised, strict=True)][first : first + 2]
        pairs += [(kwargs[key], named[key]) for key in ("running_mean", "running_var") if key in kwargs]
        for before, after in pairs:
            if before is not after:
                before.copy_(after)
    return result


def _is_mixed(name: str, values: Iterable[Any]) -> bool:
    if (name not in PRODUCTS and name not in NORMS) or torch.is_autocast_enabled("cpu"):
        return False
    kinds = [tensor.dtype for tensor in _tensors(values)]
    return {torch.float16, torch.float32} <= set(kinds) and (name in PRODUCTS or kinds[0] == torch.float32)


def _in_training(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a normalisation changes its running statistics."""
    named = kwargs.get("training", kwargs.get("use_input_stats", False))
    return bool(args[_TRAINING] if len(args) > _TRAINING else named)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _raised(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.float16 else value
    if isinstance(value, (list, tuple)):
        return type(value)(_raised(item) for item in value)
    return value
