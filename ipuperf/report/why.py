"""Why a run takes as long as it does, in words: what bounds it, its critical path, and what its waiting belongs to."""

from __future__ import annotations

from ipuperf.base.collector import collector_paused
from ipuperf.report.arguments import checked
from ipuperf.report.critical_path import critical_path, path_cycles
from ipuperf.report.palette import KIND_LABELS
from ipuperf.report.step_time import TIME_PARTS, step_time
from ipuperf.report.text import duration
from ipuperf.trace import NO_OP_NAME, WAITING_KINDS, Trace
from ipuperf.trace.operations import operation_costs

_LISTED = 5
"""The largest number of parts, ops and waits that are listed."""


@checked
@collector_paused()
def why_text(trace: Trace) -> str:
    """The largest parts of the last run, the ops on its critical path, and its longest waits. Ends with a newline.

    The gain of a change cannot be read from a trace, because it has to be simulated.

    Raises:
        ValueError: nothing was executed.
    """
    time = step_time(trace)
    path = critical_path(trace)

    def share(cycles: int) -> str:
        return f"{duration(trace.seconds(cycles)):>10}  {100 * cycles / max(time.total, 1):5.1f} %"

    lines = [f"The last run ({duration(trace.seconds(time.total))}) is {time.sentence()}.", ""]
    lines.append(f"Where its time goes, on IPU {time.ipu}, which sets the pace:")
    parts = sorted(time.parts.items(), key=lambda part: -part[1])
    lines += [f"  {share(cycles)}  {TIME_PARTS[name]}" for name, cycles in parts[:_LISTED] if cycles]
    lines += ["", "Modules with the most cycles over all runs and IPUs, each without those inside it:"]
    lines += _modules(trace)
    lines += ["", f"Its critical path ({_through(path.ipus, path.changes)}) is above all:"]
    ops = trace.columns("ops")
    line_of = dict(zip(ops["name"].tolist(), ops["line"].tolist(), strict=True))
    for row in path_cycles(trace, path).head(_LISTED).itertuples():
        place = _short(line_of.get(str(row.op), ""))
        activity = f"{row.op}{place and f' ({place})'}" if row.op else ""
        activity = activity or ("sync between IPUs" if row.kind in WAITING_KINDS else "no op")
        description = f"{activity}, {KIND_LABELS[str(row.kind)]}, IPU {row.ipu}"
        lines.append(f"  {share(int(row.cycles))}  {description}")
    waits = time.waits.by_blamed()
    if len(waits):
        lines += ["", "Who waits longest, and for whom:"]
        for row in waits.sort_values(["dur", "ipu"], ascending=[False, True]).head(_LISTED).itertuples():
            for_op = f" at {row.blamed_op}" if row.blamed_op else ""
            lines.append(f"  {share(int(row.dur))}  IPU {row.ipu} for IPU {row.blamed_ipu}{for_op}")
    return "\n".join(lines) + "\n"


def _modules(trace: Trace) -> list[str]:
    """The costliest modules with their share of all cycles that are no waiting, and their costliest lines."""
    costs = operation_costs(trace)
    costs["module"] = costs["module"].where(costs["op"] != NO_OP_NAME, NO_OP_NAME)
    by_module = costs.groupby("module", as_index=False)["cycles"].sum()
    by_line = costs[costs["line"] != ""].groupby(["module", "line"], as_index=False)["cycles"].sum()
    line_of = by_line.sort_values(["cycles", "line"], ascending=[True, False]).set_index("module")["line"].to_dict()
    total = max(int(by_module["cycles"].sum()), 1)
    lines = []
    for row in by_module.sort_values(["cycles", "module"], ascending=[False, True]).head(_LISTED).itertuples():
        place = _short(line_of.get(row.module, ""))
        lines.append(f"  {100 * int(row.cycles) / total:5.1f} %  {row.module}" + (f" ({place})" if place else ""))
    return lines


def _short(line: str) -> str:
    """A line with the last folder and the name of its file."""
    return "/".join(line.split("/")[-2:])


def _through(ipus: list[int], changes: int) -> str:
    """The IPUs of a path in words."""
    if len(ipus) == 1:
        return f"on IPU {ipus[0]} all along"
    return f"over IPUs {', '.join(map(str, ipus))}, {changes:,} changes"
