"""When the slices of inputs and outputs crossed between host and IPUs, from the trace of one simulated call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ipuperf.trace import Trace

Spans = dict[str, tuple[np.ndarray, np.ndarray]]
"""By stream: cycles at which each slice was begun and complete, in order."""


class Latencies:
    """Times of one call, in seconds, of the first replica.

    Args:
        trace: of the call.
        inputs, outputs: stream names.
    """

    def __init__(self, trace: Trace, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._trace = trace
        self._inputs = list(inputs)
        self._outputs = list(outputs)

    @cached_property
    def _spans(self) -> Spans:
        """Begin (first part, waiting included) and end of every stream copy of replica 0, by stream."""
        rows = self._trace.expand()
        rows = rows[rows["kind"].isin(("host_begin", "host_mid", "host_end")) & (rows["replica"] == 0)]
        found: Spans = {}
        for name in (*self._inputs, *self._outputs):
            own = rows[rows["program"].astype(str).str.contains(f"({name})", regex=False)].sort_values(
                "start", kind="stable"
            )
            middle = own[own["kind"] == "host_mid"]
            begin = own[own["kind"] == "host_begin"]
            first = begin if len(begin) == len(middle) else middle
            ends = middle["start"] + middle["dur"]
            found[name] = (first["start"].to_numpy(np.int64), ends.to_numpy(np.int64))
        return found

    def _seconds(self, cycles: np.ndarray) -> list[float]:
        return [float(self._trace.seconds(int(c))) for c in cycles]

    def counters(self) -> tuple[list[list[float]], list[list[float]], list[list[float]], list[list[float]]]:
        """(input begun, input complete, output begun, output complete)."""
        spans = self._spans
        return (
            [self._seconds(spans[name][0]) for name in self._inputs],
            [self._seconds(spans[name][1]) for name in self._inputs],
            [self._seconds(spans[name][0]) for name in self._outputs],
            [self._seconds(spans[name][1]) for name in self._outputs],
        )

    def host_to_ipu(self) -> tuple[float, float, float]:
        """From an input's request to its arrival."""
        return self._summary([self._spans[n][1] - self._spans[n][0] for n in self._inputs])

    def ipu_to_host(self) -> tuple[float, float, float]:
        """From an output's beginning to its end."""
        return self._summary([self._spans[n][1] - self._spans[n][0] for n in self._outputs])

    def compute(self) -> tuple[float, float, float]:
        """From the last input of a micro-batch to its first output."""
        return self._between(1, np.max, 0, np.min)

    def total(self) -> tuple[float, float, float]:
        """From the first input of a micro-batch to its last output."""
        return self._between(0, np.min, 1, np.max)

    def _between(self, first: int, choose_first: object, last: int, choose_last: object) -> tuple[float, float, float]:
        if not self._inputs or not self._outputs:
            return (0.0, 0.0, 0.0)
        count = min(len(self._spans[n][0]) for n in (*self._inputs, *self._outputs))
        starts = np.stack([self._spans[n][first][-count:] for n in self._inputs])
        ends = np.stack([self._spans[n][last][-count:] for n in self._outputs])
        a = choose_first(starts, axis=0)  # type: ignore[operator]
        b = choose_last(ends, axis=0)  # type: ignore[operator]
        return self._summary([b - a])

    def _summary(self, parts: Sequence[np.ndarray]) -> tuple[float, float, float]:
        values = np.concatenate([np.asarray(p) for p in parts]) if parts else np.empty(0)
        if not len(values):
            return (0.0, 0.0, 0.0)
        low, high, mean = values.min(), values.max(), values.mean()
        return (
            float(self._trace.seconds(int(low))),
            float(self._trace.seconds(int(high))),
            float(self._trace.seconds(float(mean))),
        )
