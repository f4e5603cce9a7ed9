"""``ipuperf calibrate``: fit figures of a machine to measured steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from ipuperf.cli.parameters import MACHINE_OR_FILE, FilePath, Finite, Name, OutputFile, figure_keys
from ipuperf.cli.terminal import echo


@click.command()
@click.argument("measurements", metavar="MEASUREMENTS.csv", type=FilePath(exists=True, dir_okay=False))
@click.argument("programs", metavar="[PROGRAMS]...", nargs=-1, type=FilePath(exists=True, dir_okay=False))
@click.option(
    "--machine",
    metavar="NAME",
    type=MACHINE_OR_FILE,
    help="Preset or machine file that is fitted.  [default: the column 'machine']",
)
@click.option(
    "--figure",
    "figures",
    metavar="KEY",
    multiple=True,
    type=Name(figure_keys),
    help="Fit this figure; may be given several times.  [default: all assumed and calibrated figures that matter]",
)
@click.option(
    "--noise",
    type=Finite(0, 1, min_open=True, max_open=True),
    default=0.02,
    show_default=True,
    help="Relative standard deviation of a measurement.",
)
@click.option("--out", metavar="FILE.toml", type=OutputFile(), help="Write a machine file with the fitted figures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def calibrate(
    measurements: Path,
    programs: Sequence[Path],
    machine: str | None,
    figures: tuple[str, ...],
    noise: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Fit figures of a machine to the steps that you measured on your own.

    A row of MEASUREMENTS.csv has a program (a script with its arguments, the id of a case of `ipuperf validate`, or a
    model of it with NAME=VALUE) and the measured value; columns quantity, unit, machine and note may follow. PROGRAMS
    are scripts and files of cases that rows name; scripts are else looked for beside the file.

    Every figure has a prior by its kind: one of a data sheet is fixed, a measured one is known to 3 %, a calibrated one
    to 15 %, an assumed one to 40 %. Printed are how far each figure moved, how well it is known then, which figures the
    measurements cannot tell apart, and the errors before and after. The machine itself stays as it is.
    """
    from ipuperf.tools.calibration import calibrate as fit
    from ipuperf.tools.calibration import calibration_text, check_target, write_machine

    if out is not None:
        check_target(out, machine or "")
    with _bar() as move:
        calibration = fit(measurements, programs, machine=machine, figures=figures, noise=noise, progress=move)
    if out is not None:
        write_machine(calibration, out)
    if as_json:
        echo(json.dumps({**calibration.as_dict(), "written": None if out is None else str(out)}, indent=2))
    else:
        echo(calibration_text(calibration, out))


@contextmanager
def _bar() -> Iterator[Callable[[], None]]:
    """Give a count of the machines that were simulated, on a terminal."""
    from tqdm import tqdm

    from ipuperf.base.progress import shows_progress

    with tqdm(desc="machines", leave=False, disable=not shows_progress()) as bar:

        def move() -> None:
            bar.update()

        yield move
