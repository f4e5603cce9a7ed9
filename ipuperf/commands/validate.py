"""``ipuperf validate``: published measurements beside predictions."""

from __future__ import annotations

from pathlib import Path

import click

from ipuperf.commands.parameters import FilePath, OutputFile


@click.command()
@click.option(
    "--cases",
    "source",
    metavar="FILE|DIR",
    type=FilePath(exists=True),
    help="Cases to run instead of those that come with ipuperf (TOML; ipuperf/validation/cases.py says how).",
)
@click.option("--all", "slow", is_flag=True, help="Also run the slow cases (large models, mostly 10 to 40 s each).")
@click.option("-k", "names", metavar="NAME", multiple=True,
              help="Only cases with NAME in their id, slow ones too; may be given several times.")  # fmt: skip
@click.option("--choices", is_flag=True,
              help="Also simulate what cases could have chosen where no source states a setting.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
              help="Processes that simulate.")  # fmt: skip
@click.option("--json", "json_path", metavar="FILE", type=OutputFile(),
              help="Also write the rows as a JSON list.")  # fmt: skip
@click.option("--plot", "plot_path", metavar="FILE", type=OutputFile(),
              help="Also draw predicted over measured by class (PNG, PDF, SVG).")  # fmt: skip
def validate(
    source: Path | None,
    slow: bool,
    names: tuple[str, ...],
    choices: bool,
    jobs: int,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Simulate published measurements that can be expressed and print prediction, measurement and error.

    Then by class: rows, mean absolute error, largest error, bias, misses; which figures were calibrated on which rows;
    and the published rows that are no case, with the reason. Cases that cannot run here are listed; where none
    can, that is an error (exit code 2): a check in CI is never green for want of a package. A miss is no error.
    """
    import json
    import sys

    from tqdm import tqdm

    from ipuperf.trace import replacing
    from ipuperf.validation import (
        BUILT_IN,
        CaseError,
        check_format,
        draw,
        predict,
        problem,
        read_cases,
        report,
        select,
        why_none_ran,
    )

    if plot_path is not None:
        check_format(plot_path)
    found = read_cases(BUILT_IN if source is None else source, known=problem)
    if names:
        found, slow = select(found, names), True
    with tqdm(total=len(found.cases), desc="cases", leave=False, disable=not sys.stderr.isatty()) as bar:

        def progress(case: object) -> None:
            bar.set_postfix_str(getattr(case, "id", ""), refresh=False)
            bar.update()

        rows, skipped = predict(found.cases, slow=slow, choices=choices, progress=progress, jobs=jobs)
    if not rows:
        raise CaseError(why_none_ran(skipped))
    click.echo(report(rows, skipped, found.not_expressed))
    if json_path is not None:
        with replacing(json_path) as temporary:
            temporary.write_text(json.dumps([row.as_dict() for row in rows], indent=2) + "\n", encoding="utf-8")
    if plot_path is not None:
        draw(rows, plot_path)
