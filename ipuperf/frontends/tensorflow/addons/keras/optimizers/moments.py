"""The two moments of a gradient that Adam and LAMB keep, computed in one type and held in others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from .ipu_optimizer_base import IpuOptimizerBase

Coefficients = Mapping[str, tf.Tensor]


def prepared(optimizer: IpuOptimizerBase, epsilon: float) -> dict[str, tf.Tensor]:
    """Scalars of one update, in the first type that ``optimizer`` computes in: ``beta_1_t``, its power
    ``beta_1_power`` for the update's number (from 1), ``one_minus_beta_1_t``, the same of ``beta_2``, ``epsilon``."""
    dtype = optimizer.opt_dtypes[0]
    number = tf.cast(optimizer.iterations + 1, dtype)
    found = {"epsilon": tf.convert_to_tensor(epsilon, dtype)}
    for beta in ("beta_1", "beta_2"):
        value = tf.identity(optimizer._get_hyper(beta, dtype))
        found |= {f"{beta}_t": value, f"{beta}_power": tf.pow(value, number), f"one_minus_{beta}_t": 1 - value}
    return found


def moved(grad: Any, m: Any, v: Any, at: Coefficients) -> tuple[tf.Tensor, tf.Tensor]:
    """The moments after ``grad``, in the type of the coefficients ``at``."""
    dtype = at["beta_1_t"].dtype
    grad, m, v = (tf.cast(value, dtype) for value in (grad, m, v))
    beta_1, beta_2 = at["beta_1_t"], at["beta_2_t"]
    return m * beta_1 + grad * (1 - beta_1), v * beta_2 + tf.square(grad) * (1 - beta_2)


def unbiased(m: tf.Tensor, v: tf.Tensor, at: Coefficients) -> tuple[tf.Tensor, tf.Tensor]:
    """The moments without what the zeros that they begin with leave in them."""
    return m / (1 - at["beta_1_power"]), v / (1 - at["beta_2_power"])
