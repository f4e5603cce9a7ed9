"""Tables of the documentation that follow from the code: names of the front ends, tables of a trace, files of a report,
published rows.

    python docs/tables.py          # says which file is out of date, exit code 1
    python docs/tables.py --write  # brings them up to date

A table stands between ``<!-- table NAME -->`` and ``<!-- end of table -->``; a test compares (``tests/docs``).
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

DOCS = Path(__file__).parent
MODULES = (
    "popxl",
    "popxl.ops",
    "popxl.ops.collectives",
    "popxl.ops.var_updates",
    "popxl.transforms",
    "popxl_addons",
    "popxl_addons.array_munging",
    "popxl_addons.debugging",
    "popxl_addons.graph_cache",
    "popxl_addons.layers",
    "popxl_addons.named_replica_grouping",
    "popxl_addons.named_tensors",
    "popxl_addons.ops",
    "popxl_addons.optimizers",
    "popxl_addons.patterns",
    "popxl_addons.performance_utils",
    "popxl_addons.testing_utils",
    "popxl_addons.transforms",
    "popxl_addons.utils",
)
"""Modules whose names the guide lists. PopTorch's is left out: some of its names only say why they do not work."""


def _rows(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {left} | {right} |" for left, right in rows)]
    return "\n".join(lines)


def _listed(module: str) -> str:
    names = importlib.import_module(f"ipuperf.{module}").__all__
    return ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: (name.lower(), name)))


def names() -> str:
    """The public names of the front ends, by module."""
    import ipuperf

    ipuperf.install()
    return _rows(("module", "supported names"), ((f"`{module}`", _listed(module)) for module in MODULES))


def refused() -> str:
    """Public names of upstream's PopXL and addons that do not work here."""
    from ipuperf.popxl.surface import missing
    from ipuperf.popxl_addons import surface

    found = [*missing(), *surface.missing()]
    return _rows(("name", "why"), ((f"`{name}`", why) for name, why in found))


def trace_tables() -> str:
    """The tables of a trace."""
    from ipuperf.trace import TABLES

    return _rows(("table", "holds"), ((f"`{table.name}`", table.meaning.rstrip(".")) for table in TABLES.values()))


def report_files() -> str:
    """The files of a report folder."""
    from ipuperf.report.folder import VIEWS

    return _rows(("file", "holds"), ((f"`{view.name}`", view.holds) for view in VIEWS))


def published_rows() -> str:
    """How many published rows are cases, and which are not, by reason."""
    from ipuperf.validation import read_cases

    found = read_cases()
    missing = sum(len(item.ids) for item in found.not_expressed)
    waiting = sum(case.host_bound for case in found.cases)
    cases = f"{len(found.cases)} values are cases, {waiting} of them bound by the host"
    return f"{cases}; {missing} published rows are no case."


TABLES: dict[str, Callable[[], str]] = {
    "names": names,
    "refused names": refused,
    "trace": trace_tables,
    "report": report_files,
    "published rows": published_rows,
}
_PLACE = re.compile(r"(<!-- table (?P<name>[\w ]+) -->\n).*?(\n<!-- end of table -->)", re.DOTALL)


def updated(text: str) -> str:
    """``text`` with its tables as they should be; raises ``KeyError`` for a table of an unknown name."""
    return _PLACE.sub(lambda found: found[1] + TABLES[found["name"]]() + found[3], text)


def main() -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write instead of comparing")
    write, stale = parser.parse_args().write, 0
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        wanted = updated(text)
        if wanted != text:
            stale += 1
            print(f"{path}: {'written' if write else 'out of date, run python docs/tables.py --write'}")
            if write:
                path.write_text(wanted, encoding="utf-8")
    return 0 if write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
