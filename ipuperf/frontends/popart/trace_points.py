"""``import libpvti``: trace points of the host program, which PopVision's system analyser shows.

A program without the package finds this one. Nothing is recorded, which the first channel says: simulated time is in
the reports of a run. Names: libpvti's Python module, of PopVision's documentation.
"""

from __future__ import annotations

from types import TracebackType

from ipuperf.runtime.effects import tell


class Channel:
    """A named channel of trace points."""

    def __init__(self, name: str) -> None:
        self.name = name


def createTraceChannel(name: str) -> Channel:
    """A channel."""
    tell("libpvti is without effect: trace points of the host are not recorded; `ipuperf run --report DIR` shows a run")
    return Channel(name)


class Tracepoint:
    """A ``with`` statement that records nothing."""

    def __init__(self, channel: Channel, label: str) -> None:
        if not isinstance(channel, Channel):
            raise TypeError(f"Tracepoint(channel): {channel!r}, allowed: what createTraceChannel gives")
        self.channel, self.label = channel, label

    def __enter__(self) -> Tracepoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


__all__ = ["Channel", "Tracepoint", "createTraceChannel"]
