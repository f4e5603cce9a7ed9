"""Entries of remote buffers (Streaming Memory) read and written in a graph under construction."""

from __future__ import annotations

import numpy as np

from ipuperf.functions import constant, make, make_all
from ipuperf.functions.shapes import undefined
from ipuperf.ir import CONTEXT, UINT32, RemoteBuffer, Tensor, TensorSpec
from ipuperf.ops import RemoteLoad, RemoteStore


def remote_load(buffer: RemoteBuffer, entry: Tensor | int, name: str) -> Tensor:
    """A tensor with the contents of an entry of ``buffer``."""
    with CONTEXT.phase("io"):
        empty = undefined(TensorSpec(tuple(buffer.shape), buffer.dtype, tuple(buffer.meta_shape)), name)
        return make(RemoteLoad, empty, entry_of(entry), name=name, buffer=buffer)


def remote_store(buffer: RemoteBuffer, entry: Tensor | int, value: Tensor) -> None:
    """Write ``value`` to an entry of ``buffer``."""
    make_all(RemoteStore, [value, entry_of(entry)], [], buffer=buffer)


def entry_of(entry: Tensor | int) -> Tensor:
    """An entry number as a tensor."""
    return entry if isinstance(entry, Tensor) else constant(np.array(entry, np.uint32), UINT32, "entry")
