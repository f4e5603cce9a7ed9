"""Levers on the tiles that are set aside for I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ipuperf.ir import Stream
from ipuperf.pipelines import BuildRequest, HostInput, HostIo

from .rerun import Rerun
from .trial import Lever, Trial, Untried

COUNTS = (32, 64, 128)
"""The numbers of I/O tiles that are tried."""


class OverlappedIo(Lever):
    """Host I/O on separate tiles while the others compute, in programs without I/O tiles."""

    change = "host I/O on I/O tiles, beside computing"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.device_program.io_tiles or not run.device_program.streams:
            return
        requests: list[BuildRequest] = []
        for count in COUNTS:

            def overlap(request: BuildRequest, count: int = count) -> BuildRequest:
                requests.append(request)
                return replace(request, host_io=_overlapped(request, count))

            # ``fresh`` calls ``overlap`` only if the program builds a pipeline.
            executable = run.fresh(overlap)
            if not requests:
                yield self.untried("the program itself says on which tiles it loads and stores")
                return
            why = _obstacle(requests[-1])
            if why:
                yield self.untried(why)
                return
            yield Trial(f"load and store on {count} I/O tiles while the others compute", executable.trace)


def _obstacle(request: BuildRequest) -> str:
    """Why the I/O of a program cannot be overlapped; "" if it can."""
    if request.copies == "every step":
        return "a pipeline's stages cannot be overlapped with I/O"
    if request.timetable.micro_batches == 1 and request.repeats == 1:
        return "there is one micro-batch in a call, so nothing to compute meanwhile"
    return "there is no host I/O" if request.host_io.synthetic else ""


def _overlapped(request: BuildRequest, tiles: int) -> HostIo:
    """The host I/O of a pipeline with all streams on ``tiles`` I/O tiles, or unchanged if that is impossible."""
    if _obstacle(request):
        return request.host_io
    # With one micro-batch in a weight update, overlap reaches across the repeats of the whole.
    across = request.timetable.micro_batches == 1
    sources = [source for part in request.parts for source in part.sources]
    inputs: dict[Stream, bool] = {source.stream: across for source in sources if isinstance(source, HostInput)}
    outputs = {output.stream: across for output in request.outputs if output.returned == "all"}
    return HostIo(tiles, inputs, outputs)


class IoTileCount(Lever):
    """Another number of I/O tiles, in programs that have some."""

    change = "number of I/O tiles"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        present_count = run.device_program.io_tiles
        for count in COUNTS if present_count else ():
            if count == present_count:
                continue
            executable = run.fresh()
            executable.ir.num_io_tiles = count
            yield Trial(f"set {count} I/O tiles aside instead of {present_count}", executable.trace)
