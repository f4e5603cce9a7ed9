"""``ipuperf export``: a run in the format of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from ipuperf.cli.parameters import FilePath, NamedChoice
from ipuperf.cli.report import trace_file
from ipuperf.cli.terminal import echo


@click.command("export")
@click.argument("run", type=FilePath(exists=True), metavar="RUN")
@click.option(
    "--format",
    "kind",
    type=NamedChoice(["chakra", "perfetto"]),
    required=True,
    help="chakra: MLCommons Chakra, one file for each IPU; perfetto: one file for ui.perfetto.dev.",
)
@click.option(
    "--out",
    type=FilePath(),
    metavar="PATH",
    help="Folder (chakra) or file (perfetto).  [default: chakra, trace.pftrace beside the trace]",
)
def export(run: Path, kind: str, out: Path | None) -> None:
    """Write RUN for another tool.

    RUN is a trace (.ipt) or the folder of a report that `ipuperf run --report DIR` wrote. Chakra's files have all steps
    of all IPUs, repeats and replicas one by one; a run with too many is an error.
    """
    from ipuperf.report import to_chakra, to_perfetto
    from ipuperf.trace import Trace

    path = trace_file(run)
    trace = Trace.load(path)
    if kind == "perfetto":
        file = out or path.parent / "trace.pftrace"
        to_perfetto(trace, file)
        echo(f"written: {file}")
        return
    folder = out or path.parent / "chakra"
    files = to_chakra(trace, folder)
    echo(f"written: {folder} with {len(files):,} file{'s' if len(files) > 1 else ''}, one for each IPU")
