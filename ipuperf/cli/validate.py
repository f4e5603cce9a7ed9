"""``ipuperf validate``: compare predictions with published measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipuperf.base.cores import cores
from ipuperf.cli.parameters import FilePath, Name, OutputFile, case_ids
from ipuperf.cli.terminal import echo

if TYPE_CHECKING:
    from ipuperf.tools.validation import Case, Cases
    from ipuperf.tools.validation.rows import Row


@click.command()
@click.option(
    "--cases",
    "source",
    metavar="FILE|DIR",
    type=FilePath(exists=True),
    help="Cases to run instead of those that come with ipuperf (TOML; ipuperf/tools/validation/cases.py says how).",
)
@click.option("--all", "slow", is_flag=True, help="Also run the slow cases (large models, mostly 10 to 40 s each).")
@click.option(
    "-k",
    "names",
    metavar="NAME",
    type=Name(case_ids),
    multiple=True,
    help="Only cases with NAME in their id, slow ones too; may be given several times.",
)
@click.option(
    "--choices", is_flag=True, help="Also simulate what cases could have chosen where no source states a setting."
)
@click.option(
    "--baseline",
    is_flag=True,
    help="Also compare with a plain roofline: peak bandwidths, and one efficiency fitted to the same rows.",
)
@click.option(
    "--sensitivity",
    "sensitive",
    is_flag=True,
    help="Instead: what 30 % more or less of each assumed or calibrated figure does to each class.",
)
@click.option(
    "--figure",
    "figures",
    metavar="KEY",
    multiple=True,
    help="With --sensitivity: only this figure; may be given several times.",
)
@click.option(
    "--leave-one-out",
    "left_out",
    is_flag=True,
    help="Instead: errors of programs with calibrated figures fitted to all their programs but it.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 64), metavar="N", help="Processes that simulate.  [default: one for each core]"
)
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    type=OutputFile(),
    help="Also write the rows, with --baseline also its classes, as a JSON list (with --sensitivity or "
    "--leave-one-out: its table).",
)
@click.option(
    "--plot",
    "plot_path",
    metavar="FILE",
    type=OutputFile(),
    help="Also draw predicted over measured by class (PNG, PDF, SVG).",
)
def validate(
    source: Path | None,
    slow: bool,
    names: tuple[str, ...],
    choices: bool,
    baseline: bool,
    sensitive: bool,
    figures: tuple[str, ...],
    left_out: bool,
    jobs: int | None,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Simulate published measurements that can be expressed and print prediction, measurement and error.

    Then by class: runs, mean absolute error, largest error, bias, misses (values of one run count once); which figures
    were calibrated on which rows; and the published rows that are no case, with the reason. Cases that cannot run here
    are listed; where none can, that is an error (exit code 2): a check in CI is never green for want of a package. A
    miss is no error.
    """
    from ipuperf.tools.validation import BUILT_IN, check_format, draw, problem, read_cases, select

    additions = {"--choices": choices, "--baseline": baseline, "--plot": plot_path is not None}
    _check_options([name for name, is_given in additions.items() if is_given], sensitive, figures, left_out)
    if plot_path is not None:
        check_format(plot_path)
    processes = jobs or min(cores(), 64)
    selection = read_cases(BUILT_IN if source is None else source, known=problem)
    if names:
        # A case that is named is wanted, however slow it is.
        selection, slow = select(selection, names), True
    cases_to_run = [case for case in selection.cases if slow or not case.slow]
    if sensitive:
        text, table = _sensitivity(cases_to_run, figures, processes)
    elif left_out:
        text, table = _leave_one_out(cases_to_run, processes)
    else:
        rows, text, table = _predictions(selection, slow, choices, processes)
        if baseline:
            text, table = _with_baseline(rows, text, table)
        if plot_path is not None:
            draw(rows, plot_path)
    echo(text)
    if json_path is not None:
        _write(table, json_path)


def _check_options(additions: Sequence[str], sensitive: bool, figures: tuple[str, ...], left_out: bool) -> None:
    """Raise one clear error for options that do not go together; ``additions`` go with predictions alone."""
    if sensitive and left_out:
        raise click.UsageError("--sensitivity and --leave-one-out, allowed: one of them")
    analysis = "--sensitivity" if sensitive else "--leave-one-out" if left_out else ""
    if analysis and additions:
        raise click.UsageError(f"{additions[0]} means nothing with {analysis}, leave it out")
    if figures and not sensitive:
        raise click.UsageError("--figure means nothing without --sensitivity")


def _predictions(
    selection: Cases, slow: bool, choices: bool, jobs: int
) -> tuple[list[Row], str, list[dict[str, object]]]:
    from ipuperf.tools.validation import CaseError, predict, report, why_none_ran
    from ipuperf.tools.validation.evidence import interval_of

    with _bar(len(selection.cases), "cases") as move:
        rows, skipped = predict(
            selection.cases, slow=slow, choices=choices, progress=lambda case: move(case.id), jobs=jobs
        )
    if not rows:
        raise CaseError(why_none_ran(skipped))
    values = [{**row.as_dict(), "interval": interval_of(row)} for row in rows]
    return rows, report(rows, skipped, selection.not_expressed), values


def _with_baseline(
    rows: Sequence[Row], text: str, table: list[dict[str, object]]
) -> tuple[str, list[dict[str, object]]]:
    """Append the comparison with the roofline to the text and to the table."""
    from ipuperf.tools.validation import baseline, baseline_text

    return f"{text}\n{baseline_text(rows)}", [*table, *(entry.as_dict() for entry in baseline(rows))]


def _sensitivity(cases: Sequence[Case], figures: tuple[str, ...], jobs: int) -> tuple[str, list[dict[str, object]]]:
    from ipuperf.tools.validation import sensitivity, sensitivity_text

    with _bar(0, "programs") as move:
        effects = sensitivity(cases, figures=figures, jobs=jobs, progress=lambda done, of: move("", of))
    return sensitivity_text(effects), [effect.as_dict() for effect in effects]


def _leave_one_out(cases: Sequence[Case], jobs: int) -> tuple[str, list[dict[str, object]]]:
    from ipuperf.tools.validation import by_class_left_out, leave_one_out, left_out_text, predict, runs

    # The number of fits is known only when the first one ends.
    with _bar(0, "fits") as move:
        left = leave_one_out(cases, jobs=jobs, progress=lambda done, of: move("", of))
    with _bar(len(cases), "cases") as move:
        # The cases were selected before, so slow ones among them are meant.
        rows, _ = predict(cases, slow=True, progress=lambda case: move(case.id), jobs=jobs)
    classes = by_class_left_out(runs(rows), left)
    return left_out_text(left, classes), [*(entry.as_dict() for entry in left), *(entry.as_dict() for entry in classes)]


@contextmanager
def _bar(total: int, title: str) -> Iterator[Callable[..., None]]:
    """Give a progress bar on a terminal; the function moves it by one and may set the total."""

    from tqdm import tqdm

    from ipuperf.base.progress import shows_progress

    with tqdm(total=total, desc=title, leave=False, disable=not shows_progress()) as bar:

        def move(name: str, total: int = total) -> None:
            bar.total = total
            bar.set_postfix_str(name, refresh=False)
            bar.update()

        yield move


def _write(table: list[dict[str, object]], path: Path) -> None:
    import json

    from ipuperf.trace import replacing

    with replacing(path) as temporary:
        temporary.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
