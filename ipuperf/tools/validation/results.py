"""Results of a validation, kept as files: documents then quote predictions that nobody typed.

:func:`measure` predicts all cases and writes three lists as JSON: the rows (with other choices), the influence of the
figures that nobody measured, and leave-one-out errors. The figures of each program are stored as soon as they are
known, under a name that depends on the sources. An interrupted measurement therefore continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ipuperf.report.intervals import RunProfile
from ipuperf.tools.validation.cases import Case, read_cases
from ipuperf.tools.validation.evidence import evidence_of
from ipuperf.tools.validation.leaving_out import by_class_left_out, leave_one_out
from ipuperf.tools.validation.programs import Figures, figures
from ipuperf.tools.validation.rows import Row, predict, runs
from ipuperf.tools.validation.sensitivity import sensitivity

ROWS, SENSITIVITY, LEFT_OUT = "rows.json", "sensitivity.json", "leave-one-out.json"
"""Files of a folder of results."""


def measure(
    folder: Path,
    *,
    slow: bool,
    jobs: int,
    aside: Path,
    evidence: Path | None = None,
    say: Callable[[str, int, int], None] = lambda step, n, of: None,
) -> None:
    """Predict all cases that come with ipuperf and write the files of ``folder``.

    Args:
        slow: also predict the slow cases; sensitivity always leaves them out.
        aside: folder for the figures of single programs; figures of the same sources are read from it.
        evidence: the file of the runs that intervals of predictions rest on; None: it stays as it is.
        say: called with the step, the number done and the number of all.

    Raises:
        Errors of predicting pass through; files already written stay.
    """
    cases = [case for case in read_cases().cases if slow or not case.slow]
    figures_folder = aside / fingerprint()
    figures_folder.mkdir(parents=True, exist_ok=True)
    # ``predict`` reports cases, not how many: this iterator counts them.
    done = iter(range(1, len(cases) + 1))
    rows, _ = predict(
        cases,
        # Unwanted slow cases are left out already.
        slow=True,
        choices=True,
        simulate=partial(put_aside, figures_folder),
        progress=lambda case: say(f"rows, {case.id}", next(done), len(cases)),
        jobs=jobs,
    )
    _write(folder / ROWS, [row.as_dict() for row in rows])
    if evidence is not None:
        _write(evidence, [run.as_dict() for run in evidence_of(rows)])
    # Sensitivity predicts every case once for each figure and factor, which is too much for slow cases.
    cheap = [case for case in cases if not case.slow]
    effects = sensitivity(cheap, jobs=jobs, progress=lambda n, of: say("sensitivity", n, of))
    _write(folder / SENSITIVITY, [effect.as_dict() for effect in effects])
    left = leave_one_out(cases, jobs=jobs, progress=lambda n, of: say("leave one out", n, of))
    classes = by_class_left_out(runs(rows), left)
    _write(folder / LEFT_OUT, [*(entry.as_dict() for entry in left), *(entry.as_dict() for entry in classes)])


def fingerprint() -> str:
    """Return a name for the sources that predictions follow from: modules and data files of ipuperf and its models."""
    digest = hashlib.sha256()
    for package in ("ipuperf", "ipuperf.models"):
        for root in map(Path, import_module(package).__path__):
            for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".toml")):
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def put_aside(folder: Path, case: Case) -> Figures:
    """Return the figures of a case, read from ``folder`` if they are there, else simulated and written to it."""
    path = folder / f"{hashlib.sha256(case.program_key.encode()).hexdigest()[:24]}.json"
    if path.exists():
        data = json.loads(path.read_text(encoding="utf-8"))
        fields: dict[str, Any] = {
            # JSON has no tuples, and ``Figures`` holds no lists.
            key: tuple(value) if isinstance(value, list) else value
            for key, value in data.items()
        }
        if fields["profile"] is not None:
            fields["profile"] = RunProfile(**fields["profile"])
        return Figures(**fields)
    case_figures = figures(case)
    from ipuperf.trace import replacing

    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps({**asdict(case_figures), "values": dict(case_figures.values)}), encoding="utf-8"
        )
    return case_figures


def read_rows(folder: Path, cases: Iterable[Case]) -> list[Row]:
    """Return the rows of a folder of results, in the order of the cases, without cases that have no result.

    Raises:
        KeyError: a result belongs to no case.
    """
    entries = {entry["id"]: entry for entry in read(folder / ROWS)}
    known = {case.id: case for case in cases}
    for name in entries:
        # A case was renamed or removed since the results were measured.
        if name not in known:
            raise KeyError(f"{folder / ROWS}: {name!r} is no case; measure anew")
    return [_row(known[name], entries[name]) for name in known if name in entries]


def _row(case: Case, entry: dict[str, Any]) -> Row:
    remarks = () if entry["fits"] else ("does not fit",)
    others = tuple(
        (choice["key"], alternative["value"], alternative["predicted"])
        for choice in entry["choices"]
        for alternative in choice["others"]
    )
    return Row(case, entry["predicted"], Figures({}, 1.0, remarks=remarks), others, entry.get("roofline", {}))


def read(path: Path) -> list[dict[str, Any]]:
    """Read one file of results."""
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries


def _write(path: Path, table: Sequence[dict[str, Any]]) -> None:
    """Write one entry per line, so that a changed entry is one changed line."""
    from ipuperf.trace import replacing

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        lines = ",\n".join(json.dumps(entry) for entry in table)
        temporary.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
