"""SQL over a trace against pandas, and what a notebook shows of one."""

import re
import sys

import pandas as pd
import pytest

from ipuperf.trace import TABLES, Trace, TraceError


def test_sql_is_pandas(trace: Trace) -> None:
    pytest.importorskip("duckdb")
    found = trace.sql("select kind, sum(dur) as cycles from steps group by kind order by kind")
    expected = trace.table("steps").groupby("kind")["dur"].sum().sort_index()
    assert found["kind"].tolist() == expected.index.tolist()
    assert found["cycles"].tolist() == expected.tolist()
    joined = trace.sql("select sum(s.dur) as c from instances i join steps s using (segment) where i.ipu = 1").c[0]
    totals = trace.totals().set_index("ipu")
    assert joined == totals.drop(columns=["replica", "elapsed"]).loc[1].sum()


def test_sql_knows_units_and_empty_tables(trace: Trace) -> None:
    pytest.importorskip("duckdb")
    found = trace.sql("""select unit from units where "table" = 'steps' and "column" in ('dur', 'bytes_in')""")
    assert sorted(found["unit"]) == ["bytes", "cycles"]
    assert trace.sql("select count(*) as n from units").n[0] == sum(len(table.columns) for table in TABLES.values())
    assert trace.sql("select count(*) as n from tile_runs").n[0] == len(trace.table("tile_runs"))


def test_sql_that_is_refused_says_why(trace: Trace) -> None:
    pytest.importorskip("duckdb")
    variable = pd.DataFrame({"x": [1]})
    with pytest.raises(TraceError, match=r"(?s)sql 'select \* from table_of_mine': .*the tables are ops, programs"):
        trace.sql("select * from table_of_mine")
    with pytest.raises(TraceError, match="variable"):
        trace.sql("select * from variable")  # a name of Python's is no table
    with pytest.raises(TraceError, match="cyclez"):
        trace.sql("select cyclez from steps")
    assert variable["x"].tolist() == [1]


def test_sql_without_duckdb_names_the_extra(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match=r"pip install 'duckdb<"):
        trace.sql("select 1")


def test_a_notebook_shows_a_short_table(trace: Trace) -> None:
    shown = trace._repr_html_()
    assert len(shown) < 5000
    summary = trace.summary()
    assert f"{summary['total_cycles']:,} cycles" in shown
    cells = re.findall(r"<tr><th>(\d+)</th><td>([\d,]+)</td>", shown)
    totals = trace.totals()
    assert [(int(ipu), int(cycles.replace(",", ""))) for ipu, cycles in cells] == list(
        zip(totals["ipu"], totals["elapsed"])
    )


def test_a_name_is_text_in_a_notebook(trace: Trace) -> None:
    tables = {name: trace.columns(name) for name in TABLES}
    named = Trace({**trace.meta, "program": "<script>", "warnings": ["<b>"]}, tables)
    assert "<script>" not in named._repr_html_()
    assert "&lt;script&gt;" in named._repr_html_()
