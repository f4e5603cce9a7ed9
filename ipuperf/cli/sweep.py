"""``ipuperf sweep``: run many configurations of one program and make a table of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipuperf.cli.parameters import FACTOR, FilePath, Name, NamedChoice
from ipuperf.cli.terminal import echo

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.tools.sweep import Sweep

_TABLES = (".parquet", ".csv", ".json")


@click.command()
@click.argument("source", metavar="FILE.toml|SCRIPT|TABLE", type=FilePath(exists=True, dir_okay=False))
@click.option(
    "--factor", "factors", multiple=True, metavar="NAME=V,V..", type=FACTOR, help="A factor of SCRIPT with its values."
)
@click.option("--where", "constraints", multiple=True, metavar="EXPRESSION", help="Run only what satisfies this.")
@click.option(
    "--out",
    type=FilePath(file_okay=False),
    metavar="DIR",
    help="Folder of the runs and of the table.  [default: beside FILE.toml or SCRIPT, with its name and '-sweep']",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes.  [default: one for each core]")
@click.option("--scheduler", metavar="ADDRESS", help="Use the Dask cluster there (tcp://...) instead of processes.")
@click.option("--format", "table", type=NamedChoice(["parquet", "csv", "json"]), default="parquet", show_default=True,
              help="Format of the table.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON and write no table.")
@click.option("--plot", "plots", multiple=True, metavar="KIND:COLUMNS",
              type=Name(lambda: ["lines:", "heatmap:", "pareto:"]),
              help="lines:X,Y[,BY] heatmap:X,Y,VALUE pareto:X,Y[,BY], written as plot-N-KIND.png.")  # fmt: skip
@click.option("--retry", is_flag=True, help="Run again what failed before.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def sweep(
    source: Path, factors: tuple[str, ...], constraints: tuple[str, ...], out: Path | None, jobs: int | None,
    scheduler: str | None, table: str, as_json: bool, plots: tuple[str, ...], retry: bool, args: tuple[str, ...],
) -> None:  # fmt: skip
    """Simulate every combination of the factors of FILE.toml, or of SCRIPT with ARGS (behind '--', '{NAME}' in them
    stands for the value of a factor); or draw the TABLE of an earlier sweep.

    What is in the folder already is not run again, so a sweep that was stopped goes on. No numbers are computed: each
    program is built up to the first run of its session, lowered and simulated.
    """
    from ipuperf.tools.sweep import read_table, run_sweep
    from ipuperf.tools.sweep.plots import plot_of

    # Mistakes in plots show at once, and not at the end of a long sweep.
    for plot in plots:
        plot_of(plot)
    if source.suffix in _TABLES:
        _only_drawn(factors, constraints, args, plots)
        _draw(read_table(source), plots, source.parent if out is None else out)
        return
    plan = _wanted(source, factors, constraints, args)
    for plot in plan.plots:
        plot_of(plot)
    folder = source.with_name(f"{source.stem}-sweep") if out is None else out
    results = run_sweep(plan, folder, jobs=jobs, scheduler=scheduler, table=None if as_json else table, retry=retry)
    _tell(results, folder, None if as_json else table)
    _draw(results, (*plan.plots, *plots), folder)


def _wanted(source: Path, factors: tuple[str, ...], constraints: tuple[str, ...], args: tuple[str, ...]) -> Sweep:
    from ipuperf.tools.sweep import read_sweep, script_sweep

    if source.suffix == ".toml":
        if factors or constraints or args:
            raise click.UsageError("--factor, --where and ARGS go with a script; a TOML file says them itself")
        return read_sweep(source)
    return script_sweep(source, args, dict(_factor(text) for text in factors), constraints=constraints)


def _only_drawn(
    factors: tuple[str, ...], constraints: tuple[str, ...], args: tuple[str, ...], plots: tuple[str, ...]
) -> None:
    if factors or constraints or args:
        raise click.UsageError("a table is drawn, nothing is run: --factor, --where and ARGS go with a script")
    if not plots:
        raise click.UsageError("a table is drawn: say what with --plot")


def _factor(text: str) -> tuple[str, list[Any]]:
    """Return name and values of ``NAME=V,V``. A value is JSON's number, true or false if it reads as one, else text."""
    name, equals, values = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--factor {text!r}, allowed: NAME=VALUE,VALUE...")
    return name.strip(), [_value(text) for text in values.split(",")]


def _value(text: str) -> Any:
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    # ``null``, lists and strings of JSON stay text.
    return parsed if isinstance(parsed, (int, float)) else text


def _tell(results: pd.DataFrame, folder: Path, table: str | None) -> None:
    """Print how the sweep went; raise an error if no configuration has a figure."""
    from ipuperf.tools.sweep.table import json_text

    if table is None:
        echo(json_text(results), nl=False)
    else:
        echo(f"table: {folder / f'table.{table}'}")
    failed = int(results["failure"].notna().sum())
    small = int((results["fits"] == False).sum())  # noqa: E712 - absent is neither
    echo(f"{len(results):,} configurations, {small:,} do not fit, {failed:,} failed", err=True)
    if failed == len(results):
        reason, count = next(iter(results["failure"].value_counts().items()))
        raise click.ClickException(f"all {failed:,} configurations failed, {count:,} of them with: {reason}")
    # Without one configuration that fits, the sweep answers no question.
    if failed + small == len(results):
        raise click.ClickException(_nothing_fits(results))


def _nothing_fits(results: pd.DataFrame) -> str:
    """Describe the memory that the nearest configuration needs."""
    from ipuperf.tools.sweep.table import RESULTS

    simulated = results[results["failure"].isna()]
    nearest = simulated.loc[(simulated["max_tile_bytes"] / simulated["bytes_per_tile"]).idxmin()]
    configuration = ", ".join(f"{name} = {nearest[name]}" for name in results.columns if name not in RESULTS)
    needs = f"{nearest['max_tile_bytes']:,} of {nearest['bytes_per_tile']:,} bytes on its fullest tile"
    return f"none of {len(results):,} configurations fits; the nearest ({configuration}) needs {needs}"


def _draw(results: pd.DataFrame, plots: tuple[str, ...], folder: Path) -> None:
    from ipuperf.tools.sweep import draw

    for number, plot in enumerate(plots):
        target = folder / f"plot-{number}-{plot.partition(':')[0]}.png"
        draw(results, plot, target)
        echo(f"plot: {target}", err=True)
