"""Every column of every table of a report has something in it: those of the page, and the CSV files of the folder.

A column of names and places is filled in every row. One of amounts has an amount in some row of some program: what a
program does not do (waiting for Streaming Memory, bytes over a link) is rightly empty there.
"""

import csv
from collections import defaultdict
from types import ModuleType
from typing import Any

import pytest
from chromium import Browser, Page

from ipuperf.report import report_page, write_report
from ipuperf.trace import Trace

EVERY, SOME = "in every row", "in some row"

COLUMNS: dict[str, dict[str, str]] = {
    "waiting": {"IPU": EVERY}
    | dict.fromkeys(("host", "bubble", "imbalance", "collective", "link", "ddr", "sync"), SOME),
    "changes": dict.fromkeys(("time", "change", "lines", "part of the time", "fullest tile"), EVERY),
    "training-changes": dict.fromkeys(
        ("time", "change", "lines", "training", "part of the time", "fullest tile"), EVERY
    ),
    "selection": {"row": EVERY}
    | dict.fromkeys(
        ("compute", "exchange", "sync", "waiting for IPUs", "IPU-Links", "Streaming Memory", "host", "no step"), SOME
    )
    | dict.fromkeys(("FLOP", "bytes in", "bytes out"), SOME),
    "selected-links": {"link or host": EVERY, "busy cycles": EVERY, "of the interval": SOME, "bytes": SOME},
    "live": dict.fromkeys(("variable", "bytes", "live in steps", "for"), EVERY) | {"module": SOME, "line": SOME},
    "fullest": dict.fromkeys(("tile", "bytes", "of the limit"), EVERY),
    "variables": {"variable": EVERY, "bytes": EVERY, "module": SOME, "line": SOME},
    "bsp": dict.fromkeys(("from cycle", "op", "kind", "cycles", "balance", "imbalance"), EVERY)
    | dict.fromkeys(("average tile", "spread", "active tiles", "idle tiles", "slowest tile"), SOME),
    "code": dict.fromkeys(("op", "bytes", "mostly", "module", "line"), EVERY),
    "modules-tree": {"module": EVERY}
    | dict.fromkeys(("cycles", "share", "alone", "waiting", "FLOP", "memory", "costliest line"), SOME),
    "operations": dict.fromkeys(("op", "IPU", "alike", "share", "bound by", "phase"), EVERY)
    | dict.fromkeys(("type", "cycles", "waiting", "slowest tile", "FLOP", "of peak", "next plan"), SOME)
    | dict.fromkeys(("bytes moved", "exchange in", "FLOP/byte", "memory", "module", "line"), SOME),
    "groups": dict.fromkeys(("module", "rows", "share", "mostly bound by"), EVERY)
    | dict.fromkeys(("cycles", "waiting", "slowest tile", "FLOP", "of peak", "bytes moved"), SOME)
    | dict.fromkeys(("exchange in", "FLOP/byte", "memory"), SOME),
    "links": dict.fromkeys(("link", "kind", "bytes", "transfers", "busy cycles", "at once, most"), EVERY)
    | dict.fromkeys(("use", "shared cycles"), SOME),
    "collectives": dict.fromkeys(("op", "kind", "rounds", "transfers"), EVERY)
    | dict.fromkeys(("bytes over links", "cycles with transfers"), EVERY),
    "path": dict.fromkeys(("op", "IPU", "kind", "cycles", "of the run"), EVERY),
    "operations.csv": dict.fromkeys(("op", "phase", "ipu", "ipus", "kind"), EVERY)
    | dict.fromkeys(("type", "graph", "module", "line", "cycles", "waiting_cycles", "share", "flops"), SOME)
    | dict.fromkeys(("imbalance_cycles", "bytes", "exchange_bytes", "compute", "exchange", "sync"), SOME)
    | dict.fromkeys(("sync_external", "link", "remote_load", "remote_store", "host_begin", "host_mid"), SOME)
    | dict.fromkeys(("host_end", "host_run", "idle"), SOME),
    "code.csv": dict.fromkeys(("op", "phase", "graph", "module", "line", "ipu", "category", "bytes"), EVERY)
    | {"type": SOME},
    "modules.csv": {"module": EVERY, "level": EVERY}
    | dict.fromkeys(("parent", "cycles", "waiting_cycles", "own_cycles", "line"), SOME)
    | dict.fromkeys(("fwd", "recompute", "bwd", "update", "io", "other", "flops", "bytes", "own_bytes"), SOME),
}
"""The columns of each table, and where they have something."""

READ = """(() => {
  const found = [];
  const read = (section) => {
    for (const table of section.querySelectorAll("[data-table] table, #modules-tree table")) {
      const name = table.parentElement.dataset.table || table.parentElement.id;
      const rows = [...table.tBodies[0].rows].filter(row => row.className !== "more");
      found.push([name, [...table.tHead.rows[0].cells].map(cell => cell.textContent),
        rows.map(row => [...row.cells].map(cell => cell.textContent))]);
    }
  };
  document.querySelectorAll("#tabs button").forEach((tab, number) => {
    tab.click();
    if (number === 1) document.dispatchEvent(new KeyboardEvent("keydown", {key: "m"}));
    read(document.getElementById("view-" + number));
    if (number !== 6) return;
    const group = document.getElementById("operations-group");
    group.value = "module";
    group.dispatchEvent(new Event("change"));
    read(document.getElementById("view-6"));
  });
  return found;
})()"""

Tables = dict[str, list[tuple[list[str], list[list[str]]]]]
"""The heads and rows of each table, of every program."""


def advice(trace: Trace) -> dict[str, Any]:
    trial = {"what": "do 8 calls in one", "pair": False, "cycles": 7, "seconds": 7e-9, "gain": 0.25, "fullest": 300}
    trial |= {"trades_memory": False, "training": "", "effect": "compute 1 us -> none", "diff": ["+ a"]}
    trials = [trial, {**trial, "training": "the global batch"}]
    cycles = int(trace.columns("runs")["dur"][-1])
    return {"cycles": cycles, "fullest": 100, "fits": True, "trials": trials, "untried": []}


def read_page(page: Page, tables: Tables) -> None:
    for name, heads, rows in page.run(READ):
        tables[name].append((heads, rows))
    assert page.problems == []
    page.close()


@pytest.fixture(scope="module")
def tables(
    browser: Browser,
    programs: ModuleType,
    synthetic: ModuleType,
    trace: Trace,
    rich: Trace,
    tmp_path_factory: pytest.TempPathFactory,
) -> Tables:
    """The tables of a PopXL program, of a made-up pipeline, of all kinds of steps, and of a run on one IPU."""
    found: Tables = defaultdict(list)
    alone = synthetic.pipeline_trace(ipus=1, micro_batches=2)
    for number, one in enumerate((programs.PROGRAMS["remote-variables"](), trace, rich, alone)):
        folder = tmp_path_factory.mktemp("report")
        file = folder / "page.html"
        file.write_text(report_page(one, advice=advice(one)), encoding="utf-8")
        read_page(browser.open(file), found)
        write_report(one, folder)
        for name in ("operations.csv", "modules.csv", "code.csv"):
            if not (folder / name).exists():
                continue  # traces that are made up have no code
            with (folder / name).open(encoding="utf-8", newline="") as text:
                heads, *rows = csv.reader(text)
            found[name].append((heads, rows))
        assert number or found["modules-tree"], "the views were read"
    return found


def test_no_table_of_the_page_is_without_rows(tables: Tables):
    assert [name for name, found in tables.items() if not all(rows for _, rows in found)] == []


def is_amount(text: str) -> bool:
    """Whether a cell says more than nothing."""
    return text.strip() not in ("", "0", "0.0", "0 B", "0.0 %", "0.00 %", "False")


def test_every_table_of_the_page_is_known(tables: Tables):
    assert set(tables) == set(COLUMNS)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_filled(name: str, tables: Tables):
    heads = dict.fromkeys(head for found, _ in tables[name] for head in found)
    assert set(heads) == set(COLUMNS[name])
    for head, rule in COLUMNS[name].items():
        cells = [
            (row[place], row)
            for found, rows in tables[name]
            for place in (n for n, other in enumerate(found) if other == head)
            for row in rows
        ]
        assert cells, head
        if rule == EVERY:
            empty = [row for cell, row in cells if not cell.strip()]
            assert not empty, f"{head}: {empty[0]}"
        else:
            assert any(is_amount(cell) for cell, _ in cells), head


def test_ops_and_variables_of_a_program_have_a_module_and_a_line(tables: Tables):
    """The first program is a real one, in which everything but the program's own syncs is of the user's code."""
    for name in ("operations", "variables", "live"):
        heads, rows = tables[name][0]
        for head in ("module", "line"):
            place = heads.index(head)
            assert rows
            assert not [row for row in rows if not row[place] and row[0] != "(no op)"], (name, head)
