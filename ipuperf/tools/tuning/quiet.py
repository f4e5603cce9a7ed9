"""Suppress the output of programs that are tried. It would disturb the progress bar, once for each trial."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block, printed text and warnings of front ends are dropped."""
    disabled_level = logging.root.manager.disable
    # A level that is disabled already stays so.
    logging.disable(max(disabled_level, logging.WARNING))
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(disabled_level)
