"""The step of LAMB: the updater scaled by the trust ratio of two norms."""

from __future__ import annotations

from ipuperf import ops as _k

from ...arguments import checked_arguments
from ...handle import Tensor
from ..operands import emit


@checked_arguments
def adam_var_update(
    t: Tensor,
    x: Tensor,
    r1: Tensor,
    r2: Tensor,
    learning_rate: float | Tensor | None = None,
    max_weight_norm: float | Tensor | None = None,
) -> Tensor:
    """``t -= learning_rate * min(sqrt(r1), max_weight_norm) / sqrt(r2) * x`` in place; the quotient is 1 where ``r1``,
    ``r2`` or ``max_weight_norm`` is 0.

    Args:
        r1, r2: squared norms of the weight and of the updater (``ops.lamb_square``).
        learning_rate: 1 by default (upstream leaves it open).
        max_weight_norm: no limit by default (upstream leaves it open).
    """
    inputs, attributes = [t, x, r1, r2], dict[str, float | int]()
    given = {"lr": 1.0 if learning_rate is None else learning_rate, "max_norm": max_weight_norm}
    for factor, value in given.items():
        if isinstance(value, Tensor):
            attributes[f"{factor}_input"] = len(inputs)
            inputs.append(value)
        elif value is not None:
            attributes[factor] = float(value)
    return emit(_k.AdamVarUpdate, inputs, f"{t.name}_updated", **attributes)
