"""``ipuperf run``: run a user's script or notebook on simulated IPUs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ipuperf.cli.failures import INTERRUPTED, WRONG, Ended, ended_by_signals, line_of
from ipuperf.cli.parameters import FilePath, Finite, Name, NamedChoice, machine_names
from ipuperf.cli.terminal import amount, change_amount, remark, say
from ipuperf.runtime.settings import RunSettings

if TYPE_CHECKING:
    from ipuperf.runtime.executable import Executable


_BEFORE_SCRIPT = ("quiet", "verbose")
"""Options that are ours only before SCRIPT, as many scripts have them too."""
_FLAGS = ("-q", "--quiet", "-v", "--verbose")
_AT_SCRIPT = "ipuperf.cli.run.at_script"
_LISTED = 4
"""Most sessions whose figures are printed at the end; the first ones are."""


class _RunCommand(click.Command):
    """``run [OPTIONS] SCRIPT [OPTIONS] [ARGS]``: unknown options are errors before SCRIPT, and the script's own after
    it.

    An option after SCRIPT that nearly equals one of ours is an error too, as it is more likely a mistyped one. ``--``
    ends our options: everything after it is the script's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; `click.UsageError` for options in the wrong place."""
        ctx.ignore_unknown_options = ctx.allow_interspersed_args = False
        options, _, _ = self.make_parser(ctx).parse_args(list(args))  # stops at the script
        ctx.ignore_unknown_options = ctx.allow_interspersed_args = True
        # There is none without a script, nor where a shell asks how an option's value goes on.
        words = options.get("args")
        behind = words if isinstance(words, (list, tuple)) else ()
        if ctx.resilient_parsing or not isinstance(options.get("script"), str):
            return super().parse_args(ctx, args)
        ctx.meta[_AT_SCRIPT] = True
        asked = {name: bool(options.get(name) or ctx.lookup_default(name)) for name in _BEFORE_SCRIPT}
        change_amount(**asked, debug=False)
        place = len(args) - len(behind) - 1
        args = [word for word in args[:place] if word not in _FLAGS] + args[place:]
        # A `--` before the script's words ends our options, so none of its options is questioned.
        settled = "--" in args[: len(args) - len(behind) - 1]
        for word in () if settled else itertools.takewhile(lambda word: word != "--", behind):
            self._question(ctx, word)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; without those that many scripts have too, once they have been read before SCRIPT."""
        params = super().get_params(ctx)
        return [param for param in params if param.name not in _BEFORE_SCRIPT] if ctx.meta.get(_AT_SCRIPT) else params

    def _question(self, ctx: click.Context, word: str) -> None:
        """Raise `click.UsageError` for an option that nearly, but not exactly, equals one of ours."""
        ours = [name[2:] for param in self.get_params(ctx) for name in param.opts if name.startswith("--")]
        option = word.split("=")[0]
        normalised = option.lstrip("-").lower().replace("_", "-")
        if not word.startswith("-") or option[2:] in ours or len(normalised) < 3:
            return
        # A script may have `--numbers`, so dashes count here, as they do not in other errors.
        near = [name for name in ours if name.startswith(normalised)] or get_close_matches(normalised, ours, 1, 0.83)
        if near:
            problem = f"No such option '{option}'. Did you mean '--{near[0]}'?"
            raise click.UsageError(f"{problem} If it is the script's own, put it after '--'.", ctx)


@click.command("run", cls=_RunCommand)
@click.argument("script", type=FilePath(exists=True, dir_okay=False))
@click.option(
    "--machine",
    default="auto",
    show_default=True,
    metavar="NAME|FILE",
    type=Name(lambda: ["auto", *machine_names()], files=True),
    help="Machine preset or TOML file; auto takes the smallest preset with enough IPUs.",
)
@click.option(
    "--clock",
    type=NamedChoice(["simulated", "everywhere", "wall"]),
    default="simulated",
    show_default=True,
    help="What time.time() shows inside the script; everywhere: in progress bars, Keras and TensorBoard too.",
)
@click.option(
    "--report", metavar="DIR", type=FilePath(file_okay=False), help="Write a report of each session below DIR."
)
@click.option(
    "--between-calls",
    type=Finite(min=0),
    default=0.0,
    show_default=True,
    metavar="MS",
    help="Milliseconds that the script itself takes between two calls (loading data), as part of each call.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="TEXT",
    help="Something wrong with the machine, as 'ipu 3 at 0.95', 'link ipu0-ipu1 down', 'host sync exponential 20us'; "
    "may be repeated.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Draw N runs on a machine with faults, for quantiles.",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="S", help="Seed of the samples.  [default: 0]")
@click.option("--no-numbers", is_flag=True, help="Compute no values: end where the first are needed, and simulate.")
@click.option("--strict-memory", is_flag=True, help="Fail when a tile's memory is exceeded instead of warning.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    script: Path,
    machine: str,
    clock: str,
    report: Path | None,
    between_calls: float,
    faults: tuple[str, ...],
    samples: int | None,
    seed: int | None,
    no_numbers: bool,
    strict_memory: bool,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT (.py or .ipynb) unmodified: popxl, popxl_addons, poptorch and tensorflow resolve to ipuperf.

    ARGS go to the script: its options stand after SCRIPT, those that resemble the ones below after '--'.

    At the end of a script that went well standard error has, for each session that was simulated, the time of a run,
    throughput, what bounds it, peak memory, and where the report is.
    """
    from ipuperf.report import folder_kept
    from ipuperf.runtime.origin import origin_of
    from ipuperf.runtime.reports import Journal, finished, unfinished
    from ipuperf.runtime.settings import AUTO, RunSettings, use_settings

    _check_machine(None if machine == AUTO else machine, faults, samples, seed)
    there = None if report is None else report.absolute()  # a script may change its working directory
    script_seconds = between_calls / 1e3
    origin = None if there is None else origin_of(script, args, machine, clock, script_seconds, faults)
    settings = RunSettings(
        machine,
        report_directory=there,
        strict_memory=strict_memory,
        origin=origin,
        numbers=not no_numbers,
        between_calls=script_seconds,
        faults=faults,
        samples=samples or 0,
        seed=seed or 0,
    )
    with folder_kept(there), use_settings(settings):
        if there is not None and origin is not None:
            # Said before this run makes its own journal, which has the same kind of name.
            for cut_short in unfinished(there):
                say(f"{cut_short}: a run was cut short; 'ipuperf report {report} --recover' saves what it had done")
            if earlier := ", ".join(finished(there)):
                remark(f"--report {report} holds {earlier} of an earlier run; a report of the same name is replaced")
            settings.journal = Journal(there, origin)
        code, ended = _run(script, args, clock)
        # The program ended before its first run, so nothing has made the trace yet.
        if no_numbers and not code:
            for executable in settings.executables:
                _ = executable.trace
        raise SystemExit(_finish(settings, report, code, ended))


def _check_machine(name: str | None, faults: tuple[str, ...], samples: int | None, seed: int | None) -> None:
    """Raise before the script starts for a wrong machine or fault, or for samples where nothing is at fault."""
    from ipuperf.machine import load_machine, parse_faults

    parse_faults(faults)
    machine = None if name is None else load_machine(name).with_faults(*faults)
    if seed is not None and samples is None:
        raise click.UsageError("--seed is for --samples N, which is missing.")
    if samples is not None and not faults and (machine is None or not machine.faults):
        raise click.UsageError(
            "--samples is for a machine with faults: add --fault TEXT, or a machine file with faults."
        )


def _run(script: Path, args: tuple[str, ...], clock: str) -> tuple[int, bool]:
    """Run the script; return its exit code, and whether Ctrl-C or a signal ended it."""
    from ipuperf.runtime.script import run_script

    try:
        with ended_by_signals():
            return run_script(script, args, clock=clock, debug=amount().debug).exit_code, False
    except KeyboardInterrupt as stop:
        say(f"ended by {stop}" if isinstance(stop, Ended) else "interrupted")
        # Shells report a process that a signal ended as 128 plus the signal's number.
        return 128 + stop.number if isinstance(stop, Ended) else INTERRUPTED, True


def _pause(executable: Executable) -> Iterator[str]:
    """What the script takes between two calls, where nobody said so and it is a tenth of a call and more."""
    seconds = executable.seconds_between_calls
    if not executable.settings.between_calls and seconds > 0.1 * executable.simulated_run_seconds:
        pause = f"{1e3 * seconds:.3g}"
        yield f"{pause} ms pass between calls on this computer and are not simulated: --between-calls {pause} adds them"


def _finish(settings: RunSettings, report: Path | None, code: int, ended: bool) -> int:
    """Print what does not fit and write the reports; return the script's exit code, or an error's if that is 0."""
    from ipuperf.runtime.figures import figures_of
    from ipuperf.runtime.reports import write_reports

    for executable in settings.executables:
        # This also removes the progress line, which would mix with what is printed next.
        executable.unload()
        for line in executable.memory_problems():
            say(f"{executable.name}: {line}")

    if not code:
        simulated = [executable for executable in settings.executables if executable.is_simulated]
        for executable in simulated[:_LISTED]:
            for line in (*figures_of(executable), *_pause(executable)):
                remark(f"{executable.name}: {line}")
        if len(simulated) > _LISTED:
            remark(f"... and {len(simulated) - _LISTED:,} more sessions")

    try:
        # After Ctrl-C, sessions that have not run yet are not simulated just for a report.
        write_reports(
            settings, compiled=ended, written=lambda folder: remark(f"report: {Path(report or '', folder.name)}")
        )
    except Exception as error:
        problem = line_of(error)
        if problem is None:
            raise
        say(problem)
        # The journal stays: its traces are all that is left of the run.
        if settings.journal is not None and settings.journal.holds_sessions:
            say(f"the traces are kept, 'ipuperf report {report} --recover' makes their reports")
        elif settings.journal is not None:
            settings.journal.close()
        return code or WRONG
    # The hint is only for runs that would have had a report.
    if report is None and not code and any(executable.is_simulated for executable in settings.executables):
        remark("report: none, '--report DIR' before the script writes one")
    if report is not None and not settings.executables:
        say(f"no report in {report}: the script made no session")
    return code
