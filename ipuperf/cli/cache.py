"""``ipuperf cache``: where lowered programs are kept, what they take, and how to be rid of them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ipuperf.cli.terminal import echo
from ipuperf.runtime.cache import KeptFile


@click.group("cache", invoke_without_command=True)
@click.pass_context
def cache(context: click.Context) -> None:
    """Say where lowered programs are kept for the next run, and what they take.

    The environment variable IPUPERF_CACHE names another folder, or is "off".
    """
    if context.invoked_subcommand is None:
        from ipuperf.runtime.cache import MOST_BYTES, OFF, VARIABLE, cache_folder, kept_files

        folder = cache_folder()
        if folder is None:
            echo(f"the cache is off: {VARIABLE} is {OFF!r}, or there is no home folder")
        else:
            files = kept_files(folder)
            echo(f"{folder}: {_amount(files)} of {MOST_BYTES / 1e6:,.1f} MB")


@cache.command("clear")
def clear() -> None:
    """Remove all programs of the cache."""
    from ipuperf.runtime import cache

    folder = cache.cache_folder()
    removed = [] if folder is None else cache.clear(folder)
    echo(f"removed {_amount(removed)}")


def _amount(files: Sequence[KeptFile]) -> str:
    programs = "program" if len(files) == 1 else "programs"
    return f"{len(files):,} {programs}, {sum(file.size for file in files) / 1e6:,.1f} MB"
