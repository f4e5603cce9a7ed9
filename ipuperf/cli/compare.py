"""``ipuperf compare``: several runs side by side, with a limit on growth for CI."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipuperf.cli.parameters import FilePath, OutputFile
from ipuperf.cli.report import trace_file
from ipuperf.cli.terminal import echo

if TYPE_CHECKING:
    from ipuperf.report import Comparison


class _Percent(click.ParamType[float]):
    """A percentage with its sign, ``2%``, converted to a share."""

    name = "percentage"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        # click may give a value that is converted already.
        """Return the share; `click.BadParameter` unless the text is a number of at least 0 with a percent sign."""
        if isinstance(value, float):
            return value
        if not re.fullmatch(r"\d+(\.\d+)?\s*%", str(value).strip()):
            self.fail(f"{value!r} is no percentage, expected one such as 2% or 0.5%", param, ctx)
        return float(str(value).strip().rstrip("% ")) / 100


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=FilePath(exists=True), metavar="RUN RUN ...")
@click.option("--html", "page", type=OutputFile(), metavar="FILE", help="Write the comparison as one HTML page.")
@click.option("--json", "values", type=OutputFile(), metavar="FILE", help="Write every figure as JSON.")
@click.option(
    "--fail-above",
    "limit",
    type=_Percent(),
    metavar="P%",
    help="Exit with 1 when the last run's time or peak tile memory is more than P % above the first's.",
)
def compare(runs: tuple[Path, ...], page: Path | None, values: Path | None, limit: float | None) -> None:
    """Compare the last runs of two traces or more with the first RUN, and say what made the largest change.

    Each RUN is a trace (.ipt) or the folder of a report that `ipuperf run --report` wrote.
    """
    from ipuperf.report import compare as compared
    from ipuperf.report import comparison_page, comparison_text, comparison_values
    from ipuperf.trace import Trace

    # click cannot ask for two arguments or more.
    if len(runs) < 2:
        raise click.UsageError(f"one RUN is given ({runs[0]}), a comparison takes at least two")
    paths = [trace_file(run) for run in runs]
    comparison = compared({name: Trace.load(path) for name, path in zip(_names(runs), paths, strict=True)})
    above = {} if limit is None else _above(comparison, limit)
    echo(comparison_text(comparison), nl=False)
    if page is not None:
        _write(page, comparison_page(comparison))
    if values is not None:
        _write(values, json.dumps(comparison_values(comparison), indent=2, allow_nan=False) + "\n")
    for name, growth in above.items():
        echo(f"ipuperf: {name} grew by {growth:.2%}, allowed are {limit:.2%}", err=True)
    if above:
        raise SystemExit(1)


def _above(comparison: Comparison, limit: float) -> dict[str, float]:
    """Return what grew by more than the limit; `click.UsageError` for runs that cannot be compared so."""
    different = (*comparison.machines_differ, *comparison.models_differ)
    if different:
        raise click.UsageError(f"--fail-above compares runs of one model on one machine: {different[0]}")
    if "peak tile memory" not in comparison.growth:
        raise click.UsageError("--fail-above: memory is not recorded in the first or the last run")
    return {name: growth for name, growth in comparison.growth.items() if growth > limit}


def _write(file: Path, text: str) -> None:
    from ipuperf.trace import replacing

    with replacing(file) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")
    echo(f"written: {file}")


def _names(runs: tuple[Path, ...]) -> list[str]:
    """Return the names of the runs as given; a repeated name is numbered, and a name of a column becomes a path."""
    from ipuperf.report.comparison import COLUMNS

    # Runs become columns beside the comparison's own, so their names must differ.
    names = [f"./{run}" if str(run) in COLUMNS else str(run) for run in runs]
    return [name if name not in names[:place] else f"{name} ({place + 1})" for place, name in enumerate(names)]
