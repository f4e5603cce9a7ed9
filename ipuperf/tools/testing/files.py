"""Baselines as files: readable JSON with one figure or op per line, so that version control shows small differences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ipuperf.tools.errors import BaselineError
from ipuperf.tools.testing.record import MACHINE_KEYS, SECTIONS, OpFigures, Record

FORMAT = "ipuperf cycle baseline"
FORMAT_VERSION = 1
"""Version of the layout of the file."""

_OP_KEYS = {"scope": str, "type": str, "number": int, "calls": int, "cycles": int}
_HEADER = {"ipuperf_version": str, "schema_version": int, "machine": str, "program": str}


def text_of(record: Record) -> str:
    """Return the text of a record's file; equal records give equal text."""
    parts = [f'"format": {json.dumps(FORMAT)}', f'"format_version": {FORMAT_VERSION}', _block("header", record.header)]
    parts += [_block(name, record.figures.get(name, {})) for name in SECTIONS]
    # One op per line, so that version control shows which op moved.
    rows = [json.dumps({key: getattr(op, key) for key in _OP_KEYS}, ensure_ascii=False) for op in record.operations]
    parts.append('"operations": [' + ",".join(f"\n    {row}" for row in rows) + ("\n  ]" if rows else "]"))
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def _block(name: str, values: dict[str, Any]) -> str:
    text = json.dumps(values, indent=2, ensure_ascii=False)
    return f"{json.dumps(name)}: " + text.replace("\n", "\n  ")


def write_text(path: Path, text: str) -> bool:
    """Write ``text`` at ``path`` completely or not at all, with its folder if needed; return False if it was there
    already.
    """
    from ipuperf.trace import replacing

    if path.is_file() and path.read_bytes() == text.encode():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        # Text mode would change the line ends on some systems.
        temporary.write_bytes(text.encode())
    return True


def read_record(path: str | os.PathLike[str]) -> Record:
    """Read the record at ``path``.

    Raises:
        FileNotFoundError: there is no file.
        BaselineError: the file cannot be read, is no baseline, or has a layout of another version.
    """
    name = os.fspath(path)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        # A missing baseline is no damage, and the caller says how to record it.
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise BaselineError(f"baseline {name} cannot be read: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BaselineError(f'baseline {name} cannot be read: it does not say "format": {json.dumps(FORMAT)}')
    if data.get("format_version") != FORMAT_VERSION:
        raise BaselineError(
            f"baseline {name} has layout version {data.get('format_version')!r}, this ipuperf reads {FORMAT_VERSION}"
        )
    try:
        header = _typed(data["header"], _HEADER, "header")
        figures = {section: _figures(data[section], section) for section in SECTIONS}
        operations = tuple(
            OpFigures(**_typed(row, _OP_KEYS, f"operations[{place}]", exact=True))
            for place, row in enumerate(_listed(data["operations"], "operations"))
        )
    except KeyError as error:
        raise BaselineError(f"baseline {name} cannot be read: {error.args[0]!r} is missing") from None
    except ValueError as error:
        raise BaselineError(f"baseline {name} cannot be read: {error}") from None
    for key in MACHINE_KEYS:
        if key not in header:
            raise BaselineError(f"baseline {name} cannot be read: header.{key} is missing")
    return Record(header, figures, operations)


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r}, expected a list")
    return value


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}, expected names with values")
    return value


def _typed(value: Any, types: dict[str, type], where: str, exact: bool = False) -> dict[str, Any]:
    fields = _mapping(value, where)
    for key, kind in types.items():
        if key not in fields:
            raise ValueError(f"{where}.{key} is missing")
        # bool is a subclass of int, and no figure is one.
        if not isinstance(fields[key], kind) or isinstance(fields[key], bool):
            raise ValueError(
                f"{where}.{key} is {fields[key]!r}, expected {'text' if kind is str else 'a whole number'}"
            )
    unknown = sorted(set(fields) - set(types)) if exact else []
    if unknown:
        raise ValueError(f"{where} has an unknown key {unknown[0]!r}, the keys are {', '.join(types)}")
    return fields


def _figures(value: Any, section: str) -> dict[str, int]:
    figures = _mapping(value, section)
    for name, figure in figures.items():
        if not isinstance(figure, int) or isinstance(figure, bool):
            raise ValueError(f"{section}[{name!r}] is {figure!r}, expected a whole number")
    return figures
