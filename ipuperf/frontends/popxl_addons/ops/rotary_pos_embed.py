"""Rotary position embedding. Semantics of popxl-addons: popxl_addons/ops/rotary_pos_embed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf import ops as _k
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import Tensor
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.ops.operands import emit

__all__ = ["rotary_pos_embed", "trig_table_constants", "trig_tables"]


def trig_tables(
    seq_len: int, rotary_dim: int, base: int = 10000, np_dtype: Any = "float32"
) -> tuple[np.ndarray, np.ndarray]:
    """Sine and cosine ``(seq_len, rotary_dim / 2)`` of ``m * base ** (-2 i / rotary_dim)``: position m, pair i."""
    rates = base ** (-np.arange(0, rotary_dim, 2).astype(np_dtype) / rotary_dim)
    angles = np.outer(np.arange(seq_len).astype(np_dtype), rates)
    return np.sin(angles), np.cos(angles)


@checked_arguments
def trig_table_constants(
    seq_len: int, rotary_dim: int, base: int = 10000, dtype: popxl.dtype = popxl.float32
) -> tuple[Tensor, Tensor]:
    """:func:`trig_tables` as constants of ``dtype``."""
    tables = trig_tables(seq_len, rotary_dim, base, dtype.as_numpy())
    sines, cosines = (popxl.constant(table, dtype) for table in tables)
    return sines, cosines


@checked_arguments
def rotary_pos_embed(t: Tensor, sin: Tensor, cos: Tensor, rotary_dim: int | None = None) -> Tensor:
    """Each pair of neighbours of the last axis of ``t`` turned by its angle.

    Args:
        t: ``(batch, sequence, heads, n)``.
        sin, cos: tables ``(sequence, rotary_dim / 2)``, or with an axis of 1 or batch in front.
        rotary_dim: elements that are turned (default: all n).
    """
    tables = [table.reshape((1, *table.shape)) if table.rank == 2 else table for table in (sin, cos)]
    return emit(_k.RotaryPosEmbed, [t, *tables], f"{t.name}_rotated", rotary_dim=rotary_dim or t.shape[-1])
