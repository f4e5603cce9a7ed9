"""Output of the commands. Names and paths may hold anything, so no control character reaches the terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import click

from ipuperf.base.progress import LOGGER, clear_of_bars
from ipuperf.trace.printable import printable


@dataclass
class Amount:
    """How much the command line says.

    Attributes:
        quiet: only results and errors, no progress, no figures and hints at the end of a run.
        verbose: besides, what each step takes, and where settings and kept programs come from.
        debug: errors with the traceback of ipuperf.
    """

    quiet: bool = False
    verbose: bool = False
    debug: bool = False


_AMOUNT: ContextVar[Amount] = ContextVar("amount")


def amount() -> Amount:
    """Return how much the running command line says; the usual amount outside of one."""
    return _AMOUNT.get(Amount())


class _Lines(logging.Handler):
    """Records of the package's logger as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


@contextmanager
def spoken() -> Iterator[Amount]:
    """Give the amount that is in force within the block. The logger's level and handlers are then as before it."""
    logger, told = logging.getLogger(LOGGER), Amount()
    level, handlers, token = logger.level, list(logger.handlers), _AMOUNT.set(told)
    try:
        yield told
    finally:
        _AMOUNT.reset(token)
        logger.setLevel(level)
        logger.handlers[:] = handlers


def change_amount(quiet: bool, verbose: bool, debug: bool) -> None:
    """Add what one place of the command line asks for to the amount in force."""
    told, logger = amount(), logging.getLogger(LOGGER)
    told.quiet, told.verbose, told.debug = told.quiet or quiet, told.verbose or verbose, told.debug or debug
    if told.quiet and told.verbose:
        raise click.UsageError("--quiet and --verbose; allowed: one of them")
    if told.quiet:
        logger.setLevel(logging.ERROR)
    if told.verbose:
        logger.setLevel(logging.INFO)
        if not any(isinstance(handler, _Lines) for handler in logger.handlers):
            logger.addHandler(_Lines())


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Call ``click.echo`` with a text freed of control characters."""
    click.echo(printable(text), nl=nl, err=err)


def remark(text: str) -> None:
    """Print a line on standard error that is neither result nor error; nothing with ``--quiet``."""
    if not amount().quiet:
        say(text, "")


def say(line: str, start: str = "ipuperf: ") -> None:
    """Print a line of ipuperf's own on standard error.

    Output that cannot be written (full disk, closed terminal) is dropped.
    """
    for stream, text in ((sys.stdout, ""), (sys.stderr, printable(f"{start}{line}\n"))):
        try:
            with clear_of_bars():
                stream.write(text)
                stream.flush()
        except OSError:
            # Python flushes the stream again at exit, which would print an error of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
