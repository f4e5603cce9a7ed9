"""Progress on the terminal: simulated time, throughput and loss beside the real speed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.base.progress import shows_progress
from ipuperf.trace.printable import printable

from .replacing import replaced

if TYPE_CHECKING:
    from ipuperf.ir import Stream

#: Real seconds before a line appears; shorter work shows none.
SHOWN_AFTER = 2.0


@contextmanager
def simulating(name: str) -> Iterator[Callable[[int], object] | None]:
    """Give a function that receives the simulated cycles so far of a program's simulation.

    On a terminal it updates a line that appears after :data:`SHOWN_AFTER` and vanishes at the end. Elsewhere it is
    None.
    """
    if not shows_progress():
        yield None
        return
    with _line(desc=f"simulating {printable(name)}", unit=" cycles", unit_scale=True) as line:
        # tqdm counts increments, while the simulation tells totals.
        yield lambda cycles: line.update(cycles - line.n)


def _line(**options: Any) -> Any:
    """A line of tqdm that vanishes at the end. It keeps the real time where programs' bars show simulated time."""
    from tqdm import std

    with replaced(std, time=time.time):
        return std.tqdm(**options, delay=SHOWN_AFTER, leave=False, file=sys.stderr)


class RunLine:
    """A line on the terminal with the runs of a program, their real speed, and the simulated time and throughput.

    It also shows the mean of the first output without axes under the output's name: in most programs that is the loss.
    Without a terminal there is no line. :meth:`close` removes it.
    """

    def __init__(self, name: str) -> None:
        self._name = printable(name)
        self._line: Any = None
        self._seconds = 0.0

    def ran(self, seconds: float, samples: int | None, outputs: Mapping[Stream, np.ndarray]) -> None:
        """Record a run: the simulated seconds it took, its samples if known, and its outputs."""
        self._seconds += seconds
        if self._line is None:
            if not shows_progress():
                return
            self._line = _line(desc=self._name, unit=" runs")
        # The update below draws the line, so this one need not.
        self._line.set_postfix_str(self._facts(seconds, samples, outputs), refresh=False)
        self._line.update()

    def _facts(self, seconds: float, samples: int | None, outputs: Mapping[Stream, np.ndarray]) -> str:
        facts = [f"simulated {self._seconds:.4g} s"]
        if seconds:
            facts.append(f"{(samples or 1) / seconds:,.4g} {'samples' if samples else 'runs'}/s")
        numbers = [
            (stream.name, values)
            for stream, values in outputs.items()
            if not stream.shape and stream.dtype.numpy.kind == "f" and values.size
        ]
        facts += [f"{name} {float(np.mean(values)):.4g}" for name, values in numbers[:1]]
        return ", ".join(facts)

    def close(self) -> None:
        """Remove the line."""
        if self._line is not None:
            self._line.close()
            self._line = None
