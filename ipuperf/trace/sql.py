"""SQL over the tables of a trace, with DuckDB (extra ``[sql]``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ipuperf.base.requirements import pip_install
from ipuperf.trace.errors import TraceError
from ipuperf.trace.schema import TABLES
from ipuperf.trace.tables import TraceTables

if TYPE_CHECKING:
    import pandas as pd


UNITS = "units"
"""Name of the table of units in SQL."""


def units() -> pd.DataFrame:
    """Every column of every table of a trace: columns table, column, unit, meaning."""
    import pandas as pd

    rows = [(t.name, c.name, c.unit, c.meaning) for t in TABLES.values() for c in t.columns]
    return pd.DataFrame(rows, columns=["table", "column", "unit", "meaning"])


def sql(trace: TraceTables, query: str) -> pd.DataFrame:
    """The answer to a query over the tables of a trace and the table ``units`` (see :func:`units`).

    Raises:
        ImportError: DuckDB is not installed. TraceError: DuckDB refuses the query, with its reason.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ImportError(f"Trace.sql needs DuckDB: {pip_install('sql')}") from error
    words = set(re.findall(r"\w+", query.lower()))
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET python_enable_replacements = false")  # names are tables, never variables
        # Only tables that the query names are made, because a folded one may have very many rows.
        for name in TABLES:
            if name in words:
                connection.register(name, trace.table(name))
        if UNITS in words:
            connection.register(UNITS, units())
        try:
            return connection.execute(query).df()
        except duckdb.Error as error:
            raise TraceError(f"sql {query!r}: {error} (the tables are {', '.join((*TABLES, UNITS))})") from None
