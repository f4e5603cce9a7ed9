"""Run functions of a tuning in this process or in worker processes, and give their results in order."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from ipuperf.tools.errors import TuningError

Result = TypeVar("Result")


class Workers:
    """Runs functions of modules on plain values.

    Args:
        jobs: number of processes; 1: this process alone.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block at whose end the worker processes end."""
        try:
            yield
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None

    def results(self, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> Iterator[Result]:
        """The results of all calls, in their order. A call whose process is killed is made once more, alone.

        Raises:
            TuningError: the process is killed again. Errors of ``function`` are raised too.
        """
        if self.jobs == 1:
            yield from (function(*call) for call in calls)
            return
        futures = [self._started().submit(function, *call) for call in calls]
        for future, call in zip(futures, calls):
            try:
                yield future.result()
            except BrokenProcessPool:
                # A killed process breaks the whole pool: all calls that were under way are made again.
                self._pool = None
                yield self._again(function, call)

    def _again(self, function: Callable[..., Result], call: tuple[Any, ...]) -> Result:
        try:
            return self._started().submit(function, *call).result()
        except BrokenProcessPool:
            self._pool = None
            raise TuningError(
                "a worker process was killed twice (out of memory? fewer --jobs), or cannot start: in a Python script "
                "the call of tune stands below `if __name__ == '__main__':`"
            ) from None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.jobs, mp_context=multiprocessing.get_context("spawn"))
        return self._pool
