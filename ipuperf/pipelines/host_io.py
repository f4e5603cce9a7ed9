"""Host inputs and results of the forwards: plain, overlapped on I/O tiles, or synthetic.

A plain input is loaded right before its forward, a plain result stored right after. An overlapped one has a buffer on
the I/O tiles. Forward i copies its input from the buffer to the compute tiles. The I/O tiles then store result i - 1
and load input i + 1 while the compute tiles run forward i (and its backward). At its end result i is copied to its
buffer. The first load and the last store stand outside this pattern, before and after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.functions import make, make_all
from ipuperf.functions.shapes import undefined
from ipuperf.ir import CONTEXT, Stream, Tensor
from ipuperf.ops import HostLoad, HostStore, IoTileCopy

if TYPE_CHECKING:
    from .build import PipelineWriter
    from .scope import Scope


class HostTraffic:
    """Writes the loads and stores of a pipeline.

    Args:
        builder: gives buffers and variables.
        last_micro_batch: number of the last micro-batch of a run of the schedule.
    """

    def __init__(self, builder: PipelineWriter, last_micro_batch: int) -> None:
        self._builder = builder
        self._io = builder.host_io
        self._last_micro_batch = last_micro_batch
        self._buffers: dict[Stream, Tensor] = {}
        self._synthetic: dict[Stream, Tensor] = {}
        self._first_run = self._last_run = True

    @property
    def across(self) -> bool:
        """Whether I/O of one run of the schedule overlaps with another run."""
        return any((*self._io.inputs.values(), *self._io.outputs.values()))

    def begin(self, *, is_first_run: bool, is_last_run: bool) -> None:
        """Begin a run of the schedule, which may be the first run, the last one, both or neither."""
        self._first_run, self._last_run = is_first_run, is_last_run

    def _comes_first(self, stream: Stream, micro_batch: int) -> bool:
        """Whether no micro-batch before this one overlaps with it."""
        return micro_batch == 0 and (self._first_run or not self._goes_across(stream))

    def _comes_last(self, stream: Stream, micro_batch: int) -> bool:
        return micro_batch == self._last_micro_batch and (self._last_run or not self._goes_across(stream))

    def _goes_across(self, stream: Stream) -> bool:
        return self._io.inputs.get(stream, False) or self._io.outputs.get(stream, False)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def load(
        self,
        scope: Scope,
        host_inputs: Mapping[Tensor, Stream],
        result_streams: Sequence[Stream],
        ipu: int,
        micro_batch: int,
    ) -> dict[Tensor, Tensor]:
        """Load the host inputs of a forward, by graph input, and write what the I/O tiles do while it runs.

        ``result_streams`` are the streams of the forward's results, whose previous ones are stored now.
        """
        loaded: dict[Tensor, Tensor] = {}
        for tensor, stream in host_inputs.items():
            if self._io.synthetic:
                loaded[tensor] = self._made_up(stream, ipu)
            elif stream in self._io.inputs:
                if self._comes_first(stream, micro_batch):
                    self._load_buffer(scope, stream, ipu)
                buffer = self._buffer(stream, ipu)
                with scope.on(ipu), CONTEXT.phase("io"):
                    loaded[tensor] = make(IoTileCopy, buffer, name=tensor.name, destination="compute")
            else:
                with scope.on(ipu), CONTEXT.phase("io"):
                    loaded[tensor] = make(
                        HostLoad, undefined(tensor.spec, tensor.name), name=tensor.name, stream=stream
                    )
        for stream in result_streams:
            # The first micro-batch has no result before it to store.
            if stream in self._io.outputs and not self._comes_first(stream, micro_batch):
                self._store_buffer(scope, stream, ipu)
        for stream in host_inputs.values():
            # After the last micro-batch there is nothing more to load.
            if stream in self._io.inputs and not self._comes_last(stream, micro_batch):
                self._load_buffer(scope, stream, ipu)
        return loaded

    def _made_up(self, stream: Stream, ipu: int) -> Tensor:
        """A variable of random numbers in place of a stream."""
        if stream not in self._synthetic:
            shape, dtype = stream.shape, stream.dtype
            data = np.zeros(shape, dtype.numpy)
            if dtype.is_floating_point:
                # A fixed seed, so that synthetic runs give the same values each time.
                data = np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype.numpy)
            self._synthetic[stream] = self._builder.variable(f"synthetic_{stream.name}", data, ipu)
        return self._synthetic[stream]

    def _buffer(self, stream: Stream, ipu: int) -> Tensor:
        """The buffer of a stream on the I/O tiles."""
        if stream not in self._buffers:
            self._buffers[stream] = self._builder.buffer(
                stream.spec, ipu, f"io_{stream.name}", zero=False, tile_set="io"
            )
        return self._buffers[stream]

    def _load_buffer(self, scope: Scope, stream: Stream, ipu: int) -> None:
        buffer = self._buffer(stream, ipu)
        with scope.on(ipu), CONTEXT.on_tiles("io"):
            make(HostLoad, buffer, name=stream.name, stream=stream, in_place=True)

    # -- results -------------------------------------------------------------------------------------------------------

    def store(self, scope: Scope, value: Tensor, stream: Stream, ipu: int, micro_batch: int) -> None:
        """Send the result of a forward, or put it into the buffer from which the I/O tiles send it."""
        if self._io.synthetic:
            return
        if stream not in self._io.outputs:
            with scope.on(ipu):
                make_all(HostStore, [value], [], stream=stream)
            return
        buffer = self._buffer(stream, ipu)
        with scope.on(ipu), CONTEXT.phase("io"):
            make(IoTileCopy, value, buffer, name=stream.name, destination="io")
        if self._comes_last(stream, micro_batch):
            self._store_buffer(scope, stream, ipu)

    def _store_buffer(self, scope: Scope, stream: Stream, ipu: int) -> None:
        buffer = self._buffer(stream, ipu)
        with scope.on(ipu), CONTEXT.on_tiles("io"):
            make_all(HostStore, [buffer], [], stream=stream)
