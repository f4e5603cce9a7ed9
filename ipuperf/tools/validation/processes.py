"""Independent pieces of work in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(function: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int) -> Iterator[tuple[int, _Result]]:
    """Yield the number of every argument and the ``function``'s result for it, as each call ends.

    Args:
        function: a function of a module if ``jobs`` is above 1, as new processes import it.
        items: the longest first, so that no process works alone on one at the end.
        jobs: number of processes, no more than there are items; 1: this process takes one argument after the other.

    Raises:
        Errors of ``function`` pass through; calls that have not begun are then left out.
    """
    arguments = list(items)
    processes = min(jobs, len(arguments))
    if processes <= 1:
        for number, argument in enumerate(arguments):
            yield number, function(argument)
        return
    # Spawned, not forked: a fork would copy locks that threads of libraries may hold.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        numbers: dict[Future[_Result], int] = {
            pool.submit(function, argument): n for n, argument in enumerate(arguments)
        }
        try:
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
