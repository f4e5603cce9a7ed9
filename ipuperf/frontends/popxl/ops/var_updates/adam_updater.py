"""Update terms of Adam, AdaMax and LAMB from their moments."""

from __future__ import annotations

from typing import Any

from ipuperf import ops as _k

from ...arguments import checked_arguments
from ...handle import Tensor
from ..operands import emit


def _updater(
    mode: str,
    first: Tensor,
    second: Tensor,
    weight: Tensor | None,
    time_step: Tensor | None,
    factors: dict[str, float | Tensor | None],
) -> Tensor:
    """The op: the weight is connected only with weight decay, a given time step is incremented in place.

    Raises:
        ValueError: weight decay without weight, bias correction (a time step) without the decay rates.
    """
    decay = factors["weight_decay"]
    decays = isinstance(decay, Tensor) or bool(decay)
    if decays and weight is None:
        raise ValueError(
            f"{mode} updater: there is no weight that could decay: weight=None with weight_decay={decay!r}"
        )
    missing = [n for n in ("beta1", "beta2") if n in factors and factors[n] is None]
    if time_step is not None and missing:
        raise ValueError(
            f"{mode} updater: a time_step corrects the bias of both moments, and there is no {' and no '.join(missing)}"
        )
    inputs = [first, second]
    if decays and weight is not None:
        inputs.append(weight)
    if time_step is not None:
        inputs.append(time_step)
    attributes: dict[str, Any] = {"mode": mode, "has_weight": decays, "has_step": time_step is not None}
    for name, factor in factors.items():
        if isinstance(factor, Tensor):
            attributes[f"{name}_input"] = len(inputs)
            inputs.append(factor)
        elif factor is not None:
            attributes[name] = float(factor)
    return emit(_k.AdamUpdater, inputs, "updater", **attributes)


@checked_arguments
def adam_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Tensor | None = None,
    time_step: Tensor | None = None,
    weight_decay: float | Tensor | None = None,
    beta1: float | Tensor | None = None,
    beta2: float | Tensor | None = None,
    epsilon: float | Tensor = 1e-07,
) -> Tensor:
    """``m' / (sqrt(v') + epsilon) + weight_decay * weight``; with ``time_step`` the moments are bias corrected."""
    factors = {"weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    return _updater("adam", acc_first_order, acc_second_order, weight, time_step, factors)


@checked_arguments
def lamb_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Tensor | None = None,
    time_step: Tensor | None = None,
    weight_decay: float | Tensor | None = None,
    beta1: float | Tensor | None = None,
    beta2: float | Tensor | None = None,
    epsilon: float | Tensor = 1e-07,
) -> Tensor:
    """As :func:`adam_updater`; the norm scaling of LAMB is a step of its own upstream too."""
    factors = {"weight_decay": weight_decay, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    return _updater("lamb", acc_first_order, acc_second_order, weight, time_step, factors)


@checked_arguments
def adamax_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Tensor | None = None,
    time_step: Tensor | None = None,
    weight_decay: float | Tensor | None = None,
    beta1: float | Tensor = 0.9,
    epsilon: float | Tensor = 1e-07,
) -> Tensor:
    """``m' / (v + epsilon) + weight_decay * weight``: ``v`` is an infinity norm and is not corrected.

    Raises:
        ValueError: no ``time_step``: the first moment is always corrected.
    """
    if time_step is None:
        raise ValueError("adamax updater: time_step is None; the first moment is always corrected by it")
    factors = {"weight_decay": weight_decay, "beta1": beta1, "epsilon": epsilon}
    return _updater("adamax", acc_first_order, acc_second_order, weight, time_step, factors)
