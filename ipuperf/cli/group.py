"""The command line: ``ipuperf run``, ``report``, ``compare``, ``machines``, ``demo``, ``estimate``, ``validate``,
``sweep``, ``tune``. Each command has a module beside this one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from ipuperf.version import __version__, arithmetic

from .compare import compare
from .demo import demo
from .estimate import estimate
from .failures import INTERRUPTED, WRONG, line_of
from .machines import machines
from .report import report
from .run import run
from .sweep import sweep
from .terminal import say
from .tune import tune
from .validate import validate

# Matrix products of simulated programs are small: a second BLAS thread gains little, and where cores are shared with
# other work its busy waiting costs a factor of ten. Read when NumPy is loaded, which no import above does.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class _Program(click.Group):
    """The group of all commands: an error is one line on standard error that begins with ``ipuperf:``.

    Exit codes: 0 success; 2 wrong options, files or environment; 130 Ctrl-C. Otherwise ``ipuperf run`` ends with the
    script's code. Only a defect of ipuperf shows a traceback (1).
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and end the process, as click does; without ``standalone_mode`` errors are raised."""
        # A caller that embeds the group handles errors itself.
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            result = super().main(args, prog_name, complete_var, False, **extra)
        except click.Abort:
            say("interrupted")
            sys.exit(INTERRUPTED)
        except Exception as error:
            line = line_of(error)
            if line is None:
                raise
            say(line)
            sys.exit(WRONG)
        sys.exit(result if isinstance(result, int) else 0)


def _version(context: click.Context, _: click.Parameter, is_requested: bool) -> None:
    """Print the versions of ipuperf and of the library that computes the numbers."""
    if is_requested:
        click.echo(f"ipuperf, version {__version__}, numbers by {arithmetic()}")
        context.exit()


@click.group("ipuperf", cls=_Program, invoke_without_command=True)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show versions.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Run IPU programs without an IPU: real numbers, simulated time, memory per tile."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (run, report, compare, machines, demo, validate, estimate, sweep, tune):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    cli()
