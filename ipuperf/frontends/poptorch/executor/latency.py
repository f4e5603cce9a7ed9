"""When slices crossed between host and IPUs, and what the IPUs took, from the trace of one simulated call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from ipuperf.lowering import DeviceProgram, HostExchange, StreamCopy
from ipuperf.runtime.executable import Executable

from .compilation import CompiledModel

#: Smallest, largest and mean seconds.
Latency = tuple[float, float, float]
Counters = dict[str, list[list[float]]]
#: Cycles at which slices were asked for, and at which they had arrived.
Times = tuple[np.ndarray, np.ndarray]
#: Streams that an IPU of the replica copies in the host exchange that came from an op: by op, then by IPU.
Streams = dict[int, dict[int, list[str]]]

_PARTS = ("host_begin", "host_mid")


class Latencies:
    """Times of one call.

    An IPU asks for a slice when its stream copy begins (under ``SyncPattern.Full``: when all IPUs of the replica have
    met for it), and the slice is complete when its transfer is over; slices that are transferred together share both.

    Args:
        executable: of the call.
        inputs, outputs: stream names.
        period: every how manieth slice of the outputs is returned.
    """

    def __init__(self, executable: Executable, inputs: Sequence[str], outputs: Sequence[str], period: int = 1) -> None:
        self._executable = executable
        self._inputs = list(inputs)
        self._outputs = list(outputs)
        self._period = period

    @cached_property
    def _times(self) -> dict[str, Times]:
        """By stream, slice by slice and within a slice by replica."""
        program, trace = self._executable.device_program, self._executable.trace
        rows = trace.expand(kinds=_PARTS)
        copied = copies_of(program)
        index = {ipu: number for replica in program.placement for number, ipu in enumerate(replica)}
        slices_of: dict[str, list[tuple[int, int, int]]] = {name: [] for name in (*self._inputs, *self._outputs)}
        for _, part in rows.groupby("instance", sort=True):
            middle = part[part["kind"] == "host_mid"]
            if not len(middle):
                continue
            begin, end = int(part["start"].min()), int((middle["start"] + middle["dur"]).max())
            head = part.iloc[0]
            for name in copied[int(head["op_id"])].get(index[int(head["ipu"])], []):
                if name in slices_of:
                    slices_of[name].append((int(head["replica"]), begin, end))
        return {name: self._in_order(slices) for name, slices in slices_of.items()}

    @staticmethod
    def _in_order(slices: Sequence[tuple[int, int, int]]) -> Times:
        """``(replica, begin, end)`` in the order of slices, then of replicas."""
        counts: dict[int, int] = {}
        ranked = []
        for replica, begin, end in sorted(slices):
            counts[replica] = counts.get(replica, -1) + 1
            ranked.append((counts[replica], replica, begin, end))
        ranked.sort()
        return np.array([r[2] for r in ranked], np.int64), np.array([r[3] for r in ranked], np.int64)

    def _of(self, event: str) -> list[np.ndarray]:
        """Cycles of an event of upstream's names, one array per tensor."""
        number = int(event.endswith("_complete"))
        if event.startswith("input"):
            return [self._times[name][number] for name in self._inputs]
        replicas = self._executable.ir.replication_factor
        cycles_of_tensors = []
        for name in self._outputs:
            cycles = self._times[name][number].reshape(-1, replicas)
            cycles_of_tensors.append(cycles[self._period - 1 :: self._period].reshape(-1))
        return cycles_of_tensors

    def counters(self) -> Counters:
        """Seconds since the start of the call of ``input``, ``input_complete``, ``output`` and ``output_complete``:
        for each tensor one number per slice and replica."""
        seconds = self._executable.trace.seconds
        events = ("input", "input_complete", "output", "output_complete")
        return {event: [[float(seconds(int(c))) for c in cycles] for cycles in self._of(event)] for event in events}

    def host_to_ipu(self) -> Latency:
        """(min, max, mean) seconds from the first input's being asked for to the last input's arrival."""
        return self._between("input", np.min, "input_complete", np.max)

    def compute(self) -> Latency:
        """(min, max, mean) seconds from the last input's arrival to the last output's being ready."""
        return self._between("input_complete", np.max, "output", np.max)

    def ipu_to_host(self) -> Latency:
        """(min, max, mean) seconds from the first output's being ready to the last output's end."""
        return self._between("output", np.min, "output_complete", np.max)

    def total(self) -> Latency:
        """(min, max, mean) seconds from the first input's being asked for to the last output's end."""
        return self._between("input", np.min, "output_complete", np.max)

    def _between(
        self, start: str, choose_start: Callable[..., np.ndarray], stop: str, choose_stop: Callable[..., np.ndarray]
    ) -> Latency:
        """As ``poptorch:python/_poplar_executor.py``: outputs that are fewer than inputs are set against as many
        successive inputs each, of which the earliest counts."""
        starts, ends = self._of(start), self._of(stop)
        if not starts or not ends or not len(ends[0]) or not len(starts[0]):
            return (0.0, 0.0, 0.0)
        replicas, seconds = self._executable.ir.replication_factor, self._executable.trace.seconds
        begin, end = choose_start(np.stack(starts), axis=0), choose_stop(np.stack(ends), axis=0).reshape(-1, replicas)
        spans = end - begin.reshape(len(end), -1, replicas).min(axis=1)
        return float(seconds(int(spans.min()))), float(seconds(int(spans.max()))), float(seconds(float(spans.mean())))


def latencies_of(compiled: CompiledModel) -> Latencies:
    """The times of a call of a compiled model."""
    inputs = [spec.stream.id for spec in compiled.exported.inputs if spec.stream is not None]
    outputs = [stream.id for stream in compiled.streams if stream is not None]
    return Latencies(compiled.executable, inputs, outputs, compiled.kept_period)


def cycles_on_ipus(executable: Executable) -> int:
    """Cycles of the tile clock from the first step of any IPU to the last of any; the host's part is left out."""
    steps, instances = (executable.trace.columns(table) for table in ("steps", "instances"))
    of_host = np.isin(instances["segment"], steps["segment"][steps["kind"] == "host_run"])
    ends = (instances["start"] + instances["dur"])[~of_host]
    start = executable.host_start_cycles
    return int(ends.max(initial=start)) - start


def copies_of(program: DeviceProgram) -> Streams:
    """Which streams each IPU of a replica copies in each of the program's host copies."""
    streams: Streams = {}
    for ipu in range(len(program.ipus)):
        for step in program.leaves(ipu):
            if isinstance(step, (StreamCopy, HostExchange)):
                streams.setdefault(step.op_id, {})[ipu] = [copy.stream for copy in step.host_slices(ipu)]
    return streams
