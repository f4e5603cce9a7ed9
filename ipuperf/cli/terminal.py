"""Output of the commands. Names and paths may hold anything, so no control character reaches the terminal."""

from __future__ import annotations

import os
import sys

import click

from ipuperf.trace.printable import printable


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Call ``click.echo`` with a text freed of control characters."""
    click.echo(printable(text), nl=nl, err=err)


def say(line: str, start: str = "ipuperf: ") -> None:
    """Print a line of ipuperf's own on standard error.

    Output that cannot be written (full disk, closed terminal) is dropped.
    """
    for stream, text in ((sys.stdout, ""), (sys.stderr, printable(f"{start}{line}\n"))):
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            # Python flushes the stream again at exit, which would print an error of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
