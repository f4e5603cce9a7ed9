"""Write folders completely or not at all: a report that cannot be finished leaves no files behind."""

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
    """Give an empty temporary folder beside ``folder``, whose files move there when the block ends without an error.

    A new ``folder`` is made completely or not at all. In an existing one each file replaces that of the same name, and
    other files stay. After an error the temporary folder is removed, with the parents that were made for it.

    Raises:
        OSError: a file cannot be written (no space, no permission, a file in place of a folder); it names ``folder``.
    """
    target = Path(folder)
    # Beside the target, so that renaming it stays within one file system.
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
    """Rename the folder, or move its files one by one if the target exists."""
    if not target.exists():
        source.rename(target)
        return
    # An existing folder cannot be replaced as a whole, as it may hold other files.
    for file in source.iterdir():
        os.replace(file, target / file.name)


@contextmanager
def folder_kept(folder: Path | None) -> Iterator[None]:
    """Make ``folder`` with its parents and check that files can be made in it. None: do nothing.

    After the block those of the new folders that are still empty are removed.

    Raises:
        OSError: the folder cannot be made or written to; the error names it.
    """
    if folder is None:
        yield
        return
    with ExitStack() as clean_up:
        try:
            # From the outermost folder inwards, so that each one has its parent.
            for missing_folder in [*reversed(folder.parents), folder]:
                if not missing_folder.is_dir():
                    missing_folder.mkdir()
                    clean_up.callback(remove_if_empty, missing_folder)
            tempfile.TemporaryFile(dir=folder).close()  # unnamed if the system can, so that a kill leaves no file
        except OSError as error:
            problem = f"the folder cannot be made or written to: {error.filename}: {error.strerror}"
            raise OSError(error.errno, problem, str(folder)) from error
        yield


def remove_if_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
    try:
        folder.rmdir()
    except OSError:  # not empty: somebody's files are in it
        return
