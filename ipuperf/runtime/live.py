"""What a terminal shows while programs compute: simulated time, throughput and loss beside the real speed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipuperf.ir import Stream

SHOWN_AFTER = 2.0
"""Real seconds before anything is shown: what takes less needs no line."""


@contextmanager
def simulating(name: str) -> Iterator[Callable[[int], object] | None]:
    """Who is told how far the simulation of a program is: on a terminal a line that shows the simulated cycles
    after :data:`SHOWN_AFTER` and goes away at the end, elsewhere nobody."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    name = printable(name)
    with tqdm(
        desc=f"simulating {name}",
        unit=" cycles",
        unit_scale=True,
        delay=SHOWN_AFTER,
        leave=False,
        file=sys.stderr,
    ) as line:
        yield lambda now: line.update(now - line.n)


class RunLine:
    """A line on the terminal with the runs of a program and their real speed, the simulated time and throughput, and
    the mean of the first output without axes, which is the loss of most programs, by its name; elsewhere nothing. It
    goes away with :meth:`close`."""

    def __init__(self, name: str) -> None:
        self._name = printable(name)
        self._line: Any = None
        self._seconds = 0.0

    def ran(self, seconds: float, samples: int | None, outputs: Mapping[Stream, np.ndarray]) -> None:
        """A run is done: simulated seconds that it took, samples if known, and what it gave."""
        self._seconds += seconds
        if self._line is None:
            if not sys.stderr.isatty():
                return
            from tqdm import tqdm

            self._line = tqdm(desc=self._name, unit=" runs", delay=SHOWN_AFTER, leave=False, file=sys.stderr)
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
        """Take the line away."""
        if self._line is not None:
            self._line.close()
            self._line = None
