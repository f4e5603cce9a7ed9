"""The ``poptorch`` logger and :func:`setLogLevel`.

The logger writes to standard error, unless the program has set up logging itself: then its handlers get the messages.
``POPTORCH_LOG_LEVEL`` in the environment sets the first level, as upstream; without it warnings and errors are shown.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from ipuperf.base.near_names import instead_of
from ipuperf.base.progress import clear_of_bars

TRACE = 5
#: Upstream's level names and the levels of Python's ``logging`` that they mean; their order is upstream's number.
LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}

logger = logging.getLogger("poptorch")


class _Handler(logging.StreamHandler[Any]):
    """Writes each message on a line of its own, beside the bars of a compilation and of the program."""

    def emit(self, record: logging.LogRecord) -> None:
        with clear_of_bars():
            super().emit(record)


class _OnlyWithoutRootHandlers(logging.Filter):
    """Lets nothing through once the program has handlers of its own at the root, which get each message anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not logging.getLogger().handlers


def setLogLevel(level: str | int) -> None:
    """How much is written: ``TRACE``, ``DEBUG``, ``INFO``, ``WARN``, ``ERR``, ``OFF``, or 0 (trace) to 5 (off).

    Raises ``ValueError`` for anything else.
    """
    names = list(LEVELS)
    name = level
    if isinstance(level, int) and not isinstance(level, bool) and 0 <= level < len(names):
        name = names[level]
    if not isinstance(name, str) or name not in LEVELS:
        raise ValueError(f"setLogLevel: {level!r}{instead_of(level, names)} or 0 to {len(names) - 1}")
    logger.setLevel(LEVELS[name])


def _set_up() -> None:
    logging.addLevelName(TRACE, "TRACE")
    handler = _Handler()
    handler.setFormatter(logging.Formatter("[%(asctime)s] [poptorch] [%(levelname)s] %(message)s", "%H:%M:%S"))
    handler.addFilter(_OnlyWithoutRootHandlers())
    logger.addHandler(handler)
    level = os.environ.get("POPTORCH_LOG_LEVEL", "WARN").upper()
    setLogLevel(int(level) if level.isdigit() else level)


if not logger.handlers:
    _set_up()
