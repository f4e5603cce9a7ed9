"""Lowered programs on disk, so that a process need not lower a program that another process lowered before.

The name of a file is a digest of everything that lowering depends on: the program without counts and values
(:func:`ipuperf.lowering.again.description`), the machine and the options. The file states the versions that wrote it.
It is a zip of one JSON document and arrays (:mod:`ipuperf.lowering.stored`), never a pickle, so reading it runs no
code. A damaged file, or one of another version, is written anew. Files appear whole, so several processes may share
one folder.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import logging
import os
import platform
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ipuperf.base.version import __version__
from ipuperf.lowering import DeviceProgram
from ipuperf.lowering.stored import UnlistedValue, restored, stored
from ipuperf.trace import replacing

from .cache import trim, use

#: The number grows with each change that makes older files unreadable.
_FORMAT = "ipuperf.program 2"
_SUFFIX, _DOCUMENT, _ARRAY = ".program", "document.json", ".npy"
# The earliest time that a zip file can state: equal programs then give equal files.
_TIME = (1980, 1, 1, 0, 0, 0)
# A damaged zip, JSON document or array raises one of these, depending on where the damage is.
_DAMAGED: tuple[type[Exception], ...] = (OSError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, MemoryError)
_DAMAGED += (KeyError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError, OverflowError)

logger = logging.getLogger("ipuperf.runtime")


def digest_of_sources(folders: Sequence[Path]) -> str:
    """Return a digest of the code and data in these folders.

    A development installation has one version number for many states of its code; the digest tells them apart.
    """
    digest = hashlib.sha256()
    for folder in map(str, folders):
        # Lists of names take a third of the time of Path.rglob, and a process waits for this digest.
        names = [os.path.join(base, name) for base, _, files in os.walk(folder) for name in files]
        # File systems list files in different orders, and the digest depends on the order.
        for name in sorted(name for name in names if name.endswith((".py", ".toml"))):
            with open(name, "rb", buffering=0) as file:
                digest.update(name.removeprefix(folder).encode() + b"\0" + file.read())
    return digest.hexdigest()[:16]


@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions that a file must agree with to be read."""
    # All of the code counts, whether lowering needs it or not: a digest of too much is never wrong.
    code = digest_of_sources([Path(__file__).parents[1]])
    arithmetic = f"{platform.machine()} Python {platform.python_version()}"
    return {"format": _FORMAT, "ipuperf": f"{__version__} {code}", "numpy": np.__version__, "platform": arithmetic}


class ProgramStore:
    """The lowered programs in a folder. The folder is made if it does not exist.

    Args:
        folder: the folder.
        trimmed: whether it is bounded (:func:`.cache.trim`) and nobody has asked for it, so that no warning is due
            where it cannot be written to.
    """

    def __init__(self, folder: str | Path, trimmed: bool = False) -> None:
        self.folder = Path(folder)
        self._trimmed = trimmed

    def read(self, key: str) -> DeviceProgram | None:
        """Return the program stored under this digest, or None if no readable file is there."""
        path = self._path(key)
        try:
            with zipfile.ZipFile(path) as file:
                document = json.loads(file.read(_DOCUMENT))
                # Other versions may lower the same program differently.
                if document["versions"] != _versions():
                    logger.info("%s: written by another version; it is written anew", path)
                    return None
                tables = {name: _array(file.read(name + _ARRAY)) for name in document["arrays"]}
            program = restored(document["program"], tables)
            use(path)
            return program
        except FileNotFoundError:
            return None
        except _DAMAGED as error:
            logger.info("%s cannot be read (%s: %s); it is written anew", path, type(error).__name__, error)
            return None

    def write(self, key: str, program: DeviceProgram) -> None:
        """Store a program. If the folder cannot be written to, the log gets a warning."""
        path = self._path(key)
        try:
            document, tables = stored(program)
            path.parent.mkdir(parents=True, exist_ok=True)
            head = {"versions": _versions(), "arrays": list(tables), "program": document}
            # The file gets its name when it is complete, so no process reads half of it.
            with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
                _put(file, _DOCUMENT, json.dumps(head).encode())
                for name, table in tables.items():
                    _put(file, name + _ARRAY, _bytes(table))
            if self._trimmed:
                trim(self.folder)
        except UnlistedValue as error:
            logger.info("The lowered program is not kept in %s: it has %s", self.folder, error)
        except OSError as error:
            level = logging.INFO if self._trimmed else logging.WARNING
            logger.log(level, "The lowered program cannot be kept in %s: %s", self.folder, error)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def _put(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Level 1 compresses fastest.
    file.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED, 1)


def _bytes(table: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, table, allow_pickle=False)
    return buffer.getvalue()


def _array(content: bytes) -> np.ndarray:
    table: np.ndarray = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return table
