"""The table of a sweep, with a row for each configuration, as Parquet, CSV or JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import instead_of
from ipuperf.base.requirements import pip_install
from ipuperf.tools.errors import SweepError
from ipuperf.trace import replacing
from ipuperf.trace.printable import in_cell, of_cell, with_texts

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2
"""The version of the columns, which each row has in column ``format``."""
FORMATS = ("parquet", "csv", "json")

RESULTS: dict[str, str] = {"fits": "boolean", "reason": "string", "failure": "string", "samples": "Float64"}
RESULTS |= {"cycles": "Int64", "seconds": "Float64", "seconds_low": "Float64", "seconds_high": "Float64"}
RESULTS |= {"samples_per_second": "Float64", "runs_per_second": "Float64"}
RESULTS |= {"ipus": "Int64", "max_tile_bytes": "Int64", "bytes_per_tile": "Int64", "took_seconds": "Float64"}
RESULTS |= {"ipuperf": "string", "format": "Int64"}
"""The columns after factors and seed, with their types in pandas. They have no values if a run failed."""


def table_of(rows: Iterable[Mapping[str, Any]], factors: Sequence[str]) -> pd.DataFrame:
    """The table of some rows, in their order. Lists become JSON, and so do all values of a factor of mixed types."""
    import pandas as pd  # not at the top: workers import this module and do not need pandas

    columns = [*factors, *RESULTS]
    table = pd.DataFrame([[row.get(name) for name in columns] for row in rows], columns=columns)
    for name in factors:
        kinds = {type(value) for value in table[name]}
        # A column of a table has one type.
        if kinds & {list, tuple} or (len(kinds) > 1 and not kinds <= {int, float}):
            table[name] = [value if isinstance(value, str) else json.dumps(value) for value in table[name]]
    return table.astype(dict(RESULTS))


def check_writable(kind: str) -> None:
    """Raise :class:`SweepError` if a format of :data:`FORMATS` needs a package that is not installed."""
    if kind == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise SweepError(
            f"a Parquet table needs pyarrow: {pip_install('sweep')}, or ask for another one with --format csv"
        )


@checked()
def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table in the format of the suffix. The file is written completely or not at all.

    Raises:
        SweepError: the suffix is unknown, or the extra for it is not installed.
        OSError: the file cannot be written.
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
    # The default of pandas, 10 digits, would cut floats off.
    return str(table.to_json(orient="records", indent=2, double_precision=15)) + "\n"


@checked()
def read_table(path: str | Path) -> pd.DataFrame:
    """A table that :func:`write_table` wrote.

    Raises:
        SweepError: the file is missing, is no such table, or has another version.
    """
    import pandas as pd

    path = Path(path)
    kind = _kind(path)
    check_writable(kind)
    try:
        readers = {"parquet": pd.read_parquet, "csv": pd.read_csv, "json": pd.read_json}
        table: pd.DataFrame = readers[kind](path)
        table = with_texts(table, of_cell) if kind == "csv" else table
    except OSError as error:
        raise SweepError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError) as error:
        raise SweepError(f"{path}: no table of `ipuperf sweep`: {error}") from error
    if "format" not in table.columns:
        raise SweepError(f"{path}: no table of `ipuperf sweep`: it has no column 'format'")
    for version in table["format"].unique():
        check_format(version, path)
    missing = [name for name in RESULTS if name not in table.columns]
    if missing:
        raise SweepError(f"{path}: no table of `ipuperf sweep`: it has no column {missing[0]!r}")
    return table.astype(dict(RESULTS))


def check_format(version: Any, path: Path) -> None:
    """Raise :class:`SweepError` for a file of another version than :data:`FORMAT`."""
    if version != FORMAT:
        raise SweepError(f"{path}: of format {version}, this version of ipuperf reads {FORMAT}; run the sweep again")


def _kind(path: Path) -> str:
    kind = path.suffix[1:]
    if kind not in FORMATS:
        instead = instead_of(path.suffix, [f".{suffix}" for suffix in FORMATS])
        raise SweepError(f"{path}: {path.suffix!r} is no format of a table{instead}")
    return kind
