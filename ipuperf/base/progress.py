"""Whether progress is shown (bars and lines that vanish at the end of something long), and what took how long."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOGGER = "ipuperf"
"""The logger of the whole package. ``ipuperf --quiet`` lets only errors through, ``--verbose`` what each step takes."""


@contextmanager
def clear_of_bars() -> Iterator[None]:
    """Take the bars of tqdm off the terminal within the block, so that a line written in it is not glued to one."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        yield
        return
    with tqdm.tqdm.external_write_mode(file=sys.stderr):
        yield


@contextmanager
def warnings_clear_of_bars() -> Iterator[None]:
    """Show the warnings of the block on lines of their own."""
    before = warnings.showwarning

    def show(*args: Any, **options: Any) -> None:
        with clear_of_bars():
            before(*args, **options)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = before


@contextmanager
def timed(task: str) -> Iterator[None]:
    """Tell the package's logger the processor time of the block, if it is not left by an error."""
    # A program may run on simulated time, which this clock does not follow.
    start = time.process_time()
    yield
    logging.getLogger(LOGGER).info("%s: %.2f s of processor time", task, time.process_time() - start)


def shows_progress() -> bool:
    """Whether standard error is a terminal, and the package's logger lets warnings through."""
    return sys.stderr.isatty() and logging.getLogger(LOGGER).isEnabledFor(logging.WARNING)
