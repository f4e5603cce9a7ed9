"""Export to the Chrome trace format: JSON that Perfetto's viewer and others open. Needs only the standard library."""

from __future__ import annotations

import gzip
import json
import os
from typing import IO

from ipuperf.report.arguments import checked
from ipuperf.report.excerpt import Excerpt, repeat_tracks
from ipuperf.report.tracks import counter_tracks, slice_tracks
from ipuperf.trace import Trace, Window, replacing

MAX_SLICES = 500_000
"""About 60 MB; viewers of this format become slow beyond."""

CUT_SLICES = 50_000
"""The number of slices in an excerpt, with some 320 bytes each."""


class _Writer:
    """Writes events as one JSON array, one event in a line."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._groups: dict[str, int] = {}
        self._threads = 0
        self._separator = "\n"

    def event(self, body: str) -> None:
        """Append one event, already JSON."""
        self._stream.write(self._separator + body)
        self._separator = ",\n"

    def _named(self, event_name: str, process: int, thread: int, name: str) -> None:
        self.event(json.dumps({"ph": "M", "name": event_name, "pid": process, "tid": thread, "args": {"name": name}}))

    def process(self, group: str) -> int:
        """Process number of a group, named on first use."""
        if group not in self._groups:
            self._groups[group] = len(self._groups) + 1
            self._named("process_name", self._groups[group], 0, group)
        return self._groups[group]

    def thread(self, group: str, name: str) -> tuple[int, int]:
        """Process and thread number of a new track."""
        process = self.process(group)
        self._threads += 1
        self._named("thread_name", process, self._threads, name)
        return process, self._threads


@checked
def to_chrome_json(
    trace: Trace, path: str | os.PathLike[str], window: Window | None = None, max_slices: int | None = None
) -> None:
    """Write the tracks of ``to_perfetto`` as Chrome JSON, with times in microseconds.

    The file is compressed with gzip if its name ends in ``.gz``. What is shown by default, and what raises
    ``ValueError``, is as in ``to_perfetto``, but with :data:`MAX_SLICES` of this module.
    """
    excerpt = Excerpt.of(trace, window, max_slices, MAX_SLICES, CUT_SLICES)
    window = excerpt.window
    with replacing(path) as temporary, _open(temporary) as stream:
        stream.write('{"displayTimeUnit": "ns", "traceEvents": [')
        writer = _Writer(stream)
        for track in (*repeat_tracks(excerpt), *slice_tracks(excerpt.shown, window)):
            process, thread = writer.thread(track.group, track.name)
            heads: dict[int, str] = {}
            begin, length = trace.seconds(track.start) * 1e6, trace.seconds(track.dur) * 1e6
            for key, at, dur in zip(track.key.tolist(), begin.tolist(), length.tolist(), strict=True):
                # Slices of one key differ in their times alone, so the rest of the event is encoded once.
                if key not in heads:
                    name, category, args = track.describe(key)
                    head = {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": category, "args": args}
                    # The closing brace is cut off, so that the times can follow.
                    heads[key] = json.dumps(head)[:-1]
                writer.event(f'{heads[key]}, "ts": {at:.4f}, "dur": {dur:.4f}}}')
        for counter in counter_tracks(excerpt.shown, window):
            process = writer.process(counter.group)
            unit = counter.unit or "value"
            start = json.dumps({"ph": "C", "pid": process, "name": counter.name})[:-1]
            times = trace.seconds(counter.series[0]) * 1e6
            for at, value in zip(times.tolist(), counter.series[1].tolist(), strict=True):
                writer.event(f'{start}, "ts": {at:.4f}, "args": {{{json.dumps(unit)}: {json.dumps(value)}}}}}')
        stream.write("\n]}\n")


def _open(path: os.PathLike[str]) -> IO[str]:
    if os.fspath(path).endswith(".gz"):
        return gzip.open(path, "wt", encoding="utf-8", compresslevel=6)
    return open(path, "w", encoding="utf-8")
