"""Lowered programs on disk: another process does not lower a program that one lowered before.

A file is named after a digest of all that lowering depends on: what the program says, but for counts and values
(:func:`ipuperf.lowering.again.description`), the machine and the options; it says the versions that wrote it. It is a
zip of one JSON document and arrays (:mod:`ipuperf.lowering.stored`), never a pickle. A damaged file, or one of another
version, is written anew; files appear whole, so several processes may use one folder.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import logging
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ipuperf
from ipuperf.lowering import DeviceProgram
from ipuperf.lowering.stored import UnlistedValue, restored, stored
from ipuperf.trace import replacing

_FORMAT = "ipuperf.program 1"
"""A change that older files do not follow adds one."""
_SUFFIX, _DOCUMENT, _ARRAY = ".program", "document.json", ".npy"
_TIME = (1980, 1, 1, 0, 0, 0)
_ROOMS = ("machine", "ir", "functions", "ops", "lowering")
"""What lowering is made of."""
_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, struct.error, KeyError, ValueError, TypeError, IndexError,
            AttributeError, EOFError, NotImplementedError, OverflowError, MemoryError)  # fmt: skip

logger = logging.getLogger("ipuperf.runtime")


def digest_of_sources(folders: Sequence[Path]) -> str:
    """A digest of the code and data in these folders: an installation for development has one version for many
    states."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".toml"):
                digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _versions() -> dict[str, str]:
    """What a file has to agree with to be read."""
    root = Path(ipuperf.__file__).parent
    code = digest_of_sources([root / room for room in _ROOMS])
    return {"format": _FORMAT, "ipuperf": f"{ipuperf.__version__} {code}", "numpy": np.__version__}


class ProgramStore:
    """The lowered programs in a folder, which is made where it does not exist."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def read(self, said: Any) -> DeviceProgram | None:
        """The program of this content (plain values, whose ``repr`` says all), None if there is none to be had."""
        path = self._path(said)
        try:
            with zipfile.ZipFile(path) as file:
                document = json.loads(file.read(_DOCUMENT))
                if document["versions"] != _versions():
                    logger.info("%s: written by another version; it is written anew", path)
                    return None
                tables = {name: _array(file.read(name + _ARRAY)) for name in document["arrays"]}
            return restored(document["program"], tables)
        except FileNotFoundError:
            return None
        except _DAMAGED as error:
            logger.info("%s cannot be read (%s: %s); it is written anew", path, type(error).__name__, error)
            return None

    def write(self, said: Any, program: DeviceProgram) -> None:
        """Keep a program; a warning of the log where the folder does not take it."""
        path = self._path(said)
        try:
            document, tables = stored(program)
            path.parent.mkdir(parents=True, exist_ok=True)
            head = {"versions": _versions(), "arrays": list(tables), "program": document}
            with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
                _put(file, _DOCUMENT, json.dumps(head).encode())
                for name, table in tables.items():
                    _put(file, name + _ARRAY, _bytes(table))
        except UnlistedValue as error:
            logger.info("The lowered program is not kept in %s: it has %s", self.folder, error)
        except OSError as error:
            logger.warning("The lowered program cannot be kept in %s: %s", self.folder, error)

    def _path(self, said: Any) -> Path:
        return self.folder / f"{hashlib.sha256(repr(said).encode()).hexdigest()}{_SUFFIX}"


def _put(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    file.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED, 1)


def _bytes(table: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.lib.format.write_array(written, table, allow_pickle=False)
    return written.getvalue()


def _array(content: bytes) -> np.ndarray:
    found: np.ndarray = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return found
