"""Speed of ipuperf itself, each figure as a ratio to a stated reference measured in the same run.

    python benchmarks/run.py [MODULE ...] [--check] [--json FILE] [--repeats N]
    python benchmarks/run.py --write        # measures all, writes docs/benchmarks.md; the machine does nothing else

A module of :data:`MODULES` has ``BOUNDS``, the name of each of its rows with the bound of its ratio, and
``rows(repeats)``, which measures them (:class:`rows.Row`); it runs in a process of its own. A ratio below one is better
than the reference.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# One thread for both sides: with more, a machine shared with other work measures the threads' busy waiting. The module
# `cores` asks for more itself.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What an earlier run lowered would be read in place of being lowered.
os.environ["IPUPERF_CACHE"] = "off"
os.environ.setdefault("IPUPERF_THREADS", "1")

import click
from document import PAGE, page
from tqdm import tqdm

HERE = Path(__file__).parent

MODULES: dict[str, tuple[str, ...]] = {
    "training": (),
    "placements": (),
    "building": (),
    "pipelines": (),
    "stages": (),
    "convolution": (),
    "events": (),
    "pods": ("torch",),
    "sweeps": (),
    "numerics": ("torch",),
    "torch_models": ("torch",),
    "cores": ("torch",),
    "keras_fit": ("tensorflow", "tf_keras"),
}
"""The modules and what must be installed for them."""


def bounds(name: str) -> dict[str, float]:
    """Bound of each row of a module."""
    return dict(importlib.import_module(name).BOUNDS)


def missing(name: str) -> list[str]:
    """Packages that a module needs and that are not installed."""
    return [package for package in MODULES[name] if importlib.util.find_spec(package) is None]


def measure_here(name: str, repeats: int, path: str) -> None:
    """Measure a module in this process and write its rows to a file."""
    known, found = bounds(name), importlib.import_module(name).rows(repeats)
    if unlike := {row.name for row in found} ^ set(known):
        raise SystemExit(f"{name}: a row without a bound, or a bound without a row: {', '.join(sorted(unlike))}")
    told = [{**vars(row), "ratio": row.ratio, "bound": known[row.name], "module": name} for row in found]
    Path(path).write_text(json.dumps(told))


def measure(name: str, repeats: int) -> list[dict[str, Any]]:
    """The rows of a module, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        code = f"import run; run.measure_here({name!r}, {repeats}, {str(path)!r})"
        done = subprocess.run([sys.executable, "-c", code], cwd=HERE, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise click.ClickException(f"{name} ended with exit code {done.returncode}")
        found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def line(row: dict[str, Any], width: int) -> str:
    """A row as text."""
    said = f"{row['name']:{width}}  {row['value']:11.6f} {row['unit']:2}  {row['ratio']:7.2f} x {row['reference']}"
    return f"{said}, bound {row['bound']:g}" + (" EXCEEDED" if row["ratio"] > row["bound"] else "")


@click.command(help="Measure the speed of ipuperf against stated references.")
@click.argument("names", nargs=-1, type=click.Choice(list(MODULES)), metavar="[MODULE]...")
@click.option("--check", is_flag=True, help="Exit code 1 where a ratio is above its bound.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to FILE.")
@click.option("--write", is_flag=True, help="Write all rows to docs/benchmarks.md.")
@click.option("--repeats", default=9, show_default=True, type=click.IntRange(1))
def main(names: tuple[str, ...], check: bool, json_path: Path | None, write: bool, repeats: int) -> None:
    """Run the benchmarks and print them."""
    lacking = {name: missing(name) for name in names or MODULES if missing(name)}
    if (names or lacking) and write:
        said = "; ".join(f"{name} needs {', '.join(packages)}" for name, packages in lacking.items())
        raise click.UsageError(f"--write takes all rows: {said or 'name no MODULE'}")
    for name, packages in lacking.items():
        click.echo(f"{name}: left out, {', '.join(packages)} not installed", err=True)
    wanted = [name for name in names or MODULES if name not in lacking]
    rows = [row for name in tqdm(wanted, desc="benchmarks", leave=False) for row in measure(name, repeats)]
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        click.echo(line(row, width))
    from ipuperf.trace import replacing

    for path, text in ((json_path, json.dumps(rows, indent=2) + "\n"), (PAGE if write else None, page(rows))):
        if path is not None:
            with replacing(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
    over = [row["name"] for row in rows if row["ratio"] > row["bound"]]
    if check and over:
        raise click.ClickException(f"{len(over)} of {len(rows)} rows above their bounds: {', '.join(over)}")


if __name__ == "__main__":
    main()
