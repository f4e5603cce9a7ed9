"""Copies between the IPUs of a replica."""

from __future__ import annotations

from ipuperf import ops as _k

from ..arguments import checked_arguments
from ..handle import Tensor
from ..placement import ipu_of
from .operands import emit


@checked_arguments
def ipu_copy(t: Tensor, destination: int, source: int | None = None) -> Tensor:
    """``t`` on IPU ``destination``.

    Args:
        source: where ``t`` is. Default: where its producer is, else (a graph input or variable) where it is read.

    Raises:
        ValueError: the source is not given and cannot be found; IrError (``popart_exception``): it is the destination,
            or ``t`` is elsewhere.
    """
    if source is None:
        source = ipu_of(t._ir_tensor)
        if source is None:
            raise ValueError(
                f"ipu_copy: Could not infer the ipu of {t!r}, which has no producer and no reader that tell. Please "
                "specify `source`"
            )
    return emit(_k.IpuCopy, [t], f"{t.name}_c{destination}", source=source, destination=destination)
