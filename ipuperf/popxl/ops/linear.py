"""Matrix products."""

from __future__ import annotations

from ipuperf import ops as _k

from ..dtypes import dtype as _dtype
from ..handle import Tensor
from .operands import Operand, emit, pair


def matmul(
    lhs: Operand,
    rhs: Operand,
    available_memory_proportion: float | None = None,
    output_type: _dtype | None = None,
    partials_type: _dtype | None = None,
) -> Tensor:
    """``lhs @ rhs`` with NumPy's rules for vectors and batches.

    Args:
        available_memory_proportion: share of tile memory for temporaries, in [0, 1] (default 0.6).
        output_type: dtype of the result (default: that of the operands).
        partials_type: dtype of partial sums (default float32).

    Raises:
        ValueError: shapes or dtypes do not fit, or a proportion outside [0, 1].
    """
    if available_memory_proportion is not None and not 0 <= available_memory_proportion <= 1:
        raise ValueError(f"matmul: available_memory_proportion is {available_memory_proportion}; allowed: 0 to 1")
    attributes: dict[str, object] = {}
    if available_memory_proportion is not None:
        attributes["available_memory_proportion"] = float(available_memory_proportion)
    if output_type is not None:
        attributes["output_dtype"] = _dtype.as_dtype(output_type)._ir
    if partials_type is not None:
        attributes["partials_dtype"] = _dtype.as_dtype(partials_type)._ir
    return emit(_k.MatMul, pair(lhs, rhs), "matmul_out", **attributes)
