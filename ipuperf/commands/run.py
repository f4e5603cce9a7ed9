"""``ipuperf run``: a user's script or notebook on simulated IPUs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--machine",
    default="auto",
    show_default=True,
    metavar="NAME|FILE",
    help="Machine preset or TOML file; auto takes the smallest preset with enough IPUs.",
)
@click.option(
    "--clock",
    type=click.Choice(["simulated", "wall"]),
    default="simulated",
    show_default=True,
    help="What time.time() and time.perf_counter() show inside the script.",
)
@click.option(
    "--report", type=click.Path(file_okay=False, path_type=Path), help="Write a report of each session below DIR."
)
@click.option("--strict-memory", is_flag=True, help="Fail when a tile's memory is exceeded instead of warning.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    script: Path, machine: str, clock: str, report: Path | None, strict_memory: bool, args: tuple[str, ...]
) -> None:
    """Run SCRIPT (.py or .ipynb) unmodified: popxl, popxl_addons, poptorch and tensorflow resolve to ipuperf.

    ARGS go to the script.
    """
    from ipuperf.machine import load_machine
    from ipuperf.runtime.executable import write_reports
    from ipuperf.runtime.install import InstallError
    from ipuperf.runtime.script import ScriptError, run_script
    from ipuperf.runtime.settings import AUTO, RunSettings, use_settings

    if machine != AUTO:
        load_machine(machine)  # an unknown or faulty machine is one line, before the script starts
    if report is not None:
        try:
            report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.ClickException(f"--report {report}: the folder cannot be made: {error}") from error
    settings = RunSettings(machine=machine, report_directory=report, strict_memory=strict_memory)
    with use_settings(settings):
        try:
            result = run_script(script, args, clock=clock)
        except (InstallError, ScriptError) as error:
            raise click.ClickException(str(error)) from error
        for executable in settings.executables:
            for line in executable.memory_problems():
                click.echo(f"ipuperf: {executable.name}: {line}", err=True)
        for folder in write_reports(settings):
            click.echo(f"report: {folder}", err=True)
    raise SystemExit(result.exit_code)
