"""One trace, one file: a ``.ipt`` zip with ``meta.json`` and one ``.npz`` for each table.

Strings are stored once each with a code per row. The same trace always gives the same bytes. Nothing is pickled.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.trace.columns import encode
from ipuperf.trace.errors import TraceError
from ipuperf.trace.files import replacing
from ipuperf.trace.schema import SCHEMA_VERSION, TABLES, Table

if TYPE_CHECKING:
    from ipuperf.trace.trace import Trace

_FORMAT = "ipuperf-trace"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def _pack(columns: Mapping[str, np.ndarray]) -> bytes:
    arrays: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        if values.dtype == object:
            codes, words = encode(values)
            arrays[f"{name}.codes"] = codes
            arrays[f"{name}.words"] = np.frombuffer(json.dumps(words).encode(), dtype=np.uint8)
        else:
            arrays[name] = values
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _unpack(table: Table, data: bytes) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for column in table.columns:
            if column.dtype != "str":
                columns[column.name] = arrays[column.name]
                continue
            words = np.array([*json.loads(arrays[f"{column.name}.words"].tobytes()), ""], dtype=object)
            columns[column.name] = words[arrays[f"{column.name}.codes"]]
    return columns


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write ``trace`` to ``path`` under a temporary name, then rename."""
    tables = {name: trace.columns(name) for name in TABLES}
    head = {
        "format": _FORMAT,
        "schema_version": SCHEMA_VERSION,
        "rows": {name: len(next(iter(columns.values()))) for name, columns in tables.items()},
        "meta": trace.meta,
    }
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(zipfile.ZipInfo("meta.json", _EPOCH), json.dumps(head, indent=1))
        for name, columns in tables.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npz", _EPOCH), _pack(columns))


def _read_head(archive: zipfile.ZipFile) -> dict[str, Any]:
    head = json.loads(archive.read("meta.json"))
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise TraceError("meta.json does not say that it is a trace of ipuperf")
    if head.get("schema_version") != SCHEMA_VERSION:
        raise TraceError(f"schema version {head.get('schema_version')!r}, this ipuperf reads {SCHEMA_VERSION}")
    return head


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """Read what :func:`save` wrote: meta and tables, to be given to ``Trace``.

    Raises :class:`TraceError` naming the file and the reason if it is missing, truncated, damaged, of another schema
    version or no trace at all.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            head = _read_head(archive)
            tables = {name: _unpack(table, archive.read(f"{name}.npz")) for name, table in TABLES.items()}
            for name, columns in tables.items():
                lengths = {len(values) for values in columns.values()}
                if lengths != {head["rows"][name]}:
                    raise TraceError(f"table {name!r} has {sorted(lengths)} rows, meta.json says {head['rows'][name]}")
            return head["meta"], tables
    except TraceError as error:
        raise TraceError(f"cannot read trace {os.fspath(path)}: {error}") from None
    except OSError as error:
        raise TraceError(f"cannot read trace {os.fspath(path)}: {error}") from error
    except (
        EOFError,
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
