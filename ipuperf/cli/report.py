"""``ipuperf report``: the page of a run that was simulated earlier."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ipuperf.cli.parameters import FilePath, OutputFile
from ipuperf.cli.terminal import echo, remark
from ipuperf.trace import Trace


def trace_file(run: Path) -> Path:
    """Return the trace of a run, given as the trace or as the folder of its report; `click.UsageError` without one."""
    from ipuperf.runtime.reports import TRACE, unfinished

    path = run / TRACE if run.is_dir() else run
    if not path.is_file():
        folders = sorted(trace_path.parent.name for trace_path in run.glob(f"*/{TRACE}"))
        # A user easily names DIR of ``--report DIR``, which has a folder for each session.
        hint = f"; it holds the reports {', '.join(folders)}: name one of them" if folders else ""
        hint += "; a run into it was cut short: --recover makes the reports of its sessions" if unfinished(run) else ""
        raise click.UsageError(f"{run}: no {TRACE} in this folder{hint}")
    return path


def _levers(folder: Path, trace: Trace) -> str:
    """Say what changes of the program would gain, or why that is unknown. The gains are kept in the folder."""
    from ipuperf.report.advice import ADVICE
    from ipuperf.runtime.origin import ORIGIN
    from ipuperf.tools.levers import RerunError, lever_values, levers_text, measure, rerun_of, unsimulated_text
    from ipuperf.trace import replacing

    if (folder / ORIGIN).is_file():
        remark("running the program again, and once more for each change that needs it; files it writes are replaced")
    try:
        run = rerun_of(folder, trace)
    except RerunError as error:
        return unsimulated_text(str(error))
    results = measure(run)
    with replacing(folder / ADVICE) as temporary:
        Path(temporary).write_text(json.dumps(lever_values(trace, results), indent=2) + "\n", encoding="utf-8")
    return f"{levers_text(trace, results)}\n`ipuperf report {folder}` shows them on the page.\n"


@click.command("report")
@click.argument("run", type=FilePath(exists=True), metavar="RUN")
@click.option(
    "--output",
    type=OutputFile(),
    metavar="FILE",
    help="The page to write.  [default: beside the trace]",
)
@click.option("--open/--no-open", "show", default=None, help="Open the page in a browser.  [default: on a terminal]")
@click.option(
    "--why",
    is_flag=True,
    help="Say what bounds the run, then run its program again with changes and say what each gains; write no page.",
)
@click.option("--recover", is_flag=True, help="RUN is the DIR of a run that was cut short: write its reports.")
def report(run: Path, output: Path | None, show: bool | None, why: bool, recover: bool) -> None:
    """Write the report of RUN as one HTML file, and open it.

    RUN is a trace (.ipt) or the folder of a report that `ipuperf run --report DIR` wrote; with --recover it is DIR.
    """
    from ipuperf.report import report_page, why_text
    from ipuperf.report.advice import read_advice
    from ipuperf.runtime import reports
    from ipuperf.trace import Trace, replacing

    if recover:
        if why or show or output:
            raise click.UsageError("--recover writes folders: it goes with no other option")
        reports.recover(run, lambda folder: echo(f"report: {folder}"))
        return
    path = trace_file(run)
    trace = Trace.load(path)
    if why:
        echo(why_text(trace), nl=False)
        echo(f"\n{_levers(path.parent, trace)}", nl=False)
        return
    page = output or path.parent / "report.html"
    with replacing(page) as temporary:
        advice = read_advice(path.parent, trace)
        Path(temporary).write_text(report_page(trace, advice=advice), encoding="utf-8")
    echo(f"report: {page}")
    opens_browser = sys.stdout.isatty() if show is None else show
    if opens_browser:
        click.launch(page.absolute().as_uri())
