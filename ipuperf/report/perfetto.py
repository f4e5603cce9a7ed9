"""Export to Perfetto: a ``.pftrace`` file of TrackEvents for https://ui.perfetto.dev or a local copy of it.

One group of tracks for each IPU (micro-batches, one track for each lane, waits, loops, a counter of live memory), one
for the host, one with the use of the links. All IPUs and the host are on one time base. The numbers of the message
fields are those of ``perfetto/protos`` (trace_packet, track_event, track_descriptor, interned_data, debug_annotation,
counter_descriptor).
"""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np

from ipuperf.report import excerpt as excerpts
from ipuperf.report.arguments import checked
from ipuperf.report.excerpt import Excerpt, repeat_tracks
from ipuperf.report.protobuf import blob, double, fixed64, text, uint, varint
from ipuperf.report.tracks import CounterTrack, SliceTrack, counter_tracks, slice_tracks
from ipuperf.trace import Trace, Window, replacing

MAX_SLICES = 2_500_000
"""A number of slices that viewers can open (``docs/reference/traces.md`` 6). With some 80 B for a slice and its
arguments, a file then has about 200 MB."""

# Encoded fields of TracePacket (trusted_packet_sequence_id, sequence_flags) and TrackEvent (type).
_SEQUENCE = uint(10, 1)
_FIRST_FLAGS, _FLAGS = uint(13, 1), uint(13, 2)
_BEGIN, _END, _COUNTER = uint(9, 1), uint(9, 2), uint(9, 4)
# The numbers of flow_ids and terminating_flow_ids in TrackEvent.
_FLOW, _LAST_FLOW = 47, 48
_EXPLICIT_ORDER = 3
_UNITS = {"bytes": uint(3, 3), "%": text(6, "%"), "": uint(3, 2)}
_FLUSH_BYTES = 1 << 22


def timestamps(cycles: np.ndarray, clock_hz: float, unit: str) -> np.ndarray:
    """Viewer times (int64 ns) of times in cycles: real nanoseconds, or one for each cycle with ``unit="cycles"``.

    They are computed from absolute cycles, so that rounding errors (below 1 ns) never add up. Raises ``ValueError`` for
    another unit or a negative time.
    """
    if unit not in ("ns", "cycles"):
        raise ValueError(f"unit {unit!r}: allowed are 'ns' and 'cycles'")
    if len(cycles) and int(cycles.min()) < 0:
        raise ValueError(f"time {int(cycles.min())} cycles: a viewer cannot show times before 0")
    if unit == "cycles":
        return cycles.astype(np.int64)
    return np.rint(cycles.astype(np.float64) * (1e9 / clock_hz)).astype(np.int64)


class _Writer:
    """Writes packets in order. Names are interned on first use."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._buffer: list[bytes] = []
        self._size = 0
        self._interned: dict[int, dict[str, int]] = {}
        self._groups: dict[str, int] = {}
        self._tracks = 0
        # Packets refer to interned names only after one that says that they begin anew.
        self.packet(_SEQUENCE + _FIRST_FLAGS)

    def packet(self, body: bytes) -> None:
        """Append one TracePacket."""
        # 0x0a is the tag of `Trace.packet`: field 1 with a length.
        packet = b"\x0a" + varint(len(body)) + body
        self._buffer.append(packet)
        self._size += len(packet)
        if self._size > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all buffered packets to the stream."""
        self._stream.write(b"".join(self._buffer))
        self._buffer, self._size = [], 0

    def intern(self, field: int, name: str) -> int:
        """The number of a name in ``InternedData``. Fields: 1 category, 2 event, 3 annotation, 29 annotation string."""
        known = self._interned.setdefault(field, {})
        if name not in known:
            # 0 stands for no name, so numbers begin with 1.
            known[name] = len(known) + 1
            entry = uint(1, known[name]) + text(2, name)
            self.packet(_SEQUENCE + _FLAGS + blob(12, blob(field, entry)))
        return known[name]

    def track(self, group: str, name: str, extra: bytes = b"") -> int:
        """Describe a track below its group, and return its uuid."""
        if group not in self._groups:
            self._tracks += 1
            self._groups[group] = self._tracks
            descriptor = uint(1, self._tracks) + text(2, group) + uint(11, _EXPLICIT_ORDER) + uint(12, self._tracks)
            self.packet(_SEQUENCE + blob(60, descriptor))
        self._tracks += 1
        descriptor = uint(1, self._tracks) + uint(5, self._groups[group]) + text(2, name) + uint(12, self._tracks)
        self.packet(_SEQUENCE + blob(60, descriptor + extra))
        return self._tracks

    def annotation(self, name: str, value: int | float | str) -> bytes:
        """One DebugAnnotation."""
        body = uint(1, self.intern(3, name))
        if isinstance(value, str):
            body += uint(17, self.intern(29, value))
        else:
            body += double(5, value) if isinstance(value, float) else uint(4, value)
        return blob(4, body)

    def slices(self, track: SliceTrack, begin: np.ndarray, end: np.ndarray) -> None:
        """Write all slices of a track. ``begin`` and ``end`` are their viewer times."""
        uuid = uint(11, self.track(track.group, track.name))
        tail_end = _SEQUENCE + _FLAGS + blob(11, _END + uuid)
        tails: dict[int, bytes] = {}
        for place, (key, begin_time, end_time) in enumerate(
            zip(track.key.tolist(), begin.tolist(), end.tolist(), strict=True)
        ):
            # Slices of one key differ in times and arrows alone, so the rest of the event is encoded once.
            tail = tails.get(key)
            if tail is None:
                name, category, args = track.describe(key)
                event = _BEGIN + uuid + uint(3, self.intern(1, category)) + uint(10, self.intern(2, name))
                tail = tails[key] = event + b"".join(self.annotation(k, v) for k, v in args.items())
            arrows = [fixed64(_FLOW, number) for number in track.leaving.get(place, ())]
            arrows += [fixed64(_LAST_FLOW, number) for number in track.arriving.get(place, ())]
            # 0x40 is the tag of `TracePacket.timestamp`: field 8, a varint.
            self.packet(b"\x40" + varint(begin_time) + _SEQUENCE + _FLAGS + blob(11, tail + b"".join(arrows)))
            self.packet(b"\x40" + varint(end_time) + tail_end)

    def counter(self, track: CounterTrack, time: np.ndarray) -> None:
        """Write all values of a counter track at the given viewer times."""
        uuid = uint(11, self.track(track.group, track.name, blob(8, _UNITS[track.unit])))
        for at, value in zip(time.tolist(), track.series[1].tolist(), strict=True):
            number = uint(30, value) if isinstance(value, int) else double(44, value)
            self.packet(b"\x40" + varint(at) + _SEQUENCE + _FLAGS + blob(11, _COUNTER + uuid + number))


@checked
def to_perfetto(
    trace: Trace,
    path: str | os.PathLike[str],
    window: Window | None = None,
    unit: str = "ns",
    max_slices: int | None = None,
) -> None:
    """Write the slices that touch ``window`` (cycles), the counters and the host events.

    By default a trace of at most ``excerpt.MAX_SLICES`` slices is written completely. Of a longer one so many slices
    from its start are written, of one replica for all that do the same. A slice above all others then says what is
    shown, and one for each loop in steady state gives its trips and period.

    ``unit="ns"`` shows real time, rounded to whole nanoseconds. ``unit="cycles"`` shows one nanosecond for each cycle,
    which keeps lengths exact. Compute slices are named by their op and the others by their kind. Their arguments are
    op, program, line of the user's file, cycles and bytes. Arrows lead from a copy between IPUs to the next slice of
    its receiver. Below the lanes of an IPU are its waits, named by their owner (:mod:`~.waiting`; in traces of at most
    ``marks.MOST_SLICES`` slices), and the loops inside instances, each as one slice with its trips.

    Raises ``ValueError`` if a window holds more than :data:`MAX_SLICES` slices, or more than ``max_slices`` if that is
    given; also for a window outside of the trace, an unknown unit or a time before 0.
    """
    # This call is for its checks alone, before a file is made.
    timestamps(np.empty(0, dtype=np.int64), trace.meta["clock_hz"], unit)
    excerpt = Excerpt.of(trace, window, max_slices, MAX_SLICES, excerpts.MAX_SLICES)
    window = excerpt.window
    clock = float(trace.meta["clock_hz"])
    with replacing(path) as temporary, open(temporary, "wb") as stream:
        writer = _Writer(stream)
        for track in (*repeat_tracks(excerpt), *slice_tracks(excerpt.shown, window)):
            begin, end = timestamps(track.start, clock, unit), timestamps(track.start + track.dur, clock, unit)
            writer.slices(track, begin, end)
        for counter in counter_tracks(excerpt.shown, window):
            writer.counter(counter, timestamps(counter.series[0], clock, unit))
        writer.flush()
