"""The command line: ``ipuperf run``, ``report``, ``compare``, ``export``, ``machines``, ``demo``, ``estimate``,
``validate``, ``calibrate``, ``sweep``, ``tune``, ``cache``. Each command has a module beside this one.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from ipuperf.base.progress import LOGGER
from ipuperf.base.version import __version__, arithmetic

from .cache import cache
from .calibrate import calibrate
from .compare import compare
from .completion import register
from .demo import demo
from .estimate import estimate
from .export import export
from .failures import INTERRUPTED, WRONG, line_of
from .machines import machines
from .report import report
from .run import run
from .settings import FILE, read_settings
from .sweep import sweep
from .terminal import amount, change_amount, say, spoken
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
            with spoken():
                return super().main(args, prog_name, complete_var, False, **extra)
        with spoken():
            try:
                result = super().main(args, prog_name, complete_var, False, **extra)
            except click.Abort:
                say("interrupted")
                sys.exit(INTERRUPTED)
            except Exception as error:
                line = line_of(error)
                if line is None:
                    raise
                if amount().debug:
                    traceback.print_exception(error)
                say(line)
                sys.exit(WRONG)
        sys.exit(result if isinstance(result, int) else 0)


def _version(context: click.Context, _: click.Parameter, is_requested: bool) -> None:
    """Print the versions of ipuperf and of the library that computes the numbers."""
    if is_requested:
        click.echo(f"ipuperf, version {__version__}, numbers by {arithmetic()}")
        context.exit()


def _say_more_or_less(context: click.Context, parameter: click.Parameter, is_requested: bool) -> None:
    if is_requested:
        change_amount(**{name: name == parameter.name for name in ("quiet", "verbose", "debug")})


def _amounts() -> list[click.Option]:
    """Return the options that every command has, and the group itself."""
    common: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _say_more_or_less}
    return [
        click.Option(
            ["--quiet", "-q"], help="Print results and errors only: no progress, no figures of runs.", **common
        ),
        click.Option(["--verbose", "-v"], help="Also say what each step takes.", **common),
        click.Option(["--debug"], help="Errors with the frames of ipuperf and of libraries.", **common),
    ]


@click.group("ipuperf", cls=_Program, invoke_without_command=True)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show versions.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Run IPU programs without an IPU: real numbers, simulated time, memory per tile.

    The file ipuperf.toml of the current folder may hold defaults of all options.
    """
    settings = read_settings(context)
    change_amount(**{name: settings.pop(name, False) for name in ("quiet", "verbose", "debug")})
    context.default_map = settings
    if settings:
        logging.getLogger(LOGGER).info("defaults from %s", FILE)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (run, report, compare, export, machines, demo, validate, calibrate, estimate, sweep, tune, cache):
    cli.add_command(command)
for command in (*cli.commands.values(), *estimate.commands.values(), *cache.commands.values(), cli):
    # A program may load this module anew beside commands that have the options.
    present = {parameter.name for parameter in command.params}
    command.params += [option for option in _amounts() if option.name not in present]
register()


def main() -> None:
    """Entry point of the console script."""
    cli()
