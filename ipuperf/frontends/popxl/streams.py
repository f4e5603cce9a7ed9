"""Host streams: where ``ops.host_load`` takes its data from and ``ops.host_store`` puts it."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf import ir as _ir

from .arguments import checked_kinds, wholes
from .builder import current_program
from .dtypes import dtype as _dtype
from .spec import TensorSpec


class Stream:
    """A host stream; equal and hashed by its tensor."""

    def __init__(self, stream: _ir.Stream | None = None) -> None:
        if not isinstance(stream, _ir.Stream):
            raise NotImplementedError(
                f"popxl.{type(self).__name__} cannot be constructed; use popxl.h2d_stream or popxl.d2h_stream"
            )
        self._ir = stream

    @property
    def dtype(self) -> _dtype:
        """Element type."""
        return _dtype.as_dtype(self._ir.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one slice on one replica."""
        return self._ir.shape

    @property
    def spec(self) -> TensorSpec:
        """Shape and type of one slice."""
        return TensorSpec._from_ir(self._ir.spec)

    @property
    def tensor_id(self) -> str:
        """Id of the stream's tensor."""
        return self._ir.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._ir is self._ir

    def __hash__(self) -> int:
        return hash((self.tensor_id, id(self._ir.graph.ir)))

    def __repr__(self) -> str:
        return f"{type(self).__name__} Tensor[{self.tensor_id} {self.dtype!r} {self.shape}]"


class HostToDeviceStream(Stream):
    """Data from the host."""


class DeviceToHostStream(Stream):
    """Data to the host."""


def _new(shape: Sequence[int], dtype: _dtype, name: str | None, direction: str) -> _ir.Stream:
    graph = current_program().main_graph
    spec = _ir.TensorSpec(wholes(shape, f"shape of stream {name or direction!r}", 0), _dtype.as_dtype(dtype)._ir)
    stream = _ir.Stream(graph.tensor_id(name or f"{direction}_stream"), spec, graph, direction)
    graph.add(stream)
    return stream


@checked_kinds()
def h2d_stream(shape: Sequence[int], dtype: _dtype, name: str | None = None) -> HostToDeviceStream:
    """A stream from the host in the main graph; ``shape`` is that of one slice on one replica."""
    return HostToDeviceStream(_new(shape, dtype, name, "h2d"))


@checked_kinds()
def d2h_stream(shape: Sequence[int], dtype: _dtype, name: str | None = None) -> DeviceToHostStream:
    """A stream to the host in the main graph; ``shape`` is that of one slice on one replica."""
    return DeviceToHostStream(_new(shape, dtype, name, "d2h"))
