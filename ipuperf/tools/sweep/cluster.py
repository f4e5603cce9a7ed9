"""Run a sweep on an existing Dask cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from ipuperf.base.requirements import pip_install
from ipuperf.tools.errors import SweepError

from .spec import Configuration, Sweep
from .work import all_rows, failed

if TYPE_CHECKING:
    from distributed import Client

_PATIENCE = 10
"""Seconds after which a scheduler that does not answer counts as unreachable."""
_RETURN = 120
"""Seconds within which a scheduler that was lost, and a worker of it, have to be back."""


_LOOK = 0.2
"""Seconds from one look to the next whether a worker is there."""


class _LostError(Exception):
    """The scheduler is gone, and with it all that it knew."""


def on_cluster(
    sweep: Sweep, pieces: Sequence[Sequence[Configuration]], scheduler: str
) -> Generator[dict[str, Any], None, None]:
    """The rows of all configurations, one piece after the other as they are finished.

    The workers need the same ipuperf and the same files under the same paths. If a worker is killed, or is silent for
    longer than ``distributed.scheduler.worker-ttl``, the cluster starts its pieces again, as often as its
    ``distributed.scheduler.allowed-failures`` says. Then it gives up all pieces that the worker had. The configurations
    of those pieces are run one by one on the workers with the most memory, and one whose worker is killed again is
    recorded as failed. If the scheduler is lost and comes back at its address, it gets what was not finished.

    Raises:
        SweepError: the extra is not installed, the scheduler is unreachable, or it has no workers; or it was lost and
            did not come back (what is finished then is there, and the same command goes on with the others).
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise SweepError(f"--scheduler needs Dask: {pip_install('sweep')}") from error
    left, suspects = list(pieces), list[Configuration]()
    client = _connected(scheduler)
    while True:
        try:
            with client:
                yield from _rows(client, scheduler, sweep, left, suspects)
            return
        # Where the connection ends, Dask says so in either way.
        except (_LostError, OSError):
            client = _again_connected(scheduler)


def _connected(scheduler: str, patience: float | None = None) -> Client:
    """A client.

    Raises:
        SweepError: the scheduler is unreachable, or it has no workers.
    """
    from distributed import Client

    try:
        client = Client(scheduler, timeout=_PATIENCE if patience is None else patience, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SweepError(f"scheduler {scheduler!r} cannot be reached: {error}") from None
    if not client.scheduler_info()["workers"]:
        client.close()
        raise SweepError(f"scheduler {scheduler!r} has no workers")
    return client


def _again_connected(scheduler: str) -> Client:
    end = time.monotonic() + _RETURN
    while True:
        try:
            return _connected(scheduler, min(_PATIENCE, _RETURN))
        except SweepError as error:
            if time.monotonic() > end:
                raise SweepError(f"{error}; it was lost, and the same command goes on with what is missing") from None
            time.sleep(0.5)


def _rows(
    client: Client,
    scheduler: str,
    sweep: Sweep,
    left: list[Sequence[Configuration]],
    suspects: list[Configuration],
) -> Iterator[dict[str, Any]]:
    """The rows of the pieces that are ``left``, and of the configurations that are suspects, which shrink meanwhile.

    Raises:
        _LostError: the scheduler is gone.
    """
    from distributed import as_completed

    # Dask would answer a pure call that is made again with its earlier result.
    piece_of = {client.submit(all_rows, sweep, piece, pure=False): piece for piece in left}
    for future in as_completed(list(piece_of), loop=client.loop):
        finished_rows = _result(future, scheduler)
        left.remove(piece_of[future])
        if finished_rows is None:
            suspects += piece_of[future]
        else:
            yield from finished_rows
    # A killed worker does not say which configuration killed it, so each one is tried alone.
    while suspects:
        roomiest = _roomiest(client)
        alone = client.submit(all_rows, sweep, suspects[:1], pure=False, workers=roomiest or None)
        # A worker that was killed comes back under another address, where nobody looks for this one's work.
        while roomiest and not alone.done() and not _gone(client, roomiest):
            time.sleep(_LOOK)
        finished_rows = None if roomiest and not alone.done() else _result(alone, scheduler)
        configuration = suspects.pop(0)
        yield from (
            [failed(configuration, "its worker of the Dask cluster was killed each time")]
            if finished_rows is None
            else finished_rows
        )


def _roomiest(client: Client) -> list[str]:
    """The workers that may use the most memory, as others may have been killed for theirs; none where all are alike."""
    limits = {name: worker["memory_limit"] or math.inf for name, worker in client.scheduler_info(-1)["workers"].items()}
    return [name for name, limit in limits.items() if limit == max(limits.values()) > min(limits.values())]


def _gone(client: Client, workers: Sequence[str]) -> bool:
    return not set(workers) & set(client.scheduler_info(-1)["workers"])


def _result(future: Any, scheduler: str) -> list[dict[str, Any]] | None:
    """The rows of a piece; None if the cluster gave it up because workers were killed."""
    from distributed import KilledWorker

    try:
        problem = future.exception()
    except CancelledError:
        raise _LostError from None
    if future.cancelled():
        raise _LostError
    if problem is None:
        try:
            rows: list[dict[str, Any]] = future.result()
        except CancelledError:
            raise _LostError from None
        return rows
    if isinstance(problem, KilledWorker):
        return None
    raise SweepError(f"a worker of {scheduler!r} fails: {type(problem).__name__}: {problem}") from problem
