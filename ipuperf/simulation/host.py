"""The host: a server that answers the IPUs' host syncs and runs the callbacks of streams.

The replicas of an engine sync with the host together, unless Poplar's option ``target.syncReplicasIndependently`` is
set. One thread runs all callbacks, unless ``streamCallbacks.multiThreadMode`` and ``numWorkerThreads`` say otherwise.
No front end sets either option for the replicas of one process. A *host sync* therefore costs ``host.sync_seconds``
once, however many replicas and streams take part. In addition it costs ``host.callback_seconds`` for each stream and
replica in it. Several threads share the replicas; then the replicas of the busiest thread count.

A stream copy that stands alone has its own sync; the copies of a `HostExchange` share one. A machine of several racks
has a host server for each rack, which serves the replicas whose first IPU is there: a POD64, and so each rack of a
larger Pod, has its own host servers. Instances of ``poprun`` are processes with one server each.

What the host does for a slice of a stream:

- With prefetching, a host-to-device stream has buffers of ``depth`` slices, which the host fills ahead of the IPUs. It
  *prepares* the first slices in one sync as the run begins, and the next one when a slice has arrived on all replicas.
  Slices prefetched for an earlier run are dropped, because PopART reconnects the inputs for every run
  (``popart: willow/src/popx/devicex.cpp``, ``reconnectInputStreams``). The host prepares no more slices than the run
  takes. It *handles* a device-to-host slice when all replicas have sent it. The IPUs do not wait for that; only the end
  of the run does.
- Without prefetching (depth 0) the IPUs wait for the host at both ends of a copy. The host prepares a slice when they
  ask for it, and *completes* it when it has arrived. It *accepts* a slice that they want to send, and handles it before
  they go on. They see each answer ``host.answer_seconds`` after the host gave it; the host is free meanwhile.

The server takes syncs in the order in which they arrived, and those of one instant by stream (in the order of
``DeviceProgram.streams``). Simplifications: a host sync that the host has answered in advance costs the IPU nothing;
output buffers are never full; a callback's copying of bytes costs nothing besides the transfer over PCIe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .event_loop import HOST, EventLoop
from .recorder import LineKey

if TYPE_CHECKING:
    from .classes import ReplicaClasses
    from .jitter import HostJitter
    from .recorder import Recorder

ChannelKey = tuple[int, int]
"""Server and stream number."""

Sync = tuple[int, ...]
"""What the requests of one host sync have in common; requests of an instant with equal ones are one sync."""

PREPARE, COMPLETE, ACCEPT, HANDLE = "prepare", "complete", "accept", "handle"
_RUN: Sync = ()

Go = Callable[[], None]
"""A call by which an IPU goes on, or sends a request to the host."""


@dataclass
class _Line:
    """One sort of work for one stream, slice by slice, for all replicas of a server. All counts are slices.

    Attributes:
        keys: a key for each server for which this server stands, its own first.
        requested: how many each replica has asked for.
        granted: how many each replica may use.
        waiting: for each replica, the IPUs that wait, and what to call when they may go on.
        awaited: whether IPUs wait for this work.
        total: how many the run takes; None: as many as are requested.
        issued: how many the host was told of.
        done: how many the host has finished.
        ends: when those end that it was told of and has not finished.
    """

    keys: tuple[LineKey, ...]
    requested: dict[int, int]
    granted: dict[int, int]
    waiting: dict[int, list[tuple[int, Callable[[], None]]]]
    awaited: bool
    total: int | None = None
    issued: int = 0
    done: int = 0
    ends: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many slices all replicas have asked for that the host was not told of."""
        requested = min(self.requested.values())
        return max(0, (requested if self.total is None else min(requested, self.total)) - self.issued)

    def state(self) -> tuple[object, ...]:
        """Everything on which the future depends, but for the number of remaining slices."""
        return (
            self.issued - self.done,
            tuple(self.issued - count for count in self.requested.values()),
            # Work that nobody awaits is never granted, so the difference would grow for ever.
            tuple(
                (self.done - self.granted[replica] if self.awaited else 0, *(ipu for ipu, _ in goers))
                for replica, goers in self.waiting.items()
            ),
        )

    def finish(self) -> None:
        """The host has finished one more slice."""
        self.done += 1
        del self.ends[0]
        self.grant()

    def end_of(self, slice_number: int) -> int | None:
        """When this slice (from 0 on) is done, at the earliest 0; None: this is not certain yet."""
        if slice_number < self.done:
            return 0
        later = slice_number - self.done
        return self.ends[later] if later < len(self.ends) else None

    def grant(self) -> None:
        """Let those IPUs go on whose slice is done."""
        for replica, goers in self.waiting.items():
            while goers and self.granted[replica] < self.done:
                self.granted[replica] += 1
                goers.pop(0)[1]()


class HostRequest(NamedTuple):
    """A replica asks for one more slice of a line (``asks``), or waits for one (``go``), or both."""

    key: LineKey
    replica: int
    ipu: int
    sync: Sync
    asks: bool
    go: Callable[[], None] | None
    line: _Line


class TakesTrips(Protocol):
    """What takes trips of loops as blocks (:class:`.trips.Trips`), and so has to know what the host is asked."""

    begun: int
    under_way: int

    def request(self, request: HostRequest) -> None:
        """An IPU has sent a request."""

    def wait(self, request: HostRequest) -> Go:
        """The host has noted a request for whose answer an IPU waits; what to call with the answer."""
        raise NotImplementedError

    def noted(self) -> None:
        """The host has noted all requests of the instant so far."""


def order(request: HostRequest) -> tuple[LineKey, int, int, Sync]:
    """The sort key of the requests of an instant: line, replica, IPU and sync."""
    # The other fields are not compared: they are calls and objects without an order.
    return request[:4]


@dataclass(frozen=True)
class HostCycles:
    """What the host's work costs in cycles.

    Attributes:
        sync: for each host sync.
        callback: for each stream and replica in it.
        answer: from the host's answer until the IPUs that wait for it see it.
    """

    sync: int
    callback: int
    answer: int


@dataclass
class _Server:
    """The host of one rack: its replicas, and until when it is busy."""

    replicas: list[int] = field(default_factory=list)
    busy: int = 0


def callbacks_at(servers: Sequence[int], threads: int | None) -> list[int]:
    """For each replica, how many callbacks of a stream its server runs one after the other.

    Args:
        servers: the server of each replica.
        threads: threads of a server; None: as many as it has replicas.
    """
    counts = Counter(servers)
    return [-(-counts[server] // (threads or counts[server])) for server in servers]


class HostServer:
    """The host of a run.

    Args:
        events: the event loop.
        cycles: what the host's work costs.
        depth: how many slices of a host-to-device stream the host may be ahead of the IPUs; 0: it begins when they ask.
        totals: how many slices of each host-to-device stream a replica takes in the run.
        recorder: records every callback.
        servers: the server of each replica.
        classes: the first replica of each class speaks for all of them, to one of the servers on which they are. These
            servers cost the same and have the same classes (:func:`.classes.by_servers`). None: each replica speaks for
            itself.
        threads: how many threads of a server run the callbacks; None: as many as it has replicas.
        jitter: what the host takes besides; each server is then in classes of its own. None: nothing.
    """

    def __init__(
        self,
        events: EventLoop,
        cycles: HostCycles,
        depth: int,
        totals: Mapping[int, int],
        recorder: Recorder,
        servers: Sequence[int],
        classes: ReplicaClasses | None = None,
        threads: int | None = 1,
        jitter: HostJitter | None = None,
    ) -> None:
        self._events = events
        self._jitter = jitter
        self.trips: TakesTrips | None = None
        self.syncs: list[tuple[int, list[LineKey]]] = []  # when, and whose callbacks; of a host with jitter only
        self._cycles = cycles
        self._depth = depth
        self._totals = totals
        self._recorder = recorder
        members = [(replica,) for replica in range(len(servers))] if classes is None else classes.members
        servers_by_speakers: dict[tuple[int, ...], list[int]] = {}  # servers by those that speak to them
        for server in sorted(set(servers)):
            speakers = [group[0] for group in members if any(servers[replica] == server for replica in group)]
            servers_by_speakers.setdefault(tuple(speakers), []).append(server)
        self._alike = {group[0]: group for group in servers_by_speakers.values()}  # those for which a server stands
        self._servers = {group[0]: _Server(list(speakers)) for speakers, group in servers_by_speakers.items()}
        self._server_of = {replica: server for server, group in self._servers.items() for replica in group.replicas}
        self._callback = {
            server: cycles.callback * times
            for server, times in zip(servers, callbacks_at(servers, threads), strict=True)
        }
        self._lines: dict[LineKey, _Line] = {}
        self._inbox: list[HostRequest] = []
        self._served: list[tuple[int, LineKey]] = []  # answers not given yet, as asked for
        # Lines of inputs exist from the start, as the host prepares before anybody asks.
        for server in sorted(self._servers):
            for stream in sorted(totals):
                self._line(LineKey(server, stream, PREPARE))

    @property
    def busy_until(self) -> int:
        """When the last callback ends that was requested until now."""
        return max(server.busy for server in self._servers.values())

    def awaited(self, time: int) -> bool:
        """Whether answers are to come for which IPUs wait, or will."""
        if any(self.left().values()) or not self.prefetches:
            return True
        return any(end > time and self._lines[key].awaited for end, key in self._served)

    def replay(self, time: int, syncs: Sequence[tuple[int, Sequence[LineKey]]]) -> int:
        """When the last callback ends if these syncs, for which no IPU waits, come so many cycles after ``time``."""
        for later, keys in syncs:
            server, costs = self._servers[keys[0].server], self._costs(keys)
            server.busy = max(server.busy, time + later) + sum(costs)
        return self.busy_until

    def _costs(self, keys: Sequence[LineKey]) -> list[int]:
        """Cycles of each callback of a sync; the first pays for the sync."""
        cycles, jitter = self._cycles, self._jitter
        if jitter is None:
            costs = [self._callback[key.server] for key in keys]
            costs[0] += cycles.sync
            return costs
        sync = cycles.sync + jitter.sync(keys[0].server)
        costs = [jitter.callbacks(key.server, cycles.callback) for key in keys]
        costs[0] += sync
        return costs

    @property
    def drawn(self) -> int:
        """How many times were drawn that may vary."""
        return self._jitter.drawn if self._jitter else 0

    @property
    def prefetches(self) -> bool:
        """Whether the host works ahead of the IPUs."""
        return self._depth > 0

    # -- what IPUs say -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The run begins: prepare the first slices of every stream."""
        for server in self._servers.values():
            server.busy = self._events.now
        for key, line in self._inputs():
            line.requested = dict.fromkeys(line.requested, self._depth)
            # The first slices of all streams are one host sync, hence the common `_RUN`.
            self._put(HostRequest(key, self._servers[key.server].replicas[0], -1, _RUN, False, None, line))

    def begin_load(self, replica: int, stream: int, ipu: int, sync: Sync, go: Go) -> Go:
        """The call by which an IPU asks for the next slice each time; ``go`` is called when there is one."""
        return self._asking(PREPARE, replica, stream, ipu, sync, not self.prefetches, go)

    def end_load(self, replica: int, stream: int, ipu: int, sync: Sync, go: Go) -> Go:
        """The call by which an IPU says that the slice has arrived; ``go`` is called when it may go on.

        With prefetching that is at once.
        """
        if self.prefetches:
            return _both(self._asking(PREPARE, replica, stream, ipu, sync, True, None), go)
        return self._asking(COMPLETE, replica, stream, ipu, sync, True, go)

    def begin_store(self, replica: int, stream: int, ipu: int, sync: Sync, go: Go) -> Go:
        """The call by which an IPU asks to send a slice; ``go`` is called when it may (with prefetching at once)."""
        return go if self.prefetches else self._asking(ACCEPT, replica, stream, ipu, sync, True, go)

    def end_store(self, replica: int, stream: int, ipu: int, sync: Sync, go: Go) -> Go:
        """The call by which an IPU says that it has sent a slice; ``go`` is called when it may go on.

        With prefetching that is at once.
        """
        if self.prefetches:
            return _both(self._asking(HANDLE, replica, stream, ipu, sync, True, None), go)
        return self._asking(HANDLE, replica, stream, ipu, sync, True, go)

    def _asking(
        self, work: str, replica: int, stream: int, ipu: int, sync: Sync, asks: bool, go: Go | None
    ) -> Callable[[], None]:
        """A call that sends the same request each time."""
        # Steps run many times, so the request is built once and not in each execution.
        key = LineKey(self._server_of[replica], stream, work)
        return partial(self._put, HostRequest(key, replica, ipu, sync, asks, go, self._line(key)))

    def _line(self, key: LineKey) -> _Line:
        if key not in self._lines:
            replicas = self._servers[key.server].replicas
            requested, granted = dict.fromkeys(replicas, 0), dict.fromkeys(replicas, 0)
            awaited = key.work == PREPARE or not self.prefetches
            total = self._totals[key.stream] if key.work == PREPARE else None
            keys = tuple([key._replace(server=alike) for alike in self._alike[key.server]])
            self._lines[key] = _Line(keys, requested, granted, {replica: [] for replica in replicas}, awaited, total)
        return self._lines[key]

    # -- folding -----------------------------------------------------------------------------------------------------

    def backlog(self, time: int) -> int:
        """How many slices were requested that are not answered yet."""
        if self._served:
            self._served = [answer for answer in self._served if answer[0] > time]
        return len(self._served)

    def state(self, time: int) -> tuple[object, ...]:
        """Everything on which the future depends, relative to ``time``, at the end of an instant.

        The number of remaining slices is not part of it.
        """
        self.backlog(time)
        return (
            tuple((end - time, key) for end, key in self._served),
            tuple(self._lines[key].state() for key in sorted(self._lines)),
        )

    def issued(self) -> dict[ChannelKey, int]:
        """How many slices of inputs the host was told to prepare until now, by channel."""
        return {(key.server, key.stream): line.issued for key, line in self._inputs()}

    def left(self) -> dict[ChannelKey, int]:
        """How many slices of inputs were not requested yet, by channel."""
        return {(key.server, key.stream): (line.total or 0) - line.issued for key, line in self._inputs()}

    def skip(self, slices: Mapping[ChannelKey, int]) -> None:
        """Count these slices as prepared and transferred without simulating them."""
        for (server, stream), number in slices.items():
            line = self._lines[LineKey(server, stream, PREPARE)]
            line.issued += number
            line.done += number
            for counts in (line.requested, line.granted):
                for replica in counts:
                    counts[replica] += number

    def _inputs(self) -> list[tuple[LineKey, _Line]]:
        return [(key, line) for key, line in self._lines.items() if key.work == PREPARE]

    # -- the server --------------------------------------------------------------------------------------------------

    def request(self, key: LineKey, replica: int, ipu: int, sync: Sync) -> HostRequest:
        """A request for one more slice, for which no IPU waits."""
        return HostRequest(key, replica, ipu, sync, True, None, self._line(key))

    def put_all(self, requests: Sequence[HostRequest]) -> None:
        """These requests are made now."""
        for request in requests:
            self._put(request)

    def _put(self, request: HostRequest) -> None:
        # The first request of an instant has all of them settled together, in the stage of the host.
        if self.trips is not None:
            self.trips.request(request)
        if not self._inbox:
            self._events.after(0, self._settle, HOST)
        self._inbox.append(request)

    def _settle(self) -> None:
        """Take the requests of this instant, in an order that does not depend on who came first."""
        inbox, self._inbox = sorted(self._inbox, key=order), []
        syncs: dict[LineKey, tuple[_Line, Sync]] = {}
        for request in inbox:
            key, replica, ipu, sync, asks, go, line = request
            if key not in syncs:
                syncs[key] = (line, sync)
            if asks:
                line.requested[replica] += 1
            if go is not None:
                line.waiting[replica].append((ipu, go if self.trips is None else self.trips.wait(request)))
        if self.trips is not None:
            self.trips.noted()
        # All requests are noted first, so that those of one sync pay for it once.
        groups: dict[tuple[int, Sync], list[tuple[int, LineKey]]] = {}
        for key, (line, sync) in syncs.items():
            room = line.room
            if room:
                groups.setdefault((key.server, sync), []).extend([(number, key) for number in range(room)])
        for group in groups.values():
            self._serve(sorted(group))
        # Slices that were prepared ahead may be used at once.
        for line, _ in syncs.values():
            line.grant()

    def _serve(self, slices: Sequence[tuple[int, LineKey]]) -> None:
        """Queue one host sync with these callbacks, the first slice of every stream first."""
        # With prefetching nobody waits for an answer, so its latency is not charged.
        answer, keys = 0 if self.prefetches else self._cycles.answer, [key for _, key in slices]
        if self._jitter:
            self.syncs.append((self._events.now, keys))
        for key, cost in zip(keys, self._costs(keys), strict=True):
            server, line = self._servers[key.server], self._lines[key]
            start = max(server.busy, self._events.now)
            # The server works on one slice after the other.
            server.busy = start + cost
            self._served.append((server.busy + answer, key))
            for alike in line.keys:
                self._recorder.host_event(start, cost, alike)
            line.issued += 1
            line.ends.append(server.busy + answer)
            self._events.after(server.busy + answer - self._events.now, line.finish)


def _both(earlier_call: Go, later_call: Go) -> Go:
    """A call that makes two calls, one after the other."""

    def call() -> None:
        earlier_call()
        later_call()

    return call
