"""The cache: one folder in which lowered programs are kept for the user's other processes, under digests of content.

It is ``ipuperf`` in the user's folder for caches (``$XDG_CACHE_HOME``, else ``~/.cache``). The environment variable
``IPUPERF_CACHE`` names another folder, or says ``off``. Files appear whole and under names that say what is in them
(:mod:`.program_store`), so any number of processes may write. Where they take more than :data:`MOST_BYTES`, those go
that were read or written longest ago.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

VARIABLE, OFF = "IPUPERF_CACHE", "off"
MOST_BYTES = 2**30
"""The cache may take so many bytes."""
_OURS = re.compile(r"[0-9a-f]{64}\.program")
_LEFT_SECONDS = 24 * 3600.0
"""A file that is not finished after so long was left by a process that was killed."""


class KeptFile(NamedTuple):
    """A file of the cache: when it was used last, its bytes, where it is."""

    used: float
    size: int
    path: Path


def cache_folder() -> Path | None:
    """The folder of the cache, which need not exist; None: nothing is kept."""
    named = os.environ.get(VARIABLE, "")
    if named == OFF:
        return None
    if named:
        return Path(named).expanduser()
    # The standard says that a path which is not absolute does not count.
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "ipuperf"
    except RuntimeError:  # a user without a home
        return None


def kept_files(folder: Path) -> list[KeptFile]:
    """The files of the cache in a folder, the one that was used longest ago first. Other files there do not count."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            # Another process may remove it meanwhile.
            with suppress(OSError):
                if _OURS.fullmatch(entry.name) and entry.is_file():
                    state = entry.stat()
                    found.append(KeptFile(state.st_mtime, state.st_size, Path(entry.path)))
    return sorted(found)


def use(path: Path) -> None:
    """A file was read now."""
    with suppress(OSError):
        os.utime(path)


def trim(folder: Path, most: int = MOST_BYTES) -> None:
    """Remove the files that were used longest ago until all take at most ``most`` bytes."""
    files = kept_files(folder)
    size = sum(file.size for file in files)
    for file in files:
        if size <= most:
            break
        with suppress(OSError):
            file.path.unlink()
        size -= file.size
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith(".") and entry.name.endswith(".tmp") and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    if entry.stat().st_mtime < time.time() - _LEFT_SECONDS:
                        shutil.rmtree(entry.path, ignore_errors=True)


def clear(folder: Path) -> list[KeptFile]:
    """Remove all files of the cache, and return them."""
    files = kept_files(folder)
    for file in files:
        file.path.unlink(missing_ok=True)
    return files
