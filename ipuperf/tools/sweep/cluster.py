"""Run a sweep on an existing Dask cluster."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ipuperf.requirements import pip_install

from .errors import SweepError
from .spec import Configuration, Sweep
from .work import all_rows, failed

_PATIENCE = 10
"""Seconds after which a scheduler that does not answer counts as unreachable."""


def on_cluster(
    sweep: Sweep, pieces: Sequence[Sequence[Configuration]], scheduler: str
) -> Generator[dict[str, Any], None, None]:
    """The rows of all configurations, one piece after the other as they are finished.

    The workers need the same ipuperf and the same files under the same paths. If a worker is killed, the cluster
    starts its pieces again, as often as its ``distributed.scheduler.allowed-failures`` says. Then it gives up all
    pieces that the worker had. The configurations of those pieces are run one by one, and one whose worker is killed
    again is recorded as failed.

    Raises:
        SweepError: the extra is not installed, the scheduler is unreachable, or it has no workers.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise SweepError(f"--scheduler needs Dask: {pip_install('sweep')}") from error
    try:
        client = Client(scheduler, timeout=_PATIENCE, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SweepError(f"scheduler {scheduler!r} cannot be reached: {error}") from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise SweepError(f"scheduler {scheduler!r} has no workers")
        # Dask would answer a pure call that is made again with its earlier result.
        piece_of = {client.submit(all_rows, sweep, piece, pure=False): piece for piece in pieces}
        suspects: list[Configuration] = []
        for future in as_completed(list(piece_of), loop=client.loop):
            finished_rows = _result(future, scheduler)
            if finished_rows is None:
                suspects += piece_of[future]
            else:
                yield from finished_rows
        # A killed worker does not say which configuration killed it, so each one is tried alone.
        for configuration in suspects:
            finished_rows = _result(client.submit(all_rows, sweep, [configuration], pure=False), scheduler)
            yield from (
                [failed(configuration, "its worker of the Dask cluster was killed each time")]
                if finished_rows is None
                else finished_rows
            )


def _result(future: Any, scheduler: str) -> list[dict[str, Any]] | None:
    """The rows of a piece; None if the cluster gave it up because workers were killed."""
    from distributed import KilledWorker

    problem = future.exception()
    if problem is None:
        rows: list[dict[str, Any]] = future.result()
        return rows
    if isinstance(problem, KilledWorker):
        return None
    raise SweepError(f"a worker of {scheduler!r} fails: {type(problem).__name__}: {problem}") from problem
