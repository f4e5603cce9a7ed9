"""Tables of the documentation that follow from the code: names of the front ends, tables of a trace, files of a report,
published rows, calibrated figures, results of the validation.

    python docs/tables.py                     # says which file is out of date, exit code 1
    python docs/tables.py --write             # brings them up to date
    python docs/tables.py --measure --jobs 2  # predicts all cases anew (docs/validation/*.json), then writes
    python docs/tables.py --measure --cheap   # without the slow cases, whose rows are then missing

A table stands between ``<!-- table NAME -->`` and ``<!-- end of table -->``; a test compares (``tests/docs``).
"""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

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


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), "|".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" if number != 1 else f"|{line}|" for number, line in enumerate(lines))


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
    from ipuperf.frontends.popxl import errors
    from ipuperf.frontends.popxl_addons import surface

    return _rows(("name", "why"), ((f"`{name}`", why) for name, why in {**errors.CANNOT, **surface.CANNOT}.items()))


def trace_tables() -> str:
    """The tables of a trace."""
    from ipuperf.trace import TABLES

    return _rows(("table", "holds"), ((f"`{table.name}`", table.meaning.rstrip(".")) for table in TABLES.values()))


def trace_columns() -> str:
    """The columns of each table of a trace, with units."""
    from ipuperf.trace import TABLES

    parts = []
    for table in TABLES.values():
        rows = ((f"`{column.name}`", column.unit or "-", _meaning(column)) for column in table.columns)
        parts.append(
            f"### `{table.name}`\n\n{table.meaning.rstrip('.')}.\n\n" + _rows(("column", "unit", "holds"), rows)
        )
    return "\n\n".join(parts)


def _meaning(column: Any) -> str:
    values = ", ".join(f"`{value}`" for value in column.values)
    text = f"{column.meaning}: {values}" if values else column.meaning
    return text.replace("``", "`").replace("|", "\\|")


def command_line() -> str:
    """Every command with its help, from click."""
    import click

    from ipuperf.cli import cli

    def pages(command: click.Command, context: click.Context) -> Iterable[str]:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from pages(below, click.Context(below, info_name=name, parent=context, terminal_width=100))
        if command is not cli:
            yield f"## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```"

    root = click.Context(cli, info_name="ipuperf", terminal_width=100)
    head = f"```text\n{cli.get_help(root)}\n```"
    return "\n\n".join([head, *sorted(pages(cli, root))])


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


def calibrated_figures() -> str:
    """The figures of all machines that were fitted to measurements, and the cases that name them."""
    from ipuperf.machine import list_machines, load_machine
    from ipuperf.validation import read_cases
    from ipuperf.validation.leaving_out import FittedFigure, figures_of

    seen: dict[FittedFigure, list[str]] = {}
    for case in read_cases().cases:
        for known in figures_of(case):
            seen.setdefault(known, []).append(case.id)
    found: dict[tuple[str, str, str], list[str]] = {}
    for name in list_machines():
        for key, figure in load_machine(name).figures.items():
            if figure.kind == "calibrated":
                row = (f"`{key}`", f"{figure.value:g} {figure.unit}", figure.source)
                found.setdefault(row, []).append(name)
    every = len(list_machines())
    rows = [
        (
            key,
            value,
            "all" if len(names) == every else ", ".join(names),
            source,
            ", ".join(seen.get(FittedFigure(key.strip("`"), source), [])),
        )
        for (key, value, source), names in sorted(found.items())
    ]
    return _rows(("figure", "value", "machines", "source", "rows that it saw"), rows)


def supported_operations() -> str:
    """The operations of PopTorch's documentation, and what the tests compare of each."""
    with (DOCS.parent / "tests" / "poptorch" / "supported.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    rows = ((f"`{row['operation']}`", row["checked"] or "no", row["remark"]) for row in found)
    return _rows(("operation", "compared with PyTorch", "remark"), rows)


def failing_tests() -> str:
    """The vendor's tests that fail, by reason."""
    with (DOCS.parent / "tests" / "upstream" / "failing.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    reasons = dict.fromkeys((row["file"], row["reason"]) for row in found)
    rows = [
        (f"`{file}`", ", ".join(f"`{r['function']}`" for r in found if (r["file"], r["reason"]) == (file, why)), why)
        for file, why in reasons
    ]
    return _rows(("file", "functions", "why"), rows)


def tensorflow_operations() -> str:
    """The ops of TensorFlow's graphs that are imported, by family, and what each becomes; needs TensorFlow."""
    from ipuperf.tensorflow.importer.operations import OPERATIONS

    rows: list[tuple[str, ...]] = []
    for family in OPERATIONS.families:
        alike: dict[str, list[str]] = {}
        for op_type, handler in family.items():
            said = " ".join((handler.__doc__ or "").split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")
            alike.setdefault(re.sub(r":\w+:`~?\.?(\w+\.)*(\w+)`", r"`\2`", said), []).append(op_type)
        for number, (said, types) in enumerate(sorted(alike.items(), key=lambda item: min(item[1]))):
            names = ", ".join(f"`{name}`" for name in sorted(types))
            rows.append(("" if number else family.title, names, said))
    return _rows(("family", "ops", "what they become"), rows)


def meant_differences() -> str:
    """Where results at extreme values are not those of the reference, and mean not to be."""
    with (DOCS.parent / "tests" / "extremes" / "differences.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    rows = (
        (
            row["front end"],
            f"`{row['operations']}`".replace("; ", "`, `"),
            f"{row['of']}: {row['values']}",
            f"{row['difference']} ({row['source']})",
        )
        for row in found
    )
    return _rows(("front end", "operations", "of what", "difference (source)"), rows)


def options(front_end: str) -> str:
    """The arguments and options of a front end that are refused or do nothing."""
    from ipuperf.frontends.options import APPLIED, Effects, Option

    names: dict[int, list[str]] = {}
    rows: dict[int, Option] = {}
    for name, row in Effects(front_end).items():
        if row.status != APPLIED:
            names.setdefault(id(row), []).append(f"`{name}`")
            rows[id(row)] = row
    head = ("argument", "effect", "why", "values that ask for nothing else")
    return _rows(head, ((", ".join(names[key]), row.status, row.reason, _neutral(row)) for key, row in rows.items()))


def _neutral(row: Any) -> str:
    defaults = () if row.default is None or row.status == "no difference" else (row.default,)
    return ", ".join(dict.fromkeys(f"`{value!r}`" for value in (*defaults, *row.neutral)))


def applications() -> str:
    """The folders of graphcore/examples: what runs, its numbers, and what stops the others."""
    with (DOCS / "applications" / "folders.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return _rows(
        ("folder", "runs", "numbers", "simulated"),
        (
            (f"`{row['folder']}`", row["runs"], row["numbers"], row["simulated"])
            if row["runs"] != "no"
            else (f"`{row['folder']}`", "no", row["stops"], "")
            for row in rows
        ),
    )


TABLES: dict[str, Callable[[], str]] = {
    "applications": applications,
    "names": names,
    "refused names": refused,
    "trace": trace_tables,
    "trace columns": trace_columns,
    "command line": command_line,
    "report": report_files,
    "supported operations": supported_operations,
    "failing tests": failing_tests,
    "meant differences": meant_differences,
    "tensorflow operations": tensorflow_operations,
    "published rows": published_rows,
    "calibrated figures": calibrated_figures,
}
RESULTS = DOCS / "validation"
"""Results of the validation, committed; tests compare a part with fresh predictions."""


def results(name: str) -> str:
    """A table of the results."""
    from ipuperf.validation import markdown

    return markdown.TABLES[name](RESULTS)


TABLES |= {
    name: partial(results, name)
    for name in ("validation classes", "validation intervals", "roofline", "validation rows", "validation misses",
                 "free choices", "growth", "lines", "sensitivity", "leave one out", "leave one out by class",
                 "remote variables", "memory rows")
}  # fmt: skip
TABLES |= {
    f"options of {name}": partial(options, name)
    for name in ("popxl", "popxl_addons", "popart", "poptorch", "tensorflow")
}
_PLACE = re.compile(r"(<!-- table (?P<name>[\w ]+) -->\n).*?(\n<!-- end of table -->)", re.DOTALL)


def updated(text: str) -> str:
    """``text`` with its tables as they should be; raises ``KeyError`` for a table of an unknown name."""
    return _PLACE.sub(lambda found: found[1] + TABLES[found["name"]]() + found[3], text)


def needs_tensorflow(text: str) -> bool:
    """Whether a document has a table that only TensorFlow's presence lets compare."""
    return "<!-- table tensorflow operations -->" in text


def measure(slow: bool, jobs: int) -> None:
    """Predict the cases anew; what is put aside (``results/``, not in version control) is taken up again."""
    from ipuperf.report.intervals import EVIDENCE
    from ipuperf.validation.results import measure as predict_all

    def say(what: str, done: int, of: int) -> None:
        print(f"{done}/{of} {what}", file=sys.stderr, flush=True)

    aside = DOCS.parent / "results" / "validation"
    # Without slow cases the evidence would be a part of the validated runs only.
    predict_all(RESULTS, slow=slow, jobs=jobs, aside=aside, evidence=EVIDENCE if slow else None, say=say)


def main() -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write instead of comparing")
    parser.add_argument("--measure", action="store_true", help="predict all cases anew before, and write")
    parser.add_argument("--cheap", action="store_true", help="with --measure: without the slow cases")
    parser.add_argument("--jobs", type=int, default=1, help="with --measure: processes (default: 1)")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: allowed: 1 or more")
    if options.cheap and not options.measure:
        parser.error("--cheap means nothing without --measure")
    if options.measure:
        measure(slow=not options.cheap, jobs=options.jobs)
    write, stale = options.write or options.measure, 0
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if needs_tensorflow(text) and importlib.util.find_spec("tensorflow") is None:
            print(f"{path}: left as it is, TensorFlow is not installed")
            continue
        wanted = updated(text)
        if wanted != text:
            stale += 1
            print(f"{path}: {'written' if write else 'out of date, run python docs/tables.py --write'}")
            if write:
                path.write_text(wanted, encoding="utf-8")
    return 0 if write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
