"""The step of LAMB: the updater scaled by the trust ratio of two norms."""

from __future__ import annotations

from ipuperf import ops as _k

from ...effects import EFFECTS
from ...handle import Tensor
from ..operands import emit


def adam_var_update(
    t: Tensor,
    x: Tensor,
    r1: Tensor,
    r2: Tensor,
    learning_rate: float | Tensor | None = None,
    max_weight_norm: float | Tensor | None = None,
) -> Tensor:
    """``t -= learning_rate * sqrt(r1) / sqrt(r2) * x`` in place, the quotient being 1 where ``r1`` or ``r2`` is 0.

    Args:
        r1, r2: squared norms of the weight and of the updater (``ops.lamb_square``).
        learning_rate: 1 by default.
    """
    EFFECTS.given("ops.var_updates.adam_var_update(max_weight_norm)", max_weight_norm)
    name = f"{t.name}_updated"
    if isinstance(learning_rate, Tensor):
        return emit(_k.AdamVarUpdate, [t, x, r1, r2, learning_rate], name)
    return emit(_k.AdamVarUpdate, [t, x, r1, r2], name, lr=1.0 if learning_rate is None else float(learning_rate))
