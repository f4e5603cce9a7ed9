"""One trace, one file: a ``.ipt`` zip with ``meta.json`` and one ``.npz`` for each table.

Each string is stored once, with a code per row. Folded tables (:mod:`.folded`) are stored folded. The same trace always
gives the same bytes. Nothing is pickled.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ipuperf.base.collector import collector_paused
from ipuperf.trace.columns import Stored, Words
from ipuperf.trace.errors import TraceError, TraceSizeError
from ipuperf.trace.folded import FOLDED, FoldedTable
from ipuperf.trace.schema import SCHEMA_VERSION, TABLES, Table
from ipuperf.trace.tables import TraceTables


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


_FORMAT = "ipuperf-trace"
_FOLDED = ".folded.npz"
MOST_BYTES = 2**31
"""Largest size of a file's unpacked contents, unless the reader allows more."""

_MOST_META_BYTES = 2**24
_LEVEL = 1
# The earliest date of a zip file, in place of the present time: the same trace then gives the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def _pack(columns: Mapping[str, Stored]) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        if isinstance(values, Words) or values.dtype == object:
            words = values if isinstance(values, Words) else Words.of(values)
            arrays[f"{name}.codes"] = words.codes
            # The words are JSON in bytes, because an array of Python strings would have to be pickled.
            arrays[f"{name}.words"] = np.frombuffer(json.dumps(list(words.words)).encode(), dtype=np.uint8)
        else:
            arrays[name] = values
    return _archive(arrays)


def _pack_folded(table: FoldedTable) -> bytes:
    words = {
        f"{name}.words": np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)
        for name, texts in table.words.items()
    }
    return _archive({**table.arrays, **words})


def _archive(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a ``.npz`` file, with whole numbers in as few bytes as they need.

    The compression is fast rather than strong, because writing a trace should not take longer than simulating it.
    """
    buffer = io.BytesIO()
    # `np.savez` would stamp each member with the present time, so equal traces would differ in bytes.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, values in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            content = io.BytesIO()
            np.lib.format.write_array(content, _narrow(values), allow_pickle=False)
            # The level is the member's: that of the archive is for members that are named only.
            archive.writestr(member, content.getbuffer(), zipfile.ZIP_DEFLATED, _LEVEL)
    return buffer.getvalue()


def _narrow(values: np.ndarray) -> np.ndarray:
    """Whole numbers in the smallest type that holds them."""
    if values.dtype.kind != "i" or not values.size:
        return np.ascontiguousarray(values)
    smallest = np.promote_types(np.min_scalar_type(int(values.min())), np.min_scalar_type(int(values.max())))
    # int64 and uint64 have no common whole type and promote to a float. The type then stays as it is.
    return np.ascontiguousarray(values, dtype=smallest if smallest.kind in "iu" else values.dtype)


def _strings(words: list[str], codes: np.ndarray) -> np.ndarray:
    if len(codes) and (codes.min() < 0 or codes.max() >= len(words)):
        raise TraceError(f"codes from {codes.min()} to {codes.max()} for {len(words)} strings")
    strings: np.ndarray = np.array([*words, ""], dtype=object)[codes]
    return strings


class _Budget:
    """Counts the bytes that the contents of a file may still take."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def read(self, archive: zipfile.ZipFile, name: str, most: int | None = None) -> bytes:
        """The contents of a member, which is unpacked only if its declared size is allowed."""
        self.take(archive.getinfo(name).file_size, name, most)
        return archive.read(name)

    def take(self, size: int, content_name: str, most: int | None = None) -> None:
        """Take ``size`` bytes of the budget; raise :class:`TraceSizeError` if they are too many."""
        self._left -= size
        if self._left < 0 or (most is not None and size > most):
            allowed = self._most if most is None else most
            raise TraceSizeError(
                f"{content_name} unpacks to {size:,} bytes, {allowed:,} are allowed{_REMEDY[most is None]}"
            )


_REMEDY = ("", " for all of the file (Trace.load(path, most_bytes=...) allows more)")


def _unpack(table: Table, data: bytes, budget: _Budget) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    with _opened(table.name, data, budget) as arrays:
        for column in table.columns:
            if column.dtype != "str":
                columns[column.name] = arrays[column.name]
                continue
            words = json.loads(arrays[f"{column.name}.words"].tobytes())
            columns[column.name] = _strings(words, arrays[f"{column.name}.codes"])
    return columns


def _unpack_folded(name: str, data: bytes, budget: _Budget) -> FoldedTable:
    kind = FOLDED[name]
    with _opened(name, data, budget) as arrays:
        words = {key: json.loads(arrays[f"{key}.words"].tobytes()) for key in kind.WORDS}
        return kind({key: arrays[key] for key in kind.ARRAYS}, words)


def _opened(name: str, data: bytes, budget: _Budget) -> Any:
    """The arrays of a table, after a check that they are not too large."""
    # np.load would unpack at once, so the sizes come from the directory of the inner zip.
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        budget.take(sum(member.file_size for member in archive.infolist()), f"table {name!r}")
    return np.load(io.BytesIO(data), allow_pickle=False)


@collector_paused()
def save(trace: TraceTables, path: str | os.PathLike[str]) -> None:
    """Write ``trace`` to ``path`` under a temporary name, then rename."""
    # The numbers of rows let a reader notice a table that was cut short.
    head = {
        "format": _FORMAT,
        "schema_version": SCHEMA_VERSION,
        "rows": {name: trace.rows(name) for name in TABLES},
        "meta": trace.meta,
    }
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(zipfile.ZipInfo("meta.json", _EPOCH), json.dumps(head, indent=1))
        for name in TABLES:
            folded = trace.folded(name)
            if folded is None:
                archive.writestr(zipfile.ZipInfo(f"{name}.npz", _EPOCH), _pack(trace.stored(name)))
            else:
                archive.writestr(zipfile.ZipInfo(f"{name}{_FOLDED}", _EPOCH), _pack_folded(folded))


def _read_head(archive: zipfile.ZipFile, budget: _Budget) -> dict[str, Any]:
    head = json.loads(budget.read(archive, "meta.json", _MOST_META_BYTES))
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise TraceError("meta.json does not say that it is a trace of ipuperf")
    if head.get("schema_version") != SCHEMA_VERSION:
        raise TraceError(f"schema version {head.get('schema_version')!r}, this ipuperf reads {SCHEMA_VERSION}")
    for key in ("meta", "rows"):
        if not isinstance(head.get(key), dict):
            raise TraceError(f"{key} in meta.json is {str(head.get(key))[:40]!r}, expected a JSON object")
    return head


def load(
    path: str | os.PathLike[str], most_bytes: int = MOST_BYTES
) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray] | FoldedTable]]:
    """Read the meta data and the tables that :func:`save` wrote, for ``Trace``.

    Raises :class:`TraceError` naming the file and the reason if it is missing, truncated, damaged, of another schema
    version or not a trace. Raises :class:`TraceSizeError` if its contents are larger than ``most_bytes``; this is
    known before they are unpacked.
    """
    budget = _Budget(most_bytes)
    try:
        with zipfile.ZipFile(path) as archive:
            head = _read_head(archive, budget)
            members = set(archive.namelist())
            tables: dict[str, dict[str, np.ndarray] | FoldedTable] = {}
            for name, table in TABLES.items():
                # A trace that was built row by row holds the same table unfolded.
                if name in FOLDED and f"{name}{_FOLDED}" in members:
                    folded = _unpack_folded(name, budget.read(archive, f"{name}{_FOLDED}"), budget)
                    tables[name], lengths = folded, {folded.rows}
                else:
                    columns = _unpack(table, budget.read(archive, f"{name}.npz"), budget)
                    tables[name], lengths = columns, {len(values) for values in columns.values()}
                if lengths != {head["rows"][name]}:
                    raise TraceError(f"table {name!r} has {sorted(lengths)} rows, meta.json says {head['rows'][name]}")
            return head["meta"], tables
    except TraceError as error:
        # The same class is raised again, so that a TraceSizeError stays one.
        raise type(error)(f"cannot read trace {os.fspath(path)}: {error}") from None
    except OSError as error:
        raise TraceError(f"cannot read trace {os.fspath(path)}: {error}") from error
    # Damaged bytes may fail in NumPy, zipfile, json or zlib, each of which has exceptions of its own.
    except (
        EOFError,
        MemoryError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = " ".join(str(part) for part in error.args) or "it ends early"
        raise TraceError(
            f"cannot read trace {os.fspath(path)}: the file is truncated, damaged or not a trace ({reason})"
        ) from error
