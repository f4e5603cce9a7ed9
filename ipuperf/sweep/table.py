"""The table of a sweep: a row for each configuration; Parquet, CSV or JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipuperf.kinds import checked
from ipuperf.printable import in_cell, of_cell, with_texts
from ipuperf.trace import replacing

from .errors import SweepError

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
"""Version of the columns, in the column ``format`` of each row."""
FORMATS = ("parquet", "csv", "json")

RESULTS: Mapping[str, str] = {
    "fits": "boolean", "reason": "string", "failure": "string", "samples": "Float64", "cycles": "Int64",
    "seconds": "Float64", "samples_per_second": "Float64", "runs_per_second": "Float64", "ipus": "Int64",
    "max_tile_bytes": "Int64", "bytes_per_tile": "Int64", "took_seconds": "Float64", "ipuperf": "string",
    "format": "Int64",
}  # fmt: skip
"""The columns after factors and seed, with the types that pandas has for them; absent where a run failed."""


def table_of(rows: Iterable[Mapping[str, Any]], factors: Sequence[str]) -> pd.DataFrame:
    """The table of some rows, in their order; lists become JSON, and so do all values of a factor of mixed types."""
    import pandas as pd  # not at once: workers, which read the names above, do without it

    columns = [*factors, *RESULTS]
    found = pd.DataFrame([[row.get(name) for name in columns] for row in rows], columns=columns)
    for name in factors:
        kinds = {type(value) for value in found[name]}
        if kinds & {list, tuple} or (len(kinds) > 1 and not kinds <= {int, float}):
            found[name] = [value if isinstance(value, str) else json.dumps(value) for value in found[name]]
    return found.astype(dict(RESULTS))


def check_writable(kind: str) -> None:
    """Raise :class:`SweepError` where a format of :data:`FORMATS` needs what is not installed."""
    if kind == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise SweepError(
            "a Parquet table needs pyarrow: pip install 'ipuperf[sweep]', or ask for another one with --format csv"
        )


@checked()
def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table; the suffix says the format. The file is whole or not there.

    Raises:
        SweepError: an unknown suffix, or the extra for it is not installed. OSError: it cannot be written.
    """
    kind = _kind(path)
    check_writable(kind)
    with replacing(path) as temporary:
        if kind == "parquet":
            table.to_parquet(temporary, index=False)
        elif kind == "csv":
            with_texts(table, in_cell).to_csv(temporary, index=False)
        else:
            temporary.write_text(json_text(table), encoding="utf-8")


def json_text(table: pd.DataFrame) -> str:
    """The rows as a list in JSON."""
    return str(table.to_json(orient="records", indent=2, double_precision=15)) + "\n"


@checked()
def read_table(path: str | Path) -> pd.DataFrame:
    """A table that :func:`write_table` wrote.

    Raises:
        SweepError: no such file, no such table, or one of another version.
    """
    import pandas as pd

    path = Path(path)
    kind = _kind(path)
    check_writable(kind)
    try:
        readers = {"parquet": pd.read_parquet, "csv": pd.read_csv, "json": pd.read_json}
        found: pd.DataFrame = readers[kind](path)
        found = with_texts(found, of_cell) if kind == "csv" else found
    except OSError as error:
        raise SweepError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError) as error:
        raise SweepError(f"{path}: no table of `ipuperf sweep`: {error}") from error
    if "format" not in found.columns:
        raise SweepError(f"{path}: no table of `ipuperf sweep`: it has no column 'format'")
    for version in found["format"].unique():
        check_format(version, path)
    missing = [name for name in RESULTS if name not in found.columns]
    if missing:
        raise SweepError(f"{path}: no table of `ipuperf sweep`: it has no column {missing[0]!r}")
    return found.astype(dict(RESULTS))


def check_format(version: Any, path: Path) -> None:
    """Raise :class:`SweepError` for a file of another version than :data:`FORMAT`."""
    if version != FORMAT:
        raise SweepError(f"{path}: of format {version}, this version of ipuperf reads {FORMAT}; run the sweep again")


def _kind(path: Path) -> str:
    kind = path.suffix[1:]
    if kind not in FORMATS:
        raise SweepError(f"{path}: {path.suffix!r} found, allowed: {', '.join('.' + each for each in FORMATS)}")
    return kind
