"""Times of the host that vary (:class:`ipuperf.machine.Jitter`): what it takes besides, drawn piece by piece.

Each fault has a sequence of its own for each host server, which follows from the seed, the number of the sample and the
fault's text. So one sample of a run meets the same times whatever else is at fault, and samples with and without a
fault can be compared one by one. The generator is Python's, whose numbers are the same in each version.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipuperf.machine import Faults, Jitter

_LEAST_PLACE = 2.0**-54
"""In place of 0, where a distribution function has no inverse."""


class Draw(NamedTuple):
    """The sequences that a simulation takes its times from: ``seed``, and the number of the ``sample``."""

    seed: int = 0
    sample: int = 0


class HostJitter:
    """What the host takes besides in one simulation.

    Args:
        faults: those of the machine.
        draw: the sequences.
        cycles: turns seconds into cycles.
        servers: the server of each replica.
        threads: threads of a server; None: as many as it has replicas.

    Attributes:
        drawn: how many times were drawn that may vary.
    """

    def __init__(
        self,
        faults: Faults,
        draw: Draw,
        cycles: Callable[[float], int],
        servers: Sequence[int],
        threads: int | None,
    ) -> None:
        self._draw = draw
        self._cycles = cycles
        self._faults: dict[str, list[tuple[int, Jitter]]] = {}
        # Two faults of one text are independent, so they are numbered.
        seen: Counter[str] = Counter()
        for fault in faults.jitters:
            self._faults.setdefault(fault.part, []).append((seen[fault.text], fault))
            seen[fault.text] += 1
        self._sequences: dict[tuple[str, int, int], Random] = {}
        counts = Counter(servers)
        # The replicas of each thread; only the callbacks of different threads overlap.
        self._threads = {
            server: [len(range(thread, count, threads or count)) for thread in range(min(count, threads or count))]
            for server, count in counts.items()
        }
        self.drawn = 0

    def run(self, processes: int) -> int:
        """Cycles besides at the start of a run: the last of ``processes`` counts."""
        return self._cycles(max(self._seconds("run", process) for process in range(processes)))

    def sync(self, server: int) -> int:
        """Cycles besides of a host sync."""
        return self._cycles(self._seconds("sync", server)) if "sync" in self._faults else 0

    def callbacks(self, server: int, cycles: int) -> int:
        """Cycles of the callbacks of a stream for all replicas of a server, which take ``cycles`` each and more."""
        by_thread = self._threads[server]
        if "callback" not in self._faults:
            return cycles * by_thread[0]
        return max(
            count * cycles + self._cycles(sum([self._seconds("callback", server) for _ in range(count)]))
            for count in by_thread
        )

    def _seconds(self, part: str, server: int) -> float:
        seconds = 0.0
        for number, fault in self._faults.get(part, ()):
            if not fault.varies:
                seconds += fault.numbers[0]
                continue
            key = (fault.text, number, server)
            if key not in self._sequences:
                self._sequences[key] = Random("/".join(map(str, (*self._draw, *key))))
            self.drawn += 1
            seconds += fault.seconds(max(self._sequences[key].random(), _LEAST_PLACE))
        return seconds
