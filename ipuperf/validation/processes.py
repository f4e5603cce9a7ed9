"""Independent pieces of work in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(function: Callable[[_Item], _Result], items: Iterable[_Item], jobs: int) -> Iterator[tuple[int, _Result]]:
    """``function`` of every item: the item's number and the result, as each is finished.

    Args:
        function: of a module (new processes import it) where ``jobs`` is above 1.
        items: longest first, so that no process is left alone with one at the end.
        jobs: processes; 1: this one, one item after the other.

    Raises:
        What ``function`` raises; items that have not begun are then left out.
    """
    if jobs == 1:
        for number, argument in enumerate(items):
            yield number, function(argument)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        numbers: dict[Future[_Result], int] = {pool.submit(function, argument): n for n, argument in enumerate(items)}
        try:
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
