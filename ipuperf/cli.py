"""The command line: ``ipuperf run``, ``machines``, ``demo``, ``estimate``, ``validate``. One file each in commands."""

from __future__ import annotations

import os
import sys

import click

from ipuperf.commands.demo import demo
from ipuperf.commands.estimate import estimate
from ipuperf.commands.machines import machines
from ipuperf.commands.run import run
from ipuperf.commands.validate import validate
from ipuperf.version import __version__

# Matrix products of simulated programs are small: a second BLAS thread gains little, and where cores are shared with
# other work its busy waiting costs a factor of ten. Read when NumPy is loaded, which no import above does.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@click.group()
@click.version_option(__version__, prog_name="ipuperf")
def cli() -> None:
    """Run IPU programs without an IPU: real numbers, simulated time, memory per tile."""


for command in (run, machines, demo, validate, estimate):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script: errors of ipuperf are one line, not a traceback."""
    from ipuperf.datasets.errors import DatasetError
    from ipuperf.ir import IrError
    from ipuperf.machine import MachineError
    from ipuperf.simulation import SimulationError
    from ipuperf.trace import TraceError

    try:
        cli()
    except (DatasetError, IrError, MachineError, SimulationError, TraceError) as error:
        click.echo(f"ipuperf: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
