"""Entries of remote buffers (Streaming Memory) read and written in a graph under construction."""

from __future__ import annotations

import numpy as np

from ipuperf.ir import UINT32, RemoteBuffer, Tensor, TensorSpec
from ipuperf.ops import Init, RemoteLoad, RemoteStore

from .scope import Scope


def remote_load(routine: Scope, buffer: RemoteBuffer, entry: Tensor | int, ipu: int, name: str) -> Tensor:
    """A tensor with the contents of an entry of ``buffer``."""
    spec = TensorSpec(tuple(buffer.shape), buffer.dtype, tuple(buffer.meta_shape))
    empty = routine.op(Init, [], name, ipu=ipu, phase="io", shape=spec.shape, dtype=spec.dtype,
                       init="undefined", meta_shape=spec.meta_shape).outputs[0]  # fmt: skip
    index = entry_of(routine, entry)
    return routine.op(RemoteLoad, [empty, index], name, ipu=ipu, buffer=buffer).outputs[0]


def remote_store(routine: Scope, buffer: RemoteBuffer, entry: Tensor | int, value: Tensor, ipu: int) -> None:
    """Write ``value`` to an entry of ``buffer``."""
    routine.op(RemoteStore, [value, entry_of(routine, entry)], ipu=ipu, outputs=0, buffer=buffer)


def entry_of(routine: Scope, entry: Tensor | int) -> Tensor:
    """An entry number as a tensor."""
    if isinstance(entry, Tensor):
        return entry
    return routine.graph.constant(np.array(entry, np.uint32), UINT32, "entry")
