"""Host streams and remote buffers: ``host_load``, ``host_store``, ``remote_load``, ``remote_store``."""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.functions import shapes
from ipuperf.ir import CONTEXT

from ..arguments import checked_arguments
from ..context import gir
from ..dtypes import int32
from ..handle import Tensor
from ..remote_buffer import RemoteBuffer
from ..streams import DeviceToHostStream, HostToDeviceStream, Stream
from .lifting import lifted
from .operands import create, emit, ensure_tensor

_init = lifted(shapes.init)


def _check_own(function: str, stream: Stream) -> None:
    """ValueError for a stream of another program."""
    if stream._ir.graph.ir is not gir()._ir:
        raise ValueError(f"{function}: stream {stream.tensor_id!r} belongs to another popxl.Ir")


@checked_arguments
def host_load(h2d_stream: HostToDeviceStream, name: str | None = None) -> Tensor:
    """The next slice of a host stream (an Init and a HostLoad)."""
    _check_own("host_load", h2d_stream)
    stem = name or h2d_stream.tensor_id
    with CONTEXT.phase("io"):
        target = _init(h2d_stream.shape, h2d_stream.dtype, f"{stem}_init", "undef")
    return emit(_k.HostLoad, [target], name or f"{stem}_hostload", stream=h2d_stream._ir)


@checked_arguments
def host_store(d2h_stream: DeviceToHostStream, t: Tensor) -> None:
    """Send ``t`` to a host stream; shape and dtype must be the stream's (ValueError)."""
    _check_own("host_store", d2h_stream)
    if t.shape != d2h_stream.shape or t.dtype is not d2h_stream.dtype:
        raise ValueError(
            f"host_store: stream {d2h_stream.tensor_id!r} takes {d2h_stream.shape} {d2h_stream.dtype.name}, tensor "
            f"{t.id!r} is {t.shape} {t.dtype.name}"
        )
    create(_k.HostStore, [t], [], stream=d2h_stream._ir)


def _offset(offset: int | Tensor) -> Tensor:
    return ensure_tensor(offset, int32, "offset")


@checked_arguments
def remote_load(remote_buffer: RemoteBuffer, offset: int | Tensor, name: str | None = None) -> Tensor:
    """The tensor in entry ``offset`` of a remote buffer (an Init and a RemoteLoad).

    An integer offset becomes an int32 constant named ``offset``.
    """
    entry = _offset(offset)
    stem = name or f"id_{remote_buffer.remote_buffer_id}"
    buffer = remote_buffer
    with CONTEXT.phase("io"):
        target = _init(buffer.tensor_shape, buffer.tensor_dtype, f"{stem}_init", "undef", buffer.meta_shape)
    return emit(_k.RemoteLoad, [target, entry], f"{stem}_remote_loaded", buffer=remote_buffer._ir)


@checked_arguments
def remote_load_(remote_buffer: RemoteBuffer, offset: int | Tensor, t: Tensor) -> Tensor:
    """As :func:`remote_load` into ``t``, whose storage the result shares."""
    remote_buffer.validate_tensor_matches_buffer(t)
    return emit(_k.RemoteLoadInplace, [t, _offset(offset)], f"{t.name}_remote_loaded", buffer=remote_buffer._ir)


@checked_arguments
def remote_store(remote_buffer: RemoteBuffer, offset: int | Tensor, t: Tensor) -> None:
    """Store ``t`` in entry ``offset`` of a remote buffer; shape and dtype must match (ValueError)."""
    remote_buffer.validate_tensor_matches_buffer(t)
    create(_k.RemoteStore, [t, _offset(offset)], [], buffer=remote_buffer._ir)
