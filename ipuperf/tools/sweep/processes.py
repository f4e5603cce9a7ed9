"""Worker processes that may be killed. The configuration of a killed worker is tried once more, then recorded."""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from ipuperf.tools.errors import SweepError

from .spec import Configuration, Sweep
from .work import failed, rows

_READY = "ready"
_TRIES = 2
"""How often a configuration is tried if its worker is killed."""
_OBJECTS = 500_000
"""The number of new objects in a worker before Python collects garbage. Programs are large, and nearly all of a program
is freed by reference counts, so frequent collections would only cost time."""
_LEAVE = 5
"""Seconds that an idle worker has to end by itself."""


def in_processes(
    sweep: Sweep, pieces: Sequence[Sequence[Configuration]], jobs: int
) -> Generator[dict[str, Any], None, None]:
    """The rows of all configurations, as soon as they are finished.

    Args:
        pieces: lists of configurations; one process works on a piece from first to last.
        jobs: number of processes.

    Raises:
        SweepError: no process can be started.
    """
    crew = _Crew(sweep, deque([list(piece) for piece in pieces]))
    jobs = min(jobs, len(pieces))
    try:
        while crew.waiting or crew.busy:
            while crew.waiting and len(crew.workers) < jobs:
                crew.hire()
            yield from crew.results()
    finally:
        crew.dismiss()


@dataclass
class _Worker:
    """A process, our end of its pipe, and the configurations whose rows it has not sent yet."""

    process: BaseProcess
    pipe: Connection
    left: list[Configuration] = field(default_factory=list)
    ready: bool = False


@dataclass
class _Crew:
    sweep: Sweep
    waiting: deque[list[Configuration]]
    workers: list[_Worker] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)

    @property
    def busy(self) -> bool:
        """Whether any worker has work left."""
        return any(worker.left for worker in self.workers)

    def hire(self) -> None:
        """Start a worker. It gets a piece as soon as it says that it is ready."""
        # A fork would copy locks that other threads hold. A spawned process begins with nothing of ours.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.sweep), daemon=True)
        process.start()
        # Without our copy of its end, the pipe breaks as soon as the worker dies.
        theirs.close()
        worker = _Worker(process, ours)
        self.workers.append(worker)

    def results(self) -> Iterator[dict[str, Any]]:
        """Wait for messages of workers and yield the rows that have arrived."""
        by_pipe: dict[Any, _Worker] = {worker.pipe: worker for worker in self.workers}
        for pipe in wait(list(by_pipe)):
            worker = by_pipe[pipe]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                yield from self._buried(worker)
                continue
            if message == _READY:
                worker.ready = True
            else:
                del worker.left[0]
                yield message
            if not worker.left and self.waiting:
                self._give(worker, self.waiting.popleft())

    def _give(self, worker: _Worker, piece: list[Configuration]) -> None:
        worker.left = piece
        with suppress(OSError):  # a dead worker is noticed when its pipe is read next
            worker.pipe.send(piece)

    def _buried(self, worker: _Worker) -> Iterator[dict[str, Any]]:
        """Pass on the work of a dead worker, and yield a failure if its present configuration had its last try."""
        self.workers.remove(worker)
        worker.process.join()
        worker.pipe.close()
        if not worker.ready:
            raise SweepError(
                f"a worker process ended before its work (exit code {worker.process.exitcode}); in a Python script the "
                "call stands below `if __name__ == '__main__':`"
            )
        if not worker.left:
            return
        # Rows come in the order of the piece, so the first one missing is that of the present configuration.
        present, *remaining = worker.left
        if remaining:
            self.waiting.append(remaining)
        key = self.sweep.key(present)
        self.deaths[key] += 1
        if self.deaths[key] < _TRIES:
            # The configuration is tried alone, so that a second death is certainly its own.
            self.waiting.append([present])
        else:
            yield failed(present, f"its worker process was killed {_TRIES} times {_how(worker.process.exitcode)}")

    def dismiss(self) -> None:
        """End all workers. Idle ones end by themselves when their pipe is closed; the others are killed."""
        # All pipes are closed before any wait, so that idle workers end at the same time.
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            # A worker that has work left may take long, so it gets no time to end by itself.
            worker.process.join(0 if worker.left else _LEAVE)
            worker.process.kill()
            worker.process.join()
        self.workers.clear()


def _how(code: int | None) -> str:
    return f"(signal {-code})" if code is not None and code < 0 else f"(exit code {code})"


def _work(pipe: Connection, sweep: Sweep) -> None:
    """The main function of a worker: read pieces and send rows until it is killed or its parent is gone."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    pipe.send(_READY)
    try:
        while True:
            for row in rows(sweep, pipe.recv()):
                pipe.send(row)
    except (EOFError, OSError, KeyboardInterrupt):
        return
