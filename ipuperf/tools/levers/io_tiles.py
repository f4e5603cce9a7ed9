"""Levers on the tiles that are set aside for I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ipuperf.ir import Ir, Stream
from ipuperf.pipelines import BuildRequest, HostInput, HostIo

from .change import ProgramChange
from .rerun import Rerun
from .trial import Lever, Trial, Untried, simulated

COUNTS = (32, 64, 128)
"""The numbers of I/O tiles that are tried."""

_OVERLAP = (
    "+ # in forward: poptorch.set_overlap_for_input(x, poptorch.OverlapMode.OverlapAccumulationLoop) for each input,",
    "+ # poptorch.set_overlap_for_output(y, poptorch.OverlapMode.OverlapAccumulationLoop) for each result",
)


class OverlappedIo(Lever):
    """Host I/O on separate tiles while the others compute, in programs without I/O tiles."""

    change = "host I/O on I/O tiles, beside computing"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.device_program.io_tiles or not run.device_program.streams:
            return
        if not run.pipelines:
            yield self.untried("the program itself says on which tiles it loads and stores")
            return
        why = _obstacle(run.pipelines[-1])
        if why:
            yield self.untried(why)
            return
        for count in COUNTS:

            def overlap(request: BuildRequest, count: int = count) -> BuildRequest:
                return replace(request, host_io=_overlapped(request, count))

            what = f"load and store on {count} I/O tiles while the others compute"
            tiles = run.option("TensorLocations.numIOTiles", str(count))
            strategy = run.option("setExecutionStrategy", "poptorch.ShardedExecution()")
            diff = (*tiles, *strategy, *(_OVERLAP if tiles else ()))
            yield simulated(run, ProgramChange(what, diff=diff, of_pipeline=overlap))


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

            def set_aside(ir: Ir, count: int = count) -> None:
                ir.num_io_tiles = count

            what = f"set {count} I/O tiles aside instead of {present_count}"
            diff = run.option("TensorLocations.numIOTiles", str(count))
            yield simulated(run, ProgramChange(what, diff=diff, of_ir=set_aside))
