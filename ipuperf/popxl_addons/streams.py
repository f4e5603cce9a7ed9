"""``InputStreams`` and ``OutputStreams``: the host streams of a program by name and by position.

Source: popxl-addons: popxl_addons/streams.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ipuperf import popxl

S = TypeVar("S", popxl.HostToDeviceStream, popxl.DeviceToHostStream)
StreamShape = tuple[tuple[int, ...], popxl.dtype]


class _Streams(Generic[S]):
    """Streams in order, one per name."""

    def __init__(self, make: Callable[[tuple[int, ...], popxl.dtype, str], S], specs: dict[str, StreamShape]) -> None:
        self._streams: dict[str, S] = {name: make(tuple(shape), dtype, name) for name, (shape, dtype) in specs.items()}

    @property
    def streams(self) -> list[S]:
        """The streams, in the order in which they were given."""
        return list(self._streams.values())

    def items(self) -> Iterator[tuple[str, S]]:
        """Names and streams."""
        return iter(self._streams.items())

    def __getitem__(self, key: int | str) -> S:
        return self.streams[key] if isinstance(key, int) else self._streams[key]

    def __getattr__(self, name: str) -> S:
        streams = self.__dict__.get("_streams", {})
        if name not in streams:
            raise AttributeError(f"{type(self).__name__} has no stream {name!r}; there are {list(streams)}")
        return streams[name]

    def __iter__(self) -> Iterator[S]:
        return iter(self.streams)

    def __len__(self) -> int:
        return len(self._streams)


class InputStreams(_Streams[popxl.HostToDeviceStream]):
    """Streams from the host: ``InputStreams(x=((2, 4), popxl.float32))``, then ``.x``, ``["x"]`` or ``[0]``."""

    def __init__(self, **specs: StreamShape) -> None:
        super().__init__(popxl.h2d_stream, specs)


class OutputStreams(_Streams[popxl.DeviceToHostStream]):
    """Streams to the host; as :class:`InputStreams`."""

    def __init__(self, **specs: StreamShape) -> None:
        super().__init__(popxl.d2h_stream, specs)
