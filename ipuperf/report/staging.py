"""Folders all or nothing: what cannot be finished leaves nothing behind."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def staged(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty temporary folder beside ``folder``; when the block ends well its files move there.

    A ``folder`` that does not exist yet is there whole or not at all. In one that exists each file replaces that of its
    name, and others stay. On any error the temporary folder is gone again, with the parents that were made for it.

    Raises:
        OSError: a file cannot be written (no space, no right, a file in the way of a folder); it names ``folder``.
    """
    target = Path(folder)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        with folder_kept(target.parent):
            try:
                temporary.mkdir()
                yield temporary
                _move(temporary, target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"the report cannot be written: {reason}", str(target)) from error


def _move(source: Path, target: Path) -> None:
    """Rename the folder, or its files one by one where the target is there."""
    if not target.exists():
        source.rename(target)
        return
    for file in source.iterdir():
        os.replace(file, target / file.name)


@contextmanager
def folder_kept(folder: Path | None) -> Iterator[None]:
    """Make ``folder`` with its parents and see that files can be made in it; afterwards take away those of the made
    folders that are still empty. None: do nothing.

    Raises:
        OSError: the folder cannot be made or written to; the error names it.
    """
    if folder is None:
        yield
        return
    with ExitStack() as made:
        try:
            for each in [*reversed(folder.parents), folder]:
                if not each.is_dir():
                    each.mkdir()
                    made.callback(remove_if_empty, each)
            tempfile.TemporaryFile(dir=folder).close()  # has no name where the system can, so a kill leaves nothing
        except OSError as error:
            problem = f"the folder cannot be made or written to: {error.filename}: {error.strerror}"
            raise OSError(error.errno, problem, str(folder)) from error
        yield


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that holds nothing."""
    try:
        folder.rmdir()
    except OSError:  # not empty: somebody's files are in it
        return
