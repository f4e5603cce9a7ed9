"""Programs that are tried say nothing: their words would go through the progress bar, once for each trial."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO


@contextmanager
def quiet() -> Iterator[None]:
    """What is printed and what front ends warn of goes nowhere."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)
