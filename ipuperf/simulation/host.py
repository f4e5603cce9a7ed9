"""The host: a serial server that prepares slices for the IPUs and takes those they send.

A machine of several racks has one such server for each rack, which serves the replicas that begin there (a POD64 and so
each rack of a larger Pod comes with host servers of its own; how many processes share the work there is not modelled).

Each (slice, replica) of a stream costs ``host.callback_seconds`` of host time. The server handles requests in the order
in which they came; those of one instant by replica, then by stream (in the order of ``DeviceProgram.streams``), then by
IPU. A host-to-device stream has, for each replica, a buffer of ``depth`` slices that the host fills ahead of the IPU: a
slot is taken when a slice is requested and free again when its transfer to the IPU ended. Upstream's default is a
buffering depth of 1 with prefetching on; depth 0 means that the host begins when the IPU asks. The host prepares no
more slices than the run takes. A device-to-host slice is handed to the host at the end of its stream copy; the IPU does
not wait for the host to handle it, only the run does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .event_loop import HOST, EventLoop

if TYPE_CHECKING:
    from .recorder import Recorder

ChannelKey = tuple[int, int]
"""Replica and stream number."""

_RELEASE, _CLAIM, _TAKE = range(3)


@dataclass
class _Channel:
    """One host-to-device stream of one replica; counts are slices."""

    total: int
    issued: int = 0
    ready: int = 0
    granted: int = 0
    released: int = 0
    claims: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def state(self) -> tuple[int, ...]:
        """What the future depends on, apart from how many slices are left."""
        return (self.issued - self.released, self.issued - self.granted, self.ready, *(ipu for ipu, _ in self.claims))


class HostServer:
    """The host of a run.

    Args:
        events: the event loop.
        callback: cycles of one callback.
        depth: slices of a host-to-device stream the host may be ahead of the IPU.
        totals: slices each (replica, host-to-device stream) takes in the run.
        recorder: gets every callback.
        servers: the server of each replica; none given: one server for all.
    """

    def __init__(
        self,
        events: EventLoop,
        callback: int,
        depth: int,
        totals: Mapping[ChannelKey, int],
        recorder: Recorder,
        servers: Sequence[int] = (),
    ) -> None:
        self._events = events
        self._callback = callback
        self._depth = depth
        self._recorder = recorder
        self._channels = {key: _Channel(total) for key, total in sorted(totals.items())}
        self._inbox: list[tuple[int, int, int, int, Callable[[], None] | None]] = []
        self._served: list[tuple[int, int, int]] = []  # end, replica, stream of callbacks not over yet, as asked for
        self._server = dict(enumerate(servers))
        self._busy = dict.fromkeys([*servers, 0], 0)  # until when each server is

    @property
    def busy_until(self) -> int:
        """End of the last callback asked for until now."""
        return max(self._busy.values())

    # -- what IPUs say -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The run begins: ask for the first slices of every stream."""
        self._busy = dict.fromkeys(self._busy, self._events.now)
        self._events.after(0, self._settle, HOST)

    def claim(self, replica: int, stream: int, ipu: int, ready: Callable[[], None]) -> None:
        """The IPU wants the next slice; ``ready`` is called when there is one."""
        self._put(replica, stream, _CLAIM, ipu, ready)

    def release(self, replica: int, stream: int, ipu: int) -> None:
        """The slice has arrived on the IPU, so its slot is free."""
        self._put(replica, stream, _RELEASE, ipu, None)

    def take(self, replica: int, stream: int, ipu: int) -> None:
        """The IPU has sent a slice for the host to handle."""
        self._put(replica, stream, _TAKE, ipu, None)

    # -- folding -----------------------------------------------------------------------------------------------------

    def backlog(self, now: int) -> int:
        """Callbacks asked for that are not over yet."""
        if self._served:
            self._served = [item for item in self._served if item[0] > now]
        return len(self._served)

    def state(self, now: int) -> tuple[object, ...]:
        """Everything the future depends on, relative to ``now``, but for the slices left (end of an instant)."""
        self.backlog(now)
        return (
            tuple((end - now, replica, stream) for end, replica, stream in self._served),
            tuple(channel.state() for channel in self._channels.values()),
        )

    def issued(self) -> dict[ChannelKey, int]:
        """Slices asked for until now, by channel."""
        return {key: channel.issued for key, channel in self._channels.items()}

    def left(self) -> dict[ChannelKey, int]:
        """Slices not yet asked for, by channel."""
        return {key: channel.total - channel.issued for key, channel in self._channels.items()}

    def skip(self, slices: Mapping[ChannelKey, int]) -> None:
        """Count these slices as asked for and transferred without simulating them."""
        for key, number in slices.items():
            self._channels[key].issued += number
            self._channels[key].granted += number
            self._channels[key].released += number

    # -- the server --------------------------------------------------------------------------------------------------

    def _put(self, replica: int, stream: int, what: int, ipu: int, ready: Callable[[], None] | None) -> None:
        if not self._inbox:
            self._events.after(0, self._settle, HOST)
        self._inbox.append((replica, stream, what, ipu, ready))

    def _settle(self) -> None:
        """Take the requests of this instant in their stated order."""
        inbox, self._inbox = sorted(self._inbox, key=lambda item: item[:4]), []
        takes = []
        for replica, stream, what, ipu, ready in inbox:
            if what == _TAKE:
                takes.append((replica, stream))
                continue
            channel = self._channels[replica, stream]
            if what == _RELEASE:
                channel.released += 1
            elif ready is not None:
                channel.claims.append((ipu, ready))
        wanted = [key for key, channel in self._channels.items() for _ in range(self._room(channel))]
        for replica, stream, prepare in sorted([*((*key, True) for key in wanted), *((*key, False) for key in takes)]):
            self._serve(replica, stream, prepare)
        for key in sorted({(replica, stream) for replica, stream, what, _, _ in inbox if what == _CLAIM}):
            self._grant(self._channels[key])

    def _room(self, channel: _Channel) -> int:
        """Slices to ask for now: free slots, or with depth 0 what IPUs wait for."""
        if self._depth:
            room = self._depth - (channel.issued - channel.released)
        else:
            room = len(channel.claims) - (channel.issued - channel.granted)
        return max(0, min(room, channel.total - channel.issued))

    def _serve(self, replica: int, stream: int, prepare: bool) -> None:
        """Queue one callback; a prepared slice is ready at its end."""
        server = self._server.get(replica, 0)
        start = max(self._busy[server], self._events.now)
        end = self._busy[server] = start + self._callback
        self._served.append((end, replica, stream))
        self._recorder.host_event(start, self._callback, stream, replica)
        if prepare:
            self._channels[replica, stream].issued += 1
            self._events.after(end - self._events.now, lambda: self._prepared(self._channels[replica, stream]))

    def _prepared(self, channel: _Channel) -> None:
        channel.ready += 1
        self._grant(channel)

    def _grant(self, channel: _Channel) -> None:
        while channel.ready and channel.claims:
            channel.ready -= 1
            channel.granted += 1
            channel.claims.pop(0)[1]()
