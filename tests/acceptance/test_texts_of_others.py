"""Names of others in a terminal, in Markdown and in CSV: nothing in them acts."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipuperf
from ipuperf import popxl
from ipuperf.machine import load_machine
from ipuperf.popxl import ops
from ipuperf.report import folder as report_folder
from ipuperf.report import write_report
from ipuperf.sweep.table import read_table, write_table
from ipuperf.testing import tables
from ipuperf.trace import Trace
from ipuperf.trace.printable import in_cell, in_markdown, of_cell, printable

CONTROL = {chr(code) for code in (*range(32), *range(127, 160), 0x202E, 0x2028, 0x2066)} - {"\n", "\t"}
EVIL = "evil\x1b[31m\x07\x9b\u202e<script>alert(1)</script>|`x`"


def _machine(place: Path, name: str, encoding: str = "utf-8") -> Path:
    path = place / "own.toml"
    path.write_text(f'extends = "gc200-1"\ndescription = {json.dumps(name)}\n', encoding=encoding)
    return path


def test_a_byte_order_mark_is_no_statement(tmp_path: Path, ipuperf_here: Callable) -> None:
    plain, marked = (load_machine(_machine(tmp_path, "mine", each)) for each in ("utf-8", "utf-8-sig"))
    assert plain == marked
    assert (tmp_path / "own.toml").read_bytes().startswith(b"\xef\xbb\xbf")
    assert ipuperf_here("machines", "own.toml", cwd=tmp_path).returncode == 0
    (tmp_path / "sweep.toml").write_text('script = "s.py"\n[factors]\nmachine = ["pod4"]\n', encoding="utf-8-sig")
    said = ipuperf_here("sweep", "sweep.toml", cwd=tmp_path).stderr
    assert "line 1, column 1" not in said


def _quiet(text: str) -> bool:
    return not CONTROL & set(text)


@pytest.fixture
def evil_trace() -> Trace:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(4, np.float32), name="=HYPERLINK(1)" + EVIL)
        ops.host_store(popxl.d2h_stream((4,), popxl.float32, "out"), x + 1)
    trace = ipuperf.simulate_session(popxl.Session(ir, "ipu_hw"))
    changed = {**trace.meta, "machine": EVIL, "warnings": [EVIL], "ipuperf_version": "1<b>\x1b"}
    tables = {name: dict(trace.columns(name)) for name in ipuperf.trace.TABLES}
    tables["ops"]["name"] = np.array([f"={EVIL}" for _ in tables["ops"]["name"]], dtype=object)
    return Trace(changed, tables)


def test_reports_hold_no_text_that_acts(
    evil_trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ipuperf_here: Callable
) -> None:
    names = ("summary.txt", "operations.csv", "trace.ipt")
    monkeypatch.setattr(report_folder, "VIEWS", tuple(v for v in report_folder.VIEWS if v.name in names))
    write_report(evil_trace, tmp_path / "out")
    for name in ("index.md", "summary.txt"):
        text = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert _quiet(text), name
        assert "evil" in text
    assert "\n# Report" not in (index := (tmp_path / "out" / "index.md").read_text())
    assert "<script>" not in index.replace("\\<", "")
    assert r"\<script\>alert(1)\</script\>\|\`x\`" in index
    rows = list(csv.DictReader((tmp_path / "out" / "operations.csv").open(encoding="utf-8", newline="")))
    assert all(not cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())
    assert {of_cell(row["op"]) for row in rows} <= {f"={EVIL}", "(no op)", *(row["op"] for row in rows)}
    assert any(row["op"].startswith("'=evil") for row in rows)
    for words in (("report", "out", "--why"), ("compare", "out", "out")):
        done = ipuperf_here(*words, cwd=tmp_path)
        assert "evil" in done.stdout
        assert _quiet(done.stdout + done.stderr), words


@pytest.mark.heavy
def test_paths_and_errors_reach_the_terminal_without_control_characters(
    ipuperf_here: Callable, run_ipuperf: Callable, tmp_path: Path
) -> None:
    for words in (("report", f"gone{EVIL[:14]}"), ("run", f"x{EVIL[:12]}.py"), ("machines", EVIL[:14]), (EVIL[:14],)):
        done = ipuperf_here(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert _quiet(done.stderr), words
    (tmp_path / "own.toml").write_text(f"extends = {json.dumps(EVIL[:14])}\n")
    assert _quiet(ipuperf_here("machines", "own.toml", cwd=tmp_path).stderr)
    script = tmp_path / "names.py"
    script.write_text(
        "import numpy as np, popxl\nfrom popxl import ops\nir = popxl.Ir()\nwith ir.main_graph:\n"
        f"    x = popxl.variable(np.ones(3, np.float32), name={EVIL[:14]!r})\n"
        f"    y = popxl.variable(np.ones(4, np.float32), name={EVIL[:14]!r})\n    ops.add(x, y)\n"
    )
    done = run_ipuperf("run", "names.py", cwd=tmp_path)
    assert (done.returncode, "evil" in done.stderr) == (1, True)
    assert _quiet(done.stderr)


@given(st.text())
def test_printable_and_markdown(text: str) -> None:
    assert _quiet(printable(text))
    assert printable(printable(text)) == printable(text)
    assert "\n" not in in_markdown(text)


TEXTS = st.text(st.sampled_from("=+-@'\"a1,.\t\r\n ;"), max_size=6)


@given(TEXTS)
def test_cells_come_back_and_are_no_formulas(text: str) -> None:
    cell = in_cell(text)
    assert of_cell(cell) == text
    assert not str(cell).startswith(("=", "@", "\t", "\r"))
    if str(cell)[:1] in "+-" and cell:
        float(text)  # a number, which a spreadsheet may take for one


def test_tables_come_back_from_csv(tmp_path: Path) -> None:
    from ipuperf.sweep.table import FORMAT, RESULTS

    texts = ["=1+2", "-5 degrees", "@a", "'=b", "plain"]
    table = pd.DataFrame({"factor": texts, "number": [-1, 2, -3, 4, 5]})
    for name in RESULTS:
        table[name] = pd.Series([None] * 5, dtype=RESULTS[name])
    table["format"], table["ipuperf"], table["reason"] = FORMAT, "1", pd.Series(texts, dtype="string")
    write_table(table, tmp_path / "t.csv")
    assert "\n=1+2" not in (tmp_path / "t.csv").read_text()
    again = read_table(tmp_path / "t.csv")
    assert again["factor"].tolist() == texts
    assert again["number"].tolist() == [-1, 2, -3, 4, 5]
    assert again["reason"].tolist() == texts
    rows = tables.normalised([{"name": text, "cycles": -3} for text in texts], ["name"])
    (tmp_path / "b.csv").write_text(tables.text_of(rows))
    assert tables.read(tmp_path / "b.csv", ["name"]) == rows
    assert ",-3" in (tmp_path / "b.csv").read_text()
