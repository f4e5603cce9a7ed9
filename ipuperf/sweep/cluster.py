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

    The workers need the same ipuperf and the same files under the same paths. A piece on which the cluster gives up
    (it starts it again as often as its ``distributed.scheduler.allowed-failures`` says) is taken apart; a single
    configuration is then recorded.

    Raises:
        SweepError: the extra is not installed, the scheduler is unreachable, or it has no workers.
    """
    try:
        from distributed import Client, KilledWorker, as_completed
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
        finished = as_completed(list(given), loop=client.loop)
        for future in finished:
            piece = given.pop(future)
            problem = future.exception()
            if problem is None:
                yield from future.result()
            elif not isinstance(problem, KilledWorker):
                raise SweepError(f"a worker of {scheduler!r} fails: {type(problem).__name__}: {problem}") from problem
            elif len(piece) == 1:
                yield failed(piece[0], "its worker of the Dask cluster was killed each time")
            else:
                for each in piece:
                    again = client.submit(all_rows, sweep, [each], pure=False)
                    given[again] = [each]
                    finished.add(again)
