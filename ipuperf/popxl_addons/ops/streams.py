"""A host stream and its op in one go."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf import popxl
from ipuperf.popxl import ops


def host_load(
    x: Any, dtype: popxl.dtype | None = None, name: str | None = None
) -> tuple[popxl.HostToDeviceStream, popxl.Tensor]:
    """A new stream for data like ``x`` (host data, a spec or a tensor), and the tensor loaded from it."""
    shape = tuple(x.shape) if hasattr(x, "shape") else np.shape(x)
    if dtype is None:
        dtype = x.dtype if isinstance(x, (popxl.Tensor, popxl.TensorSpec)) else _narrow(np.asarray(x))
    stream = popxl.h2d_stream(shape, dtype, name)
    return stream, ops.host_load(stream, name)


def _narrow(x: np.ndarray) -> popxl.dtype:
    from ipuperf.popxl.utils import downcast_np_dtypes

    return popxl.dtype.as_dtype(downcast_np_dtypes.get(x.dtype, x.dtype))


def host_store(t: popxl.Tensor) -> popxl.DeviceToHostStream:
    """A new stream of the tensor's shape and type, with the tensor stored to it."""
    stream = popxl.d2h_stream(t.shape, t.dtype, f"{t.name}_d2h_stream")
    ops.host_store(stream, t)
    return stream
