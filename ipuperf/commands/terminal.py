"""What commands print: names and paths of others can hold anything, and none of it is to act on a terminal."""

from __future__ import annotations

import os
import sys

import click

from ipuperf.printable import printable


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """``click.echo`` of a text without control characters."""
    click.echo(printable(text), nl=nl, err=err)


def say(line: str, start: str = "ipuperf: ") -> None:
    """Print a line of ipuperf's own on standard error; what cannot be written (full disk, closed terminal) is given
    up."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, printable(f"{start}{line}\n"))):
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
