"""Write a file all or nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary place for ``path``; on success it replaces ``path``, on an error it is removed.

    A reader therefore sees the old file or the whole new one. The folder must exist (``FileNotFoundError`` otherwise)
    and ``path`` must not be one (``IsADirectoryError``). The temporary file has the name of ``path`` (some writers
    choose the format by its suffix) and lies in a new folder beside it whose name nobody can foresee.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {target}: it is a folder")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.stem}.", suffix=".tmp") as folder:
        temporary = Path(folder, target.name)
        yield temporary
        os.replace(temporary, target)
