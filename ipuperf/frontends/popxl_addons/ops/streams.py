"""A host stream and its op in one go."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ops
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.utils import to_numpy


@checked_arguments
def host_load(
    t: Any, dtype: popxl.dtype | None = None, name: str | None = None
) -> tuple[np.ndarray, popxl.HostToDeviceStream, popxl.Tensor]:
    """A new stream with slices like the host data ``t``, and the tensor loaded from it.

    Args:
        dtype: of the stream (default: that of the data, 64-bit types narrowed).
        name: of the tensor; the stream is called ``<name>_stream``.

    Returns:
        The data as an array of ``dtype``, the stream, the tensor (popxl-addons: popxl_addons/ops/streams.py).
    """
    array = to_numpy(t, None if dtype is None else popxl.dtype.as_dtype(dtype), subject=f"host_load {name or ''!r}")
    stream = popxl.h2d_stream(array.shape, popxl.dtype.as_dtype(array.dtype), f"{name}_stream" if name else None)
    return array, stream, ops.host_load(stream, name)


@checked_arguments
def host_store(t: popxl.Tensor) -> popxl.DeviceToHostStream:
    """A new stream of the tensor's shape and type, with the tensor stored to it."""
    stream = popxl.d2h_stream(t.shape, t.dtype, f"{t.name}_d2h_stream")
    ops.host_store(stream, t)
    return stream
