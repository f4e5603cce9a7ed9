"""A Dask cluster that is there already as the worker of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .errors import SweepError
from .spec import Configuration, Sweep
from .work import all_rows, failed

_PATIENCE = 10
"""Seconds until a scheduler that does not answer is unreachable."""


def on_cluster(sweep: Sweep, pieces: Sequence[Sequence[Configuration]], scheduler: str) -> Iterator[dict[str, Any]]:
    """The rows of all configurations, piece by piece as they are finished.

    The workers need the same ipuperf and the same files under the same paths. The cluster starts a piece whose worker
    is killed again as often as its ``distributed.scheduler.allowed-failures`` says, and blames all pieces that the
    worker had. The configurations of those that it gives up are run alone, one after the other; one whose worker is
    then killed too is recorded.

    Raises:
        SweepError: the extra is not installed, the scheduler is unreachable, or it has no workers.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise SweepError("--scheduler needs Dask: pip install 'ipuperf[sweep]'") from error
    try:
        client = Client(scheduler, timeout=_PATIENCE, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SweepError(f"scheduler {scheduler!r} cannot be reached: {error}") from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise SweepError(f"scheduler {scheduler!r} has no workers")
        given = {client.submit(all_rows, sweep, piece, pure=False): piece for piece in pieces}
        suspects: list[Configuration] = []
        for future in as_completed(list(given), loop=client.loop):
            found = _result(future, scheduler)
            if found is None:
                suspects += given[future]
            else:
                yield from found
        for each in suspects:
            found = _result(client.submit(all_rows, sweep, [each], pure=False), scheduler)
            yield from [failed(each, "its worker of the Dask cluster was killed each time")] if found is None else found


def _result(future: Any, scheduler: str) -> list[dict[str, Any]] | None:
    """The rows of a piece; None where the cluster gave up because workers were killed."""
    from distributed import KilledWorker

    problem = future.exception()
    if problem is None:
        rows: list[dict[str, Any]] = future.result()
        return rows
    if isinstance(problem, KilledWorker):
        return None
    raise SweepError(f"a worker of {scheduler!r} fails: {type(problem).__name__}: {problem}") from problem
