"""``InputStreams`` and ``OutputStreams``: the host streams of a program by name and by position.

Source: popxl-addons: popxl_addons/streams.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from ipuperf.base.kinds import told
from ipuperf.frontends import popxl

if TYPE_CHECKING:
    from typing_extensions import Self

S = TypeVar("S", popxl.HostToDeviceStream, popxl.DeviceToHostStream)
StreamShape = tuple[tuple[int, ...], popxl.dtype]


class _Streams(Generic[S]):
    """Streams in order, one per name."""

    def __init__(self, make: Callable[[tuple[int, ...], popxl.dtype, str], S], specs: dict[str, StreamShape]) -> None:
        for name, spec in specs.items():
            if not isinstance(spec, (tuple, list)) or len(spec) != 2:
                raise TypeError(f"{type(self).__name__}: {name} is {told(spec)}; (shape, dtype) is needed")
        self._streams: dict[str, S] = {name: make(tuple(shape), dtype, name) for name, (shape, dtype) in specs.items()}

    @classmethod
    def from_streams(cls, streams: Iterable[S]) -> Self:
        """The given streams, each under the name of its tensor."""
        pair = cls.__new__(cls)
        pair._streams = {stream.tensor_id: stream for stream in streams}
        return pair

    @property
    def streams(self) -> list[S]:
        """The streams, in the order in which they were given."""
        return list(self._streams.values())

    def items(self) -> Iterator[tuple[str, S]]:
        """Names and streams."""
        return iter(self._streams.items())

    @overload
    def __getitem__(self, key: int | str) -> S: ...

    @overload
    def __getitem__(self, key: slice) -> list[S]: ...

    def __getitem__(self, key: int | str | slice) -> S | list[S]:
        return self._streams[key] if isinstance(key, str) else self.streams[key]

    def __getattr__(self, name: str) -> S:
        streams: dict[str, S] = self.__dict__.get("_streams", {})
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
