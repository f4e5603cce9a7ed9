"""What validation says of made-up predictions, and what its programs take (``tests/golden/validation``)."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import digest
import pytest
from matplotlib.figure import Figure
from rows import Golden

from ipuperf.validation import markdown, report
from ipuperf.validation.cases import Case, read_cases
from ipuperf.validation.leaving_out import LeftOut, by_class_left_out, left_out_text
from ipuperf.validation.plot import draw
from ipuperf.validation.programs import Figures, figures, problem
from ipuperf.validation.results import LEFT_OUT, ROWS, SENSITIVITY, read_rows
from ipuperf.validation.roofline import baseline_text
from ipuperf.validation.rows import Row, Skipped, by_class, runs
from ipuperf.validation.scaling import lines_text, scaling_text
from ipuperf.validation.sensitivity import FigureEffect, sensitivity_text

CASES = read_cases(known=problem)
LONG = ("swin", "roformer", "vit", "bert", "resnet50", "gpt2", "schnet")
"""Models whose programs take more than a moment."""


def quick() -> Mapping[str, list[Case]]:
    """Cases by model, at most four of each, without those that take more than a moment."""
    found: dict[str, list[Case]] = {}
    for case in CASES.cases:
        few = found.setdefault(case.model, [])
        heavy = (
            case.slow
            or case.model in LONG
            or case.id.startswith(("PTEDL-R1", "HYD-QM9", "PTPIPE"))
            or case.model == "small_cnn"
        )
        if not heavy and case.program_key not in [other.program_key for other in few] and len(few) < 4:
            few.append(case)
    return {model: few for model, few in found.items() if few}


@pytest.mark.parametrize("model", quick())
def test_figures_of_a_program(model: str, golden: Golden) -> None:
    if model == "training":
        pytest.importorskip("torch")
    said = [f"{case.id} {line}" for case in quick()[model] for line in digest.lines(figures(case))]
    golden(said)


def rows() -> list[Row]:
    """A row of every case: errors from -40 to +50 %, some exact, some that do not fit, choices with other values."""
    made = []
    for number, case in enumerate(CASES.cases):
        off = ((number * 37) % 91 - 40) / 100
        found = Figures({}, 1.0, ("low",) if number % 7 == 3 else (), ("does not fit",) if number % 11 == 5 else (),
                        (600_000 + number, 5), 638_976)  # fmt: skip
        others = tuple(
            (choice.key, value, case.measured.value * (1 + off + 0.1 * place))
            for choice in case.choices
            for place, value in enumerate(choice.others, 1)
        )
        measured = case.measured.value
        # A third of the rows is computing, a third moving, a third has no roofline.
        roofline = ({}, {"flops": measured * (1.5 + off), "ddr": measured}, {"exchange": measured / 2})[number % 3]
        made.append(Row(case, measured * (1 + off), found, others, roofline))
    return made


EFFECTS = [FigureEffect(f"ddr.{n // 2 % 4}",
                        ("assumed", "calibrated")[n // 2 % 2], (0.7, 1.3)[n % 2], f"class {n // 8}", 4 + n,
                        0.1 * n, 0.05 - 0.02 * n, 0.11 * n, -0.03 * n, 0.4 / (n + 1), f"row {n}")
           for n in range(24)]  # fmt: skip
LEFT = [LeftOut(run.name, run.rows[0].case.group, tuple(run.rows[0].case.calibrates), run.error,
                None if n % 5 == 4 else 1.5 * run.error, (1.0 + 0.1 * n,))
        for n, run in enumerate([r for r in runs(rows()) if r.calibrated][:12])]  # fmt: skip
TEXTS: Mapping[str, Callable[[], Any]] = {
    "report": lambda: report(rows(), [Skipped(case, "no torch") for case in CASES.cases[:3]], CASES.not_expressed),
    "report-of-few": lambda: report(rows()[:3], [], []),
    "rows": lambda: [json.dumps(row.as_dict()) for row in rows()[::5]],
    "classes": lambda: by_class(rows()),
    "roofline": lambda: baseline_text(rows()),
    "scaling": lambda: "\n".join(scaling_text(rows())),
    "lines": lambda: "\n".join(lines_text(rows())),
    "sensitivity": lambda: sensitivity_text(EFFECTS),
    "leave-one-out": lambda: left_out_text(LEFT, by_class_left_out(runs(rows()), LEFT)),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text: str, golden: Golden) -> None:
    golden(digest.lines(TEXTS[text]()))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results, as :func:`ipuperf.validation.results.measure` writes it."""
    folder = tmp_path_factory.mktemp("results")
    classes = by_class_left_out(runs(rows()), LEFT)
    lists = {ROWS: rows(), SENSITIVITY: EFFECTS, LEFT_OUT: [*LEFT, *classes]}
    for name, every in lists.items():
        (folder / name).write_text(json.dumps([one.as_dict() for one in every]))
    return folder


TABLES = ("classes", "every_row", "misses", "choices", "growth", "lines_table", "sensitivity_table", "left_out")
TABLES += ("left_out_classes", "remote_variables", "memory_rows", "roofline")


@pytest.mark.parametrize("name", TABLES)
def test_table_of_a_document(name: str, results: Path, golden: Golden) -> None:
    golden(digest.lines(getattr(markdown, name)(results)))


def test_results_are_read_as_they_were_written(results: Path) -> None:
    read = read_rows(results, CASES.cases)
    assert [row.as_dict() for row in read] == [
        replace(row, figures=Figures({}, 1.0, remarks=row.figures.remarks)).as_dict() for row in rows()
    ]


def drawings() -> Iterator[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows():
        groups.setdefault(row.case.group, []).append(row)
    yield from ((f"group-{number}", some) for number, some in enumerate(groups.values()))
    yield "two-groups", [row for some in list(groups.values())[:2] for row in some]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "some"), list(drawings()), ids=lambda one: one if isinstance(one, str) else "")
def test_picture(name: str, some: list[Row], tmp_path: Path, golden: Golden) -> None:
    made: list[Figure] = []

    def keep(figure: Figure, path: Path, **options: Any) -> None:
        made.append(figure)
        Path(path).write_text(str(options))

    with mock.patch.object(Figure, "savefig", keep):
        draw(some, tmp_path / "x.svg")
    lines = [(tmp_path / "x.svg").read_text(), *digest.lines(made[0])]
    golden(lines)
