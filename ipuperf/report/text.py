"""The summary of a trace in words, in the style of ``printProfileSummary``."""

from __future__ import annotations

from typing import Any

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import breakdown_cycles
from ipuperf.report.intervals import interval, throughput
from ipuperf.report.step_time import TIME_PARTS, StepTime, followable, step_time
from ipuperf.trace import NO_OP, Trace, step_runs
from ipuperf.trace.printable import printable
from ipuperf.trace.variables import variable_rows

_WIDTH = 48
_LISTED = 8
"""The largest number of runs, IPUs and links that are listed. The text says how many are left out."""

_TILE_AVERAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compute", ("compute",)),
    ("IPU exchange", ("exchange",)),
    ("global exchange", ("link",)),
    ("Streaming Memory", ("remote_load", "remote_store")),
    ("host exchange", ("host_begin", "host_mid", "host_end", "host_run")),
    ("sync", ("sync", "sync_external", "idle")),
)
"""The lines of the execution part and the kinds of steps that each adds up."""


def size(count: float | None) -> str:
    """Bytes in words: ``"1,234,567 B (1.2 MB)"``, decimal units; ``"unknown"`` for None."""
    if count is None:
        return "unknown"
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= limit:
            return f"{count:,.0f} B ({count / limit:,.1f} {unit})"
    return f"{count:,.0f} B"


@checked
def duration(seconds: float) -> str:
    """Seconds in words, with four significant digits: ``"12.34 us"``, ``"1.234 ms"``."""
    for limit, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= limit:
            return f"{seconds / limit:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _line(label: str, value: str, indent: int = 2) -> str:
    return f"{' ' * indent}{label + ':':<{_WIDTH - indent}} {value}"


def _target(trace: Trace) -> list[str]:
    meta = trace.meta
    tiles, ipus, replicas = meta["tiles_per_ipu"], meta["num_ipus"], meta["replicas"]
    return [
        "Target:",
        _line("Machine", str(meta["machine"])),
        _line("Number of IPUs", f"{ipus:,}"),
        _line("Tiles per IPU", f"{tiles:,}"),
        _line("Total Tiles", f"{tiles * ipus:,}"),
        _line("Memory Per-Tile", size(meta["bytes_per_tile"])),
        _line("Total Memory", size(meta["bytes_per_tile"] * tiles * ipus)),
        _line("Clock Speed", f"{meta['clock_hz'] / 1e6:,.1f} MHz"),
        _line("Number of Replicas", f"{replicas:,}"),
        _line("IPUs per Replica", f"{ipus / replicas:g}"),
    ]


def _graph(trace: Trace) -> list[str]:
    programs = trace.columns("programs")
    executed = len(set(trace.step_ops[(step_runs(trace) > 0) & (trace.columns("steps")["op_id"] != NO_OP)]))
    kinds = [(kind, int((programs["type"] == kind).sum())) for kind in sorted(set(programs["type"]))]
    return [
        "Graph:",
        _line(
            "Number of operations", f"{len(trace.columns('ops')['op_id']):,} in all graphs, {executed:,} with a cost"
        ),
        _line("Number of compute sets", f"{int((programs['type'] == 'OnTileExecute').sum()):,}"),
        _line("Number of variables", f"{len(set(variable_rows(trace).columns['var_id'].tolist())):,}"),
        _line("Number of programs", f"{len(programs['type']):,}"),
        *(_line(kind, f"{count:,}", 4) for kind, count in kinds),
    ]


def verdicts(trace: Trace) -> list[str]:
    """The warnings about IPUs that the program does not fit: tile, op and line, contributors, what would help."""
    return [text for text in trace.meta["warnings"] if text.startswith("does not fit")]


def _memory(memory: dict[str, Any], verdicts: list[str]) -> list[str]:
    if memory["max_tile"] is None:
        return ["Memory Usage:", "  not recorded in this trace"]
    total = sum(memory["categories"].values())
    fullest, limit = memory["max_tile"], memory["bytes_per_tile"]
    lines = ["Memory Usage:"]
    stored = len(memory["ipus"])
    whose = f"the {stored} IPUs of one replica" if stored > 1 else "the IPU of one replica"
    if total:
        lines += [
            _line(f"Total for {whose}, including gaps", size(total)),
            _line(f"Total for {whose}, excluding gaps", size(total - memory["categories"]["gaps"])),
            "  By category:",
            *_categories(memory),
        ]
    lines += ["  By liveness:"] if any(ipu["always_live"] is not None for ipu in memory["ipus"]) else []
    known = [ipu for ipu in memory["ipus"] if ipu["always_live"] is not None]
    # The IPUs with the highest peaks, listed in the order of their numbers.
    for ipu in sorted(sorted(known, key=lambda ipu: -ipu["total_peak"])[:_LISTED], key=lambda ipu: ipu["ipu"]):
        lines.append(_line(f"IPU {ipu['ipu']}, always live", size(ipu["always_live"]), 4))
        lines.append(_line(f"IPU {ipu['ipu']}, not always live (peak)", size(ipu["not_always_live_peak"]), 4))
    if len(known) > _LISTED:
        lines.append(f"    ... and {len(known) - _LISTED:,} IPUs with a lower peak")
    share = f"{100 * fullest['bytes'] / limit:.1f}% of {limit:,} B"
    lines.append(_line("Maximum on a tile, including gaps", f"{size(fullest['bytes'])}, {share}"))
    lines.append(_line("Fullest tile", f"tile {fullest['tile']} of IPU {fullest['ipu']}"))
    if memory["fits"]:
        lines.append("  The program fits.")
    else:
        lines.append(
            f"  OUT OF MEMORY: {memory['tiles_over']:,} tile(s) over, the worst by {size(memory['over_bytes'])}. "
            "The times below are those of a machine that could hold it."
        )
        lines += [
            _line(variable["name"], f"{size(variable['bytes_on_tile'])} on this tile", 4)
            for variable in memory["largest_variables"]
        ]
        lines += [f"    {part}" for text in verdicts for part in text.split("; ")]
    return lines


def _categories(memory: dict[str, Any]) -> list[str]:
    """A line for each category that has bytes. Below ``variableNotAlwaysLive`` stands its excess over liveness.

    Categories are taken at the step with the highest total of each IPU. But a tile that is the fullest one at another
    step counts with its bytes at that step, so that the fullest tile is that of the whole run.
    """
    lines = []
    above = memory["categories"]["variableNotAlwaysLive"]
    above -= sum(ipu["not_always_live_peak"] or 0 for ipu in memory["ipus"])
    for name, count in memory["categories"].items():
        if count:
            lines.append(_line(name, size(count), 4))
        if name == "variableNotAlwaysLive" and 0 < above < count:
            lines.append(_line("above the peak, on tiles fullest at other steps", size(above), 6))
    return lines


def _execution(trace: Trace, summary: dict[str, Any], time: StepTime | None) -> list[str]:
    total = summary["total_cycles"]
    if not trace.rows("instances"):
        return ["Execution:", "  nothing was executed"]
    lines = ["Execution:", _line("Total cycles", f"{total:,} ({duration(summary['seconds'])})")]
    lines += [
        _line(f"{run['name']}", f"{run['cycles']:,} ({duration(run['seconds'])})", 4)
        for run in summary["runs"][:_LISTED]
    ]
    if len(summary["runs"]) > _LISTED:
        lines.append(f"    ... and {len(summary['runs']) - _LISTED:,} more runs")
    for label, kinds in _TILE_AVERAGES:
        cycles = sum(summary["tile_average"][kind]["cycles"] for kind in kinds)
        share = 100 * cycles / total if total else 0.0
        lines.append(_line(f"Tile average {label} cycles", f"{cycles:,.0f} ({share:.1f}% of total)"))
    if summary["tile_balance"] is not None:
        lines.append(_line("Tile balance (compute)", f"{100 * summary['tile_balance']:.1f}%"))
    return lines + _last_run(trace, time)


def _last_run(trace: Trace, time: StepTime | None) -> list[str]:
    """What bounds the last run, the parts of its time on the IPU that sets the pace, and the waiting of each IPU.

    If the run has too many steps to follow (``time`` is None), only the parts are given, with all waiting in "sync".
    """
    if time is None:
        parts = breakdown_cycles(trace)
        lines = ["  Last run, on the IPU that ends last (too many steps to follow its waiting):"]
        return lines + [
            _line(part, f"{cycles:,} ({duration(trace.seconds(cycles))})", 4) for part, cycles in parts.items()
        ]
    lines = [f"  Last run, {throughput(trace).sentence()}", f"  Last run, measured time {interval(trace).sentence()}"]
    lines.append(f"  Last run, {time.sentence()}:")
    for part, cycles in time.parts.items():
        if cycles:
            value = f"{cycles:,} ({duration(trace.seconds(cycles))}, {100 * cycles / max(time.total, 1):.1f}%)"
            lines.append(_line(TIME_PARTS[part], value, 4))
    waiting = time.waits.by_ipu()
    if len(waiting) > 1:
        lines.append("  Last run, waiting of each IPU:")
        lines += [_line(f"IPU {ipu}", _owned(owners, time.total), 4) for ipu, owners in list(waiting.items())[:_LISTED]]
        if len(waiting) > _LISTED:
            lines.append(f"    ... and {len(waiting) - _LISTED:,} more IPUs")
    return lines


def _owned(owners: dict[str, int], total: int) -> str:
    """Waiting cycles with their share and their owners, the largest first."""
    cycles = sum(owners.values())
    parts = ", ".join(f"{owner} {count:,}" for owner, count in sorted(owners.items(), key=lambda pair: -pair[1]))
    return f"{cycles:,} ({100 * cycles / max(total, 1):.1f}%): {parts}"


def _traffic(summary: dict[str, Any]) -> list[str]:
    traffic = summary["traffic"]
    lines = [
        "Traffic (all stored IPUs):",
        _line("IPU exchange, received / sent", _both(traffic["exchange"])),
        _line("Global exchange, received / sent", _both(traffic["link"])),
        _line("StreamCopy, received / sent", _both(traffic["host_mid"])),
        _line("Streaming Memory, loaded", size(traffic["remote_load"]["bytes_in"])),
        _line("Streaming Memory, stored", size(traffic["remote_store"]["bytes_out"])),
    ]
    used = sorted((link for link in summary["links"] if link["bytes"]), key=lambda link: -link["utilisation"])
    for link in used[:_LISTED]:
        lines.append(_line(f"link {link['name']}", f"{size(link['bytes'])}, {100 * link['utilisation']:.1f}% used", 4))
    if len(used) > _LISTED:
        lines.append(f"    ... and {len(used) - _LISTED:,} less used links")
    return lines


def _both(traffic: dict[str, int]) -> str:
    return f"{size(traffic['bytes_in'])} / {size(traffic['bytes_out'])}"


@checked
def summary_text(trace: Trace) -> str:
    """The summary of a trace in the words of ``printProfileSummary``: target, graph, memory, execution, traffic.

    "Tile average" is the mean over all tiles of all stored IPUs. Percentages refer to the total cycles, from the first
    start to the last end. Sync includes external sync and idle. Time without any step is in the total but in none of
    these lines, and it counts as waiting in the last run. Sizes are decimal (1 MB = 1,000,000 B). Ends with a newline.
    """
    executed = trace.rows("instances") > 0
    return summary_of(trace, trace.summary(), step_time(trace) if executed and followable(trace) else None)


def summary_of(trace: Trace, summary: dict[str, Any], time: StepTime | None) -> str:
    """The text of :func:`summary_text`, from the figures of a trace and the time of its last run (None: unknown)."""
    parts = [
        _target(trace),
        _graph(trace),
        _memory(summary["memory"], verdicts(trace)),
        _execution(trace, summary, time),
        _traffic(summary),
    ]
    if trace.meta.get("faults"):
        from ipuperf.report.faults import fault_rows  # it says durations as this module does

        parts.insert(4, ["Faults:", *(_line(label, value) for label, value in fault_rows(trace.meta))])
    for title, key in (("Warnings:", "warnings"), ("Assumptions:", "assumptions")):
        if trace.meta[key]:
            parts.append([title, *(f"  - {text}" for text in trace.meta[key])])
    return printable("\n\n".join("\n".join(lines) for lines in parts)) + "\n"
