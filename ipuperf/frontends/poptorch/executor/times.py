"""What the simulation says of a model: cycles, latencies, the trace."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

from ..errors import Error
from .compilation import CompiledModel
from .latency import Counters, Latencies, Latency
from .state import ExecutorState

if TYPE_CHECKING:
    from ipuperf.trace import Trace


class Times(ExecutorState):
    """Simulated time."""

    @property
    def compiled_model(self) -> CompiledModel | None:
        """What a call runs: the program, its pipeline and, as ``executable``, both on the machine; None before the
        compilation."""
        return self._compiled

    @property
    def _executable(self) -> CompiledModel | None:
        """:attr:`compiled_model` under the private name by which applications ask whether there is one."""
        return self._compiled

    @property
    def simulated_trace(self) -> Trace:
        """The trace of one call, without a run that brings new values (:meth:`setOptimizer`). ``Error`` before the
        compilation."""
        return self._require().executable.trace

    def cycleCount(self) -> int:
        """Cycles of the tile clock that one call takes on the IPUs, from the first step of any to the last of any; what
        the host does before and after (the fixed cost of a call, the handling of the last outputs) is left out.
        ``Error``: not compiled, or with ``logCycleCount`` not called yet, as upstream."""
        logged = bool(self._options._Popart.options["instrumentWithHardwareCycleCounter"])
        if self._compiled is None and not logged:
            raise Error(
                "cycleCount: the model has not been compiled, and Cycle count logging is disabled "
                "(poptorch.Options().logCycleCount(True)); compile or call the model first"
            )
        if logged and not self._ran:
            raise Error("cycleCount: with logCycleCount(True), run the model at least once first")
        executable = self._require().executable
        steps, instances = (executable.trace.columns(table) for table in ("steps", "instances"))
        of_host = np.isin(instances["segment"], steps["segment"][steps["kind"] == "host_run"])
        ends = (instances["start"] + instances["dur"])[~of_host]
        before = executable.host_start_cycles
        return int(ends.max(initial=before)) - before

    def compilationTime(self) -> timedelta:
        """Real time that the compilation took."""
        if self._compiled is None:
            raise Error("compilationTime: the model has not been compiled")
        return self._compiled.compilation_time

    def getPerfCounters(self) -> Counters:
        """Seconds since the start of the call, of each slice (and replica) of each tensor, by event: ``input`` (an
        input is asked for), ``input_complete`` (it has arrived), ``output`` (an output is ready), ``output_complete``
        (it has left)."""
        if self._compiled is None:
            return {event: [[]] for event in ("input", "input_complete", "output", "output_complete")}
        return self._latencies().counters()

    def getHostIpuLatency(self) -> Latency:
        """(min, max, mean) seconds from the first input's being asked for to the last input's arrival."""
        return self._latencies().host_to_ipu()

    def getComputeLatency(self) -> Latency:
        """(min, max, mean) seconds from the last input's arrival to the last output's being ready."""
        return self._latencies().compute()

    def getIpuHostLatency(self) -> Latency:
        """(min, max, mean) seconds from the first output's being ready to the last output's end."""
        return self._latencies().ipu_to_host()

    def getLatency(self) -> Latency:
        """(min, max, mean) seconds from the first input's being asked for to the last output's end."""
        return self._latencies().total()

    def _latencies(self) -> Latencies:
        compiled = self._require()
        inputs = [spec.stream.id for spec in compiled.exported.inputs if spec.stream is not None]
        outputs = [stream.id for stream in compiled.streams if stream is not None]
        return Latencies(compiled.executable, inputs, outputs, compiled.kept_period)
